"""An answer that proves nothing is no end: it is asked again, but not for ever; and what a kill leaves."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stanch.core.history import Ending, Incident, Trigger
from stanch.core.plan_limits import Rung
from stanch.core.plan_types import Action, Verb
from stanch.core.verdict import Answer, Signature
from tests.core.plan_world import ENFORCE, START, Sim, World
from tests.core.test_planner_table import OUT, SEEN, WHOLE, d1, pair, says

pytestmark = pytest.mark.unit

ONLY_RELEASE = replace(ENFORCE, steps=frozenset({Rung.RELEASE}))


@pytest.mark.parametrize("limits", [ONLY_RELEASE, ENFORCE], ids=["only release is allowed", "all is allowed"])
def test_no_clear_answer_after_a_release_is_asked_again(limits: object) -> None:
    world = pair(d1(releasable=True), limits=limits)
    world = says(Verb.ASK, Answer.CONFIRMED, Answer.INCONCLUSIVE, Answer.VETOED)(world)
    world.run(40)
    assert world.story() == [*SEEN, "Release:Done", "Confirm:Done"]
    assert (world.only().ending, world.only().code) == (Ending.RESOLVED, "Released")
    assert world.acts() == ["release d1", "lift d1"]


def test_never_a_clear_answer_after_a_release_gives_up_in_the_end() -> None:
    world = says(Verb.ASK, Answer.CONFIRMED, Answer.INCONCLUSIVE)(
        pair(d1(releasable=True), limits=ONLY_RELEASE)
    )
    world.run(110)
    assert world.only().open
    world.run(40)
    assert world.story() == [*SEEN, "Release:Done", "Confirm:Interrupted"]
    assert (world.only().ending, world.only().code) == (Ending.GAVE_UP, "Unconfirmed")
    assert "after the release" in world.only().detail
    assert world.acts() == ["release d1", "lift d1"]


def test_a_release_that_did_not_help_still_ends_where_nothing_else_is_allowed() -> None:
    def does_nothing(_action: Action, world: World) -> object:
        world.units["d1"].leaks_again = True
        return "refused"

    world = pair(d1(releasable=True), limits=ONLY_RELEASE)
    world.say[Verb.RELEASE] = does_nothing
    world.run(20)
    assert world.story()[-2:] == ["Confirm:Failed", "Escalate:Done"]
    assert world.only().code == "NothingAllowed"


def test_an_open_incident_that_can_no_longer_be_confirmed_gives_up() -> None:
    """It waits for its budget for an hour; what it costs begins with an answer, and none comes."""
    world = pair(d1())
    world.units["d2"].not_ready = True
    world.run(700)
    assert "BudgetStarved" in world.only().wait
    world = says(Verb.ASK, Answer.INCONCLUSIVE)(world)
    world.units["d2"].not_ready = False
    world.run(100)
    assert world.only().open
    world.run(60)
    assert (world.only().ending, world.only().code) == (Ending.GAVE_UP, "Unconfirmed")
    assert world.acts() == []


def bare(name: str = "d1-9f3d2c41-1") -> Incident:
    """A watchdog's incident whose process was killed before it wrote the status."""
    return Incident(name, "d1", "uid-d1-1", START, Trigger.WATCHDOG, version="1")


def test_a_bare_incident_learns_what_it_is_about_when_the_engine_confirms_it() -> None:
    world = pair(d1(signature=Signature.QUEUE_DEADLOCK, blind=True))
    world.incidents[bare().name] = bare()
    world.run(3)
    assert world.only().evidence.signature is None
    world.units["d1"].blind = False
    world.run(3)
    evidence = world.only().evidence
    assert (evidence.signature, evidence.usage) == (Signature.QUEUE_DEADLOCK, 0.7)
    assert evidence.held_seconds == 120.0
    world.run(30)
    assert world.story() == WHOLE[1:]


def test_a_bare_incident_of_which_nothing_shows_any_more_ends_well() -> None:
    world = pair(Sim("d1"))
    world.incidents[bare().name] = bare()
    world.run(3)
    assert (world.only().ending, world.acts()) == (Ending.RECOVERED, [])


def test_a_bare_incident_whose_leak_was_released_by_the_killed_process() -> None:
    """The engine's gauges lag: the first answer proves nothing."""
    world = pair(d1(releasable=True), limits=ONLY_RELEASE)
    world.incidents[bare().name] = bare()
    world = says(Verb.ASK, Answer.CONFIRMED, Answer.INCONCLUSIVE, Answer.INCONCLUSIVE, Answer.VETOED)(world)
    world.run(60)
    assert world.story() == ["Confirm:Done", "Release:Done", "Confirm:Done"]
    assert world.only().code == "Released"


def test_a_restart_still_needs_a_second_yes_where_the_first_came_late() -> None:
    world = says(Verb.ASK, Answer.CONFIRMED, Answer.INCONCLUSIVE, Answer.CONFIRMED)(pair(d1(releasable=True)))
    world.say[Verb.RELEASE] = lambda _action, _world: "refused"
    world.run(60)
    assert world.story()[:6] == [*SEEN, "Release:Failed", "Confirm:Done", *OUT[:2]]
    assert world.only().code == "Restarted"


@pytest.mark.parametrize("trigger", [Trigger.ALERT, Trigger.PERSON])
def test_who_came_too_early_waits_no_longer_than_the_watchdog(trigger: Trigger) -> None:
    """The engine is asked at once, says that it is too early, and is asked again when the pattern has held
    for long enough: not a minute after it was asked first."""
    world = pair(d1(releasable=True, suspect=True, held=50.0))
    world.incidents["early"] = Incident("early", "d1", "", START, trigger)
    asked: list[float] = []

    def answer(_action: Action, world: World) -> Answer:
        asked.append(world.now - START)
        if not world.units["d1"].leak:
            return Answer.VETOED
        return Answer.INCONCLUSIVE if world.units["d1"].suspect else Answer.CONFIRMED

    world.say[Verb.ASK] = answer
    while world.only().open:
        assert world.now < START + 60
        world.turn()
        world.now += 1.0
        # As the detector counts it.
        world.units["d1"].held = 50.0 + world.now - START
        world.units["d1"].suspect = world.units["d1"].held < 60.0
    assert asked[:2] == [0.0, 10.0]
    assert (world.only().ending, world.only().code) == (Ending.RESOLVED, "Released")
    assert len(world.incidents) == 1
