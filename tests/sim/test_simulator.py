"""The simulator gives what a page can show, the same for the same seed."""

from __future__ import annotations

from itertools import pairwise

import pytest

from stanch.core.sample import COUNTERS, Lifecycle, Sample
from tests.sim.load import PROFILES
from tests.sim.scrape import Setting, build, settings, turns

pytestmark = pytest.mark.unit


def day(number: int, seed: int = 1, seconds: float = 86_400.0) -> dict[str, list[Sample]]:
    """The readings of one deployment, by engine."""
    setting = settings(1_000, seed)[number]
    found: dict[str, list[Sample]] = {}
    for seen in turns(build(setting), setting.interval, seconds):
        for one in seen:
            found.setdefault(one.sample.engine, []).append(one.sample)
    return found


@pytest.mark.parametrize("number", range(len(PROFILES)), ids=[p.name for p in PROFILES])
def test_a_page_shows_what_an_engine_can_be(number: int) -> None:
    profile = PROFILES[number]
    for samples in day(number, seconds=21_600.0).values():
        assert all(a.t < b.t for a, b in pairwise(samples))
        before: Sample | None = None
        for now in samples:
            if now.blind is not None:
                assert now.usage is None
                continue
            assert now.running is not None
            assert now.waiting is not None
            assert now.usage is not None
            assert not now.usage > 1  # a broken page has no number here
            assert (now.waiting_deferred is None) is not profile.by_reason
            assert now.waiting_deferred is None or 0 <= now.waiting_deferred <= now.waiting
            assert (now.iterations is None) is not profile.iterations
            fell = before is not None and any(
                (getattr(now, name) or 0) < (getattr(before, name) or 0) for name in COUNTERS
            )
            if fell and before is not None and profile.process_start:
                assert now.process_start != before.process_start
            before = now


def test_the_same_seed_gives_the_same_day_and_another_one_another() -> None:
    assert repr(day(0, seconds=14_400.0)) == repr(day(0, seconds=14_400.0))
    assert repr(day(0, seconds=14_400.0)) != repr(day(0, seed=2, seconds=14_400.0))


def test_the_days_hold_the_trouble_that_they_are_meant_to_hold() -> None:
    """Looked for in the readings of the six smaller profiles."""
    starts = blind = frozen_prefill = deferred = leased = asleep = paused = 0
    for number in range(6):
        for name, samples in day(number).items():
            starts += len({s.process_start for s in samples if s.blind is None}) - 1
            blind += sum(s.blind is not None for s in samples)
            deferred += sum(bool(s.waiting_deferred) for s in samples)
            asleep += sum(s.lifecycle is Lifecycle.ASLEEP for s in samples)
            paused += sum(s.lifecycle is Lifecycle.PAUSED for s in samples)
            if name.startswith("prefill"):
                leased += sum((s.usage or 0) >= 0.05 and not s.running and not s.waiting for s in samples)
            for a, b in pairwise(samples):
                still = a.running == b.running == 1 and a.prompt_tokens == b.prompt_tokens
                frozen_prefill += name.startswith(("prefill", "both")) and still and b.usage != a.usage
    assert starts >= 2
    assert blind > 200
    assert frozen_prefill > 20
    assert deferred > 500
    assert leased > 100
    assert asleep > 1_000
    assert paused > 10


def test_enough_engines_for_the_days_asked_for() -> None:
    chosen = settings(1_000, 1)
    engines = sum(s.profile.prefills + s.profile.decodes + s.profile.boths for s in chosen)
    assert 1_000 <= engines < 1_006
    assert 0.2 < sum(s.interval == 10 for s in chosen) / len(chosen) < 0.3
    assert len({s.profile.name for s in chosen if s.interval == 10}) == len(PROFILES)
    assert isinstance(chosen[0], Setting)
