"""Twenty engine-days of simulated traffic (tests/sim): no false fault, every leak found in time.

The referee is tested too, with a detector whose patience is wrong: it has to see both kinds of mistake.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.sim.referee import Tally, judge
from tests.sim.scrape import settings

pytestmark = pytest.mark.unit

SEED = 1


def test_twenty_engine_days_have_no_false_fault_and_no_late_one(
    record_property: Callable[[str, object], None], capsys: pytest.CaptureFixture[str]
) -> None:
    total = Tally()
    for setting in settings(20, SEED):
        total.add(judge(setting))
    met = [c for c in total.cases if c.met is not None]
    summary = (
        f"{total.engines} engine-days, {total.samples:,} samples ({total.blind:,} blind, {total.suspects:,} "
        f"suspect): {len(total.false_faults)} false faults; {len(total.cases)} leaks, of which {len(met)} "
        f"met a condition, {sum(len(c.delays) for c in met)} times"
    )
    record_property("engine_days", summary)
    with capsys.disabled():
        print(f"\n{summary}")
    assert total.engines >= 20
    assert total.false_faults == []
    assert [c for c in met if c.found is None or c.missed or c.lapses] == []
    # These were no quiet days: leaks of several kinds, pages that failed, honest waits that look like faults.
    assert len({c.kind for c in met}) >= 4
    assert total.blind > 500
    assert total.closest["decode DeferredStall"] > 20


def test_the_referee_sees_a_detector_that_cries_too_early() -> None:
    eager = judge(settings(1, SEED)[0], deferred_stall_seconds=10.0, held_idle_seconds=5.0)
    assert eager.false_faults


def test_the_referee_sees_a_detector_that_is_too_slow() -> None:
    setting = settings(1, SEED)[0]
    slow = judge(
        setting, held_idle_seconds=75.0, deferred_stall_seconds=135.0, held_floor_window_seconds=1800.0
    )
    assert slow.false_faults == []
    assert sum(c.missed + c.lapses for c in slow.cases) > 0
