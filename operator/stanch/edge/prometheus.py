"""Readings by way of a Prometheus: a source as Live wants one, in the place of the scraper.

Every interval a query or a few bring what Prometheus has of all engines; each reading has the time of its
scrape, and is news only if that is newer than the last one. What is read for a confirmation, or of an engine
that something is done to, still comes from the engine itself (`once`). Of two readings the newer counts.

What is not read is blind, with the reason: at once where Prometheus says that it has nothing, after three
intervals where it does not answer or has nothing new.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import TypeVar

from stanch.core.plan_conditions import Readings, Why
from stanch.edge.exposition import Labels, Page
from stanch.edge.prometheus_answer import Found, MalformedError, read
from stanch.edge.prometheus_client import NOT_PROMETHEUS, UNREACHABLE, Client, PrometheusError
from stanch.edge.prometheus_query import PODS_AT_ONCE, Place, Wanted, Way, looked_for, places, query
from stanch.edge.prometheus_said import GAP_INTERVALS, Seen, said
from stanch.edge.prometheus_time import (
    KEPT,
    MOST_SECONDS,
    judged_every,
    offset_after,
    scrape_interval,
)
from stanch.edge.scrape import Scrape, Scraper
from stanch.edge.target import Target
from stanch.edge.waking import woken

T = TypeVar("T")

# Two rounds of questions are at least so far apart, whatever happens.
_LEAST_SECONDS = 1.0
# After a reading of the engine itself one of Prometheus must be newer by so much: their clocks agree only so
# well.
_CLEARLY_SECONDS = 0.2
# What a thread may need beyond the time-outs of its questions: for names, which have none.
_GRACE_SECONDS = 5.0
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


@dataclass(slots=True)
class _Round:
    """What one round of questions brought. partial: why the answers about these targets are not whole."""

    found: dict[str, tuple[Way, Found]] = field(default_factory=dict)
    partial: dict[str, str] = field(default_factory=dict)
    moments: list[tuple[float, float, float]] = field(default_factory=list)
    error: Why | None = None


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
        self._client = Client(wanted.url, wanted.timeout_seconds, wanted.table, clock)
        self._known: dict[str, _Known] = {}
        self._offset: float | None = None
        self._working: asyncio.Future[object] | None = None
        self._again = asyncio.Event()
        self._gate = asyncio.Lock()
        self._failed = 0
        self._round: _Round | None = None

    @property
    def scraped_every(self) -> float | None:
        """Seconds between two scrapes by Prometheus, as they were seen; None where that is not known."""
        return scrape_interval(one.between for one in self._known.values())

    @property
    def judged_every(self) -> float:
        return judged_every(self._interval, self.scraped_every)

    @property
    def _gap(self) -> float:
        return GAP_INTERVALS * self.judged_every

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
            got = await self._answers(asked, known)
            self._round, self._failed = got, self._failed + 1 if got.error is not None else 0
            for moment in got.moments:
                self._offset = offset_after(self._offset, *moment)
            # Targets may have left meanwhile.
            now, there = self._clock(), set(self._scraper.targets)
            news = [self._news(one, known[one.name], got, now) for one in targets if one in there]
            return [scrape for scrape in news if scrape is not None]

    async def close(self) -> None:
        """A question that is still on its way ends by itself; nobody waits for it."""
        if self._working is None or self._working.done():
            self._client.close()

    # Asking

    async def _answers(self, asked: Mapping[str, Place], known: Mapping[str, _Known]) -> _Round:
        ways = {name: one.way for name, one in known.items()}
        groups = {name: one.group for name, one in known.items()}
        behind = self.judged_every * 2
        got = _Round()
        if self._working is not None and not self._working.done():
            got.error = Why(
                UNREACHABLE, f"{self._wanted.url}: an earlier question is still without an answer"
            )
            return got
        queries = len(self._wanted.ways) * (1 + len(asked) // PODS_AT_ONCE)
        most = queries * self._wanted.timeout_seconds + _GRACE_SECONDS
        self._working = _in_thread(lambda: self._ask(got, asked, ways, groups, behind), self._wanted.url)
        done, _ = await asyncio.wait((self._working,), timeout=most)
        if not done:
            # What its thread still brings is nobody's.
            got = _Round()
            got.error = Why(UNREACHABLE, f"{self._wanted.url}: no answer within {most:g} s")
        elif (error := self._working.exception()) is not None:
            raise error
        return got

    def _ask(
        self,
        got: _Round,
        asked: Mapping[str, Place],
        ways: Mapping[str, Way | None],
        groups: Mapping[str, Labels],
        behind: float,
    ) -> None:
        """In a thread: all questions of one round, into got. A target that was found by one way is looked for
        by that way, the others by each in turn."""
        try:
            for way in self._wanted.ways:
                mine = (
                    one for name, one in asked.items() if ways[name] in (None, way) and not _has(got, name)
                )
                while several := list(islice(mine, PODS_AT_ONCE)):
                    self._ask_one(got, way, {one.name: one for one in several}, groups, behind)
        except PrometheusError as error:
            got.error = error.why
        except MalformedError as error:
            got.error = Why(NOT_PROMETHEUS, f"{self._wanted.url}: {error}")

    def _ask_one(
        self, got: _Round, way: Way, asked: Mapping[str, Place], groups: Mapping[str, Labels], behind: float
    ) -> None:
        answer = self._client.ask(query(way, self._wanted, list(asked.values())))
        found, evaluated = read(answer.result, way, asked, groups, behind, self._wanted.engine)
        if evaluated is not None:
            got.moments.append((evaluated, answer.sent, answer.received))
        if answer.partial is not None:
            got.partial |= dict.fromkeys(asked, answer.partial)
            return
        got.found |= {
            name: (way, said) for name, said in found.items() if name not in got.found or said.t is not None
        }

    # What the answers mean

    def _news(self, target: Target, known: _Known, got: _Round, now: float) -> Scrape | None:
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
        if now - t > self._gap:
            return self._blind(target, known, now, f"its newest reading in Prometheus is {now - t:.0f} s old")
        known.t, known.reason = t, ""
        return self._scraper.enter(target, t, found.page)

    def _blind(
        self, target: Target, known: _Known, now: float, why: str, *, at_once: bool = False
    ) -> Scrape | None:
        """That it cannot be read, once it has been so for three intervals, or at once; said once. Not of one
        that was read itself lately. Its time is as early as it can be, so that no later reading is lost."""
        gap = self._gap
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
        if got is None or (got.error is not None and self._failed == 1 and self._offset is not None):
            return Readings()  # one question without an answer is no news
        return said(
            Seen(
                self._wanted,
                tuple(found for _, found in got.found.values()),
                tuple(dict.fromkeys(got.partial.values())),
                got.error,
                self._offset or 0.0,
                self._interval,
                self.judged_every,
                self.scraped_every,
                self._clock(),
            )
        )


def _has(got: _Round, name: str) -> bool:
    """Whether there is a reading of that target."""
    return name in got.found and got.found[name][1].t is not None


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


def _in_thread(work: Callable[[], T], name: str) -> asyncio.Future[T]:
    """In a daemon thread of its own: a look-up of a name cannot be ended, and the program's end must not wait
    for it, as it would for a pool's."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def done(result: T | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        result, error = None, None
        try:
            result = work()
        except BaseException as raised:
            error = raised
        with suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(done, result, error)

    threading.Thread(target=run, name=f"ask {name}", daemon=True).start()
    return future
