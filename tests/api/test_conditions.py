"""Conditions of a watch and of its incidents, in situations that people ask about."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stanch.api.common import Condition
from stanch.api.conditions import merged
from stanch.core.plan_conditions import Said, of_incident, of_watch
from stanch.core.plan_limits import Limits, Mode
from stanch.core.plan_types import Verb
from tests.core.plan_world import START, Sim, World
from tests.core.test_planner_table import failing, says

pytestmark = pytest.mark.unit


def of(world: World) -> dict[str, tuple[bool, str]]:
    made = world.turn()
    found = of_watch(
        world.facts(), world.verdicts(), made, world.incidents.values(), world.ledger, world.limits
    )
    assert found[0].type == "Ready"
    return {one.type: (one.true, one.reason) for one in found}


def decodes(*leaks: float, **more: object) -> World:
    units = {f"d{n}": Sim(f"d{n}", leak=leak) for n, leak in enumerate(leaks)}
    return World(units, **more)  # type: ignore[arg-type]


def test_all_is_well() -> None:
    assert of(decodes(0.0, 0.0)) == {
        "Ready": (True, "Watching"),
        "Degraded": (False, "AsExpected"),
        "Leaking": (False, "NoFault"),
        "BudgetStarved": (False, "NothingWaits"),
        "Conflict": (False, "NoConflict"),
        "RoleUnknown": (False, "EveryRoleKnown"),
        "NotInjected": (False, "NoneLeftOut"),
    }


def test_a_leak_does_not_clear_ready() -> None:
    world = decodes(0.7, 0.0)
    assert of(world)["Leaking"] == (True, "FaultSeen")
    said = of(world)
    assert (said["Ready"], said["Leaking"]) == ((True, "Watching"), (True, "IncidentOpen"))
    assert of(world.run(30))["Leaking"] == (False, "NoFault")


def test_starvation_is_a_condition() -> None:
    world = decodes(0.7, 0.8).run(3)
    assert of(world)["BudgetStarved"] == (True, "BudgetStarved")


def test_two_watches() -> None:
    world = decodes(0.7, 0.0)
    world.units["d0"].conflict = "another"
    assert of(world)["Conflict"] == (True, "Conflict")


def test_the_breaker_and_an_escalation_degrade() -> None:
    world = says(Verb.VERIFY, failing("p1: HTTP 500"))(decodes(0.7, 0.0)).run(40)
    assert of(world)["Degraded"] == (True, "BreakerOpen")
    world = decodes(0.7, 0.0, cordon_works=False).run(20)
    assert of(world)["Degraded"] == (True, "Escalated")
    world.restart(world.units["d0"])
    assert of(world.run(10))["Degraded"] == (False, "AsExpected"), "that process is no more"


def test_blind_disabled_and_empty() -> None:
    world = decodes(0.0, 0.0)
    for sim in world.units.values():
        sim.blind = True
    said = of(world)
    assert (said["Ready"], said["Degraded"]) == ((False, "AllBlind"), (True, "BlindFleet"))
    assert of(decodes(0.0, limits=Limits(mode=Mode.DISABLED)))["Ready"] == (False, "Disabled")
    assert of(World({}))["Ready"] == (False, "NoEngines")


def test_what_was_not_read_yet_is_not_blind() -> None:
    world = decodes(0.0, 0.0)
    made = world.turn()
    found = {one.type: one for one in of_watch(world.facts(), [], made, [], world.ledger, world.limits)}
    ready, degraded = found["Ready"], found["Degraded"]
    assert (ready.true, ready.reason) == (False, "NotReadYet")
    assert (degraded.true, degraded.reason) == (False, "AsExpected")


def test_of_an_incident() -> None:
    world = decodes(0.7, 0.0).run(3)
    assert [(one.type, one.true, one.reason) for one in of_incident(world.only())] == [
        ("Ready", False, "Drain"),
        ("Waiting", False, "NothingInTheWay"),
        ("Escalated", False, "NotEscalated"),
    ]
    waiting = of_incident(replace(world.only(), wait="BudgetStarved: d1 is out: for now"))[1]
    assert waiting == Said("Waiting", True, "BudgetStarved", "d1 is out: for now")
    world.run(30)
    assert of_incident(world.only())[0] == Said("Ready", True, "Restarted", "d0 was restarted")


def test_a_condition_keeps_its_time_while_its_status_does() -> None:
    def said(true: bool, message: str) -> list[Said]:
        return [Said("Ready", true, "R", message)]

    foreign = Condition.model_validate(
        {"type": "Foreign", "status": "True", "reason": "R", "lastTransitionTime": "2026-11-29T22:00:00Z"}
    )
    first = merged([foreign], said(True, "a"), 1, START)
    assert [one.type for one in first] == ["Ready", "Foreign"]
    second = merged(first, said(True, "b"), 2, START + 5)
    assert second[0].last_transition_time == first[0].last_transition_time
    assert (second[0].message, second[0].observed_generation) == ("b", 2)
    third = merged(second, said(False, "b"), 2, START + 10)
    assert third[0].last_transition_time.timestamp() == START + 10
    assert third[1] == foreign
