"""Narrow places of the planner, each of which a wrong edit once got through the other tests."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stanch.core import plan_budget as budget
from stanch.core.fleet import CordonMark, Fleet, Kit, Way
from stanch.core.history import Claim, Confirmation, Ending, History, Incident, Ledger, StepName, Trigger
from stanch.core.plan_limits import RESTART_HASTE_SECONDS, UNDER_WAY_SECONDS, Limits, MaxUnavailable
from stanch.core.plan_types import Verb
from stanch.core.planner import plan
from stanch.core.sample import Role
from stanch.core.verdict import Answer, Signature
from tests.core.plan_world import ENFORCE, START, Sim, World
from tests.core.test_planner_fleet import fleet, order_of, waits
from tests.core.test_planner_table import pair

pytestmark = pytest.mark.unit


def test_missing_and_unready_units_both_count() -> None:
    limits = replace(ENFORCE, max_unavailable=MaxUnavailable(2))
    world = fleet(
        Sim("d1", leak=0.7), Sim("d2", not_ready=True), Sim("d3"), limits=limits, desired={Role.DECODE: 4}
    )
    assert world.run(10).acts() == []
    assert "(missing 1), d2 already unavailable, 2 of 4 decode units may be" in world.only().wait


def test_a_claim_of_an_incident_that_has_ended_counts_no_more() -> None:
    world = fleet(Sim("d1", leak=0.7), Sim("d2"))
    ended = Incident("old", "d2", "uid-d2-1", START - 50, unit="d2").close(Ending.NOT_WATCHED, "", START - 5)
    world.incidents["old"] = ended
    world.ledger = Ledger(claims=(Claim("old", "d2", START + 100),))
    world.run(4)
    assert order_of(world, Verb.CORDON) == ["d1"]


def test_the_worst_keeps_its_place_while_its_engine_is_asked_again() -> None:
    world = fleet(Sim("d1"), Sim("d2", leak=0.9), Sim("d3", not_ready=True)).run(10)
    assert "BudgetStarved" in waits(world, "d2")
    world.units["d1"].leak = 0.5
    world.run(1)
    world.units["d3"].not_ready = False
    world.run(1)  # d1 has just confirmed, d2 confirmed long ago
    assert order_of(world, Verb.CORDON) == []
    world.run(1)
    assert order_of(world, Verb.CORDON) == ["d2"]


def test_one_that_proves_nothing_does_not_keep_its_place() -> None:
    world = fleet(Sim("d1", leak=0.5), Sim("d2", leak=0.9), Sim("d3", not_ready=True)).run(10)
    world.say[Verb.ASK] = lambda action, _world: (
        Answer.INCONCLUSIVE if action.unit == "d2" else Answer.CONFIRMED
    )
    world.units["d3"].not_ready = False
    world.run(6)
    assert order_of(world, Verb.CORDON) == ["d1"]


def test_what_another_process_said_confirms_nothing() -> None:
    world = pair(Sim("d1", leak=0.7))
    world.confirmations = [Confirmation("d1", START, Answer.CONFIRMED, "c0.9")]
    made = world.turn()
    assert [action.verb for action in made.actions] == [Verb.ASK]
    assert not made.incidents


def test_what_was_said_more_than_an_interval_ago_confirms_nothing() -> None:
    world = pair(Sim("d1", leak=0.7))
    world.confirmations = [Confirmation("d1", START - 5.1, Answer.CONFIRMED, "c1.1")]
    assert [action.verb for action in world.turn().actions] == [Verb.ASK]
    world.confirmations = [Confirmation("d1", world.now - 5.0, Answer.CONFIRMED, "c1.1")]
    assert [action.verb for action in world.turn().actions] == [Verb.CORDON]


def test_our_own_restart_is_no_blindness() -> None:
    world = fleet(Sim("d1", leak=0.7, starts=60.0))
    while not order_of(world):
        world.run(1)
    while not world.units["d1"].up(world.now):
        world.run(1)
    assert not waits(world, "d1") & {"Blind", "BlindFleet", "NotRunning"}


def test_the_cordon_holds_until_the_order_to_end_is_taken() -> None:
    world = fleet(Sim("d1", leak=0.7), Sim("d2"))
    world.say[Verb.RESTART] = lambda _action, _world: None
    while not order_of(world):
        world.run(1)
    for _ in range(8):
        world.run(1)
        mark = world.units["d1"].cordon
        assert mark is not None
        assert world.now - mark.beat <= 20


def test_the_second_question_goes_out_with_the_capture() -> None:
    world = fleet(Sim("d1", leak=0.7), Sim("d2"))
    verbs: list[set[Verb]] = [set()]
    while Verb.RESTART not in verbs[-1]:
        world.run(1, 0.5)
        verbs.append({action.verb for action in world.plans[-1].actions})
    assert verbs[-2] >= {Verb.CAPTURE, Verb.ASK}


def test_a_plan_that_changes_nothing_writes_nothing() -> None:
    world = fleet(Sim("d1", leak=0.7), Sim("d2", not_ready=True)).run(6)
    made = world.turn()
    assert (made.incidents, made.ledger, made.actions) == ((), None, ())
    assert [one.unit for one in made.deferred] == ["d1"]


def test_the_same_facts_give_the_same_plan() -> None:
    world = fleet(Sim("d1", leak=0.7), Sim("d2", leak=0.8)).run(4)
    history = History(
        tuple(world.incidents.values()), world.ledger, tuple(world.confirmations), tuple(world.outcomes)
    )
    again = [plan(world.facts(), world.verdicts(), history, world.limits, world.now) for _ in range(2)]
    assert again[0] == again[1]


def test_the_rest_of_an_ended_incidents_cordon_holds_up_nobody() -> None:
    world = fleet(Sim("d1", leak=0.7), Sim("d2"))
    old = Incident("old", "d1", "uid-d1-1", START - 50, unit="d1", container_id="c1.1")
    world.incidents["old"] = old.close(Ending.GAVE_UP, "", START - 1)
    world.units["d1"].cordon = CordonMark("old", int(START))
    world.units["d1"].lock = "old"
    world.run(3)
    assert order_of(world, Verb.CORDON) == ["d1"]


def test_a_persons_incident_for_a_pod_that_is_not_there() -> None:
    world = fleet(Sim("d1"))
    world.incidents["by-hand"] = Incident("by-hand", "d9", "", START, Trigger.PERSON)
    world.incidents["by-uid"] = Incident("by-uid", "d1", "another-life", START, Trigger.PERSON)
    world.run(1)
    assert {i.code for i in world.incidents.values()} == {"PodGone"}


def test_a_persons_incident_under_observe_ends_as_what_would_be_done() -> None:
    world = fleet(Sim("d1", leak=0.7), Sim("d2"), limits=Limits())
    world.incidents["by-hand"] = Incident("by-hand", "d1", "", START, Trigger.PERSON)
    world.run(5)
    assert (world.only().code, world.only().detail) == ("WouldDo", "would restart d1 in place")
    assert world.acts() == []


def test_a_long_name_of_a_persons_incident_still_makes_a_command_id_that_the_kit_takes() -> None:
    long = "x" * 253
    world = fleet(Sim("d1", leak=0.7), Sim("d2"))
    world.incidents[long] = Incident(long, "d1", "", START, Trigger.PERSON)
    world.run(30)
    commands = {a.key for made in world.plans for a in made.actions if a.verb in (Verb.DRAIN, Verb.RESTART)}
    assert len(commands) == 2
    assert all(len(command) <= 128 for command in commands)
    assert world.incidents[long].code == "Restarted"


def test_ranks_that_fault_later_join_the_incident() -> None:
    world = World({"d1": Sim("d1", leak=0.7, engines=("d1/0", "d1/1")), "d2": Sim("d2", not_ready=True)})
    first, second = world.verdicts()[:2]
    healthy = World({"d1": Sim("d1", engines=("d1/0", "d1/1"))}).verdicts()[1]
    read = [[first, healthy]] * 3 + [[first, second]] * 3
    for verdicts in read:
        world.verdicts = lambda verdicts=verdicts: verdicts  # type: ignore[method-assign,misc]
        world.run(1)
    assert world.only().engines == ("d1/0", "d1/1")


def test_a_group_of_which_a_container_has_restarted_is_not_back_before_its_pods_are_others() -> None:
    world = pair(Sim("d1", leak=0.7, peers=("p1",), way=Way.GROUP, starts=0.0))
    world.run(12)
    assert world.story()[-1] == "Restart"  # its container has restarted, and is well
    world.units["d1"] = Sim("d1", peers=("p1",), way=Way.GROUP, life=2)
    world.run(10)
    assert world.only().code == "Restarted"
    assert world.only().pod_uid == "uid-d1-2"


def test_a_group_that_its_controller_lets_be_is_verified_as_it_is() -> None:
    world = pair(Sim("d1", leak=0.7, peers=("p1",), way=Way.GROUP, starts=0.0)).run(30)
    assert (world.only().code, world.only().pod_uid) == ("Restarted", "uid-d1-1")


def test_recheck_is_when_something_may_look_different() -> None:
    world = fleet(Sim("d1", leak=0.7, suspect=True, held=57.0), Sim("d2"))
    assert world.turn().recheck_after == 3.0
    assert fleet(Sim("d2")).turn().recheck_after == ENFORCE.interval_seconds


def test_a_unit_in_a_step_is_looked_at_often_but_not_for_ever() -> None:
    world = pair(Sim("d1", leak=0.7, peers=("p1",), starts=600.0))
    assert world.turn().recheck_after == ENFORCE.interval_seconds
    assert {world.turn().recheck_after for _ in range(6)} == {UNDER_WAY_SECONDS}
    step = world.only().current
    assert step is not None
    assert step.name is StepName.RESTART
    world.run(int(RESTART_HASTE_SECONDS / ENFORCE.interval_seconds))
    assert world.turn().recheck_after == ENFORCE.interval_seconds


def seen_through(world: World, unit: str, **pod: object) -> None:
    """From now on that unit's pod is seen with these values, whatever it does."""
    seen = world.facts

    def facts() -> Fleet:
        found = seen()
        units = [
            replace(one, pods=(replace(one.pods[0], **pod),)) if one.key == unit else one  # type: ignore[arg-type]
            for one in found.units
        ]
        return replace(found, units=tuple(units))

    world.facts = facts  # type: ignore[method-assign]


