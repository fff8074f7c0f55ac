"""A pod that nobody would make anew is never evicted; everything else is the same for it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stanch.core.fleet import Way
from stanch.core.history import Ending, StepName
from stanch.core.plan_limits import Mode, Rung
from stanch.core.plan_types import Verb
from tests.core.plan_world import ENFORCE, Sim, World
from tests.core.test_planner_table import OUT, SEEN, WHOLE, d1, pair, says

pytestmark = pytest.mark.unit

BARE = "no controller owns d1: make it again"


def end(world: World) -> tuple[Ending | None, str]:
    return world.only().ending, world.only().code


@pytest.mark.parametrize(
    ("sim", "why"),
    [
        (d1(kit=False, readiness=False), "its readiness does not ask an engine kit"),
        (d1(way=Way.EVICT), "a restart would not help"),
    ],
    ids=["without the kit", "no restart in place"],
)
def test_it_is_left_to_a_person(sim: Sim, why: str) -> None:
    world = pair(replace(sim, not_remade=BARE)).run(30)
    assert world.story() == ["Observe:Done", "Confirm:Failed", "Escalate:Done"]
    assert end(world) == (Ending.ESCALATED, "NotRemade")
    assert why in world.only().detail
    assert BARE in world.only().detail
    assert world.acts() == []


def test_a_restart_in_place_is_the_same_for_it() -> None:
    world = pair(d1(not_remade=BARE)).run(30)
    assert (world.story(), end(world)) == (WHOLE, (Ending.RESOLVED, "Restarted"))


def test_a_release_is_the_same_for_it() -> None:
    world = pair(d1(not_remade=BARE, releasable=True)).run(30)
    assert end(world) == (Ending.RESOLVED, "Released")


def test_a_restart_that_failed_is_not_followed_by_its_eviction() -> None:
    world = says(Verb.RESTART, "failed")(pair(d1(not_remade=BARE))).run(40)
    assert world.story() == [*SEEN, *OUT, "Restart:Failed", "Confirm:Failed", "Escalate:Done"]
    assert end(world) == (Ending.ESCALATED, "NotRemade")
    assert "that has failed: failed, as told" in world.only().detail
    assert "evict d1" not in world.acts()
    assert world.units["d1"].cordon is None


def test_one_that_loses_its_controller_half_way() -> None:
    world = pair(d1(kit=False, readiness=False, running=3))
    while world.story() != [*SEEN, "Drain"] if world.incidents else True:
        world.run(1)
    world.units["d1"].not_remade = BARE
    world.run(40)
    assert end(world) == (Ending.ESCALATED, "NotRemade")
    assert "evict d1" not in world.acts()


def test_where_eviction_is_not_allowed_anyway_that_is_the_reason() -> None:
    limits = replace(ENFORCE, steps=frozenset({Rung.RESTART}))
    world = pair(d1(kit=False, readiness=False, not_remade=BARE), limits=limits).run(20)
    assert end(world) == (Ending.ESCALATED, "NothingAllowed")


def test_dry_run_says_that_a_person_would_be_asked() -> None:
    limits = replace(ENFORCE, mode=Mode.OBSERVE)
    world = pair(d1(kit=False, readiness=False, not_remade=BARE), limits=limits).run(10)
    assert world.only().ending is Ending.WOULD_DO
    assert world.only().steps[-1].name is StepName.ESCALATE
    assert BARE in world.only().detail
