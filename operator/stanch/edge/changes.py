"""What happened to an incident between two of its writings. Pure; metrics, log and Events rest on it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from stanch.api.convert import MOST_STUCK, kept_id
from stanch.core.history import Incident, Step, Stuck


class Kind(str, Enum):
    """Kinds of change; the values are those of `event` in the log."""

    OPENED = "incident-opened"
    STUCK = "stuck-request"  # a request that the incident did not list before
    BEGUN = "step-begun"
    ENDED = "step-ended"
    WAITS = "incident-waits"  # something else than before keeps its next step back
    CLOSED = "incident-ended"


@dataclass(frozen=True, slots=True)
class Change:
    """One change. incident: as it is afterwards. step: of BEGUN and ENDED. stuck: of STUCK."""

    kind: Kind
    incident: Incident
    step: Step | None = None
    stuck: Stuck | None = None


def changes(before: Incident | None, after: Incident) -> tuple[Change, ...]:
    """In the order in which they happened. before: None where this process has just made it, or as read.

    A person's incident is opened by the turn that first sees it: until then it has no step.
    """
    return tuple(_changes(before, after))


def _changes(before: Incident | None, after: Incident) -> Iterator[Change]:
    if before is None or (not before.steps and before.open and (after.steps or not after.open)):
        yield Change(Kind.OPENED, after)
    known = () if before is None else before.steps
    for place, step in enumerate(after.steps):
        old = known[place] if place < len(known) else None
        if old is None and step.open:
            yield Change(Kind.BEGUN, after, step)
        elif (old is None or old.open) and not step.open:
            yield Change(Kind.ENDED, after, step)
    listed = set() if before is None else {kept_id(one.id) for one in before.stuck}
    # Of one that had some only the longest stuck are remembered: the others would be news at every turn.
    told = sorted(after.stuck, key=lambda one: -one.age_seconds)[:MOST_STUCK] if listed else after.stuck
    for stuck in told:
        if kept_id(stuck.id) not in listed:
            yield Change(Kind.STUCK, after, stuck=stuck)
    waited = "" if before is None else reason_of(before.wait)
    if reason_of(after.wait) not in ("", waited):
        yield Change(Kind.WAITS, after)
    if not after.open and (before is None or before.open):
        yield Change(Kind.CLOSED, after)


def reason_of(wait: str) -> str:
    """The word of a wait, whose sentence may change at every turn."""
    return wait.partition(": ")[0]
