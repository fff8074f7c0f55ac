"""`stanch operator` that kills itself (SIGKILL) at a named effect. Nothing of the product knows of it.

    STANCH_CRASH="after pod: cordon" STANCH_CRASH_SEEN=FILE python -m tests.cluster.crash_inside

It wraps by name what all writes to the API server go through (Transport.send), and what is asked of engines
that costs them something (the list of requests, a canary, the two halves of a probe). Each effect has a name,
its point, and counts the first time that it is met. Points are written to the file in STANCH_CRASH_SEEN as
they are met, one a line. Without STANCH_CRASH nothing is killed. Cordons last 5 s, renewed every 1.5 s,
so that what happens after a crash is seen sooner.

    STANCH_CRASH="after await watchdog._turn: surveyor.read at Drain"

kills it at an await of its loops (crash_awaits.py): the first time that it is over in that stage of the
remediation, or later. That needs STANCH_CRASH_AWAITS=1, which also has them written to the file, with each
stage that they are passed in.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from stanch.core import plan_limits
from tests.cluster import crash_awaits

LEASE_SECONDS, RENEW_SECONDS = 5.0, 1.5
# Before anything copies them by importing them.
plan_limits.CORDON_LEASE_SECONDS = LEASE_SECONDS  # type: ignore[misc]
plan_limits.CORDON_RENEW_SECONDS = RENEW_SECONDS  # type: ignore[misc]

from stanch_connector import contract  # noqa: E402

if TYPE_CHECKING:
    from stanch.edge.cluster.refs import Request

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
        self._suspected = False

    @property
    def stage(self) -> str:
        """Of the remediation: "idle", "suspected", or its step."""
        return self._step if self._step != "no step" else "suspected" if self._suspected else "idle"

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
        self._suspected = self._suspected or bool(status.get("suspects"))
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
        self._late = False

    async def around(self, point: str | None, work: Callable[[], Awaitable[T]]) -> T:
        if point is None:
            return await work()
        self._met[point] += 1
        self._note(point)
        if self._at == f"before {point}" and self._met[point] == 1:
            _die()
        found = await work()
        # Not after one that was refused, as for a pod that has changed: that is no effect.
        if self._at == f"after {point}":
            _die()
        return found

    async def passed(self, points: Points, place: str, work: Awaitable[T]) -> T:
        """An await of the loops, however it ends."""
        try:
            return await work
        finally:
            point = f"await {place} at {points.stage}"
            self._met[point] += 1
            self._note(point)
            if self._at is not None:
                self._late = self._late or self._at.endswith(f" at {points.stage}")
                if self._late and self._at.startswith(f"after await {place} at "):
                    _die()

    def _note(self, point: str) -> None:
        if self._met[point] == 1 and self._seen is not None:
            with self._seen.open("a") as file:
                file.write(f"{point}\n")


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def wrap(crash: Crash, points: Points) -> None:
    from stanch.edge import engine, kit, probe
    from stanch.edge.cluster import transport

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
    at = os.environ.get("STANCH_CRASH")
    crash, points = Crash(at, Path(file) if file else None), Points()
    # Before the modules are imported.
    if os.environ.get("STANCH_CRASH_AWAITS"):
        crash_awaits.hook(lambda place, work: crash.passed(points, place, work))
    wrap(crash, points)
    from stanch.__main__ import main

    sys.argv = ["stanch", "operator"]
    sys.exit(main())
