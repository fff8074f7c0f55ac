"""The engine kit of a simulated engine: the same routes, shapes and rules as in a vLLM pod.

What needs no vLLM is the kit's own code: the gate (cordon, drain, restart, commands and their outcomes), the
watcher's rounds over the annotations file, and the rule of what may be released. Only the list, and what a
release does to the scheduler, are the simulation's.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass

from aiohttp import web

from stanch.edge.demo.enginecore import EngineCore
from stanch.edge.demo.scheduler import Phase, Request
from stanch.edge.waking import ended, woken
from stanch_connector import contract
from stanch_connector.apiserver import drain, keys
from stanch_connector.apiserver.commands import Order
from stanch_connector.apiserver.gate import Gate, Report
from stanch_connector.apiserver.watcher import BUSY_POLL_SECONDS, POLL_SECONDS, Watcher
from stanch_connector.contract import Outcome, RequestEntry
from stanch_connector.engine.ids import client_id
from stanch_connector.release import Facts, No, RankState, judge

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
_ROLES = {"prefill": "kv_producer", "decode": "kv_consumer", "both": "kv_both"}
_MOST_BODY_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class About:
    """What the state says of this engine."""

    vllm: str
    role: str
    lease_seconds: float
    api_key: str | None = None
    token_file: str | None = None
    annotations: str | None = None
    engine_ids: tuple[str, ...] = ()


class Kit:
    """Of one server's process and its ranks; the boot id is new in each."""

    def __init__(self, cores: Sequence[EngineCore], about: About) -> None:
        self._cores = cores
        self._about = about
        self._boot_id = secrets.token_hex(8)
        self._gate = Gate(self._boot_id, token_file=about.token_file, counting=True)
        self._gate.releaser = self._release
        self._watcher = Watcher(self._gate, about.annotations)
        self._released: Counter[str] = Counter()
        self._refused: Counter[str] = Counter()

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get(contract.ROUTE_REQUESTS, self.requests),
            web.get(contract.ROUTE_STATE, self.state),
            web.get(contract.ROUTE_READY, self.ready),
            web.post(contract.ROUTE_COMMAND, self.command),
        ]

    async def run(self, app: web.Application) -> AsyncIterator[None]:
        """The watcher's rounds, for as long as the application lives (an aiohttp cleanup context)."""
        # All of it lives in this one thread: the gate is told by handlers and by the rounds themselves.
        wake = asyncio.Event()
        self._gate.wake = wake.set

        async def rounds() -> None:
            while True:
                self._watcher.once()
                await woken(wake, BUSY_POLL_SECONDS if self._gate.busy() else POLL_SECONDS)
                wake.clear()

        task = asyncio.create_task(rounds())
        yield
        await ended(task)

    @web.middleware
    async def guarded(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """As the middleware in a pod: new work is turned away while the engine drains, and work is counted.

        /sim is the side channel and the director's; in a pod it does not come this way.
        """
        path = request.path
        if path.startswith("/sim"):
            return await handler(request)
        if (reason := self._gate.turns_away(path, request.headers.get("X-Request-Id"))) is not None:
            error = {"message": reason, "type": "ServiceUnavailableError", "param": None, "code": 503}
            headers = {"Connection": "close", "Retry-After": "1"}
            return web.json_response({"error": error}, status=503, headers=headers)
        if path.startswith("/v1") and not self._key_fits(request):
            return web.json_response({"error": "Unauthorized"}, status=401)
        if not drain.is_work(path):
            return await handler(request)
        self._gate.opened()
        try:
            return await handler(request)
        finally:
            self._gate.closed()

    def _key_fits(self, request: web.Request) -> bool:
        given = request.headers.get("Authorization")
        wanted = [self._about.api_key] if self._about.api_key else []
        return keys.allowed(given.encode() if given is not None else None, wanted)

    async def requests(self, request: web.Request) -> web.Response:
        """GET: contract.Requests."""
        if not self._key_fits(request):
            return web.json_response({"error": "Unauthorized"}, status=401)
        body: contract.Requests = {
            "schema": contract.SCHEMA_REQUESTS,
            "bootId": self._boot_id,
            "ranks": {str(i): {"requests": _entries(core)} for i, core in enumerate(self._cores)},
            "missingRanks": [],
        }
        return web.json_response(body)

    async def state(self, _: web.Request) -> web.Response:
        """GET: contract.KitState."""
        body: contract.KitState = {
            "schema": contract.SCHEMA_STATE,
            "contract": contract.CONTRACT_VERSION,
            "kit": "simulated",
            "vllm": self._about.vllm,
            "connector": "NixlConnector",
            "role": _ROLES[self._about.role],
            "engineIds": {str(rank): own for rank, own in enumerate(self._about.engine_ids)},
            "fix": "off",
            "fixReason": "the engine is simulated, and has the defect",
            "bootId": self._boot_id,
            "ready": self._gate.ready(),
            "pinSeconds": None,
            "leaseSeconds": self._about.lease_seconds,
            "bidirectional": False,
            "errors": {},
            "fixHits": 0,
            "releases": dict(self._released),
            "refusals": dict(self._refused),
            "disabled": None,
        }
        return web.json_response({**body, **self._gate.state()})

    async def ready(self, _: web.Request) -> web.Response:
        reason = self._gate.not_ready()
        if reason is None:
            return web.json_response({"ready": True})
        return web.json_response({"ready": False, "reason": reason}, status=503)

    async def command(self, request: web.Request) -> web.Response:
        """POST: contract.Command -> contract.Outcome; 404 without a token file."""
        body = await request.content.read(_MOST_BODY_BYTES + 1)
        if len(body) > _MOST_BODY_BYTES:
            return web.json_response({"error": "too long"}, status=413)
        status, answer = self._gate.command(body, request.headers.get("Authorization"))
        return web.json_response(dict(answer), status=status)

    def _release(self, order: Order, report: Report) -> None:
        """Called from the event loop (a POST) or a round of the watcher, which is in it as well."""
        args = order.release
        assert args is not None
        report({"id": order.id, "state": "running"})
        entries = [(core, one) for core in self._cores for one in _entries(core)]
        if args.ids is None:
            meant = [(core, one) for core, one in entries if one["waitsFor"] == "remote_kv"]
        else:
            meant = [
                (core, one)
                for core, one in entries
                if one["id"] in args.ids or one["schedulerId"] in args.ids
            ]
        ways: dict[str, contract.Way] = {}
        refused: dict[str, str] = {}
        kinds: Counter[str] = Counter()
        for core, entry in meant:
            name, way, kind = entry["schedulerId"], entry["way"], entry["refusalKind"]
            if way is None:
                refused[name], kinds[kind or "failed"] = entry["refusal"] or "", kinds[kind or "failed"] + 1
            elif entry["ageSeconds"] < (args.older_than_seconds or 0.0):
                refused[name] = f"it has been so for {entry['ageSeconds']:.0f} s"
                kinds["too-young"] += 1
            else:
                ways[name] = way
                if not args.dry_run:
                    core.release(name)
        known = {name for _, one in entries for name in (one["id"], one["schedulerId"])}
        for one in dict.fromkeys(one for one in args.ids or () if one not in known):
            refused[one] = "no request has this id"
            kinds["unknown-id"] += 1
        if not args.dry_run:
            self._released.update(ways.values())
            self._refused.update(kinds)
        outcome: Outcome = {
            "id": order.id,
            "state": "refused" if refused and not ways else "done",
            "dryRun": args.dry_run,
            "released": list(ways),
            "ways": ways,
            "refused": refused,
            "refusals": dict(kinds),
            "missingRanks": [],
        }
        if outcome["state"] == "refused":
            outcome["reason"] = "none of them may be released"
        report(outcome)


def _entries(core: EngineCore) -> list[RequestEntry]:
    """Those held after their end first, then the parked, then the rest, each the longest first."""
    now = time.monotonic()
    listed = [_entry(core, request, now) for request in core.scheduler.of(*Phase)]
    order = {Phase.ORPHAN.value: 0, Phase.PARKED.value: 0, Phase.LEASED.value: 1}
    return sorted(listed, key=lambda e: (order.get(e["status"], 2), -e["ageSeconds"]))


def _entry(core: EngineCore, request: Request, now: float) -> RequestEntry:
    verdict = _judge(core, request)
    refused = verdict if isinstance(verdict, No) else None
    waits: dict[Phase, contract.Waits] = {
        Phase.PARKED: "remote_kv",
        Phase.ORPHAN: "remote_kv",
        Phase.WAITING: "capacity",
    }
    return {
        "id": client_id(request.ask.id, randomized=True),
        "schedulerId": request.ask.id,
        "status": request.phase.value,
        "ageSeconds": round(now - request.since, 3),
        "blocks": request.blocks,
        "cacheShare": round(request.blocks / core.scheduler.blocks, 6),
        "remoteEngine": request.ask.remote.engine_id if request.ask.remote else None,
        "clientGone": request.phase in (Phase.ORPHAN, Phase.LEASED),
        "waitsFor": waits.get(request.phase),
        "leased": request.phase is Phase.LEASED,
        "pinned": False,
        "releasable": refused is None,
        "way": None if isinstance(verdict, No) else verdict,
        "refusal": refused.reason if refused else None,
        "refusalKind": refused.kind if refused else None,
    }


def _judge(core: EngineCore, request: Request) -> contract.Way | No:
    facts = Facts(
        status=request.phase.value,
        parked=request.phase in (Phase.PARKED, Phase.ORPHAN),
        ended=request.phase in (Phase.ORPHAN, Phase.LEASED),
        awaited=request.ask.id in core.said,
        leased=request.phase is Phase.LEASED,
        producer=request.ask.keep,
        arrived=request.phase is Phase.PARKED and request.pulled,
        remote=request.ask.remote.engine_id if request.ask.remote else None,
    )
    return judge(facts, {0: core.said.get(request.ask.id, RankState.UNKNOWN)}, world_size=1)