@pytest.mark.parametrize(
    ("pod", "words"),
    [
        ({"kit": Kit("boot-1.1")}, "the kit in d1 does not see it"),
        ({"routed": True}, "an endpoint still points at d1"),
        ({"routed": None}, "an endpoint still points at d1"),
        ({"arriving": True}, "requests still arrive at d1"),
        ({"arriving": None}, "requests still arrive at d1"),
    ],
    ids=["kit", "endpoint", "endpoint not read", "requests", "requests not read"],
)
def test_a_cordon_counts_when_its_effect_is_seen(pod: dict[str, object], words: str) -> None:
    world = fleet(Sim("d1", leak=0.7), Sim("d2"))
    seen_through(world, "d1", **pod)
    world.run(12)
    assert (world.only().code, order_of(world)) == ("CordonIneffective", [])
    assert words in world.only().detail


def test_a_cordon_that_ran_out_and_still_shows_is_written_anew() -> None:
    """The operator was away for a little longer than the lease. Nothing is to be gone through again and again
    on the strength of what is left of the old cordon."""
    world = World({"d1": Sim("d1", leak=0.7), "d2": Sim("d2")}, kit_lag=10.0)
    while not any("drain" in act for act in world.acts()):
        world.run(1)
    world.now += 28.0
    world.run(20, 1.0)
    assert sum(step.endswith("Interrupted") for step in world.story()) == 1
    world.run(20)
    assert world.only().ending is Ending.RESOLVED
    assert world.units["d1"].run == 2


