"""What the demo tells, as data: rows, lines, and at the end the incidents; and who may be told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from stanch.core.history import Incident
from stanch.core.verdict import State
from stanch.edge.demo.deployment import Traffic


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
class Probes:
    """What a liveness probe saw of the engine, once a second from the plant until its restart or its end."""

    sent: int = 0
    ok: int = 0


@dataclass(frozen=True, slots=True)
class Told:
    """One incident. cause: the sentence on its engine when it was opened."""

    incident: Incident
    cause: str
    probes: Probes


@dataclass(frozen=True, slots=True)
class Account:
    """How it went. began: the demo's start, in the incidents' time. lost: requests of the traffic that failed
    or found no answer, the stuck ones not counted. advice: on the version. failure: why it ended before its
    end; None where everything serves again."""

    began: float
    told: tuple[Told, ...]
    traffic: Traffic
    lost: int
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

    def account(self, account: Account) -> None:
        """The end of it."""
