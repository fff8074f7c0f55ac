"""Conditions as they are written: the time of the last change is kept, those of others too. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from stanch.api.common import Condition, ConditionStatus, moment
from stanch.core.plan_conditions import Said

_MESSAGE = 32768


def merged(before: Iterable[Condition], said: Iterable[Said], generation: int, now: float) -> list[Condition]:
    """Ours, in their order, then those of other writers. A condition keeps its time while its status does."""
    old = {condition.type: condition for condition in before}
    ours = [_condition(one, old.get(one.type), generation, now) for one in said]
    names = {condition.type for condition in ours}
    return [*ours, *(condition for name, condition in old.items() if name not in names)]


def _condition(said: Said, old: Condition | None, generation: int, now: float) -> Condition:
    status = ConditionStatus.TRUE if said.true else ConditionStatus.FALSE
    same = old is not None and old.status is status
    return Condition(
        type=said.type,
        status=status,
        last_transition_time=old.last_transition_time if same and old is not None else moment(now),
        reason=said.reason,
        message=said.message[:_MESSAGE],
        observed_generation=generation,
    )
