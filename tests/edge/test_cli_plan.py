"""What `stanch plan` says: the planner's own words for what is open, what is new, and what waits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from stanch.core.history import History
from stanch.core.plan_limits import Limits, Mode
from stanch.core.plan_types import Verb
from stanch.core.sample import Role
from stanch.edge.forecast import Forecast, forecast, lines, questions, record
from tests.core.plan_world import ENFORCE, Sim, World
from tests.edge.fake_api import FakeApi, refusal
from tests.edge.test_cli_incidents import run

pytestmark = pytest.mark.unit

WATCH = "/apis/stanch.dev/v1alpha1/namespaces/shop/leakwatches/shop"


def foreseen(world: World, read: Sequence[str] | None = None) -> tuple[Forecast, ...]:
    """As the command does it: what the planner would ask is asked, and then it is asked what it would do.
    read: the engines of which there are verdicts, None for all."""
    ledger = replace(world.ledger, read_at=world.now)
    history = History(tuple(world.incidents.values()), ledger)
    verdicts = [one for one in world.verdicts() if read is None or one.engine in read]
    facts = world.facts(), verdicts
    before = (dict(world.incidents), world.ledger)
    for action in questions(*facts, history, world.limits, world.now):
        assert action.verb is Verb.ASK
        world._do(action)
    history = replace(history, confirmations=tuple(world.confirmations))
    found = forecast(*facts, history, world.limits, world.now)
    assert before == (world.incidents, world.ledger)
    return found


def decode(name: str, **more: object) -> Sim:
    return Sim(name, peers=("p",), **more)  # type: ignore[arg-type]


def world(*sims: Sim, limits: Limits = ENFORCE) -> World:
    prefill = Sim("p", Role.PREFILL, peers=tuple(sim.key for sim in sims))
    return World({sim.key: sim for sim in (*sims, prefill)}, limits)


def steps(one: Forecast) -> list[str]:
    return [f"{s.name.value}:{s.outcome.value if s.outcome is not None else ''}" for s in one.steps]


LADDER = [
    "Observe:Done",
    "Confirm:Done",
    "Cordon:WouldDo",
    "Drain:WouldDo",
    "Capture:WouldDo",
    "Restart:WouldDo",
    "Verify:WouldDo",
    "Uncordon:WouldDo",
]


@pytest.mark.parametrize("mode", [Mode.ENFORCE, Mode.OBSERVE])
def test_the_whole_ladder_whatever_the_mode(mode: Mode) -> None:
    (found,) = foreseen(world(decode("a", leak=0.7), decode("b"), limits=replace(ENFORCE, mode=mode)))
    assert (found.unit, found.signature, found.incident, found.reason) == ("a", "HeldIdle", "", "")
    assert steps(found) == LADDER
    assert found.message == "would restart a in place"


def test_a_release_is_the_end_of_it() -> None:
    (found,) = foreseen(world(decode("a", leak=0.7, releasable=True)))
    assert steps(found)[-1] == "Release:WouldDo"
    assert found.message == "would release 1 stuck request of a"


def test_the_worst_comes_first() -> None:
    found = foreseen(world(decode("a", leak=0.3), decode("b", leak=0.9)))
    assert [one.unit for one in found] == ["b", "a"]
    assert all(steps(one) == LADDER for one in found)


def test_what_only_looks_like_it_says_why_it_waits() -> None:
    found = foreseen(
        world(decode("a", leak=0.7, suspect=True, held=10.0), decode("b", blind=True), decode("c"))
    )
    assert {one.unit: one.reason for one in found} == {"a": "NotHeld", "b": "Blind"}
    assert all(one.message for one in found)


def test_repairs_under_way_say_their_next_step_or_why_they_wait() -> None:
    played = world(decode("a", leak=0.7), decode("b", leak=0.8))
    played.run(2)
    first, second = foreseen(played)
    assert (first.unit, first.incident in played.incidents, first.reason) == ("b", True, "UnderWay")
    assert steps(first) == ["Observe:Done", "Confirm:Done", "Cordon:Done", "Drain:"]
    assert first.next == ("drain",)
    assert (second.unit, second.incident in played.incidents) == ("a", True)
    assert (second.reason, second.next) == ("BudgetStarved", ())
    assert lines([first], 3)[-2:] == ["  Drain     under way", "  now: drain"]


def test_what_an_earlier_dry_run_has_said_is_said_again() -> None:
    played = world(decode("a", leak=0.7), limits=replace(ENFORCE, mode=Mode.OBSERVE))
    played.run(3)
    assert played.only().ending is not None
    (found,) = foreseen(played)
    assert steps(found) == LADDER


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        (replace(ENFORCE, mode=Mode.DISABLED), "Disabled"),
        (replace(ENFORCE, paused=True), "Paused"),
    ],
    ids=["disabled", "paused"],
)
def test_what_is_switched_off(limits: Limits, reason: str) -> None:
    found = foreseen(world(decode("a", leak=0.7), limits=limits))[0]
    assert (found.unit, found.reason) == ("a", reason)


def test_an_engine_that_was_never_read_is_no_healthy_one() -> None:
    (found,) = foreseen(world(decode("a"), decode("b", engines=("b/8000", "b/8001"))), read=("a", "p"))
    assert (found.unit, found.reason, found.message) == ("b", "Blind", "none of its engines was read")


def test_a_healthy_fleet() -> None:
    assert foreseen(world(decode("a"))) == ()
    assert lines((), 2) == ["nothing to do: 2 engines read, and none shows anything"]


def test_lines_and_data() -> None:
    found = foreseen(world(decode("a", leak=0.7, releasable=True), decode("b", blind=True), decode("c")))
    said = lines(found, 4)
    assert said[0] == "a: HeldIdle: would release 1 stuck request of a"
    assert said[1].startswith("  Observe   Done")
    assert said[3] == "  Release   WouldDo: 1 stuck request"
    assert said[4] == "b: Blind: cannot tell about b: refused"
    data = record("shop", "decodes", "Observe", 4, found)
    assert (data["schema"], data["watch"], data["engines"]) == ("stanch.plan/1", "decodes", 4)
    units = data["units"]
    assert isinstance(units, list)
    assert units[0]["steps"][2] == {"name": "Release", "outcome": "WouldDo", "detail": "1 stuck request"}
    assert (units[1]["unit"], units[1]["reason"], units[1]["steps"]) == ("b", "Blind", [])


class TestCommand:
    def test_no_watch(self, tmp_path: Path) -> None:
        api = FakeApi()
        api.answers[f"GET {WATCH}"] = refusal(404, "NotFound", "leakwatches shop not found")
        done = run(api, tmp_path, "shop", command="plan")
        assert (done.code, done.out) == (3, "")
        assert done.err == "cannot tell: there is no LeakWatch shop in namespace shop\n"

    def test_no_kinds(self, tmp_path: Path) -> None:
        done = run(FakeApi(), tmp_path, "shop", command="plan")
        assert (done.code, "kubectl apply --server-side -f crds/" in done.err) == (3, True)

    def test_a_watch_of_another_version(self, tmp_path: Path) -> None:
        api = FakeApi()
        api.answers[f"GET {WATCH}"] = (200, {"metadata": {"name": "shop"}, "spec": {"roles": []}})
        done = run(api, tmp_path, "shop", command="plan")
        assert (done.code, done.err.startswith("cannot tell: LeakWatch shop: ")) == (3, True)
