"""Who holds or waits for KV blocks in one engine, in which phase, since when. Pure: `now` is an argument.

Laws:
- O(1) per event, nothing per token or per step.
- Bounded: at `capacity` a new request is not entered (and counted); those there stay, for they are the
  old ones.
- An age is never more than the truth: where an event was missed, it counts from when the status was
  first seen.

    event      from                   to
    ADDED      any                    waiting     (a new request, or an id that is used again)
    ALLOCATED  any but finished       allocated   (it has blocks: it runs, or is parked for remote KV)
    RESUMED    any but finished       waiting     (its remote KV is here, or failed)
    PREEMPTED  any but finished       waiting
    FINISHED   any                    finished    (finished or aborted; its blocks may be held on)
    FREED      any                    -           (the engine forgets it)
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from enum import Enum
from typing import Final

DEFAULT_CAPACITY: Final = 65_536


class Phase(Enum):
    WAITING = "waiting"
    ALLOCATED = "allocated"
    FINISHED = "finished"


class Event(Enum):
    ADDED = "added"
    ALLOCATED = "allocated"
    RESUMED = "resumed"
    PREEMPTED = "preempted"
    FINISHED = "finished"
    FREED = "freed"


AFTER: Final = {
    Event.ADDED: Phase.WAITING,
    Event.ALLOCATED: Phase.ALLOCATED,
    Event.RESUMED: Phase.WAITING,
    Event.PREEMPTED: Phase.WAITING,
    Event.FINISHED: Phase.FINISHED,
}
# What may still happen to a finished request.
AFTER_THE_END: Final = frozenset({Event.ADDED, Event.FINISHED, Event.FREED})


def phase_of(status: str) -> Phase:
    """The phase in which vLLM's RequestStatus name belongs (v1/request.py, 0.20 to 0.32)."""
    if status.startswith("FINISHED"):
        return Phase.FINISHED
    if status in ("RUNNING", "WAITING_FOR_REMOTE_KVS"):
        return Phase.ALLOCATED
    return Phase.WAITING


@dataclass(slots=True)
class Line:
    """One request. since: monotonic seconds. parked: it finished while its remote KV was still on the way;
    None: not told. status: the name last seen by `age`."""

    phase: Phase
    since: float
    parked: bool | None = None
    status: str | None = None


class Ledger:
    """See the module. overflowed: requests not entered because it was full; ignored: events that cannot
    be."""

    def __init__(self, capacity: int = DEFAULT_CAPACITY) -> None:
        self.overflowed = 0
        self.ignored = 0
        self._capacity = capacity
        self._lines: dict[str, Line] = {}

    def __len__(self) -> int:
        return len(self._lines)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._lines

    def record(self, event: Event, request_id: str, now: float, *, parked: bool | None = None) -> None:
        """Enter one event; what cannot be is ignored, and nothing changes."""
        if event is Event.FREED:
            self._lines.pop(request_id, None)
            return
        line = self._lines.get(request_id)
        if line is None:
            self._enter(request_id, Line(AFTER[event], now, parked))
        elif line.phase is Phase.FINISHED and event not in AFTER_THE_END:
            self.ignored += 1
        elif line.phase is Phase.FINISHED and event is Event.FINISHED:
            # Aborted twice: it ended the first time.
            self.ignored += 1
        else:
            self._lines[request_id] = Line(AFTER[event], now, parked)

    def age(self, request_id: str, status: str, now: float) -> float:
        """Seconds that the request has been in the status which it has now."""
        phase = phase_of(status)
        line = self._lines.get(request_id)
        if line is None or line.phase is not phase or line.status not in (None, status):
            kept = line.parked if line is not None else None
            line = Line(phase, now, kept)
            self._enter(request_id, line)
        line.status = status
        return max(0.0, now - line.since)

    def was_parked(self, request_id: str) -> bool | None:
        """Whether it finished while its remote KV was under way; None where the ledger does not know."""
        line = self._lines.get(request_id)
        return line.parked if line is not None and line.phase is Phase.FINISHED else None

    def keep(self, alive: Container[str]) -> int:
        """Forget every request that the engine does not have; return how many. For events that were
        missed."""
        gone = [one for one in self._lines if one not in alive]
        for one in gone:
            del self._lines[one]
        return len(gone)

    def _enter(self, request_id: str, line: Line) -> None:
        if request_id not in self._lines and len(self._lines) >= self._capacity:
            self.overflowed += 1
            return
        self._lines[request_id] = line
