"""Random fleets, answers, disturbances and crashes: what must hold in every turn, and at the end."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stanch.core.fleet import Fleet, Way
from stanch.core.history import History, Incident, Result, StepName, Trigger
from stanch.core.plan_budget import unavailable
from stanch.core.plan_limits import MOST_STEPS, Approval, Limits, MaxUnavailable, Mode, Rung
from stanch.core.plan_types import DISRUPTIVE, HARMLESS, Action, Plan, Verb
from stanch.core.sample import Role
from stanch.core.verdict import Answer, Signature, State, Verdict
from tests.core.plan_world import START, KilledError, Say, Sim, World

pytestmark = pytest.mark.unit

SIGNATURES = [
    Signature.HELD_IDLE,
    Signature.HELD_FLOOR,
    Signature.PARKED_REMOTE_KV,
    Signature.DEFERRED_STALL,
    Signature.QUEUE_DEADLOCK,
    Signature.NO_PROGRESS,
    Signature.PRODUCER_STRANDED,
]


@st.composite
def sims(draw: st.DrawFn, name: str, role: Role, peers: tuple[str, ...]) -> Sim:
    kit = draw(st.booleans())
    return Sim(
        name,
        role,
        kit=kit,
        readiness=kit and draw(st.sampled_from([True, True, False])),
        way=draw(st.sampled_from([Way.IN_PLACE, Way.IN_PLACE, Way.EVICT])),
        leak=draw(st.sampled_from([0.0, 0.3, 0.7, 0.9])),
        signature=draw(st.sampled_from(SIGNATURES)),
        releasable=draw(st.booleans()),
        running=draw(st.sampled_from([0.0, 0.0, 3.0])),
        peers=peers,
        blind=draw(st.sampled_from([False, False, False, True])),
        suspect=draw(st.sampled_from([False, False, True])),
        starts=draw(st.sampled_from([0.0, 20.0, 100.0, -1.0])),
        leaks_again=draw(st.booleans()),
        not_ready=draw(st.sampled_from([False, False, False, True])),
    )


@st.composite
def limits(draw: st.DrawFn, mode: Mode | None = None) -> Limits:
    allowed = st.one_of(
        st.integers(1, 3).map(MaxUnavailable),
        st.integers(1, 100).map(lambda percent: MaxUnavailable(percent=percent)),
    )
    return Limits(
        mode=mode or draw(st.sampled_from(Mode)),
        steps=frozenset(draw(st.sets(st.sampled_from(Rung)))) or frozenset(Rung),
        drain_seconds=draw(st.sampled_from([0.0, 10.0, 60.0])),
        max_unavailable=draw(allowed),
        max_per_hour=draw(st.integers(1, 6)),
        cooldown_seconds=draw(st.sampled_from([0.0, 60.0, 600.0])),
        breaker_failures=draw(st.integers(1, 3)),
        approval=draw(st.sampled_from([Approval.AUTO, Approval.AUTO, Approval.MANUAL])),
        paused=draw(st.sampled_from([False, False, False, True])),
        canary=draw(st.sampled_from([True, True, False])),
    )


ANSWERS: dict[Verb, list[Any]] = {
    Verb.ASK: [*Answer, None],
    Verb.TRY_EVICT: [(Result.OK, ""), (Result.FAILED, "pdb"), None],
    Verb.RELEASE: ["done", "refused", "failed", "running", None],
    Verb.CORDON: [None, "good"],
    Verb.DRAIN: ["done", "failed", "running", None],
    Verb.CAPTURE: [(Result.OK, ""), (Result.FAILED, "no log"), None],
    Verb.RESTART: ["done", "failed", "running", None],
    Verb.EVICT: [(Result.OK, ""), (Result.FAILED, "pdb"), None],
    Verb.VERIFY: [(Result.OK, ""), (Result.FAILED, "p1"), (Result.NO_PEER, ""), None],
    Verb.LIFT: ["good", None],
}


def referee(
    fleet: Fleet, verdicts: list[Verdict], history: History, made: Plan, now: float, limits: Limits
) -> None:
    """The laws, on one plan."""
    state = {verdict.engine: verdict.state for verdict in verdicts}
    ledger = made.ledger or history.ledger
    incidents = {i.name: i for i in (*history.incidents, *made.incidents)}
    acting = [action for action in made.actions if action.verb not in HARMLESS]

    # Dry run acts on nothing, nor does a stop, nor a watch that is off.
    if limits.mode is not Mode.ENFORCE or fleet.stop is not None:
        assert not acting
        assert all(not action.incident or action.verb is Verb.ASK for action in made.actions)
    for action in acting:
        incident = incidents[action.incident]
        unit = fleet.unit(action.unit)
        assert unit is not None
        assert unit.conflict is None or action.verb is Verb.LIFT
        if action.verb not in DISRUPTIVE:
            continue
        assert incident.open
        drained = incident.last(StepName.DRAIN)
        ours = all(pod.cordon is not None and pod.cordon.incident == incident.name for pod in unit.pods)
        current = incident.current
        assert current is not None
        restarted = current.name is StepName.VERIFY or (
            current.name is StepName.RESTART
            and (unit.lead.container_id != incident.container_id or unit.lead.command is not None)
        )
        if not restarted:
            # Claimed before it is touched, and never blind.
            assert any(c.incident == incident.name and c.unit == unit.key for c in ledger.claims)
            assert all(state.get(engine) is not State.BLIND for engine in unit.engines)
        first = action.verb is Verb.CORDON and not ours
        ends = action.verb in (Verb.RESTART, Verb.EVICT)
        if first or ends:
            # Confirmed by the engine within the last interval, for the end of its process after the drain.
            after = (
                0.0 if first else drained.end if drained is not None and drained.end is not None else now + 1
            )
            assert any(
                said.answer is Answer.CONFIRMED
                and said.engine in incident.engines
                and said.container_id == unit.lead.container_id
                and now - said.t <= limits.interval_seconds
                and said.t >= after
                for said in history.confirmations
            )

    # Never over budget: whoever takes an available unit counts all that are unavailable or claimed, by a
    # list that is newer than the claims.
    known = {claim.incident for claim in history.ledger.claims}
    new = [claim for claim in ledger.claims if claim.incident not in known]
    assert not new or fleet.listed_at >= history.ledger.read_at
    for role in Role:
        taken = [u for c in new if (u := fleet.unit(c.unit)) is not None and u.role is role and u.available]
        size = max(fleet.desired.get(role, 0), sum(unit.role is role for unit in fleet.units))
        if taken:
            assert len(unavailable(fleet, ledger, role)) <= limits.max_unavailable.of(size)

    began = sum(repair.began == now for repair in ledger.repairs)
    hour = sum(repair.began > now - 3600 for repair in ledger.repairs)
    assert not began or hour <= limits.max_per_hour
    assert not began or history.ledger.tripped is None

    # Every suspect is acted on or deferred with a reason; so is every open incident.
    told = {action.unit for action in made.actions} | {one.unit for one in made.deferred}
    told |= {incident.unit for incident in made.incidents}
    for unit in fleet.units:
        if any(state.get(engine) in (State.SUSPECT, State.FAULT) for engine in unit.engines):
            assert unit.key in told, unit.key
    for incident in history.incidents:
        if incident.open:
            after_it = incidents[incident.name]
            named = {one.incident for one in made.deferred}
            assert not after_it.open or incident.name in named, incident.name
    assert all(one.message for one in made.deferred)
    assert made.recheck_after >= 0
    names = [i.unit for i in incidents.values() if i.open and i.steps]
    assert len(names) == len(set(names)), "one open incident per unit"


@st.composite
def worlds(draw: st.DrawFn, mode: Mode | None = None) -> World:
    decodes = [f"d{n}" for n in range(draw(st.integers(1, 4)))]
    prefills = [f"p{n}" for n in range(draw(st.integers(0, 2)))]
    units = {name: draw(sims(name, Role.DECODE, tuple(prefills))) for name in decodes}
    units |= {name: draw(sims(name, Role.PREFILL, tuple(decodes))) for name in prefills}
    world = World(units, draw(limits(mode)), cordon_works=draw(st.sampled_from([True, True, True, False])))
    if draw(st.booleans()):
        world.incidents["by-hand"] = Incident("by-hand", "d0", "", START, Trigger.PERSON)
    return world


def disturb(data: st.DataObject, world: World) -> None:
    """Something that nobody planned."""
    what = data.draw(
        st.sampled_from(["", "", "", "", "crash", "blind", "see", "leak", "conflict", "stop", "go", "mode"])
    )
    keys = sorted(world.units)
    if not keys:
        return
    sim = world.units[data.draw(st.sampled_from(keys))]
    if what == "crash":
        world.restart(sim)
    elif what in ("blind", "see"):
        sim.blind = what == "blind"
    elif what == "leak":
        sim.leak = data.draw(st.sampled_from([0.0, 0.8]))
    elif what == "conflict":
        sim.conflict = None if sim.conflict else "another watch"
    elif what in ("stop", "go"):
        world.stop = "a test says so" if what == "stop" else None
    elif what == "mode":
        world.limits = replace(world.limits, mode=data.draw(st.sampled_from(Mode)))


def answering(data: st.DataObject, verb: Verb) -> Any:
    def answer(_action: Action, _world: World) -> Any:
        return data.draw(st.sampled_from(ANSWERS[verb]), label=verb.value)

    return answer


def always(given: Any) -> Say:
    return lambda _action, _world: given


FAST = settings(
    deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


def play(data: st.DataObject, world: World, turns: int, *, disturbed: bool) -> None:
    world.say = {verb: answering(data, verb) for verb in ANSWERS}
    world.check = lambda f, v, h, p, now: referee(f, v, h, p, now, world.limits)
    if data.draw(st.booleans(), label="may be killed"):

        def kill(here: str) -> None:
            if data.draw(st.integers(0, 19), label=here) == 19:
                raise KilledError

        world.kill = kill
    for _ in range(turns):
        if disturbed:
            disturb(data, world)
        world.turn()
        world.now += data.draw(st.sampled_from([1.0, 5.0, 5.0, 5.0, 40.0]))


@FAST
@given(data=st.data(), world=worlds(Mode.ENFORCE))
def test_the_laws_hold_in_every_turn(data: st.DataObject, world: World) -> None:
    play(data, world, 25, disturbed=False)


@FAST
@given(data=st.data(), world=worlds())
def test_the_laws_hold_whatever_happens_beside_it(data: st.DataObject, world: World) -> None:
    play(data, world, 25, disturbed=True)


@settings(FAST, max_examples=30)
@given(data=st.data(), world=worlds(Mode.OBSERVE))
def test_dry_run_acts_on_nothing(data: st.DataObject, world: World) -> None:
    play(data, world, 15, disturbed=False)
    assert {verb for verb, _ in world.log} <= {Verb.ASK}
    assert not world.ledger.claims
    assert all(sim.run == 1 and sim.cordon is None for sim in world.units.values())


@settings(FAST, max_examples=30)
@given(data=st.data(), world=worlds(Mode.ENFORCE), answers=st.data())
def test_every_repair_that_was_begun_ends_whatever_comes_back(
    data: st.DataObject, world: World, answers: st.DataObject
) -> None:
    """Bounded steps: with any answers for a while, and then none at all, what was begun comes to its end."""
    play(data, world, 12, disturbed=False)
    for verb, possible in ANSWERS.items():
        world.say[verb] = always(answers.draw(st.sampled_from(possible), label=verb.value))
    world.say[Verb.LIFT] = always("good")
    world.kill = lambda _: None
    world.limits = replace(world.limits, paused=False, approval=Approval.AUTO)
    for sim in world.units.values():
        sim.blind = False
    for _ in range(120):
        world.turn()
        world.now += 5.0
    for _ in range(60):
        world.turn()
        world.now += 40.0
    for incident in world.incidents.values():
        assert len(incident.steps) <= MOST_STEPS + 1
        waits = incident.current is None or incident.current.name is StepName.CONFIRM
        young = world.now - incident.created < 2400
        assert not incident.open or waits or young, world.story(incident.name)
