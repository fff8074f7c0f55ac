"""Several units, budgets, switches and peers: what is done, in which order, and why the rest waits."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stanch.core.fleet import CordonMark
from stanch.core.history import Claim, Ending, Incident, Result, Trigger
from stanch.core.plan_limits import Limits, MaxUnavailable, Mode, Rung
from stanch.core.plan_types import HARMLESS, Reason, Verb
from stanch.core.planner import sweep, unwatched
from stanch.core.sample import Role
from stanch.core.verdict import Signature
from tests.core.plan_world import ENFORCE, START, Sim, World
from tests.core.test_planner_table import NO_RELEASE, WHOLE, says

pytestmark = pytest.mark.unit


def fleet(*sims: Sim, limits: Limits = ENFORCE, **more: object) -> World:
    return World({sim.key: sim for sim in sims}, limits, **more)  # type: ignore[arg-type]


def cordoned_at_once(world: World, turns: int) -> int:
    """The most units that were out of service by us at the same time."""
    most = 0
    for _ in range(turns):
        world.run(1)
        facts = world.facts()
        most = max(most, sum(not unit.available for unit in facts.units))
    return most


def order_of(world: World, verb: Verb = Verb.RESTART) -> list[str]:
    return list(dict.fromkeys(unit for done, unit in world.log if done is verb))


def waits(world: World, unit: str) -> set[str]:
    return {one.reason.value for made in world.plans for one in made.deferred if one.unit == unit}


def test_all_leak_at_once_and_are_repaired_one_after_another_the_worst_first() -> None:
    world = fleet(Sim("d1", leak=0.73), Sim("d2", leak=0.85), Sim("d3", leak=0.8))
    assert cordoned_at_once(world, 60) == 1
    assert order_of(world) == ["d2", "d3", "d1"]
    assert {i.code for i in world.incidents.values()} == {"Restarted"}
    assert "BudgetStarved" in waits(world, "d1")


@pytest.mark.parametrize(
    ("allowed", "most"),
    [
        (MaxUnavailable(2), 2),
        (MaxUnavailable(percent=50), 2),
        (MaxUnavailable(percent=49), 1),
        (MaxUnavailable(percent=1), 1),
        (MaxUnavailable(percent=100), 4),
    ],
    ids=["two", "half", "49 % of 4", "1 % of 4 is still 1", "all"],
)
def test_max_unavailable(allowed: MaxUnavailable, most: int) -> None:
    limits = replace(ENFORCE, max_unavailable=allowed)
    world = fleet(*(Sim(f"d{n}", leak=0.5 + n / 10) for n in range(1, 5)), limits=limits)
    assert cordoned_at_once(world, 70) == most
    assert len(order_of(world)) == 4


def test_the_budget_is_by_role() -> None:
    prefill = Sim("p1", Role.PREFILL, leak=0.5, signature=Signature.NO_PROGRESS)
    world = fleet(Sim("d1", leak=0.7), Sim("d2"), prefill, Sim("p2", Role.PREFILL))
    assert cordoned_at_once(world, 20) == 2


def test_an_unrelated_crash_looping_pod_takes_the_budget() -> None:
    world = fleet(Sim("d1", leak=0.7), Sim("d2", not_ready=True), Sim("d3"), Sim("d4")).run(20)
    assert world.acts() == []
    assert waits(world, "d1") == {"Asked", "BudgetStarved"}
    assert "d2" in world.only().wait
    world.units["d2"].not_ready = False
    world.run(20)
    assert world.story() == WHOLE


def test_a_missing_pod_takes_the_budget() -> None:
    world = fleet(Sim("d1", leak=0.7), Sim("d2"), desired={Role.DECODE: 3}).run(20)
    assert world.acts() == []
    assert "BudgetStarved" in waits(world, "d1")


def test_a_suspect_that_is_unavailable_anyway_costs_nothing() -> None:
    world = fleet(Sim("d1", leak=0.7, not_ready=True), Sim("d2", not_ready=True), Sim("d3"), Sim("d4"))
    world.run(12)
    assert order_of(world) == ["d1"]


def test_release_costs_no_budget() -> None:
    world = fleet(Sim("d1", leak=0.7, releasable=True), Sim("d2", not_ready=True), Sim("d3")).run(10)
    assert world.only().code == "Released"
    assert world.ledger.repairs == ()


def test_max_per_hour() -> None:
    limits = replace(ENFORCE, max_per_hour=2)
    world = fleet(*(Sim(f"d{n}", leak=0.5 + n / 10) for n in range(1, 5)), limits=limits).run(80)
    assert order_of(world) == ["d4", "d3"]
    assert "MaxPerHour" in waits(world, "d1")
    world.now = START + 3700
    world.run(60)
    assert order_of(world) == ["d4", "d3", "d2", "d1"]


def test_cooldown_of_a_unit_and_a_leak_that_recurs_until_the_breaker_opens() -> None:
    world = fleet(Sim("d1", leak=0.7, leaks_again=True), Sim("d2"))
    world.run(40)
    assert len(world.incidents) == 2
    assert "Cooldown" in waits(world, "d1")
    assert len(order_of(world)) == 1
    world.run(600)
    restarts = len([i for i in world.incidents.values() if i.ending is Ending.RESOLVED])
    assert restarts == 3, "the third recurrence opens the breaker"
    assert world.ledger.tripped is not None
    assert "BreakerOpen" in waits(world, "d1")
    assert "stanch.dev/reset-breaker" in world.incidents[max(world.incidents, key=_created(world))].wait
    log = len(world.log)
    world.run(50)
    assert {verb for verb, _ in world.log[log:]} <= HARMLESS
    world.reset = "2026-11-29"
    world.run(20)
    assert world.ledger.tripped is None
    assert len([i for i in world.incidents.values() if i.ending is Ending.RESOLVED]) == 4


def test_a_reset_counts_for_the_incident_that_is_open_too() -> None:
    """It recurred before the reset, and is planned again after it."""
    world = fleet(
        Sim("d1", leak=0.7, leaks_again=True), Sim("d2"), limits=replace(ENFORCE, breaker_failures=1)
    ).run(200)
    assert world.ledger.tripped is not None
    assert "BreakerOpen" in waits(world, "d1")
    open_ = next(i for i in world.incidents.values() if i.open)
    world.reset = "cause-gone"
    world.run(3)
    after = world.ledger
    assert (after.tripped, after.failures) == (None, ())
    assert after.reset_at is not None
    world.run(20)
    assert world.incidents[open_.name].code == "Restarted"
    # What recurs after the reset counts.
    world.run(200)
    assert world.ledger.tripped is not None


def test_a_reset_also_forgives_a_poison_request() -> None:
    sim = Sim("d1", leak=0.7, leaks_again=True, signature=Signature.QUEUE_DEADLOCK)
    world = fleet(sim, Sim("d2"), limits=replace(ENFORCE, cooldown_seconds=0.0))
    while not any(i.ending is Ending.RESOLVED for i in world.incidents.values()):
        world.run(1)
    world.reset = "removed the prompt"
    world.run(60)
    assert [i.code for i in sorted(world.incidents.values(), key=lambda i: i.created)][:2] == [
        "Restarted",
        "Restarted",
    ]


def _created(world: World):  # type: ignore[no-untyped-def]
    return lambda name: world.incidents[name].created


def test_the_same_value_resets_the_breaker_once() -> None:
    world = fleet(Sim("d1", leak=0.7), Sim("d2"), reset="once")
    says(Verb.VERIFY, (Result.FAILED, "p1: HTTP 500"))(world).run(40)
    assert world.ledger.tripped is not None
    assert "p1: HTTP 500" in world.ledger.tripped_why
    world.units["d2"].leak = 0.6
    world.run(10)
    assert "BreakerOpen" in waits(world, "d2")
    assert order_of(world) == ["d1"]


def test_a_breaker_that_is_open_holds_no_release() -> None:
    world = fleet(Sim("d1", leak=0.7, releasable=True), Sim("d2"))
    world.ledger = replace(world.ledger, tripped=START, tripped_why="for the test")
    assert world.run(10).only().code == "Released"


def test_a_second_leak_after_a_release_is_a_new_episode_and_counts_as_a_recurrence() -> None:
    world = fleet(Sim("d1", leak=0.7, releasable=True), Sim("d2")).run(10)
    world.units["d1"].leak = 0.7
    world.run(10)
    assert [(i.episode, i.code) for i in world.incidents.values()] == [(1, "Released"), (2, "Released")]
    assert [f.why for f in world.ledger.failures] == [f"came back after {min(world.incidents)}"]


def test_a_queue_that_stands_again_after_a_restart_is_a_poison_request() -> None:
    sim = Sim("d1", leak=0.7, leaks_again=True, signature=Signature.QUEUE_DEADLOCK)
    world = fleet(sim, Sim("d2")).run(60)
    second = world.incidents[max(world.incidents, key=_created(world))]
    assert (second.code, order_of(world)) == ("Recurrence", ["d1"])
    assert len(world.incidents) == 2, "no third: a person has to look"


# Switches


@pytest.mark.parametrize("mode", [Mode.OBSERVE, Mode.DISABLED])
@pytest.mark.parametrize("releasable", [True, False])
def test_dry_run_acts_on_nothing(mode: Mode, releasable: bool) -> None:
    world = fleet(
        Sim("d1", leak=0.7, releasable=releasable),
        Sim("d2", leak=0.8, kit=False, readiness=False),
        limits=Limits(mode=mode),
    ).run(40)
    assert {verb for verb, _ in world.log} <= {Verb.ASK}
    assert all(made.ledger is None for made in world.plans)
    if mode is Mode.DISABLED:
        assert not world.log
        assert not world.incidents


def test_dry_run_says_what_it_would_have_done_step_by_step_once() -> None:
    world = fleet(Sim("d1", leak=0.7, peers=("p1",)), Sim("p1", Role.PREFILL), limits=Limits()).run(40)
    assert world.story() == [
        "Observe:Done",
        "Confirm:Done",
        *(f"{step}:WouldDo" for step in ("Cordon", "Drain", "Capture", "Restart", "Verify", "Uncordon")),
    ]
    assert (world.only().code, world.only().detail) == ("WouldDo", "would restart d1 in place")
    assert "through p1" in [step.detail for step in world.only().steps]
    assert waits(world, "d1") == {"Asked", "Observed"}


def test_dry_run_of_a_release_and_of_a_pod_without_the_kit() -> None:
    world = fleet(Sim("d1", leak=0.7, releasable=True), limits=Limits()).run(5)
    assert world.story()[2:] == ["Release:WouldDo"]
    assert world.only().detail == "would release 1 stuck request of d1"
    world = fleet(Sim("d1", leak=0.7, kit=False, readiness=False, running=3), limits=Limits()).run(5)
    assert world.story()[2:] == ["Drain:WouldDo", "Capture:WouldDo", "Evict:WouldDo"]
    assert "3 running requests" in world.only().steps[2].detail


def test_dry_run_says_what_it_would_have_waited_for() -> None:
    world = fleet(Sim("d1", leak=0.7), Sim("d2", not_ready=True), limits=Limits()).run(5)
    assert "would wait: d2 already unavailable" in world.only().steps[2].detail


def test_enforce_after_observe_repairs_what_was_only_observed() -> None:
    world = fleet(Sim("d1", leak=0.7), Sim("d2"), limits=Limits()).run(5)
    world.limits = ENFORCE
    world.run(30)
    assert [i.code for i in world.incidents.values()] == ["WouldDo", "Restarted"]


def half_way(step: str = "Drain") -> World:
    """One unit under repair, at that step."""
    world = fleet(Sim("d1", leak=0.7), Sim("d2"), Sim("d3"))
    while not world.incidents or world.story()[-1] != step:
        world.run(1, 1.0)
    return world


SWITCHES = {
    "stop": ({"stop": "stanch-stop says so"}, {}, Reason.STOPPED),
    "paused": ({}, {"paused": True}, Reason.PAUSED),
}


@pytest.mark.parametrize("name", [*SWITCHES, "conflict", "leaving", "blind fleet", "blind engine"])
@pytest.mark.parametrize("step", ["Cordon", "Drain", "Capture"])
def test_what_holds_a_repair_half_way_lets_its_cordon_run_out_and_it_begins_anew(
    name: str, step: str
) -> None:
    world = half_way(step)
    d1, d2, d3 = world.units.values()
    before = replace(world.limits)
    log = len(world.log)
    reason = {
        "conflict": "Conflict",
        "leaving": "Leaving",
        "blind fleet": "BlindFleet",
        "blind engine": "Blind",
    }
    if name in SWITCHES:
        facts, limits, why = SWITCHES[name]
        for key, value in facts.items():
            setattr(world, key, value)
        world.limits = replace(world.limits, **limits)  # type: ignore[arg-type]
        expected = why.value
    else:
        expected = reason[name]
        d1.conflict = "another watch" if name == "conflict" else None
        d1.leaving = "a rollout" if name == "leaving" else None
        d1.blind = name in ("blind engine", "blind fleet")
        d2.blind = name == "blind fleet"
    world.run(20)
    assert world.log[log:] == []
    assert expected in waits(world, "d1")
    assert world.facts().unit("d1").available, "serving returns within one lease"  # type: ignore[union-attr]
    world.stop, world.limits = None, before
    d1.conflict, d1.leaving, d1.blind, d2.blind = None, None, False, False
    world.run(40)
    assert world.only().code == "Restarted"
    assert f"{step}:Interrupted" in world.story()
    assert d3.run == 1


def test_a_short_hold_does_not_interrupt() -> None:
    world = half_way()
    world.units["d1"].blind = True
    world.run(3)
    world.units["d1"].blind = False
    assert world.run(30).story() == WHOLE


def test_observe_half_way_ends_the_incident_and_acts_no_more() -> None:
    world = half_way()
    world.limits = replace(world.limits, mode=Mode.OBSERVE)
    made = world.turn()
    assert world.only().code == "WouldDo"
    assert not made.actions
    assert not world.ledger.claims


def test_a_blind_fleet_holds_everything() -> None:
    world = fleet(Sim("d1", leak=0.7), Sim("d2", blind=True), Sim("d3", blind=True)).run(20)
    assert (world.log, world.incidents) == ([], {})
    assert waits(world, "d1") == {"BlindFleet"}
    world = fleet(Sim("d1", leak=0.7), Sim("d2", blind=True)).run(20)
    assert order_of(world) == ["d1"], "half is not more than half"


def test_our_own_restart_does_not_make_the_fleet_blind() -> None:
    assert fleet(Sim("d1", leak=0.7)).run(30).story() == WHOLE


def test_claims_that_are_newer_than_the_list_of_pods_hold() -> None:
    world = fleet(Sim("d1", leak=0.7), Sim("d2"))
    listed = world.facts

    def older():  # type: ignore[no-untyped-def]
        return replace(listed(), listed_at=world.now - 1)

    world.facts = older  # type: ignore[method-assign]
    world.run(10)
    assert world.acts() == []
    assert "StaleList" in waits(world, "d1")


def test_another_operators_claim_counts_until_it_expires() -> None:
    world = fleet(Sim("d1", leak=0.7), Sim("d2"))
    world.ledger = replace(world.ledger, claims=(Claim("not-known-here", "d2", START + 60),))
    world.run(10)
    assert world.acts() == []
    world.run(20)
    assert order_of(world) == ["d1"]


# Peers


def test_a_prefill_that_holds_because_a_decode_waits_is_not_the_patient() -> None:
    prefill = Sim("p1", Role.PREFILL, leak=0.9, signature=Signature.PRODUCER_STRANDED, peers=("d1",))
    world = fleet(Sim("d1", leak=0.7), Sim("d2"), prefill, Sim("p2", Role.PREFILL)).run(30)
    assert "PeerWaits" in waits(world, "p1")
    assert order_of(world)[0] == "d1"


def test_a_prefill_that_was_restarted_arms_its_decodes() -> None:
    prefill = Sim("p1", Role.PREFILL, leak=0.9, signature=Signature.PRODUCER_STRANDED)
    world = fleet(Sim("d1"), prefill).run(30)
    assert {name for made in world.plans for name in made.arm} == {"d"}


def test_a_decode_whose_peer_is_frozen_waits_for_it_and_not_for_ever() -> None:
    decode = Sim("d1", leak=0.7, signature=Signature.PARKED_REMOTE_KV, peers=("p1", "p2"), peer_of_stuck="p1")
    world = fleet(decode, Sim("d2"), Sim("p1", Role.PREFILL, blind=True), Sim("p2", Role.PREFILL)).run(60)
    assert "PeerFrozen" in waits(world, "d1")
    assert world.acts() == []
    world.run(100)
    assert order_of(world) == ["d1"]


def test_a_decode_whose_requests_wait_for_a_live_peer_is_repaired_though_another_is_frozen() -> None:
    decode = Sim("d1", leak=0.7, signature=Signature.PARKED_REMOTE_KV, peers=("p1", "p2"), peer_of_stuck="p2")
    world = fleet(decode, Sim("d2"), Sim("p1", Role.PREFILL, blind=True), Sim("p2", Role.PREFILL)).run(30)
    assert order_of(world) == ["d1"]


def test_a_decode_of_whose_peer_nothing_is_known_is_repaired() -> None:
    """The kit of the peer is older, and does not say its id."""
    decode = Sim("d1", leak=0.7, signature=Signature.PARKED_REMOTE_KV, peers=("p1",), peer_of_stuck="p9")
    world = fleet(decode, Sim("d2"), Sim("p1", Role.PREFILL, blind=True)).run(30)
    assert order_of(world) == ["d1"]
    assert [one.peer for one in world.only().stuck] == [None]


def test_stuck_requests_name_the_peer_that_they_pull_from_also_after_its_restart() -> None:
    decode = Sim("d1", leak=0.7, signature=Signature.PARKED_REMOTE_KV, peers=("p1",), peer_of_stuck="p1")
    world = fleet(decode, Sim("d2", not_ready=True), Sim("p1", Role.PREFILL)).run(3)
    assert [one.peer for one in world.only().stuck] == ["p1"]
    world.units["p1"].transfer_id = "another"
    world.run(20)
    assert [one.peer for one in world.only().stuck] == ["p1"]


def test_an_id_that_two_peers_have_names_neither() -> None:
    decode = Sim("d1", leak=0.7, signature=Signature.PARKED_REMOTE_KV, peers=("p1", "p2"), peer_of_stuck="p1")
    twin = Sim("p2", Role.PREFILL, transfer_id="id-p1")
    world = fleet(decode, Sim("d2", not_ready=True), Sim("p1", Role.PREFILL), twin).run(3)
    assert [one.peer for one in world.only().stuck] == [None]


@pytest.mark.parametrize("why", ["a rollout", "a node drain", "a scale-down"])
def test_what_goes_anyway_is_left_alone(why: str) -> None:
    world = fleet(Sim("d1", leak=0.7, leaving=why), Sim("d2")).run(10)
    assert (world.log, waits(world, "d1")) == ([], {"Leaving"})
    assert why in world.plans[0].deferred[0].message


def test_two_watches_on_one_pod_repair_it_neither() -> None:
    world = fleet(Sim("d1", leak=0.7, conflict="leakwatch/other"), Sim("d2")).run(10)
    assert (world.acts(), waits(world, "d1")) == ([], {"Conflict"})


# What is left over


def test_an_incident_that_no_watch_selects_ends_as_not_watched() -> None:
    incident = Incident("by-hand", "d9", "", START, Trigger.PERSON)
    (ended,) = unwatched([incident, incident.close(Ending.RESOLVED, "", START)], START + 5)
    assert (ended.ending, ended.detail) == (Ending.NOT_WATCHED, "no LeakWatch selects d9")


def test_the_sweep_lifts_what_no_open_incident_stands_behind() -> None:
    ours = Sim("d1", cordon=CordonMark("lost-1", int(START)), lock="lost-1")
    open_ = Sim("d2", cordon=CordonMark("open-1", int(START)), lock="open-1")
    by_hand = Sim("d3", cordon=CordonMark("maintenance", int(START)))
    world = fleet(ours, open_, by_hand)
    assert [(a.unit, a.incident) for a in sweep(world.facts(), ["open-1"])] == [("d1", "lost-1")]
    world.stop = "stanch-stop says so"
    assert sweep(world.facts(), ["open-1"]) == ()


def test_forbidding_release_half_way_goes_on_without_it() -> None:
    world = fleet(Sim("d1", leak=0.7, releasable=True), Sim("d2"), limits=NO_RELEASE).run(30)
    assert world.story() == WHOLE
    assert Rung.RELEASE not in world.limits.steps
