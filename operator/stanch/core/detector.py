"""The detector: readings of one engine in, verdicts out. Pure; a state is never changed, only replaced.

Laws kept here:
- Missing is never zero: a reading that is unfit makes the verdict Blind, and none of its values is used.
- Time in Blind does not count; a gap over three intervals restarts every hold.
- A restart of the process forgets everything.
- A fault is never found from one reading of the gauges; the engine kit's list has the ages, so one look at it
  may (ParkedRemoteKV), together with a fit reading.
- A list counts only near its own time and of the same process; without one nothing is different.
- A fault outlives one reading that is out of line if nothing at all moved (gauges are not read in one
  instant); any token, any freed block, any blind reading ends it at once.
- Several engines behind one address are no engine: readings whose process changes all the time are blind.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from stanch.core.candidates import candidates, choose
from stanch.core.kit import KitReport, usable
from stanch.core.phases import Event, Phase, advance
from stanch.core.policy import Policy
from stanch.core.sample import Lifecycle, Role, Sample, counted, problem
from stanch.core.signatures import (
    NO_FLOOR,
    NOTHING_OWED,
    Floor,
    Move,
    Owed,
    condition,
    movement,
    restarted,
)
from stanch.core.verdict import Signature, State, Verdict
from stanch.core.warn import NO_TRENDS, Trends

# A process that restarts in three of eight readings in a row is not one process: no engine starts that fast.
_RECENT, _SEVERAL = 0xFF, 3


@dataclass(frozen=True, slots=True)
class EngineState:
    """What is remembered of one engine: bounded, whatever its age.

    seen: the last reading. last: the last fit one of this process. broken: whether an unfit one came since.
    last_t: the time of the newest reading. holding, held: the signature whose condition the last fit reading
    met, and for how many countable seconds. active_t: when something last moved, or the first reading.
    restarted_t: when another process was first seen to answer. unanswered_t: when an idle canary was sent
    that got no answer (core/idle.py), as long as nothing has moved since. recent_restarts: a bit for each of
    the last readings, set where another process answered."""

    phase: Phase = Phase.NEW
    seen: Sample | None = None
    last: Sample | None = None
    last_t: float | None = None
    broken: bool = False
    holding: Signature | None = None
    held: float = 0.0
    active_t: float | None = None
    floor: Floor = NO_FLOOR
    trends: Trends = NO_TRENDS
    owed: Owed = NOTHING_OWED
    spared: bool = False
    verdict: Verdict | None = None
    restarted_t: float | None = None
    unanswered_t: float | None = None
    recent_restarts: int = 0


def step(
    state: EngineState,
    sample: Sample,
    policy: Policy,
    role: Role = Role.DECODE,
    decodes_quiet_seconds: float | None = None,
    report: KitReport | None = None,
) -> tuple[EngineState, Verdict]:
    """Judge one more reading.

    decodes_quiet_seconds: for how long no decode of the deployment has waited or parked; None: not known.
    report: the newest word of the engine's kit; None where it was not asked.
    The very same sample again changes nothing: between two scrapes a turn has no news of an engine.
    """
    if sample is state.seen and state.verdict is not None:
        return state, state.verdict
    unfit = problem(sample)
    if unfit is None and sample.age_seconds > policy.gap_seconds:
        unfit = f"the newest reading is {sample.age_seconds:.3g} s old"
    if unfit is None and state.last_t is not None and sample.t <= state.last_t:
        unfit = f"the reading is not newer than the last one ({sample.t:g} after {state.last_t:g})"
    if unfit is not None:
        return _blind(state, sample, role, unfit)
    if state.last is not None:
        another = restarted(state.last, sample)
        recent = (state.recent_restarts << 1 | another) & _RECENT
        if another:
            state = EngineState(phase=advance(state.phase, Event.RESTARTED), restarted_t=sample.t)
        if recent != state.recent_restarts:
            state = replace(state, recent_restarts=recent)
        if recent.bit_count() >= _SEVERAL:
            unfit = "its counters jump back and forth: several engines seem to answer at this address"
            return _blind(replace(state, last=sample), sample, role, unfit)
    report = usable(report, sample.t, policy, state.restarted_t)
    return _judge(state, sample, policy, role, decodes_quiet_seconds, report)


def _blind(state: EngineState, sample: Sample, role: Role, unfit: str) -> tuple[EngineState, Verdict]:
    verdict = Verdict(sample.t, sample.engine, role, State.BLIND, Signature.BLIND, cause=unfit)
    known = [t for t in (state.last_t, sample.t) if t is not None and t == t]
    changed = replace(
        state,
        phase=advance(state.phase, Event.UNFIT),
        seen=sample,
        last_t=max(known, default=None),
        broken=True,
        verdict=verdict,
    )
    return changed, verdict


def _judge(
    state: EngineState,
    sample: Sample,
    policy: Policy,
    role: Role,
    quiet: float | None,
    report: KitReport | None,
) -> tuple[EngineState, Verdict]:
    move, owed = (None, NOTHING_OWED) if state.last is None else movement(state.last, sample, state.owed)
    gap = move is not None and move.seconds > policy.gap_seconds
    countable = 0.0 if move is None or gap or state.broken else move.seconds
    moved = move is not None and move.progressed
    # Blocks that are given back move too: something still ends, so what is left has not stood for so long.
    again = moved or gap or (move is not None and move.freed)

    floor = (NO_FLOOR if gap else state.floor).after(sample, countable, policy)
    trends = state.trends.after(sample, move, policy)
    draining = Lifecycle.DRAINING if report is not None and report.draining else None
    lifecycle = sample.lifecycle or draining
    asleep = lifecycle is not None
    holding = None if asleep else condition(sample, move, policy, role)
    held = state.held + countable if holding is not None and holding is state.holding and not again else 0.0
    if holding is Signature.NO_PROGRESS and state.holding is not holding:
        held = countable  # the reading before was already the same to the bit
    silent_t = None if asleep or gap or state.broken or _moved(state.last, sample) else state.unanswered_t
    active_t = sample.t if move is None or move.progressed or state.active_t is None else state.active_t

    verdict = choose(
        Verdict(
            sample.t,
            sample.engine,
            role,
            State.HEALTHY,
            idle_seconds=sample.t - active_t,
            usage=min(sample.usage or 0.0, 1.0),
            running=sample.running,
            waiting=sample.waiting,
            deferred=counted(sample.waiting_deferred),
            warnings=trends.warnings(sample, policy),
            lifecycle=lifecycle,
            unlisted=None if report is None else report.problem,
            no_kit=report is not None and report.absent,
        ),
        []
        if asleep
        else candidates(
            sample, policy, role, quiet, None if moved else holding, held, floor, report, silent_t
        ),
    )
    if gap and move is not None and verdict.state is State.SUSPECT:
        verdict = replace(
            verdict,
            cause=f"the reading before was {move.seconds:.3g} s ago, more than three intervals, so the hold "
            "starts anew",
        )
    event = _EVENT_FOR[verdict.state]
    if not asleep and _spared(state, event, sample, move, policy):
        event, verdict = Event.SPARED, _still(state, verdict)
    elif state.verdict is not None and state.verdict.signature is verdict.signature and not again:
        verdict = replace(verdict, confirmation=state.verdict.confirmation)
    return (
        EngineState(
            phase=advance(state.phase, event),
            seen=sample,
            last=sample,
            last_t=sample.t,
            broken=False,
            holding=holding,
            held=held,
            active_t=active_t,
            floor=NO_FLOOR if asleep else floor,
            trends=trends,
            owed=owed,
            spared=event is Event.SPARED,
            verdict=verdict,
            restarted_t=state.restarted_t,
            unanswered_t=silent_t,
            recent_restarts=state.recent_restarts,
        ),
        verdict,
    )


_EVENT_FOR = {State.HEALTHY: Event.CLEAR, State.SUSPECT: Event.MATCH, State.FAULT: Event.HELD}


def _moved(last: Sample | None, sample: Sample) -> bool:
    """Whether anything shows that steps are made, our own canary's among it."""
    return last is None or any(
        getattr(last, name) != getattr(sample, name)
        for name in ("usage", "running", "waiting", "iterations", "generation_tokens", "prompt_tokens")
    )


def _spared(state: EngineState, event: Event, sample: Sample, move: Move | None, policy: Policy) -> bool:
    return (
        state.phase is Phase.FAULT
        and event in (Event.CLEAR, Event.MATCH)
        and not state.spared
        and state.holding is not None
        and (state.verdict is None or state.verdict.signature is not Signature.PARKED_REMOTE_KV)
        and move is not None
        and move.seconds <= policy.gap_seconds
        and not move.progressed
        and not move.iterations
        and move.usage_same
        and (sample.usage or 0.0) >= policy.floor_ratio
    )


def _still(state: EngineState, verdict: Verdict) -> Verdict:
    assert state.verdict is not None
    return replace(
        verdict,
        state=State.FAULT,
        signature=state.verdict.signature,
        held_seconds=state.verdict.held_seconds,
        limit_seconds=state.verdict.limit_seconds,
        floor_usage=state.verdict.floor_usage,
        readings=state.verdict.readings,
        confirmation=state.verdict.confirmation,
        cap=None,
        stuck=state.verdict.stuck,
        spared=True,
    )
