"""Several ranks in one container: what a release frees, and what it leaves to the next one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import pytest

from stanch.core.history import Confirmation, Stuck
from stanch.core.plan_limits import RELEASE_TRIES
from stanch.core.plan_types import Action, Verb
from stanch.core.verdict import Answer, Verdict
from tests.core.plan_world import ENFORCE, Sim, World
from tests.core.test_planner_table import SEEN

pytestmark = pytest.mark.unit

RELEASED = ["Release:Done", "Confirm:Done"]


@dataclass
class Container:
    """d1 with ranks, each with stuck requests of its own; a release frees exactly those that it names.

    late: seconds that the answers of these engines are old when they are heard. then: what leaks, by engine,
    as soon as a release was carried out; once for each.
    """

    stuck: dict[str, set[str]]
    late: dict[str, float] = field(default_factory=dict)
    then: list[dict[str, set[str]]] = field(default_factory=list)
    full: bool = False

    def __post_init__(self) -> None:
        sims = (Sim("d1", leak=0.7, engines=tuple(self.stuck)), Sim("d2", not_ready=self.full))
        self.world = World({sim.key: sim for sim in sims}, limits=ENFORCE)
        self._faults = {one.engine: one for one in self.world.verdicts()}
        self.world.units["d1"].leak = 0.0
        self._healthy = self.world.verdicts()
        self.world.verdicts = self._verdicts  # type: ignore[method-assign]
        self.world.say = {Verb.ASK: self._asked, Verb.RELEASE: self._released}

    def _verdicts(self) -> list[Verdict]:
        return [self._faults[one.engine] if self.stuck.get(one.engine) else one for one in self._healthy]

    def _asked(self, action: Action, world: World) -> None:
        for engine in action.engines:
            stuck = tuple(Stuck(one, 300.0, 10, True, True) for one in sorted(self.stuck[engine]))
            answer = Answer.CONFIRMED if stuck else Answer.VETOED
            at = world.now - self.late.get(engine, 0.0)
            world.confirmations.append(Confirmation(engine, at, answer, "c1.1", "", stuck))

    def _released(self, action: Action, _world: World) -> str:
        for ids in self.stuck.values():
            ids -= set(action.ids)
        if self.then:
            self.stuck |= self.then.pop(0)
        return "done"

    def codes(self) -> list[tuple[str, tuple[str, ...]]]:
        return [(one.code, one.engines) for one in self.world.incidents.values()]

    def disrupted(self) -> bool:
        return any(act.startswith(("cordon", "restart")) for act in self.world.acts())


def ids(names: Iterable[str]) -> dict[str, set[str]]:
    return {f"d1/{rank}": {name} if name else set() for rank, name in enumerate(names)}


def test_what_all_ranks_hold_is_freed_by_one_release() -> None:
    d1 = Container(ids("abcdefgh"))
    d1.world.run(20)
    assert d1.codes() == [("Released", tuple(f"d1/{rank}" for rank in range(8)))]
    assert d1.world.story() == [*SEEN, *RELEASED]


def test_a_rank_that_faults_while_another_is_released_is_another_episode() -> None:
    d1 = Container(ids(("a", "")), then=[{"d1/1": {"b"}}])
    d1.world.run(20)
    assert d1.codes() == [("Released", ("d1/0",)), ("Released", ("d1/1",))]
    assert not d1.disrupted()


def test_what_a_release_did_not_name_is_released_by_another() -> None:
    """The answer of one rank was too old to count when the release was ordered."""
    d1 = Container(ids("ab"), late={"d1/1": 6.0})
    d1.world.run(3)
    d1.late.clear()
    d1.world.run(20)
    assert d1.codes() == [("Released", ("d1/0", "d1/1"))]
    assert d1.world.story() == [*SEEN, "Release:Done", "Confirm:Done", *RELEASED]
    assert not d1.disrupted()


def test_what_a_release_named_and_did_not_free_is_not_released_again() -> None:
    d1 = Container(ids("ab"), then=[ids("ab")])
    d1.world.run(40)
    assert d1.world.story()[: len(SEEN) + 3] == [*SEEN, "Release:Done", "Confirm:Done", "Cordon:Done"]


def test_a_leak_that_outruns_its_releases_is_restarted() -> None:
    d1 = Container(ids("a"), then=[{"d1/0": {f"b{number}"}} for number in range(10)])
    d1.world.run(60)
    first = next(iter(d1.world.incidents))
    story = d1.world.story(first)
    assert story.count("Release:Done") == RELEASE_TRIES
    assert "Cordon:Done" in story


def test_a_denial_ends_an_incident_after_its_release_also_where_it_was_heard_late() -> None:
    """And also where the budget has no place for what would come next."""
    d1 = Container(ids("ab"), full=True)
    d1.world.run(2)
    assert d1.world.story() == [*SEEN, "Release"]
    d1.late = {"d1/0": 6.0, "d1/1": 6.0}
    # Its answers count from when they were read, and the release ended after that but for the first turn.
    d1.world.limits = replace(d1.world.limits, interval_seconds=1.0)
    d1.world.run(10, seconds=7.0)
    assert d1.codes() == [("Released", ("d1/0", "d1/1"))]
