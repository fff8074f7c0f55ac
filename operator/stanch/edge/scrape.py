"""Scrapes many engines: spread evenly over the interval, each by itself, only for the families needed.

A target is asked for the needed families (`/metrics/?name[]=`, 3 kB instead of 55). Where that does not
work, the whole page is asked for within the same turn, so that a server's dislike of the filter never makes
a turn blind:

| way   | asks for            | a good page                         | a bad page                             |
|-------|---------------------|-------------------------------------|----------------------------------------|
| SHORT | the needed families | stays; -> WHOLE if it was not short | asks for the whole page in this turn:  |
|       |                     |                                     | good -> WHOLE, bad -> DOUBT            |
| WHOLE | the whole page      | stays; every 10 min a turn as SHORT | stays; every 10 min a turn as SHORT    |
| DOUBT | the whole page      | -> SHORT                            | stays                                  |

A server that does not answer at all (refused, timed out) changes nothing: that is not the filter's doing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from types import TracebackType
from typing import Any

import aiohttp
from yarl import URL

from stanch.core.plan_conditions import Readings
from stanch.core.sample import Sample
from stanch.edge.exposition import Page, read
from stanch.edge.families import UNASKED
from stanch.edge.fetch import HEADERS, Fetched, fetch
from stanch.edge.reading import Reader
from stanch.edge.resolver import Resolver
from stanch.edge.scrape_schedule import following_turn, phase_seconds
from stanch.edge.target import Target
from stanch.edge.waking import ended

__all__ = ["Scrape", "Scraper", "Target"]

# A server that ignored or broke on the filter may have been replaced by one that does not.
RECHECK_SECONDS = 600.0
# For name, connection, TLS, headers and body together. A page takes vLLM 2 to 8 ms.
DEADLINE_SECONDS = 4.0
# A moved name is found again within this time (and at once when its old address no longer answers).
NAME_SECONDS = 60


class Way(Enum):
    """How a target is asked; see the table above."""

    SHORT = "short"
    WHOLE = "whole"
    DOUBT = "doubt"


@dataclass(frozen=True, slots=True)
class Scrape:
    """One turn of one target.

    t: the clock's time when the answer was complete. samples: one per engine, blind where there is a problem.
    problem: why the page could not be used, None where it could (an engine on it may still be blind).
    bytes_read: of bodies. seconds: from the turn's start to t. filtered: the page had only what was asked.
    """

    target: Target
    t: float
    samples: tuple[Sample, ...]
    page: Page
    bytes_read: int
    seconds: float
    filtered: bool

    @property
    def problem(self) -> str | None:
        """Why the page could not be used."""
        return self.page.problem


@dataclass(slots=True)
class _Known:
    """What is remembered of a target from turn to turn."""

    reader: Reader
    way: Way
    recheck: float = 0.0  # of the loop's clock; from then on WHOLE tries the filter again


class Scraper:
    """Scrapes its targets; an asynchronous context manager.

    interval_seconds: between two turns of a target. deadline_seconds: for one turn. clock: gives the samples'
    times (Unix time). verify: certificates of https. skipped: turns that did not happen because the one
    before was still on its way.
    """

    # The engines themselves are read, so nothing is to be said of a way to them.
    readings: Readings | None = None

    def __init__(
        self,
        targets: Sequence[Target],
        interval_seconds: float,
        deadline_seconds: float = DEADLINE_SECONDS,
        clock: Callable[[], float] = time.time,
        verify: bool = True,
    ) -> None:
        _distinct(targets)
        if not interval_seconds > 0 or not deadline_seconds > 0:
            raise ValueError("interval and deadline must be above 0 s")
        self.targets = tuple(targets)
        self.skipped = 0
        self._interval = interval_seconds
        self._deadline = deadline_seconds
        self._clock = clock
        self._verify = verify
        self._known: dict[str, _Known] = {}
        self._retargeted = asyncio.Event()
        self._connector: aiohttp.TCPConnector | None = None
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Scraper:
        self._connector = aiohttp.TCPConnector(
            limit=0,  # one connection per target, no more: a turn never overlaps its target's next
            keepalive_timeout=max(15.0, 2 * self._interval),
            ttl_dns_cache=NAME_SECONDS,
            resolver=Resolver(),
            ssl=self._verify,
        )
        self._session = aiohttp.ClientSession(
            connector=self._connector,
            headers=HEADERS,
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            raise_for_status=False,
            trust_env=False,
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def run(self, deliver: Callable[[Scrape], None]) -> None:
        """Scrape every target once per interval and deliver each turn, until cancelled.

        Target i of n has its turns about (i/n + k) intervals from now, so the phase of a target is its own.
        What deliver raises ends the run.
        """
        tasks: dict[Target, asyncio.Task[None]] = {}
        changed: asyncio.Task[Any] | None = None
        ending: set[asyncio.Task[Any]] = set()
        try:
            while True:
                self._retargeted.clear()
                for gone in tasks.keys() - set(self.targets):
                    ending.add(task := tasks.pop(gone))
                    task.cancel()
                    task.add_done_callback(ending.discard)
                self._begin([one for one in self.targets if one not in tasks], tasks, deliver)
                changed = asyncio.create_task(self._retargeted.wait())
                done, _ = await asyncio.wait((changed, *tasks.values()), return_when=asyncio.FIRST_COMPLETED)
                for task in done - {changed}:
                    task.result()
        finally:
            await ended(*ending, *tasks.values(), *([] if changed is None else [changed]))

    def _begin(
        self,
        fresh: Sequence[Target],
        tasks: dict[Target, asyncio.Task[None]],
        deliver: Callable[[Scrape], None],
    ) -> None:
        start = asyncio.get_running_loop().time()
        for index, target in enumerate(fresh):
            first = start + phase_seconds(index, len(fresh), self._interval)
            tasks[target] = asyncio.create_task(self._turns(target, first, deliver), name=target.name)

    def retarget(self, targets: Sequence[Target]) -> None:
        """Scrape these from now on, also while it runs; what is known of a target that stays is kept.

        Raises ValueError where two have the same name.
        """
        _distinct(targets)
        before, self.targets = set(self.targets), tuple(targets)
        for gone in before - set(targets):
            self._known.pop(gone.name, None)
        if before != set(targets):
            self._retargeted.set()

    async def _turns(self, target: Target, first: float, deliver: Callable[[Scrape], None]) -> None:
        loop = asyncio.get_running_loop()
        turn = 0
        while True:
            await asyncio.sleep(first + turn * self._interval - loop.time())
            deliver(await self.once(target))
            following = following_turn(turn, first, self._interval, loop.time())
            self.skipped += following - turn - 1
            turn = following

    async def look(self, targets: Sequence[Target]) -> list[Scrape]:
        """One turn of each of these, now."""
        return await asyncio.gather(*map(self.once, targets))

    def judged_every(self, _: str) -> float:
        """Seconds between two readings of a target, which its holds are judged by."""
        return self._interval

    def enter(self, target: Target, t: float, page: Page) -> Scrape:
        """A turn of a target whose page came in another way. Its engines have the same names."""
        return Scrape(target, t, self._of(target).reader.take(t, page), page, 0, 0.0, True)

    def _of(self, target: Target) -> _Known:
        known = self._known.get(target.name)
        if known is None:
            way = Way.WHOLE if target.filtered_page is None else Way.SHORT
            known = self._known[target.name] = _Known(Reader.live(target.name), way)
        return known

    async def once(self, target: Target) -> Scrape:
        """One turn of one target, now. It never raises for anything a server does."""
        if self._session is None:
            raise RuntimeError("a Scraper must be entered before it is used: async with Scraper(...)")
        known = self._of(target)
        loop = asyncio.get_running_loop()
        start = loop.time()
        page, size, filtered = await self._ask(self._session, target, known, start)
        t = self._clock()
        return Scrape(target, t, known.reader.take(t, page), page, size, loop.time() - start, filtered)

    async def _ask(
        self, session: aiohttp.ClientSession, target: Target, known: _Known, start: float
    ) -> tuple[Page, int, bool]:
        """The page, the bytes that it took, and whether it was filtered; keeps the table at the top."""
        size = 0
        short = target.filtered_page is not None and (
            known.way is Way.SHORT or (known.way is Way.WHOLE and start >= known.recheck)
        )
        if short and target.filtered_page is not None:
            answer = await self._fetch(session, target.filtered_page, self._deadline)
            size = answer.bytes_read
            page = _page(answer)
            if _good(page):
                ignored = answer.body is not None and UNASKED.encode() in answer.body
                _go(known, Way.WHOLE if ignored else Way.SHORT, start)
                return page, size, not ignored
            left = start + self._deadline - asyncio.get_running_loop().time()
            if not answer.answered or left <= 0:
                return page, size, False
        else:
            left = self._deadline
        answer = await self._fetch(session, target.page, left)
        page = _page(answer)
        if short:
            _go(known, Way.WHOLE if _good(page) else Way.DOUBT, start)
        elif known.way is Way.DOUBT and _good(page):
            known.way = Way.SHORT
        return page, size + answer.bytes_read, False

    async def _fetch(self, session: aiohttp.ClientSession, url: URL, seconds: float) -> Fetched:
        answer = await fetch(session, url, seconds)
        if not answer.answered and self._connector is not None:
            # Perhaps it has moved: the next turn asks for its address again.
            self._connector.clear_dns_cache(url.host, url.port)
        return answer


def _distinct(targets: Sequence[Target]) -> None:
    names = [target.name for target in targets]
    if len(set(names)) < len(names):
        twice = sorted({name for name in names if names.count(name) > 1})
        raise ValueError(f"two targets have the same name: {', '.join(twice)}")


def _go(known: _Known, way: Way, now: float) -> None:
    known.way = way
    known.recheck = now + RECHECK_SECONDS


def _page(answer: Fetched) -> Page:
    return Page(problem=answer.problem) if answer.body is None else read(answer.body)


def _good(page: Page) -> bool:
    """Whether every engine of the page could be read."""
    return page.problem is None and all(engine.problem is None for engine in page.engines)
