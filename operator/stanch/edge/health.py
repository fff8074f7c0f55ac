"""Signs of life of the operator's parts: which part has stalled, and whether a restart would help.

Every loop gives a sign when it comes round. One that has given none for its limit makes the operator not
ready; for so long three times over, not alive either, so that the kubelet restarts it. A part that needs the
API server is excused from the second while the server itself does not answer: a restart brings no server
back, and loses the holds.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

API_SERVER: Final = "API server"
EVENT_LOOP: Final = "event loop"
# The loops themselves wait for at most 10 s for one answer; what is three limits late does not come back.
_DEAD_AFTER_LIMITS: Final = 3.0


@dataclass(frozen=True, slots=True)
class Part:
    """at: its last sign, on a monotonic clock. needs_api: it stands still with the API server. wrong: why it
    does not work although it is alive, which no restart would mend; "" where it works."""

    name: str
    limit_seconds: float
    at: float
    needs_api: bool = False
    wrong: str = ""

    def late(self, now: float, limits: float = 1.0) -> bool:
        return now - self.at > limits * self.limit_seconds


class Health:
    """Of all parts of this process; may be asked from another thread than the loops run in."""

    def __init__(self) -> None:
        self._parts: dict[str, Part] = {}
        self._lock = threading.Lock()

    def sign(
        self, name: str, now: float, limit_seconds: float, *, needs_api: bool = False, wrong: str = ""
    ) -> None:
        """This part is alive; the next sign is due within limit_seconds. The first one makes it known. wrong:
        as in Part."""
        with self._lock:
            self._parts[name] = Part(name, limit_seconds, now, needs_api, wrong)

    def forget(self, name: str) -> None:
        """The part has ended, as it should."""
        with self._lock:
            self._parts.pop(name, None)

    @property
    def parts(self) -> tuple[Part, ...]:
        with self._lock:
            return tuple(self._parts.values())

    def unready(self, now: float) -> tuple[str, ...]:
        """Why the operator is not ready, one sentence for each part; empty where it is."""
        parts = self.parts
        if not parts:
            return ("nothing has started yet",)
        late = (_stalled(part, now) for part in parts if part.late(now))
        return (*late, *(f"{part.name}: {part.wrong}" for part in parts if part.wrong))

    def dead(self, now: float) -> tuple[str, ...]:
        """Why a restart is due, one sentence for each part; empty where none is."""
        return tuple(_stalled(part, now) for part in self._dead(now))

    def _dead(self, now: float) -> Iterator[Part]:
        parts = self.parts
        unreached = any(part.name == API_SERVER and part.late(now) for part in parts)
        for part in parts:
            excused = part.name == API_SERVER or (part.needs_api and unreached)
            if part.late(now, _DEAD_AFTER_LIMITS) and not excused:
                yield part


def _stalled(part: Part, now: float) -> str:
    return f"{part.name}: no sign of life for {now - part.at:.0f} s (limit {part.limit_seconds:.0f} s)"
