"""From a fault that has held long enough to its cordon: what the histogram of it is fed with.

Only what this process has seen from beginning to end is measured; an incident that an earlier process opened
is not.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from stanch.core.history import StepName, StepOutcome
from stanch.core.verdict import State, Verdict
from stanch.edge.changes import Change, Kind


@dataclass(frozen=True, slots=True)
class ToCordon:
    """seconds: from detection to the seen effect. waited: whether a limit or a person kept it back."""

    seconds: float
    waited: bool


@dataclass(frozen=True, slots=True)
class _Open:
    detected: float
    waited: bool = False


class CordonTimes:
    """Of one watch."""

    def __init__(self) -> None:
        # By engine, as long as its fault shows; by name of the incident, until it ends.
        self._faults: dict[str, float] = {}
        self._open: dict[str, _Open] = {}

    def judged(self, verdicts: Iterable[Verdict]) -> None:
        """A turn's verdicts. A fault was one from when its pattern had held for its limit."""
        self._faults = {
            verdict.engine: verdict.t - max(0.0, verdict.held_seconds - (verdict.limit_seconds or 0.0))
            for verdict in verdicts
            if verdict.state is State.FAULT
        }

    def changed(self, change: Change) -> ToCordon | None:
        """A change of an incident; the time, where it is the first cordon of one whose detection was seen."""
        incident, step = change.incident, change.step
        if change.kind is Kind.OPENED:
            seen = [self._faults[name] for name in incident.engines if name in self._faults]
            if seen:
                self._open[incident.name] = _Open(min(seen))
        known = self._open.get(incident.name)
        if known is None:
            return None
        if change.kind is Kind.WAITS:
            self._open[incident.name] = replace(known, waited=True)
        if change.kind is Kind.CLOSED:
            del self._open[incident.name]
        if change.kind is Kind.ENDED and step is not None and step.name is StepName.CORDON:
            del self._open[incident.name]
            if step.outcome is StepOutcome.DONE and step.end is not None:
                return ToCordon(max(0.0, step.end - known.detected), known.waited)
        return None