def test_an_order_that_was_answered_is_not_given_again_though_its_annotation_is_gone() -> None:
    world = fleet(Sim("d1", leak=0.7), Sim("d2"))
    world.say[Verb.DRAIN] = lambda _action, _world: "running"
    while (Verb.DRAIN, "d1") not in world.log:
        world.run(1)
    world.units["d1"].command = None
    world.run(5)
    assert world.log.count((Verb.DRAIN, "d1")) == 1


def test_an_engine_that_was_given_back_while_nobody_looked_is_not_cordoned_again() -> None:
    world = fleet(Sim("d1", leak=0.7, starts=60.0), Sim("d2"))
    while not order_of(world):
        world.run(1)
    world.now += 200.0  # nobody renewed anything; it has started and serves
    log = len(world.log)
    world.run(10)
    assert world.only().code == "Restarted"
    assert Verb.CORDON not in {verb for verb, _ in world.log[log:]}


@pytest.mark.parametrize("asked_in_vain", [Verb.RESTART, Verb.VERIFY], ids=["on its way out", "verified"])
def test_the_process_that_comes_after_the_order_is_not_cordoned(asked_in_vain: Verb) -> None:
    """Its kit counts a beat only once it changes: it serves as soon as it is well, and one that changes then
    would take it out once more."""
    world = fleet(Sim("d1", leak=0.7, starts=20.0), Sim("d2"))
    slow = {Verb.RESTART: "running", Verb.VERIFY: None}
    world.say[asked_in_vain] = lambda _action, _world: slow[asked_in_vain]
    while (asked_in_vain, "d1") not in world.log:
        world.run(1)
    log = len(world.log)
    world.run(10)
    assert Verb.CORDON not in {verb for verb, _ in world.log[log:]}
    assert budget.has_claim(world.ledger, world.only().name)


def test_a_canarys_yes_does_not_prove_a_stall_of_deferred_requests() -> None:
    world = fleet(Sim("d1", leak=0.7, signature=Signature.DEFERRED_STALL), Sim("d2"))
    world.confirmations = [Confirmation("d1", START, Answer.CONFIRMED, "c1.1", stuck=None)]
    assert [action.verb for action in world.turn().actions] == [Verb.ASK]
    assert not world.incidents
