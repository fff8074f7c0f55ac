"""`stanch operator` that kills itself (SIGKILL) at a named effect. Nothing of the product knows of it.

    STANCH_CRASH="after pod: cordon" STANCH_CRASH_SEEN=FILE python -m tests.cluster.crash_inside

It wraps by name what all writes to the API server go through (Transport.send), and what is asked of engines
that costs them something (the list of requests, a canary, the two halves of a probe). Each effect has a name,
its point, and counts the first time that it is met. Points are written to the file in STANCH_CRASH_SEEN as
they are met, one a line. Without STANCH_CRASH nothing is killed. Cordons last 5 s, renewed every 1.5 s,
so that what happens after a crash is seen sooner.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from stanch.core import plan_limits

LEASE_SECONDS, RENEW_SECONDS = 5.0, 1.5
# Before anything copies them by importing them.
plan_limits.CORDON_LEASE_SECONDS = LEASE_SECONDS  # type: ignore[misc]
plan_limits.CORDON_RENEW_SECONDS = RENEW_SECONDS  # type: ignore[misc]

from stanch.__main__ import main  # noqa: E402
from stanch.edge import engine, kit, probe  # noqa: E402
from stanch.edge.cluster import transport  # noqa: E402
from stanch.edge.cluster.refs import Request  # noqa: E402
from stanch_connector import contract  # noqa: E402

T = TypeVar("T")
_READS = ("get", "list", "watch")
# Not of a remediation: the election, and questions about our own rights.
_OTHERS = ("leases", "selfsubjectaccessreviews", "subjectaccessreviews")


class Points:
    """Names what is about to be done. It remembers what a name depends on: whether a cordon is a new one, and
    at which step the incident is."""

    def __init__(self) -> None:
        self._cordoned = False
        self._claimed = False
        self._step = "no step"

    def engine(self, what: str) -> str:
        return f"engine: {what} at {self._step}"

    def write(self, request: Request) -> str | None:
        """None for what only reads, and for what belongs to no remediation."""
        kind, body = request.kind, request.body or {}
        if request.verb in _READS or kind in _OTHERS:
            return None
        if kind == "leakincidents/status":
            return f"incident: {self._incident(body['status'])}"
        if kind == "leakwatches/status":
            return self._ledger(body["status"])
        if kind == "pods":
            return f"pod: {self._pod(body['metadata']['annotations'])}"
        if kind == "pods/eviction":
            return "pod: eviction tried" if request.query.get("dryRun") else "pod: eviction"
        if kind == "events":
            return None if self._step == "no step" else "event"
        return f"{kind}: {request.verb}"

    def _incident(self, status: Mapping[str, Any]) -> str:
        if status.get("ending"):
            self._step = "the end"
            return "ended"
        names = [step["name"] for step in status.get("steps", [])]
        number = names.count(names[-1]) if names else 0
        self._step = "no step" if not names else names[-1] if number == 1 else f"{names[-1]} {number}"
        return self._step

    def _ledger(self, status: Mapping[str, Any]) -> str | None:
        if status.get("claims"):
            self._claimed = True
            return "watch: claimed"
        if self._claimed:
            # A cordon that ran out, as on a machine that is very busy, gives the claim back before its time.
            late = self._step.startswith(("Uncordon", "Evict", "the end"))
            return "watch: claim given back" if late else "watch: claim let go"
        return "watch: suspect" if status.get("suspects") else None

    def _pod(self, annotations: Mapping[str, str | None]) -> str:
        command = annotations.get(contract.ANNOTATION_COMMAND)
        if command is not None:
            return str(json.loads(command)["verb"])
        if annotations.get(contract.ANNOTATION_CORDON) is None:
            return "lift"
        again, self._cordoned = self._cordoned, True
        return "cordon renewed" if again else "cordon"


class Crash:
    """at: "before POINT" or "after POINT"; None: never. seen: where the points go that are met."""

    def __init__(self, at: str | None, seen: Path | None) -> None:
        self._at = at
        self._seen = seen
        self._met: Counter[str] = Counter()

    async def around(self, point: str | None, work: Callable[[], Awaitable[T]]) -> T:
        if point is None:
            return await work()
        self._met[point] += 1
        first = self._met[point] == 1
        if first and self._seen is not None:
            with self._seen.open("a") as file:
                file.write(f"{point}\n")
        if first and self._at == f"before {point}":
            _die()
        found = await work()
        if first and self._at == f"after {point}":
            _die()
        return found


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def wrap(crash: Crash, points: Points) -> None:
    send, canary, ask = transport.Transport.send, engine.canary, probe.Probe._ask
    requests = kit.requests

    async def sent(self: Any, request: Request, *rest: Any, **more: Any) -> bytes:
        return await crash.around(points.write(request), lambda: send(self, request, *rest, **more))

    async def asked(*rest: Any, **more: Any) -> Any:
        return await crash.around(points.engine("canary"), lambda: canary(*rest, **more))

    async def listed(*rest: Any, **more: Any) -> Any:
        return await crash.around(points.engine("list"), lambda: requests(*rest, **more))

    async def transferred(self: Any, where: str, *rest: Any) -> dict[str, Any]:
        return await crash.around(points.engine(f"{where} of a probe"), lambda: ask(self, where, *rest))

    transport.Transport.send = sent  # type: ignore[method-assign]
    engine.canary = asked
    kit.requests = listed
    probe.Probe._ask = transferred  # type: ignore[method-assign, assignment]


if __name__ == "__main__":
    file = os.environ.get("STANCH_CRASH_SEEN")
    wrap(Crash(os.environ.get("STANCH_CRASH"), Path(file) if file else None), Points())
    sys.argv = ["stanch", "operator"]
    sys.exit(main())
