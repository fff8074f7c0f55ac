"""Prometheus's clock against ours, and how often it scrapes. Pure.

A reading's time is when it was scraped, by the clock of who scraped; holds are counted in differences of such
times. They are brought to our clock by one offset, which stays as long as it can be right: so neither the way
to Prometheus and back nor a clock that is put right makes a hold jump.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

# Times of evaluation are told in milliseconds, and our own clock may drift a little meanwhile.
_TOLERANCE_SECONDS = 0.01
# So much longer than our interval a scrape interval may be before we go by it.
_LONGER = 1.2
# What is kept of the times between scrapes of one target: the shortest of them is the interval, since some
# scrapes may fail.
KEPT = 5
# Prometheus shows what it scraped at most so long ago (its --query.lookback-delta by default).
MOST_SECONDS = 300.0


def offset_after(before: float | None, evaluated: float, sent: float, received: float) -> float:
    """Prometheus's clock minus ours. evaluated: by its clock, between sent and received by ours. before: what
    it was taken for so far, which stays where it still can be right."""
    least, most = evaluated - received - _TOLERANCE_SECONDS, evaluated - sent + _TOLERANCE_SECONDS
    if before is None:
        return (least + most) / 2
    return min(max(before, least), most)


def scrape_interval(between: Sequence[float]) -> float | None:
    """Seconds between two scrapes of a target, by the last times between them; None where none is known."""
    return min(*between, MOST_SECONDS) if between else None


def judged_every(interval_seconds: float, scraped_every: float | None) -> float:
    """The interval to judge by: ours, or where scrapes are rarer theirs, in whole seconds."""
    if scraped_every is None or scraped_every <= interval_seconds * _LONGER:
        return interval_seconds
    return float(ceil(scraped_every - 0.2))
