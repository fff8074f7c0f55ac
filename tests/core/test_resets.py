"""What starts a leak under traffic anew, and when several processes at one address are no engine."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stanch.core.answers import answer
from stanch.core.detector import step
from stanch.core.sample import Lifecycle, Sample
from stanch.core.verdict import Answer, Signature, State
from tests.core.build import POLICY, run, sample

pytestmark = pytest.mark.unit
row = pytest.param


def leak(start: int, end: int) -> list[Sample]:
    """Idle readings at 30 % from start to end, both included, with a token between any two."""
    return [sample(float(t), 0.3, generation_tokens=1000.0 + t) for t in range(start, end + 1, 5)]


@pytest.mark.parametrize(
    "samples",
    [
        row([*leak(0, 600), *leak(700, 1595)], id="gap"),
        row(
            [*leak(0, 600), replace(leak(605, 605)[0], lifecycle=Lifecycle.ASLEEP), *leak(610, 1500)],
            id="sleep",
        ),
    ],
)
def test_the_window_of_a_leak_under_traffic_starts_anew(samples: list[Sample]) -> None:
    assert run(leak(0, 900))[1][-1].signature is Signature.HELD_FLOOR
    assert State.FAULT not in {v.state for v in run(samples)[1]}


@pytest.mark.parametrize(
    ("what", "restart"),
    [row(Answer.VETOED, False, id="veto"), row(Answer.INCONCLUSIVE, True, id="a-part-was-freed")],
)
def test_an_answer_starts_it_anew(what: Answer, restart: bool) -> None:
    state, _ = run(leak(0, 900))
    state, _ = answer(state, what, "it said so", restart_hold=restart)
    assert step(state, leak(905, 905)[0], POLICY)[1].state is State.HEALTHY


def test_a_few_idle_readings_are_not_worth_a_word() -> None:
    """Nine, of the twenty that the window must hold; the tenth makes a suspicion."""
    busy = [replace(s, running=1.0, usage=0.4) for s in leak(0, 600)]
    idle = leak(605, 650)
    states = [v.state for v in run([*busy, *idle])[1]]
    assert states[-2:] == [State.HEALTHY, State.SUSPECT]


@pytest.mark.parametrize("restarts", [2, 3])
def test_three_processes_in_eight_readings_are_several_engines(restarts: int) -> None:
    starts = [1.0, *(100.0 + min(i, restarts) for i in range(1, 8))]
    verdicts = run(sample(5.0 * i, process_start=start * 10) for i, start in enumerate(starts))[1]
    assert [v.state is State.BLIND for v in verdicts].count(True) == (0 if restarts == 2 else 5)


def test_an_iteration_is_a_movement_that_ends_a_fault() -> None:
    """A queue that emptied without a token: the fault is spared only while nothing at all moved."""
    stuck = [sample(5.0 * i, 0.3, 0, 2, waiting_deferred=2.0) for i in range(25)]
    state, _ = run(stuck)
    assert state.verdict is not None
    assert state.verdict.state is State.FAULT
    empty = sample(125.0, 0.3)
    assert step(state, empty, POLICY)[1].spared
    assert step(state, replace(empty, iterations=901.0), POLICY)[1].state is State.SUSPECT
