"""The truth, on sequences that can be followed by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stanch.core.sample import Lifecycle, Role, Sample
from tests.sim.truth import Truth

pytestmark = pytest.mark.unit

HELD = Sample(
    0.0,
    "x",
    usage=0.4,
    running=0,
    waiting=0,
    waiting_deferred=0,
    generation_tokens=100,
    prompt_tokens=900,
    iterations=100,
    finished=5,
    process_start=1.0,
)


def first_met(
    samples: list[Sample], role: Role = Role.DECODE, pin: float = 0.0, quiet: float = 0.0
) -> float | None:
    truth = Truth(role, 5.0, 30.0, pin)
    for sample in samples:
        truth.see(sample, quiet)
        if truth.met:
            return sample.t
    return None


def every_five(first: Sample, end: float, start: float = 0.0) -> list[Sample]:
    return [replace(first, t=start + 5.0 * i) for i in range(int((end - start) / 5) + 1)]


STALL = replace(HELD, waiting=2, waiting_deferred=2)
HANG = replace(HELD, running=1)


@pytest.mark.parametrize(
    ("sample", "role", "pin", "quiet", "expected"),
    [
        pytest.param(HELD, Role.DECODE, 0, 0, 60, id="held idle"),
        pytest.param(replace(HELD, usage=0.049), Role.DECODE, 0, 0, None, id="under the floor"),
        pytest.param(HELD, Role.DECODE, 480, 0, 510, id="pinned turns"),
        pytest.param(HELD, Role.PREFILL, 0, 0, None, id="a lease while a decode waits"),
        pytest.param(HELD, Role.PREFILL, 0, 1000, 60, id="stranded"),
        pytest.param(STALL, Role.DECODE, 0, 0, 120, id="deferred"),
        pytest.param(replace(STALL, waiting_deferred=1), Role.DECODE, 0, 0, 120, id="not all deferred"),
        pytest.param(STALL, Role.PREFILL, 0, 1000, None, id="deferred on a prefill"),
        pytest.param(replace(STALL, waiting_deferred=0), Role.PREFILL, 0, 1000, 120, id="queue of a prefill"),
        pytest.param(HANG, Role.BOTH, 0, 0, 300, id="hang"),
        pytest.param(replace(HANG, generation_tokens=0), Role.DECODE, 0, 0, 900, id="hang while warming up"),
        pytest.param(replace(HANG, iterations=None), Role.DECODE, 0, 0, None, id="hang without iterations"),
        pytest.param(replace(HELD, lifecycle=Lifecycle.ASLEEP), Role.DECODE, 0, 0, None, id="asleep"),
    ],
)
def test_the_holds_of_the_table(
    sample: Sample, role: Role, pin: float, quiet: float, expected: float | None
) -> None:
    assert first_met(every_five(sample, 899 if expected is None else 950), role, pin, quiet) == expected


def test_a_token_begins_the_hold_anew() -> None:
    later = replace(HELD, generation_tokens=101)
    assert first_met([*every_five(HELD, 50), *every_five(later, 200, start=55)]) == 55 + 60


def test_freed_blocks_begin_the_hold_of_a_queue_anew() -> None:
    assert first_met([*every_five(STALL, 50), *every_five(replace(STALL, usage=0.3), 300, start=55)]) == 175


def test_a_failed_page_voids_the_time_between_its_neighbours() -> None:
    samples = every_five(HELD, 200)
    samples[4] = Sample(20.0, "x", blind="no answer")
    assert first_met(samples) == 70


def test_a_gap_begins_the_hold_anew() -> None:
    assert first_met([*every_five(HELD, 40), *every_five(HELD, 200, start=60)]) == 120


def test_another_process_begins_anew() -> None:
    assert (
        first_met([*every_five(HELD, 40), *every_five(replace(HELD, process_start=2.0), 200, start=45)])
        == 105
    )


def test_held_floor_counts_idle_readings_under_traffic() -> None:
    samples = []
    for i in range(400):
        # A token before every reading, so that nothing else can hold; idle at every sixth.
        busy = i % 6 != 0
        samples.append(
            replace(HELD, t=5.0 * i, running=1 if busy else 0, generation_tokens=100 + i, iterations=100 + i)
        )
    assert first_met(samples) == 900
    samples[60] = replace(samples[60], usage=0.01)  # idle under the floor at 300 s
    assert first_met(samples) == 300 + 900
