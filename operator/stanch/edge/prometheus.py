"""Readings by way of a Prometheus: a source as Live wants one, in the place of the scraper.

Every interval a query or a few bring what Prometheus has of all engines; each reading has the time of its
scrape, and is news only if that is newer than the last one. What is read for a confirmation, or of an engine
that something is done to, still comes from the engine itself (`once`). Of two readings the newer counts.

What is not read is blind, with the reason: at once where Prometheus says that it has nothing, after three
intervals where it does not answer or has nothing new.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from stanch.core.plan_conditions import Readings
from stanch.edge.exposition import Labels, Page
from stanch.edge.prometheus_answer import Found
from stanch.edge.prometheus_ask import Last, Questions, Round
from stanch.edge.prometheus_query import Wanted, Way, looked_for, places
from stanch.edge.prometheus_said import GAP_INTERVALS, Seen, said
from stanch.edge.prometheus_time import KEPT, MOST_SECONDS, judged_every, offset_after, scrape_interval
from stanch.edge.scrape import Scrape, Scraper
from stanch.edge.target import Target
from stanch.edge.waking import woken

# Two rounds of questions are at least so far apart, whatever happens.
_LEAST_SECONDS = 1.0
# After a reading of the engine itself one of Prometheus must be newer by so much: their clocks agree only so
# well.
_CLEARLY_SECONDS = 0.2
_COUNTERS = ("generation_tokens", "prompt_tokens", "iterations", "finished")


@dataclass(slots=True)
class _Known:
    """What is remembered of one target.

    way, group: by which its series were found last. scraped: when the newest of them was scraped, by
    Prometheus's clock. t: of the last reading, wherever it came from. read_at: when the engine itself was
    last read, and page: what it said. between: seconds between its last scrapes.
    """

    way: Way | None = None
    group: Labels = ()
    scraped: float | None = None
    t: float | None = None
    read_at: float | None = None
    page: Page | None = None
    reason: str = ""
    between: deque[float] = field(default_factory=lambda: deque(maxlen=KEPT))


class Prometheus:
    """Of one watch. interval_seconds: between two rounds, and what staleness is judged by unless Prometheus
    scrapes more rarely. scraper: reads the engines themselves."""

    def __init__(
        self,
        wanted: Wanted,
        scraper: Scraper,
        interval_seconds: float,
        clock: Callable[[], float],
    ) -> None:
        self._wanted = wanted
        self._scraper = scraper
        self._interval = interval_seconds
        self._clock = clock
        self._questions = Questions(wanted, clock)
        self._known: dict[str, _Known] = {}
        self._offset: float | None = None
        self._again = asyncio.Event()
        self._gate = asyncio.Lock()
        self._failed = 0
        self._answered = False
        self._round: Round | None = None

    def judged_every(self, name: str) -> float:
        """Of one target: the interval, or the one by which Prometheus scrapes it where that is longer."""
        known = self._known.get(name)
        return self._interval if known is None else self._every(known)

    def _every(self, known: _Known) -> float:
        return judged_every(self._interval, scrape_interval(known.between))

    async def run(self, deliver: Callable[[Scrape], None]) -> None:
        """Ask once per interval, and soon for targets that are new, until cancelled; deliver what is news."""
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            self._again.clear()
            for scrape in await self.look(self._scraper.targets):
                deliver(scrape)
            soonest, due = max(began, loop.time() - _LEAST_SECONDS) + _LEAST_SECONDS, began + self._interval
            await woken(self._again, max(0.0, due - loop.time()))
            await asyncio.sleep(max(0.0, soonest - loop.time()))

    async def once(self, target: Target) -> Scrape:
        """What the engine itself says, now."""
        scrape = await self._scraper.once(target)
        known = self._known.setdefault(target.name, _Known())
        known.t = scrape.t if known.t is None else max(known.t, scrape.t)
        known.read_at, known.page, known.reason = scrape.t, scrape.page, ""
        return scrape

    def retarget(self, targets: Sequence[Target]) -> None:
        """Ask about these from now on. Raises ValueError where two have the same name."""
        before = set(self._scraper.targets)
        self._scraper.retarget(targets)
        for gone in before - set(targets):
            self._known.pop(gone.name, None)
        if set(targets) - before:
            self._again.set()

    async def look(self, targets: Sequence[Target]) -> list[Scrape]:
        """One round of questions about these targets: what is news of them."""
        if not targets:
            return []
        async with self._gate:
            asked = places(targets)
            known = {name: self._known.setdefault(name, _Known()) for name in asked}
            last = {name: Last(one.way, one.group, 2 * self._every(one)) for name, one in known.items()}
            got = await self._questions.answers(asked, last)
            whole = got.error is None and not got.partial
            self._round, self._failed = got, 0 if whole else self._failed + 1
            self._answered = self._answered or whole
            for moment in got.moments:
                self._offset = offset_after(self._offset, *moment)
            # Targets may have left meanwhile.
            now, there = self._clock(), set(self._scraper.targets)
            news = [self._news(one, known[one.name], got, now) for one in targets if one in there]
            return [scrape for scrape in news if scrape is not None]

    async def close(self) -> None:
        self._questions.close()

    # What the answers mean

    def _news(self, target: Target, known: _Known, got: Round, now: float) -> Scrape | None:
        if target.name in got.found:
            known.way, found = got.found[target.name]
            if found.t is None:
                return self._blind(target, known, now, found.page.problem or "", at_once=True)
            known.group = found.group
            return self._reading(target, known, found, now)
        if target.name in got.partial:
            return self._blind(
                target, known, now, f"Prometheus's answer is partial: {got.partial[target.name]}"
            )
        if got.error is not None:
            return self._blind(target, known, now, got.error.message)
        known.way = None
        known.between.clear()
        why = f"Prometheus has no series of it (by {looked_for(self._wanted)})"
        return self._blind(target, known, now, why, at_once=True)

    def _reading(self, target: Target, known: _Known, found: Found, now: float) -> Scrape | None:
        assert found.t is not None
        assert self._offset is not None
        before, t = known.scraped, found.t - self._offset
        if before is not None and found.t <= before:
            age = now - t
            back = "" if found.t == before else "; Prometheus's clock, or the one of who scrapes, went back"
            return self._blind(
                target, known, now, f"its newest reading in Prometheus is {age:.0f} s old{back}"
            )
        known.scraped = found.t
        if before is not None and found.t - before <= MOST_SECONDS:
            known.between.append(found.t - before)
        if known.t is not None and t <= known.t:
            return None
        if known.read_at is not None and known.page is not None:
            if t <= known.read_at + _CLEARLY_SECONDS or _older(found.page, known.page):
                return None  # the engine itself was read since
            known.page = None
        if now - t > self._gap(known):
            return self._blind(target, known, now, f"its newest reading in Prometheus is {now - t:.0f} s old")
        known.t, known.reason = t, ""
        return self._scraper.enter(target, t, found.page)

    def _blind(
        self, target: Target, known: _Known, now: float, why: str, *, at_once: bool = False
    ) -> Scrape | None:
        """That it cannot be read, once it has been so for three intervals, or at once; said once. Not of one
        that was read itself lately. Its time is as early as it can be, so that no later reading is lost."""
        gap = self._gap(known)
        lately = known.read_at is not None and now - known.read_at <= gap
        fresh = known.t is not None and now - known.t <= gap
        if lately or (fresh and not at_once) or known.reason == why:
            return None
        known.t = now - gap if known.t is None else max(now - gap, known.t + 0.001)
        known.reason = why
        return self._scraper.enter(target, known.t, Page(problem=why))

    @property
    def readings(self) -> Readings:
        """For the watch's conditions."""
        got = self._round
        if got is None or (self._failed == 1 and self._answered):
            return Readings()  # one question without an answer is no news
        # By one time between two scrapes nobody knows whether others failed.
        rare = [one.between for one in self._known.values() if len(one.between) > 1]
        return said(
            Seen(
                self._wanted,
                tuple(found for _, found in got.found.values()),
                tuple(dict.fromkeys(got.partial.values())),
                got.error,
                self._offset or 0.0,
                self._interval,
                max((scrape_interval(each) or 0.0 for each in rare), default=None),
                self._clock(),
            )
        )

    def _gap(self, known: _Known) -> float:
        return GAP_INTERVALS * self._every(known)


def _older(page: Page, than: Page) -> bool:
    """Whether it is certainly of an earlier moment: of the same process, and a counter stands lower."""
    if page.process_start is None or page.process_start != than.process_start:
        return False
    later = {(one.model, one.engine): one for one in than.engines}
    for one in page.engines:
        other = later.get((one.model, one.engine))
        for name in _COUNTERS:
            now, before = getattr(one, name), getattr(other, name, None)
            if now is not None and before is not None and now < before:
                return True
    return False
