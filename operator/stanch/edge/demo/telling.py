"""What the demo tells, as data: rows, lines, steps and the incident; and who may be told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from stanch.core.verdict import State
from stanch.edge.demo.fleet import Stuck, Traffic


@dataclass(frozen=True, slots=True)
class Row:
    """One engine as the watchdog sees it in this turn. usage: 0..1; None is what was not read."""

    name: str
    role: str
    state: State
    usage: float | None
    running: float | None
    waiting: float | None
    sentence: str
    out: bool = False


@dataclass(frozen=True, slots=True)
class Step:
    """One step of the repair. start, end: seconds since the demo began. failed: the outcome says why."""

    name: str
    start: float
    end: float
    outcome: str
    failed: bool = False


@dataclass(frozen=True, slots=True)
class Probes:
    """What a liveness probe saw of the engine, once a second from the plant until its restart began."""

    sent: int = 0
    ok: int = 0


@dataclass(frozen=True, slots=True)
class Incident:
    """One fault from suspicion to its end.

    stuck: as the engine lists them; None where it has no such list. held_ratio: of the KV cache, 0..1;
    held_blocks: the same in blocks.
    lost: requests of the traffic that failed or found no answer, the stuck ones not counted. advice: on the
    version. failure: why the repair stopped; None where the engine serves again.
    """

    engine: str
    signature: str
    sentence: str
    steps: tuple[Step, ...]
    held_ratio: float
    held_blocks: int
    stuck: tuple[Stuck, ...] | None
    traffic: Traffic
    lost: int
    probes: Probes
    advice: str
    failure: str | None = None


class Output(Protocol):
    """Who is told: a live view or plain lines."""

    def elapsed(self) -> float:
        """Seconds since the demo began: the time of its lines and steps."""

    def say(self, text: str, tone: State | None = None) -> None:
        """One line of the story, now; with the tone of an engine's state."""

    def board(self, rows: Sequence[Row], traffic: Traffic | None) -> None:
        """The fleet as it is in this turn."""

    def incident(self, incident: Incident) -> None:
        """The end of it."""
