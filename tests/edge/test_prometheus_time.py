"""Another clock brought to ours, and how often is scraped, as tables."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stanch.edge.prometheus_time import judged_every, offset_after, scrape_interval

pytestmark = pytest.mark.unit
row = pytest.param


@pytest.mark.parametrize(
    ("before", "evaluated", "sent", "received", "after"),
    [
        row(None, 100.0, 99.0, 101.0, 0.0, id="first-in-the-middle"),
        row(None, 142.0, 99.9, 100.1, 42.0, id="ahead"),
        row(None, 58.0, 99.9, 100.1, -42.0, id="behind"),
        row(42.0, 142.3, 99.9, 100.5, 42.0, id="stays-while-it-can-be-right"),
        row(42.0, 150.0, 100.0, 105.0, 45.0 - 0.01, id="was-put-forward"),
        row(42.0, 110.0, 100.0, 105.0, 10.0 + 0.01, id="was-put-back"),
        row(0.0, 100.0, 90.0, 110.0, 0.0, id="a-slow-answer-says-nothing"),
    ],
)
def test_the_offset(
    before: float | None, evaluated: float, sent: float, received: float, after: float
) -> None:
    assert offset_after(before, evaluated, sent, received) == pytest.approx(after, abs=1e-9)


@given(
    st.floats(-1e6, 1e6),
    st.lists(st.tuples(st.floats(0, 5), st.floats(0, 5)), min_size=1, max_size=20),
)
def test_however_slow_the_answers_are_the_offset_moves_by_no_more_than_they_allow(
    skew: float, ways: list[tuple[float, float]]
) -> None:
    offset, now, known = None, 1_800_000_000.0, []
    for there, back in ways:
        sent = now
        evaluated = sent + there + skew
        offset = offset_after(offset, evaluated, sent, sent + there + back)
        known.append(there + back)
        assert abs(offset - skew) <= min(known) + 0.02
        now += 10.0


@pytest.mark.parametrize(
    ("between", "every"),
    [
        row([], None, id="one-scrape"),
        row([15.0], 15.0, id="two-scrapes"),
        row([30.0, 15.0, 45.0], 15.0, id="some-scrapes-failed"),
        row([4000.0], 300.0, id="no-more-than-is-shown"),
    ],
)
def test_the_scrape_interval(between: list[float], every: float | None) -> None:
    assert scrape_interval(between) == every


@pytest.mark.parametrize(
    ("ours", "theirs", "judged"),
    [
        row(5.0, None, 5.0, id="unknown"),
        row(15.0, 5.0, 15.0, id="more-often"),
        row(15.0, 15.004, 15.0, id="the-same"),
        row(15.0, 17.0, 15.0, id="hardly-rarer"),
        row(5.0, 30.0, 30.0, id="rarer"),
        row(5.0, 29.991, 30.0, id="in-whole-seconds"),
        row(5.0, 30.1, 30.0, id="rounded"),
        row(5.0, 30.5, 31.0, id="never-shorter"),
    ],
)
def test_what_is_judged_by(ours: float, theirs: float | None, judged: float) -> None:
    assert judged_every(ours, theirs) == judged
