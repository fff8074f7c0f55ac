"""The kits of all targets: what they said last, and who is to be looked at now.

A look asks one server for its state and its lists, in the background; what it brings counts in the next turn.
A rank's list stays until a newer one comes or it is too old to count (core/kit.usable), so one look that
fails changes nothing yet.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf

import aiohttp

from stanch.core.kit import Entry, KitReport
from stanch.edge import kit
from stanch.edge.asking import label_of
from stanch.edge.kit import Key
from stanch.edge.kit_answers import Facts, KitError, Lists
from stanch.edge.one_engine import SeveralError
from stanch.edge.scrape import Scrape
from stanch.edge.targets import Watched
from stanch.edge.waking import ended

# What will be the same when asked again (no key, no list, no kit at all) is not asked at every turn.
_LASTING_SECONDS, _ABSENT_SECONDS = 60.0, 600.0
_AT_ONCE = 32
# Bytes of all lists of a watch together, those that are coming and those that are kept (which take some 2.5
# times as much). An engine with 500 requests says 200 kB.
_MOST_COMING_BYTES = _MOST_KEPT_BYTES = 32 << 20


@dataclass(slots=True)
class _Known:
    """first: when its target was first thought of; looked: when the last look began. lists: by the engine's
    label, with the time of the answer. size, taken: of the last answer in bytes, and when it came. problem:
    what the last look ended with. absent: that it has no kit, as last told."""

    first: float
    looked: float | None = None
    facts: Facts | None = None
    lists: dict[str, tuple[float, tuple[Entry, ...]]] = field(default_factory=dict)
    size: int = 0
    taken: float = 0.0
    missing: tuple[str, ...] = ()
    problem: KitError | None = None
    looking: asyncio.Task[None] | None = None
    absent: KitReport | None = None

    def drop(self, problem: KitError | None) -> None:
        """Its lists are kept no longer."""
        self.lists, self.size, self.problem = {}, 0, problem

    def no_kit(self, now: float, keep_seconds: float) -> KitReport:
        """That there is no kit. Said of every engine in every turn, so made anew only when it gets old."""
        if self.absent is None or now - self.absent.t > keep_seconds / 2:
            self.absent = KitReport(now, problem=str(self.problem), absent=True)
        return self.absent


class Kits:
    def __init__(self, session: aiohttp.ClientSession, clock: Callable[[], float], key: Key) -> None:
        self._session = session
        self._clock = clock
        self._key = key
        self._known: dict[str, _Known] = {}
        self._gate = asyncio.Semaphore(_AT_ONCE)
        self._room = kit.Room(_MOST_COMING_BYTES)
        # For how long a list counts, as last asked for.
        self._keep_seconds = inf

    def facts(self, name: str) -> Facts | None:
        """What the target's kit said of itself; None where it has none, or did not say."""
        known = self._known.get(name)
        return None if known is None else known.facts

    def known(self, watched: Iterable[Watched]) -> list[Watched]:
        """Those whose kit has said something of itself."""
        return [one for one in watched if self.facts(one.target.name) is not None]

    def report(self, scrape: Scrape, engine: str, now: float, keep_seconds: float) -> KitReport | None:
        """The newest word on one engine of this page; None where there is none: its kit does not drain, and
        was never asked for its list."""
        self._keep_seconds = keep_seconds
        known = self._known.get(scrape.target.name)
        if known is None:
            return None
        if known.problem is not None and known.problem.absent:
            return known.no_kit(now, keep_seconds)
        label = label_of(scrape, engine)
        boot, draining = "", False
        if known.facts is not None:
            boot, draining = known.facts.boot_id, bool(known.facts.draining)
        draining_only = KitReport(now, boot, draining=True) if draining else None
        listed = known.lists.get(label)
        if listed is not None and now - listed[0] <= keep_seconds:
            return KitReport(listed[0], boot, listed[1], draining=draining)
        if known.problem is not None:
            return KitReport(now, boot, None, str(known.problem), draining=draining)
        if known.lists or known.missing:
            if listed is not None:
                return draining_only  # nothing is wrong with it: it has not been looked at since
            how = "did not answer its kit" if label in known.missing else "is not in its kit's list"
            return KitReport(now, boot, None, f"rank {label} {how}", draining=draining)
        return draining_only

    def forget(self, name: str) -> None:
        """Another process answers: nothing that was said counts any more."""
        known = self._known.pop(name, None)
        if known is not None and known.looking is not None:
            known.looking.cancel()

    async def learn(self, watched: Watched) -> None:
        """Ask for the state only: lease and pin times, and whether there is a kit at all."""
        known = self._of(watched.target.name)
        async with self._gate:
            try:
                known.facts, known.problem = await kit.state(self._session, watched.base), None
            except KitError as error:
                # Whoever does not answer now may have a kit all the same.
                known.problem = _bare(error) if error.absent else None
                known.looked = self._clock() if error.absent else None

    async def refresh(self, watched: Watched) -> None:
        """Ask for the state again: a drain shows nowhere else. Whoever does not answer says nothing new."""
        known = self._of(watched.target.name)
        if known.problem is not None and known.problem.absent:
            return
        with suppress(KitError):
            async with self._gate:
                before, known.facts = known.facts, await kit.state(self._session, watched.base)
            if before is not None and before.boot_id != known.facts.boot_id:
                known.lists = {}

    def is_due(self, name: str, every_seconds: float, *, suspect: bool) -> bool:
        """Whether so much time has passed since the last look. Those never looked at come spread over the
        time, but for a suspect, which comes at once."""
        known = self._of(name)
        if known.looking is not None:
            return False
        if known.problem is not None and known.problem.lasting:
            every_seconds = max(every_seconds, _ABSENT_SECONDS if known.problem.absent else _LASTING_SECONDS)
        if known.looked is not None:
            return self._clock() - known.looked >= every_seconds
        return suspect or self._clock() - known.first >= every_seconds * (1 - _share(name))

    def start(self, watched: Watched) -> None:
        """Look at this server, in the background."""
        known = self._of(watched.target.name)
        if known.looking is None:
            known.looking = asyncio.ensure_future(self._look(watched, known))

    async def look(self, watched: Iterable[Watched]) -> None:
        """Look at these servers, now, or wait for the look that is under way."""
        tasks = []
        for one in watched:
            self.start(one)
            task = self._of(one.target.name).looking
            if task is not None:
                tasks.append(task)
        if tasks:
            await asyncio.wait(tasks)

    async def close(self) -> None:
        await ended(*[known.looking for known in self._known.values() if known.looking is not None])

    def _of(self, name: str) -> _Known:
        known = self._known.get(name)
        if known is None:
            known = self._known[name] = _Known(self._clock())
        return known

    async def _look(self, watched: Watched, known: _Known) -> None:
        known.looked = self._clock()
        try:
            async with self._gate:
                before, known.facts = known.facts, await kit.state(self._session, watched.base)
                if before is not None and before.boot_id != known.facts.boot_id:
                    known.lists = {}
                answer = await kit.requests(self._session, watched.base, self._key, room=self._room)
        except KitError as error:
            known.problem = _bare(error)
        else:
            self._take(known, answer)
        finally:
            known.looking = None

    def _take(self, known: _Known, answer: Lists) -> None:
        if known.facts is not None and known.facts.boot_id != answer.boot_id:
            known.drop(SeveralError())
            return
        now = self._clock()
        # Of a rank that is not in it the list before stays while it counts; of one that did not answer it is
        # known further that it was once listed.
        kept: dict[str, tuple[float, tuple[Entry, ...]]] = {}
        for label, (at, entries) in known.lists.items():
            counts = now - at <= self._keep_seconds
            if label not in answer.ranks and (counts or label in answer.missing):
                kept[label] = at, entries if counts else ()
        known.lists = kept | {label: (now, entries) for label, entries in answer.ranks.items()}
        known.size = answer.size + (known.size if any(entries for _, entries in kept.values()) else 0)
        known.taken = now
        known.missing, known.problem = answer.missing, None
        self._make_room(now)

    def _make_room(self, now: float) -> None:
        """Drop what is too old to count, and then the longest."""
        if sum(one.size for one in self._known.values()) <= _MOST_KEPT_BYTES:
            return
        held = sorted((one for one in self._known.values() if one.size), key=lambda one: one.size)
        for one in held:
            if now - one.taken > self._keep_seconds:
                one.drop(one.problem)
        while sum(one.size for one in held) > _MOST_KEPT_BYTES:
            held.pop().drop(KitError("its kit's list is too long to be kept beside those of others"))


def _bare(error: KitError) -> KitError:
    """To be kept: without the frames that it came through, which hold the answer."""
    error.__traceback__ = error.__context__ = error.__cause__ = None
    return error


def _share(name: str) -> float:
    """0..1, the same for the same name: so that a thousand targets are not looked at in one moment."""
    return zlib.crc32(name.encode()) / 2**32
