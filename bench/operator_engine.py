"""One stand-in engine of bench.operator: its page, its kit and its answers, as of vLLM 0.29.0 with the kit.

It serves a steady load until it leaks: then nothing runs, what is held stays held, and the kit lists who
holds it. It obeys cordons and commands as the kit does, but at once; a restart is a new process that serves
at once.
"""

from __future__ import annotations

import json
import secrets
import time
from dataclasses import dataclass, field
from typing import Any

from bench.operator_page import PAGE
from stanch_connector import contract

_TOKENS_A_SECOND, _REQUESTS_A_SECOND, _RUNNING = 400.0, 2.0, 8
_STUCK, _BLOCKS_EACH, _SHARE_EACH = 3, 400, 0.15


@dataclass(slots=True)
class Leak:
    """One leak of one engine, with the Unix times of what became of it; None: not (yet)."""

    pod: str
    planted: float
    # When its page was first read since.
    seen: float | None = None
    cordoned: float | None = None
    restarted: float | None = None
    released: float | None = None
    over: float | None = None


@dataclass(slots=True)
class Engine:
    """One pod's engine. number: counts the container's runs."""

    name: str
    role: str
    address: str
    uid: str = ""
    number: int = 0
    boot_id: str = ""
    started: float = 0.0
    leak: Leak | None = None
    cordon: dict[str, Any] | None = None
    cordon_ends: float = 0.0
    # The cordon's text as last seen: one that a process found when it started counts once it changes.
    _mark: str = ""
    draining: bool = False
    _command: str = ""
    _extra: dict[str, float] = field(default_factory=dict)
    outcomes: list[dict[str, Any]] = field(default_factory=list)
    # Seconds for which this process has worked, and since when it does (0: it does not).
    _worked: float = 0.0
    _works_since: float = 0.0

    def start(self) -> None:
        """Another process in another run of the container; it has no leak, no cordon and no outcomes."""
        now = time.time()
        self.number += 1
        self.boot_id = secrets.token_hex(8)
        self.started, self._worked, self._works_since = now, 0.0, now
        self.leak, self.cordon, self.draining, self.outcomes = None, None, False, []
        self._extra = dict.fromkeys(("generated", "prompt", "transferred", "finished", "steps"), 0.0)

    @property
    def container_id(self) -> str:
        return f"containerd://{self.uid}-{self.number}"

    @property
    def ready(self) -> bool:
        return self.cordon is None and not self.draining

    def plant(self) -> Leak:
        """From now on nothing runs, and the cache is held for nobody."""
        self._pause()
        self.leak = Leak(self.name, time.time())
        return self.leak

    def mend(self) -> None:
        """What is held is freed."""
        if self.leak is not None:
            self.leak.released = self.leak.over = time.time()
            self.leak = None
        self._resume()

    def obey(self, annotations: dict[str, str]) -> bool:
        """Take in what is on the pod now; whether that changed what its status should say."""
        before = self.ready, self.number
        self._cordon(annotations.get(contract.ANNOTATION_CORDON))
        text = annotations.get(contract.ANNOTATION_COMMAND)
        order = json.loads(text) if text else {}
        if order.get("bootId") == self.boot_id and order.get("id") != self._command:
            self._command = order["id"]
            self._do(order)
        self._resume()
        return before != (self.ready, self.number)

    def lapse(self) -> bool:
        """Whether its cordon has just run out."""
        if self.cordon is None or time.monotonic() < self.cordon_ends:
            return False
        self.cordon = None
        self._resume()
        return True

    def _cordon(self, text: str | None) -> None:
        if text is None:
            self.cordon, self._mark = None, ""
            return
        if text == self._mark:
            return
        self._mark, mark = text, json.loads(text)
        self.cordon = mark
        self.cordon_ends = time.monotonic() + float(mark["leaseSeconds"])
        self._pause()
        if self.leak is not None and self.leak.cordoned is None:
            self.leak.cordoned = time.time()

    def _do(self, order: dict[str, Any]) -> None:
        verb, outcome = order["verb"], {"id": order["id"], "verb": order["verb"], "state": "done"}
        if verb == "restart":
            if self.leak is not None:
                self.leak.restarted = self.leak.over = time.time()
            self.start()
            return
        if verb == "drain":
            self.draining = True
            self._pause()
        elif verb == "undrain":
            self.draining = False
        elif verb == "release":
            outcome["released"] = order.get("args", {}).get("ids", [])
            self.mend()
        self.outcomes.append(outcome)

    def _pause(self) -> None:
        if self._works_since:
            self._worked += time.time() - self._works_since
            self._works_since = 0.0

    def _resume(self) -> None:
        if not self._works_since and self.leak is None and self.ready:
            self._works_since = time.time()

    # What it answers

    def page(self) -> bytes:
        now = time.time()
        if self.leak is not None and self.leak.seen is None:
            self.leak.seen = now
        works = self._works_since > 0
        worked = self._worked + (now - self._works_since if works else 0.0)
        tokens = int(worked * _TOKENS_A_SECOND)
        held = _STUCK * _SHARE_EACH if self.leak is not None else 0.0
        extra = self._extra
        return PAGE % {
            b"started": self.started,
            b"running": _RUNNING if works else 0,
            b"usage": 0.3 if works else held,
            b"transferred": tokens + extra["transferred"],
            b"prompt": tokens + extra["prompt"],
            b"generated": tokens + extra["generated"],
            b"finished": int(worked * _REQUESTS_A_SECOND) + extra["finished"],
            b"steps": tokens // _RUNNING + extra["steps"],
        }

    def answer(self, path: str, body: bytes) -> tuple[int, Any]:
        """Status and JSON of anything but the page."""
        if path == "/health":
            return 200, {}
        if path == "/version":
            return 200, {"version": "0.29.0"}
        if path == "/v1/models":
            return 200, {"data": [{"id": "tiny", "max_model_len": 4096}]}
        if path == contract.ROUTE_STATE:
            return 200, self._state()
        if path == contract.ROUTE_REQUESTS:
            return 200, self._list()
        if path == "/v1/completions":
            return self._complete(json.loads(body))
        return 404, {}

    def _complete(self, asked: dict[str, Any]) -> tuple[int, Any]:
        tokens, made = len(asked["prompt"]), asked["max_tokens"]
        transfer = asked.get("kv_transfer_params")
        self._extra["generated"] += made
        self._extra["prompt"] += tokens
        self._extra["finished"] += 1
        self._extra["steps"] += made
        answer: dict[str, Any] = {
            "choices": [{"text": "a" * made}],
            "usage": {"prompt_tokens": tokens, "completion_tokens": made},
        }
        if transfer and transfer.get("do_remote_decode"):
            answer["kv_transfer_params"] = {"do_remote_prefill": True, "remote_engine_id": self.boot_id}
        elif transfer:
            self._extra["transferred"] += tokens
        return 200, answer

    def _state(self) -> contract.KitState:
        return {
            "schema": contract.SCHEMA_STATE,
            "contract": contract.CONTRACT_VERSION,
            "kit": "bench",
            "vllm": "0.29.0",
            "connector": "NixlConnector",
            "role": "kv_consumer" if self.role == "decode" else "kv_producer",
            "fix": "off",
            "fixReason": "the engine is a stand-in",
            "bootId": self.boot_id,
            "ready": self.ready,
            "draining": self.draining,
            "cordoned": self.cordon is not None,
            "cordonIncident": None if self.cordon is None else self.cordon.get("incident"),
            "pinSeconds": None,
            "leaseSeconds": 30.0,
            "bidirectional": False,
            "outcomes": self.outcomes,  # type: ignore[typeddict-item]
            "disabled": None,
        }

    def _list(self) -> contract.Requests:
        stuck = range(_STUCK) if self.leak is not None else ()
        return {
            "schema": contract.SCHEMA_REQUESTS,
            "bootId": self.boot_id,
            "ranks": {"0": {"requests": [self._entry(number) for number in stuck]}},
            "missingRanks": [],
        }

    def _entry(self, number: int) -> contract.RequestEntry:
        assert self.leak is not None
        name = f"cmpl-{self.boot_id}-{number}"
        return {
            "id": name,
            "schedulerId": f"{name}-0",
            "status": "FINISHED_ABORTED",
            "ageSeconds": round(time.time() - self.leak.planted, 3),
            "blocks": _BLOCKS_EACH,
            "cacheShare": _SHARE_EACH,
            "remoteEngine": "prefill",
            "clientGone": True,
            "waitsFor": "remote_kv",
            "leased": False,
            "pinned": False,
            "releasable": True,
            "way": "freed",
            "refusal": None,
            "refusalKind": None,
        }
