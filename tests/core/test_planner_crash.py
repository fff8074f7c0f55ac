"""The planning process is killed before and after every write and action, and comes back or does not."""

from __future__ import annotations

import pytest

from stanch.core.history import Ending
from stanch.core.sample import Role
from tests.core.plan_world import KilledError, Sim, World

pytestmark = pytest.mark.unit

WORLDS = {
    "restart": lambda: World(
        {"d1": Sim("d1", leak=0.7, peers=("p1",)), "d2": Sim("d2"), "p1": Sim("p1", Role.PREFILL)}
    ),
    "release": lambda: World({"d1": Sim("d1", leak=0.7, releasable=True), "d2": Sim("d2")}),
    "evict": lambda: World({"d1": Sim("d1", leak=0.7, kit=False, readiness=False), "d2": Sim("d2")}),
}


def points(make: str) -> list[str]:
    """Every place of an undisturbed repair at which the process can end."""
    seen: list[str] = []
    world = WORLDS[make]()
    world.kill = seen.append
    world.run(30)
    return seen


CASES = [(make, number, name) for make in WORLDS for number, name in enumerate(points(make))]


@pytest.mark.parametrize("away", [0.0, 20.0, 200.0], ids=["at once", "within the lease", "after every lease"])
@pytest.mark.parametrize(("make", "number", "name"), CASES, ids=[f"{m} {n} {w}" for m, n, w in CASES])
def test_one_repair_and_nothing_left_behind(make: str, number: int, name: str, away: float) -> None:
    world = WORLDS[make]()
    passed = 0

    def kill(here: str) -> None:
        nonlocal passed
        passed += 1
        if passed == number + 1:
            assert here == name
            raise KilledError

    world.kill = kill
    for _ in range(100):
        before = world.kills
        world.turn()
        world.now += 5.0 + (away if world.kills > before else 0.0)
    assert world.kills == 1
    assert [i.ending for i in world.incidents.values()] == [Ending.RESOLVED]
    assert not world.ledger.claims
    assert len(world.ledger.repairs) <= 1
    for sim in world.units.values():
        assert (sim.cordon, sim.lock, sim.draining, sim.leak) == (None, None, False, 0.0)
        assert world.facts().unit(sim.key).available  # type: ignore[union-attr]
    runs = {sim.key: sim.run for sim in world.units.values()}
    assert runs == {"restart": {"d1": 2, "d2": 1, "p1": 1}, "release": {"d1": 1, "d2": 1}}.get(
        make, {"d1+": 1, "d2": 1}
    )


@pytest.mark.parametrize(("make", "number"), [(make, number) for make, number, _ in CASES])
def test_nothing_stays_cordoned_where_the_process_never_comes_back(make: str, number: int) -> None:
    world = WORLDS[make]()
    passed = 0

    def kill(_here: str) -> None:
        nonlocal passed
        passed += 1
        if passed == number + 1:
            raise KilledError

    world.kill = kill
    while not world.kills:
        world.turn()
        world.now += 5.0
    world.now += 60.0
    assert all(unit.available for unit in world.facts().units)
