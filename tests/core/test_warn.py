"""The signatures that only warn never change a state."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stanch.core.policy import Policy
from stanch.core.sample import Sample
from stanch.core.verdict import State, Warn
from tests.core.build import run, sample

pytestmark = pytest.mark.unit


def busy(t: float, rate: float, waiting: float, finished: float, tokens: float) -> Sample:
    return sample(t, 0.9, 8, waiting, generation_tokens=tokens, iterations=900 + t, finished=finished)


def collapse(rate: float, *, finishing: bool, growing: bool) -> list[Sample]:
    """Half an hour at 1,000 tokens/s, then twenty minutes at `rate`."""
    samples, tokens = [], 0.0
    for i in range(600):
        slow = i >= 360
        tokens += 5 * (rate if slow else 1000.0)
        waiting = 2 + (i - 360) // 24 if slow and growing else 2
        samples.append(busy(5.0 * i, rate, waiting, 360 + i if finishing or not slow else 719, tokens))
    return samples


@pytest.mark.parametrize(
    ("rate", "finishing", "growing", "warned"),
    [
        pytest.param(50, False, True, True, id="collapse"),
        pytest.param(500, False, True, False, id="half-the-speed"),
        pytest.param(50, True, True, False, id="requests-still-finish"),
        pytest.param(50, False, False, False, id="the-queue-does-not-grow"),
    ],
)
def test_collapse(rate: float, finishing: bool, growing: bool, warned: bool) -> None:
    _, verdicts = run(collapse(rate, finishing=finishing, growing=growing))
    assert (Warn.COLLAPSE in verdicts[-1].warnings) is warned
    assert all(v.state is State.HEALTHY for v in verdicts)
    first = next((v.t for v in verdicts if v.warnings), None)
    assert first is None or first >= 1800 + Policy().collapse_seconds - 5


def night(floors: list[float]) -> list[Sample]:
    """One idle reading a minute, an hour for each floor."""
    return [
        sample(60.0 * i, floors[i // 60], generation_tokens=1000.0 + i, iterations=900.0 + i)
        for i in range(60 * len(floors))
    ]


@pytest.mark.parametrize(
    ("floors", "warned"),
    [
        pytest.param([0.01, 0.02, 0.03, 0.04, 0.04], True, id="rises"),
        pytest.param([0.01, 0.02, 0.02, 0.04, 0.04], False, id="stands-for-an-hour"),
        pytest.param([0.01, 0.012, 0.014, 0.016, 0.016], False, id="too-little"),
        pytest.param([0.04, 0.03, 0.02, 0.01, 0.01], False, id="falls"),
    ],
)
def test_creep(floors: list[float], warned: bool) -> None:
    _, verdicts = run(night(floors), Policy(interval_seconds=60))
    assert (Warn.CREEP in verdicts[-1].warnings) is warned
    assert all(v.state is State.HEALTHY for v in verdicts)


def test_a_creep_needs_its_hours_in_a_row_and_is_not_told_for_ever() -> None:
    policy, rising = Policy(interval_seconds=60), night([0.01, 0.02, 0.03, 0.04, 0.04])
    gone = [replace(s, t=s.t + 3600.0 * (s.t >= 7200)) for s in rising]
    assert all(Warn.CREEP not in v.warnings for v in run(gone, policy)[1])
    busy_on = [
        sample(18_000 + 60.0 * i, 0.5, 3, generation_tokens=9e3 + i, iterations=9e3 + i) for i in range(200)
    ]
    verdicts = run([*rising, *busy_on], policy)[1]
    assert Warn.CREEP in verdicts[len(rising)].warnings
    assert Warn.CREEP not in verdicts[-1].warnings


@pytest.mark.parametrize("counter", ["failed_transfers", "failed_notifications"])
def test_a_failed_transfer_warns_for_ten_minutes(counter: str) -> None:
    samples = [sample(5.0 * i, **{counter: 0.0 if i < 10 else 2.0}) for i in range(200)]
    warned = [v.t for v in run(samples)[1] if Warn.TRANSFER_FAULT in v.warnings]
    assert (warned[0], warned[-1]) == (50, 645)


def test_an_absent_counter_warns_of_nothing() -> None:
    samples = [sample(5.0 * i, failed_transfers=None, finished=None) for i in range(20)]
    assert all(v.warnings == () for v in run(samples)[1])
