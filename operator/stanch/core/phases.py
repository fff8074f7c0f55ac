"""The states of an engine and what leads from one to another: a table; what is not in it raises.

docs/states.md is made from it.
"""

from __future__ import annotations

from enum import Enum


class Phase(str, Enum):
    NEW = "new"  # nothing has been read of this process
    HEALTHY = "healthy"
    SUSPECT = "suspect"
    FAULT = "fault"
    BLIND = "blind"


class Event(str, Enum):
    CLEAR = "clear"  # a fit reading that meets no condition
    MATCH = "match"  # one that meets a condition which has not held long enough, or may not be a fault
    HELD = "held"  # one whose condition has held long enough
    SPARED = "spared"  # one that is out of line with the fault while nothing moved
    UNFIT = "unfit"  # an unfit reading
    RESTARTED = "restarted"  # another process answers
    CONFIRM = "confirm"  # the engine was asked, and the condition holds unchanged
    VETO = "veto"  # the engine was asked, and the condition does not hold
    UNDECIDED = "undecided"  # the engine was asked, and that tells nothing


TRANSITIONS: dict[tuple[Phase, Event], Phase] = {
    (Phase.NEW, Event.CLEAR): Phase.HEALTHY,
    (Phase.NEW, Event.MATCH): Phase.SUSPECT,
    (Phase.NEW, Event.HELD): Phase.FAULT,  # the kit's list has the ages
    (Phase.NEW, Event.UNFIT): Phase.BLIND,
    (Phase.HEALTHY, Event.CLEAR): Phase.HEALTHY,
    (Phase.HEALTHY, Event.MATCH): Phase.SUSPECT,
    (Phase.HEALTHY, Event.HELD): Phase.FAULT,  # HeldFloor, which counts while progress goes on
    (Phase.HEALTHY, Event.UNFIT): Phase.BLIND,
    (Phase.HEALTHY, Event.RESTARTED): Phase.NEW,
    (Phase.SUSPECT, Event.CLEAR): Phase.HEALTHY,
    (Phase.SUSPECT, Event.MATCH): Phase.SUSPECT,
    (Phase.SUSPECT, Event.HELD): Phase.FAULT,
    (Phase.SUSPECT, Event.UNFIT): Phase.BLIND,
    (Phase.SUSPECT, Event.RESTARTED): Phase.NEW,
    (Phase.SUSPECT, Event.CONFIRM): Phase.SUSPECT,
    (Phase.SUSPECT, Event.VETO): Phase.HEALTHY,
    (Phase.SUSPECT, Event.UNDECIDED): Phase.SUSPECT,
    (Phase.FAULT, Event.CLEAR): Phase.HEALTHY,
    (Phase.FAULT, Event.MATCH): Phase.SUSPECT,
    (Phase.FAULT, Event.HELD): Phase.FAULT,
    (Phase.FAULT, Event.SPARED): Phase.FAULT,
    (Phase.FAULT, Event.UNFIT): Phase.BLIND,
    (Phase.FAULT, Event.RESTARTED): Phase.NEW,
    (Phase.FAULT, Event.CONFIRM): Phase.FAULT,
    (Phase.FAULT, Event.VETO): Phase.HEALTHY,
    (Phase.FAULT, Event.UNDECIDED): Phase.FAULT,
    (Phase.BLIND, Event.CLEAR): Phase.HEALTHY,
    (Phase.BLIND, Event.MATCH): Phase.SUSPECT,
    (Phase.BLIND, Event.HELD): Phase.FAULT,
    (Phase.BLIND, Event.UNFIT): Phase.BLIND,
    (Phase.BLIND, Event.RESTARTED): Phase.NEW,
}


class IllegalTransitionError(Exception):
    """The event cannot happen in that phase; nothing was changed."""

    def __init__(self, phase: Phase, event: Event) -> None:
        super().__init__(f"{event.value} cannot happen to an engine that is {phase.value}")


def advance(phase: Phase, event: Event) -> Phase:
    try:
        return TRANSITIONS[phase, event]
    except KeyError:
        raise IllegalTransitionError(phase, event) from None
