"""What a watch's conditions say of the Prometheus that its readings come from. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from stanch.core.plan_conditions import Readings, Why
from stanch.edge.prometheus_answer import Found
from stanch.edge.prometheus_query import Wanted, looked_for
from stanch.edge.prometheus_time import judged_every

# Intervals without anything new after which an engine is blind; as core.policy has it for a gap.
GAP_INTERVALS: Final = 3.0
# A clock that is wrong by less is nobody's concern.
SKEW_SECONDS: Final = 5.0
PARTIAL: Final = "PartialAnswer"


@dataclass(frozen=True, slots=True)
class Seen:
    """The last round of questions. found: of the targets that it found anything of. partial: why answers
    were not whole. offset: Prometheus's clock minus ours. interval_seconds: the watch's.
    scraped_every: how often Prometheus scrapes those that it scrapes most rarely, None where that is not
    known. now: by our clock."""

    wanted: Wanted
    found: Sequence[Found]
    partial: Sequence[str]
    error: Why | None
    offset: float
    interval_seconds: float
    scraped_every: float | None
    now: float


def said(seen: Seen) -> Readings:
    if seen.error is not None:
        return Readings(seen.error)
    times = [one.t for one in seen.found if one.t is not None]
    if not times:
        return Readings(_none(seen))
    age = seen.now - (max(times) - seen.offset)
    every = judged_every(seen.interval_seconds, seen.scraped_every)
    if age > GAP_INTERVALS * every + seen.interval_seconds:
        why = (
            f"{seen.wanted.url} has nothing newer than {age:.0f} s: it does not scrape the engines any more, "
            "or what it shows comes late (remote write, Thanos)"
        )
        return Readings(Why("Stale", why))
    return Readings(None, _notice(seen, every))


def _none(seen: Seen) -> Why:
    url = seen.wanted.url
    if seen.partial:
        return Why(PARTIAL, f"{url} gives a partial answer, which is not believed: {seen.partial[0]}")
    problems = [one.page.problem for one in seen.found if one.page.problem]
    if problems:
        return Why("NotScraped", f"{url} has no reading of any engine: {problems[0]}")
    return Why(
        "NoSeries",
        f"{url} has no series of any engine (by {looked_for(seen.wanted)}): is there a PodMonitor for them, "
        "and are spec.prometheus.labels and matchers right (docs/prometheus.md)?",
    )


def _notice(seen: Seen, every: float) -> Why | None:
    if seen.scraped_every is not None and every > seen.interval_seconds:
        return Why(
            "ScrapeIntervalLonger",
            f"Prometheus scrapes the engines every {seen.scraped_every:.0f} s, spec.intervalSeconds is "
            f"{seen.interval_seconds:g}: they are judged by readings {every:g} s apart; set "
            f"spec.intervalSeconds to {every:g}, or let Prometheus scrape more often",
        )
    if abs(seen.offset) > SKEW_SECONDS:
        way = "ahead of" if seen.offset > 0 else "behind"
        return Why(
            "ClockSkew",
            f"the clock of {seen.wanted.url} is {abs(seen.offset):.0f} s {way} ours; the times of readings "
            "are corrected by that",
        )
    if seen.partial:
        return Why(PARTIAL, f"some engines are not read, by a partial answer: {seen.partial[0]}")
    return None
