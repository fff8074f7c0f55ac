"""Exact step sequences: one unit in one situation, from the fault to the end of its incident."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest

from stanch.core.fleet import CordonMark, Way
from stanch.core.history import Incident, Result, Trigger
from stanch.core.plan_limits import Approval, Limits, Rung
from stanch.core.plan_types import Verb
from stanch.core.sample import Role
from stanch.core.verdict import Answer, Signature
from tests.core.plan_world import ENFORCE, START, Sim, World

pytestmark = pytest.mark.unit

SEEN = ["Observe:Done", "Confirm:Done"]
OUT = ["Cordon:Done", "Drain:Done", "Capture:Done", "Confirm:Done"]
BACK = ["Verify:Done", "Uncordon:Done"]
WHOLE = [*SEEN, *OUT, "Restart:Done", *BACK]
NO_RELEASE = replace(ENFORCE, steps=frozenset({Rung.RESTART, Rung.EVICT}))

Hook = Callable[[World], None]


def pair(suspect: Sim, **more: object) -> World:
    """The suspect with a healthy decode and a healthy prefill beside it."""
    units = {sim.key: sim for sim in (suspect, Sim("d2"), Sim("p1", role=Role.PREFILL))}
    return World(units, **more)  # type: ignore[arg-type]


def d1(**more: object) -> Sim:
    return Sim("d1", leak=0.7, peers=("p1",), **more)  # type: ignore[arg-type]


@dataclass
class Case:
    """at: what happens to the world before that turn. acts: what was done to d1, in order."""

    name: str
    world: Callable[[], World]
    story: list[str] | None
    code: str | None
    acts: list[str] | None = None
    reasons: set[str] = field(default_factory=set)
    at: dict[int, Hook] = field(default_factory=dict)
    turns: int = 40
    seconds: float = 5.0


def gone(world: World) -> None:
    del world.units["d1"]


def crashed(world: World) -> None:
    world.restart(world.units["d1"])


def wakes(world: World) -> None:
    world.units["d1"].hung = False


def leak_ends(world: World) -> None:
    world.units["d1"].leak = 0.0


def says(verb: Verb, *answers: object) -> Callable[[World], World]:
    """Those answers one after the other; the last of them from then on."""
    left = list(answers)

    def answer(_action: object, _world: World) -> object:
        return left.pop(0) if len(left) > 1 else left[0]

    def with_it(world: World) -> World:
        world.say[verb] = answer
        return world

    return with_it


def failing(detail: str) -> tuple[Result, str]:
    return Result.FAILED, detail


CASES = [
    Case(
        "a leak that only a restart ends",
        lambda: pair(d1()),
        WHOLE,
        "Restarted",
        ["cordon", "drain", "capture", "cordon", "restart", "verify", "lift"],
    ),
    Case(
        "a leak that a release ends",
        lambda: pair(d1(releasable=True)),
        [*SEEN, "Release:Done", "Confirm:Done"],
        "Released",
        ["release", "lift"],
    ),
    Case(
        "a release that the kit refuses: on up the ladder",
        lambda: says(Verb.RELEASE, "refused")(pair(d1(releasable=True))),
        [*SEEN, "Release:Failed", "Confirm:Done", *OUT, "Restart:Done", *BACK],
        "Restarted",
    ),
    Case(
        "a release that nobody hears of: on up the ladder after its time",
        lambda: says(Verb.RELEASE, "running")(pair(d1(releasable=True))),
        [*SEEN, "Release:Failed", "Confirm:Done", *OUT, "Restart:Done", *BACK],
        "Restarted",
    ),
    Case(
        "a release whose order cannot be written: on up the ladder",
        lambda: says(Verb.RELEASE, None)(pair(d1(releasable=True))),
        [
            *SEEN,
            *("Release:Interrupted", "Confirm:Done") * 3,
            *OUT,
            "Restart:Done",
            *BACK,
        ],
        "Restarted",
    ),
    Case(
        "a cordon that cannot be written: nothing is touched, a person is asked",
        lambda: says(Verb.CORDON, None)(pair(d1())),
        ["Observe:Done", *("Confirm:Done", "Cordon:Interrupted") * 8, "Confirm:Failed", "Escalate:Done"],
        "Interrupted",
        ["cordon"],
        turns=60,
    ),
    Case(
        "release forbidden",
        lambda: pair(d1(releasable=True), limits=NO_RELEASE),
        WHOLE,
        "Restarted",
    ),
    Case(
        "a prefill is never released",
        lambda: World(
            {
                "d1": Sim(
                    "d1", Role.PREFILL, leak=0.7, releasable=True, signature=Signature.PRODUCER_STRANDED
                ),
                "d2": Sim("d2"),
            }
        ),
        WHOLE,
        "Restarted",
    ),
    Case(
        "only release is allowed, and it cannot help",
        lambda: pair(d1(), limits=replace(ENFORCE, steps=frozenset({Rung.RELEASE}))),
        ["Observe:Done", "Confirm:Failed", "Escalate:Done"],
        "NothingAllowed",
        [],
        {"Escalated"},
    ),
    Case(
        "a stale gauge: the engine says no, and there is no incident",
        lambda: says(Verb.ASK, Answer.VETOED)(pair(d1())),
        None,
        None,
        [],
        {"Asked"},
    ),
    Case(
        "a canary that proves nothing: no incident, asked again after a minute",
        lambda: says(Verb.ASK, Answer.INCONCLUSIVE)(pair(d1(kit=False, readiness=False))),
        None,
        None,
        [],
        {"Inconclusive"},
    ),
    Case(
        "it ends by itself while it is drained: given back, not restarted",
        lambda: pair(d1()),
        [*SEEN, "Cordon:Done", "Drain:Done", "Capture:Done", "Confirm:Done"],
        "Recovered",
        ["cordon", "drain", "capture", "cordon", "lift"],
        at={3: leak_ends},
    ),
    Case(
        "after the drain no clear answer: given back",
        lambda: says(Verb.ASK, Answer.CONFIRMED, Answer.INCONCLUSIVE)(pair(d1())),
        [*SEEN, "Cordon:Done", "Drain:Done", "Capture:Done", "Confirm:Interrupted"],
        "Unconfirmed",
        reasons={"Inconclusive"},
        turns=33,
    ),
    Case(
        "a drain that does not come to rest: at its deadline it goes on",
        lambda: says(Verb.DRAIN, "failed")(pair(d1())),
        WHOLE,
        "Restarted",
    ),
    Case(
        "a drain order that nobody hears of: at its deadline it goes on",
        lambda: says(Verb.DRAIN, None)(pair(d1())),
        WHOLE,
        "Restarted",
        turns=60,
    ),
    Case(
        "a capture that fails holds nothing up",
        lambda: says(Verb.CAPTURE, failing("no log"))(pair(d1())),
        [*SEEN, "Cordon:Done", "Drain:Done", "Capture:Failed", "Confirm:Done", "Restart:Done", *BACK],
        "Restarted",
    ),
    Case(
        "a cordon without effect: nothing is restarted, a person is asked",
        lambda: pair(d1(), cordon_works=False),
        [*SEEN, "Cordon:Failed", "Escalate:Done"],
        "CordonIneffective",
        ["cordon", "lift"],
        {"Escalated"},
    ),
    Case(
        "the kit cannot end the process: evicted",
        lambda: says(Verb.RESTART, "failed")(pair(d1())),
        [*SEEN, *OUT, "Restart:Failed", "Confirm:Done", "Evict:Done"],
        "Evicted",
        ["cordon", "drain", "capture", "cordon", "restart", "cordon", "evict"],
    ),
    Case(
        "the kit cannot end the process, and Evict is not allowed",
        lambda: says(Verb.RESTART, "failed")(
            pair(d1(), limits=replace(ENFORCE, steps=frozenset({Rung.RESTART})))
        ),
        [*SEEN, *OUT, "Restart:Failed", "Confirm:Failed", "Escalate:Done"],
        "NothingAllowed",
    ),
    Case(
        "a restart that does not come back",
        lambda: pair(d1(starts=-1)),
        [*SEEN, *OUT, "Restart:Failed"],
        "Failed",
        turns=500,
    ),
    Case(
        "peers that fail after the restart: three tries, then the breaker",
        lambda: says(Verb.VERIFY, failing("p1: HTTP 500"))(pair(d1())),
        [*SEEN, *OUT, "Restart:Done", "Verify:Failed", "Verify:Failed", "Verify:Failed"],
        "NotVerified",
    ),
    Case(
        "peers that fail once after the restart",
        lambda: says(Verb.VERIFY, failing("p1: HTTP 500"), (Result.OK, ""))(pair(d1())),
        [*SEEN, *OUT, "Restart:Done", "Verify:Failed", *BACK],
        "Restarted",
    ),
    Case(
        "no live peer: given back, and said so",
        lambda: says(Verb.VERIFY, (Result.NO_PEER, "no live peer"))(pair(d1())),
        WHOLE,
        "Restarted",
    ),
    Case(
        "it restarts once more while it is verified",
        lambda: says(Verb.VERIFY, None)(pair(d1())),
        [*SEEN, *OUT, "Restart:Done", "Verify:Failed"],
        "RestartsAgain",
        at={12: crashed},
    ),
    Case(
        "a pod without the kit: evicted, after a canary and a trial",
        lambda: pair(d1(kit=False, readiness=False)),
        [*SEEN, "Drain:Done", "Capture:Done", "Confirm:Done", "Evict:Done"],
        "Evicted",
        ["try evict", "capture", "evict"],
    ),
    Case(
        "a pod without the kit whose requests do not end: evicted at the deadline",
        lambda: pair(d1(kit=False, readiness=False, running=3)),
        [*SEEN, "Drain:Done", "Capture:Done", "Confirm:Done", "Evict:Done"],
        "Evicted",
    ),
    Case(
        "a disruption budget forbids the eviction: nothing is touched",
        lambda: says(Verb.TRY_EVICT, failing("PodDisruptionBudget decode: 0 allowed"))(
            pair(d1(kit=False, readiness=False))
        ),
        ["Observe:Done", "Confirm"],
        "",
        ["try evict"],
        {"DisruptionBudget"},
    ),
    Case(
        "a disruption budget allows it in the trial and forbids it afterwards: given up",
        lambda: says(Verb.EVICT, failing("PodDisruptionBudget decode: 0 allowed"))(
            pair(d1(kit=False, readiness=False))
        ),
        [*SEEN, "Drain:Done", "Capture:Done", "Confirm:Done", "Evict:Failed"],
        "DisruptionBudget",
        turns=33,
    ),
    Case(
        "a unit that a restart in place would not help is cordoned and evicted",
        lambda: pair(d1(way=Way.EVICT)),
        [*SEEN, *OUT, "Evict:Done"],
        "Evicted",
        ["try evict", "cordon", "drain", "capture", "cordon", "evict"],
    ),
    Case(
        "no kit and no canary allowed: nobody can confirm it",
        lambda: pair(d1(kit=False, readiness=False), limits=replace(ENFORCE, canary=False)),
        None,
        None,
        [],
        {"CannotAsk"},
    ),
    Case(
        "a stall of deferred requests without the kit's list",
        lambda: pair(d1(kit=False, readiness=False, signature=Signature.DEFERRED_STALL)),
        None,
        None,
        [],
        {"NeedsKit"},
    ),
    Case(
        "a stall of deferred requests that the kit's list proves",
        lambda: pair(d1(signature=Signature.DEFERRED_STALL)),
        WHOLE,
        "Restarted",
    ),
    Case(
        "a suspect that has not held long enough", lambda: pair(d1(suspect=True)), None, None, [], {"NotHeld"}
    ),
    Case("a blind engine", lambda: pair(d1(blind=True)), None, None, []),
    Case(
        "an idle engine that left a canary without an answer: as any that makes no progress",
        lambda: pair(Sim("d1", hung=True, peers=("p1",))),
        WHOLE,
        "Restarted",
        ["cordon", "drain", "capture", "cordon", "restart", "verify", "lift"],
    ),
    Case(
        "an idle engine that answers when it is asked again: no incident",
        lambda: says(Verb.ASK, Answer.VETOED)(pair(Sim("d1", hung=True))),
        None,
        None,
        [],
        {"Asked"},
    ),
    Case(
        "an idle engine that answers after the drain: given back",
        lambda: pair(Sim("d1", hung=True)),
        [*SEEN, "Cordon:Done", "Drain:Done", "Capture:Done", "Confirm:Done"],
        "Recovered",
        ["cordon", "drain", "capture", "cordon", "lift"],
        at={3: wakes},
    ),
    Case(
        "the pod is deleted half-way",
        lambda: pair(d1()),
        [*SEEN, "Cordon:Done", "Drain:Interrupted"],
        "PodGone",
        at={3: gone},
    ),
    Case(
        "the container restarts by itself half-way",
        lambda: pair(d1()),
        [*SEEN, "Cordon:Done", "Drain:Interrupted"],
        "Restarted",
        ["cordon", "drain", "lift"],
        at={3: crashed},
    ),
    Case(
        "eight ranks of one container: one incident, one restart",
        lambda: pair(d1(engines=tuple(f"d1/{rank}" for rank in range(8)))),
        WHOLE,
        "Restarted",
        ["cordon", "drain", "capture", "cordon", "restart", "verify", "lift"],
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_steps(case: Case) -> None:
    world = case.world()
    for turn in range(case.turns):
        if turn in case.at:
            case.at[turn](world)
        world.run(1, case.seconds)
    if case.story is None:
        assert not world.incidents
    else:
        first = min(world.incidents)
        assert world.story(first) == case.story
        assert world.incidents[first].code == case.code
    if case.acts is not None:
        assert [act.removesuffix(" d1") for act in world.acts()] == case.acts
    assert case.reasons <= world.reasons()
    if case.code:
        assert not world.ledger.claims
        assert all(sim.cordon is None and sim.lock is None for sim in world.units.values())


def person(name: str = "by-hand", created: float = START) -> Incident:
    return Incident(name, "d1", "", created, Trigger.PERSON)


def test_a_persons_incident_on_a_leaking_engine_climbs_the_ladder() -> None:
    world = pair(d1())
    world.incidents["by-hand"] = person()
    world.run(30)
    assert world.story() == WHOLE[1:]
    assert world.only().code == "Restarted"


def test_a_persons_incident_on_a_healthy_engine_ends_without_a_touch() -> None:
    world = pair(Sim("d1"))
    world.incidents["by-hand"] = person()
    world.run(5)
    assert (world.story(), world.only().code, world.acts()) == (["Confirm:Done"], "Recovered", [])


def test_a_persons_incident_that_cannot_be_confirmed_gives_up() -> None:
    world = says(Verb.ASK, Answer.INCONCLUSIVE)(pair(Sim("d1")))
    world.incidents["by-hand"] = person()
    world.run(130)
    assert (world.only().code, world.acts()) == ("Unconfirmed", [])


def test_a_persons_incident_for_a_unit_that_has_one_is_a_duplicate() -> None:
    world = pair(d1()).run(3)
    first = world.only().name
    world.incidents["by-hand"] = person(created=world.now)
    world.run(30)
    assert world.incidents["by-hand"].code == "Duplicate"
    assert first in world.incidents["by-hand"].detail
    assert world.story(first) == WHOLE


def test_manual_approval_waits_for_the_annotation() -> None:
    world = pair(d1(), limits=replace(ENFORCE, approval=Approval.MANUAL)).run(10)
    assert world.acts() == []
    assert "ApprovalNeeded" in world.reasons()
    assert "stanch.dev/approve" in world.only().wait
    name = world.only().name
    world.incidents[name] = replace(world.only(), approved=True)
    world.run(30)
    assert world.story() == WHOLE


def test_a_hand_cordon_is_left_alone() -> None:
    world = pair(d1(kit=True))
    world.units["d1"].cordon = CordonMark("someone", int(START))
    world.run(10)
    assert (world.acts(), world.units["d1"].cordon) == ([], CordonMark("someone", int(START)))
    assert "HandCordon" in world.reasons()


def test_a_group_that_is_made_anew_by_one_restart() -> None:
    world = pair(d1(way=Way.GROUP))

    def replaced(_action: object, world: World) -> object:
        sim = world.units.pop("d1")
        world.units["(gone)"] = replace(sim, key="(gone)", dead=True, leak=0.0)
        return None

    world.say[Verb.RESTART] = replaced
    world.run(10)
    assert world.story()[-1] == "Restart"
    del world.units["(gone)"]
    world.units["d1"] = Sim("d1", peers=("p1",), life=2)
    world.run(10)
    assert world.story() == WHOLE
    assert world.only().pod_uid == "uid-d1-2"


def test_limits_are_never_a_shared_default() -> None:
    assert Limits().mode.value == "Observe"
