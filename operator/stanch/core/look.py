"""How often the kit's list of an engine is looked at, and when a fault is due. Pure.

A list costs an engine with 1,000 requests a few milliseconds between two steps, and us its bytes: a healthy
engine is looked at rarely, one in which requests wait for a transfer now and then, a suspect at every turn.
"""

from __future__ import annotations

from collections.abc import Iterable

from stanch.core.policy import Policy
from stanch.core.sample import Lifecycle
from stanch.core.verdict import State, Verdict

# Parts of the limit of ParkedRemoteKV: of 120 s they are 600, 30 and 5 s.
RARELY, SOMETIMES, OFTEN = 5.0, 1 / 4, 1 / 24


def look_every(verdict: Verdict, policy: Policy) -> float | None:
    """Seconds from one look at the list to the next; None: there is nothing to look for."""
    limit = policy.parked_remote_kv_seconds
    if verdict.state is State.BLIND:
        return None
    if verdict.state is not State.HEALTHY or verdict.lifecycle is Lifecycle.DRAINING:
        return limit * OFTEN
    if verdict.waiting and (verdict.deferred is None or verdict.deferred):
        return limit * SOMETIMES
    # An orphan under traffic shows in no gauge but the usage.
    return limit * RARELY if verdict.usage else None


def fault_due(verdicts: Iterable[Verdict], now: float) -> float | None:
    """Seconds until the first of the patterns that hold now has held for its limit, if it goes on; None where
    none is under way. One that is no fault although it has held waits for something else: for other engines
    (a cap), for more readings."""
    left = [
        max(0.0, one.limit_seconds - one.held_seconds - (now - one.t))
        for one in verdicts
        if one.state is State.SUSPECT
        and one.limit_seconds is not None
        and one.held_seconds < one.limit_seconds
    ]
    return min(left, default=None)
