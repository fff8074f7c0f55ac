"""The rare idle canary: whom to ask whether it would still answer, and what its silence means. Pure.

An engine that hangs while it is idle shows nothing: no request runs that could stand still. So, where a watch
asks for it, an engine that has been idle for long gets one canary. Its silence proves nothing yet: it makes a
fault (NoProgress), about which the engine is then asked as about any other (docs/adr/0008-idle-canary.md).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from stanch.core.detector import EngineState
from stanch.core.fleet import Fleet, Unit
from stanch.core.plan_limits import Limits, Mode
from stanch.core.policy import Policy
from stanch.core.sample import Role, Sample, counted
from stanch.core.verdict import Signature, State, Verdict

# So many are asked at a time, of all engines of a watch: a night makes all of them idle at once.
AT_ONCE = 4


def whom(
    fleet: Fleet,
    readings: Iterable[tuple[Verdict, Sample]],
    busy: Collection[str],
    limits: Limits,
    asked: Mapping[str, float],
    now: float,
) -> list[str]:
    """Names of the engines to ask now, those idle for longest first, at most AT_ONCE.

    busy: units that have an open incident. asked: when an engine was last asked, of those that were.
    """
    every = limits.idle_every_seconds
    off = limits.mode is Mode.DISABLED or fleet.stop is not None or not limits.canary
    if every is None or off:
        return []
    known = {verdict.engine: (verdict, sample) for verdict, sample in readings}
    blind = sum(verdict.state is State.BLIND for verdict, _ in known.values())
    if blind * 2 > len(known):
        return []
    found = [
        known[engine][0]
        for unit in fleet.units
        if unit.key not in busy and _serves(unit)
        for engine in unit.engines
        if engine in known and _idle(*known[engine], every)
    ]
    due = [one for one in found if now - asked.get(one.engine, -every) >= every]
    due.sort(key=lambda one: (-(one.idle_seconds or 0.0), one.engine))
    return [one.engine for one in due[:AT_ONCE]]


def _serves(unit: Unit) -> bool:
    """Whether nobody is at it: what is cordoned, leaving or not ready is left alone."""
    free = all(pod.lock is None and pod.cordon is None for pod in unit.pods)
    return free and unit.available and unit.leaving is None and unit.conflict is None


def _idle(verdict: Verdict, sample: Sample, every: float) -> bool:
    """Decodes only: on an engine that prefills a canary proves nothing, because what it holds may be leased.
    One that has made no token yet may compile its kernels for the first one, for minutes."""
    return (
        verdict.state is State.HEALTHY
        and verdict.role is Role.DECODE
        and verdict.lifecycle is None
        and verdict.running == 0
        and verdict.waiting == 0
        and (counted(sample.generation_tokens) or 0.0) > 0
        and (verdict.idle_seconds or 0.0) >= every
    )


def about(verdict: Verdict, policy: Policy) -> Verdict:
    """What the idle engine is asked about: whether it makes progress at all."""
    return replace(
        verdict,
        state=State.FAULT,
        signature=Signature.NO_PROGRESS,
        held_seconds=verdict.idle_seconds or 0.0,
        limit_seconds=policy.canary_seconds,
    )


def silent(state: EngineState, since: float) -> EngineState:
    """The engine, which was asked then and did not answer: suspect until anything of it moves."""
    return replace(state, unanswered_t=since)
