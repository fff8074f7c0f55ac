"""Live engines: the newest page of every target, judged turn by turn, and asked where a verdict says so."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace

import aiohttp

from stanch.core.answers import answer, ask
from stanch.core.confirm import Canary, Outcome, Ruling
from stanch.core.detector import EngineState, IllegalTransitionError
from stanch.core.policy import Policy, lease_of_version
from stanch.core.sample import Role, Sample
from stanch.core.signatures import NOTHING_OWED
from stanch.core.turn import Fleet, Reading, turn
from stanch.core.verdict import Answer, State, Verdict
from stanch.edge import engine
from stanch.edge.fetch import HEADERS
from stanch.edge.reading import role_evidence
from stanch.edge.resolver import Resolver
from stanch.edge.scrape import Scrape, Scraper
from stanch.edge.targets import Watched

# An engine that could not be asked is asked again, but not at every turn.
_ASK_AGAIN_SECONDS = 60.0
_AT_ONCE = 32


class Clock:
    """Unix time that never steps back: the wall clock at the start, the monotonic one from then on."""

    def __init__(self) -> None:
        self._offset = time.time() - time.monotonic()

    def __call__(self) -> float:
        return self._offset + time.monotonic()


@dataclass(frozen=True, slots=True)
class Judged:
    """One engine of a turn. scrape: the page that its verdict rests on."""

    watched: Watched
    verdict: Verdict
    scrape: Scrape


class Live:
    """Judges what a Scraper brings. Use `watching(...)`, which opens and closes all of it."""

    def __init__(
        self,
        watched: Sequence[Watched],
        scraper: Scraper,
        session: aiohttp.ClientSession,
        policy: Policy,
        clock: Callable[[], float],
        api_key: str | None = None,
    ) -> None:
        self.watched = {one.target.name: one for one in watched}
        self.versions: dict[str, str | None] = {}
        self.policy = policy
        self.clock = clock
        self._scraper = scraper
        self._session = session
        self._api_key = api_key
        self.blind_fleet = False
        self._fleet = Fleet()
        self._newest: dict[str, Scrape] = {}
        self._roles: dict[str, Role] = {}
        self._restarts: dict[str, float | None] = {}
        self._learning: set[asyncio.Task[None]] = set()
        self._version_asked: dict[str, float] = {}
        self._asked: dict[str, float] = {}
        self._asking: dict[str, tuple[Verdict, asyncio.Task[tuple[Ruling, Canary | None]]]] = {}
        self._gate = asyncio.Semaphore(_AT_ONCE)

    async def learn_versions(self) -> None:
        """Ask every target's /version, which tells the default lease; one that does not say is unknown."""
        await asyncio.gather(*(self._learn(one) for one in self.watched.values()))

    async def _learn(self, watched: Watched) -> None:
        self._version_asked[watched.target.name] = self.clock()
        async with self._gate:
            self.versions[watched.target.name] = await engine.version(self._session, watched.base)

    async def look(self) -> None:
        """Scrape every target once, now."""
        await self._read(list(self.watched.values()))

    async def _read(self, watched: Sequence[Watched]) -> None:
        for scrape in await asyncio.gather(*(self._scraper.once(one.target) for one in watched)):
            self.take(scrape)

    def take(self, scrape: Scrape) -> None:
        name = scrape.target.name
        self._newest[name] = scrape
        role = role_evidence(scrape.page)
        # A prefill by its requests may be a young decode that so far was only probed; a decode is one.
        if role is Role.DECODE or (role is not None and name not in self._roles):
            self._roles[name] = role

    def role(self, watched: Watched) -> Role:
        return watched.role or self._roles.get(watched.target.name, Role.UNKNOWN)

    async def turns(self, seconds: float | None) -> AsyncIterator[list[Judged]]:
        """A turn every interval and one at the end of `seconds` (None: until cancelled).

        The first is one interval from now. An engine that has not answered yet has no place in a turn, but in
        the last, which waits for it.
        """
        interval = self.policy.interval_seconds
        loop = asyncio.get_running_loop()
        running = asyncio.create_task(self._scraper.run(self.take))
        start = loop.time()
        number = 0
        try:
            while seconds is None or number * interval < seconds:
                # Turns that were missed (the reader of our output was slow) are not made up for.
                number = max(number + 1, int((loop.time() - start) / interval))
                at = number * interval if seconds is None else min(number * interval, seconds)
                await asyncio.wait((running,), timeout=max(0.0, start + at - loop.time()))
                if running.done():
                    running.result()
                if at == seconds:
                    await self._read([one for name, one in self.watched.items() if name not in self._newest])
                if self._newest:
                    yield self.turn()
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    def turn(self) -> list[Judged]:
        """Judge the newest reading of every engine."""
        now = self.clock()
        readings: list[Reading] = []
        scrapes, named = list[Scrape](), set[str]()
        for name, scrape in self._newest.items():
            watched = self.watched[name]
            policy = self._policy(watched)
            for sample in scrape.samples:
                if sample.engine in named:
                    sample = _namesake(sample, watched.target.shown, len(named))
                named.add(sample.engine)
                sample = self._aged(sample, now)
                readings.append(Reading(sample, self.role(watched), watched.deployment, policy))
                scrapes.append(scrape)
        self._fleet, result = turn(self._fleet, readings, self.policy, now)
        self.blind_fleet = result.blind_fleet
        self._notice_restarts(zip(result.verdicts, scrapes, strict=True))
        for name, scrape in self._newest.items():
            # One that was down, or still starting, when it was asked.
            unknown = name in self.versions and self.versions[name] is None and scrape.problem is None
            if unknown and now - self._version_asked[name] >= _ASK_AGAIN_SECONDS:
                self._learn_again(name)
        return [
            Judged(self.watched[scrape.target.name], verdict, scrape)
            for verdict, scrape in zip(result.verdicts, scrapes, strict=True)
        ]

    def _notice_restarts(self, judged: Iterable[tuple[Verdict, Scrape]]) -> None:
        """A process that restarted may be another vLLM: its version is unknown until it says it again."""
        for verdict, scrape in judged:
            restarted = self._fleet.engines[verdict.engine].restarted_t
            if restarted != self._restarts.get(verdict.engine):
                self._restarts[verdict.engine] = restarted
                self._learn_again(scrape.target.name)

    def _learn_again(self, name: str) -> None:
        self.versions.pop(name, None)
        task = asyncio.ensure_future(self._learn(self.watched[name]))
        self._learning.add(task)
        task.add_done_callback(self._learning.discard)

    def _aged(self, sample: Sample, now: float) -> Sample:
        """The sample, or where no newer one came for long, the same with its age."""
        age = now - sample.t
        return replace(sample, age_seconds=age) if age > self.policy.gap_seconds else sample

    def _policy(self, watched: Watched) -> Policy:
        if watched.policy.lease_seconds is not None:
            return watched.policy
        version = engine.parsed_version(self.versions.get(watched.target.name))
        return replace(watched.policy, lease_seconds=lease_of_version(version))

    async def confirm(self, judged: Judged) -> Judged:
        """Ask one engine about its verdict, and enter what it says."""
        self._send(judged)
        name = judged.verdict.engine
        await asyncio.wait((self._asking[name][1],))
        return self._enter(judged)

    def ask_in_background(self, judged: Sequence[Judged]) -> list[Judged]:
        """Ask about every fault that was not asked about; the turn with what the answers so far changed."""
        found = []
        for one in judged:
            name = one.verdict.engine
            if name in self._asking and self._asking[name][1].done():
                one = self._enter(one)
            if self._is_due(one.verdict):
                self._send(one)
            found.append(one)
        return found

    def _is_due(self, verdict: Verdict) -> bool:
        asked = self._asked.get(verdict.engine)
        return (
            verdict.state is State.FAULT
            and not verdict.spared
            and verdict.confirmation in (None, Answer.INCONCLUSIVE)
            and verdict.engine not in self._asking
            and (asked is None or self.clock() - asked >= _ASK_AGAIN_SECONDS)
        )

    def _send(self, judged: Judged) -> None:
        name = judged.verdict.engine
        self._put(name, ask(self._fleet.engines[name], 1.0, 1.0))
        address = engine.Address(judged.watched.base, _rank(judged), self._api_key)

        async def read() -> Sample:
            scrape = await self._scraper.once(judged.watched.target)
            for sample in scrape.samples:
                if sample.engine == name:
                    return sample
            return Sample(scrape.t, name, blind="it is no longer on the page")

        self._asked[name] = self.clock()
        policy = self._policy(judged.watched)
        task = asyncio.ensure_future(engine.confirm(self._session, address, judged.verdict, policy, read))
        self._asking[name] = judged.verdict, task

    def _enter(self, judged: Judged) -> Judged:
        """With the answer that has come, if the engine still shows what it was asked about."""
        name = judged.verdict.engine
        asked, task = self._asking.pop(name)
        ruling, sent = task.result()
        state = self._fleet.engines.get(name)
        if state is None or (now := state.verdict) is None:
            return judged  # it has left its page
        if sent is None or sent.outcome is Outcome.REJECTED:
            # It ran nothing, so whatever moves is other people's.
            self._put(name, state := replace(state, owed=NOTHING_OWED))
        if now.signature is not asked.signature or now.held_seconds < asked.held_seconds:
            return judged  # another pattern, or the same one anew: not what it was asked about
        try:
            state, verdict = answer(state, ruling.answer, ruling.cause, restart_hold=ruling.restart_hold)
        except IllegalTransitionError:
            return judged  # it is no longer under suspicion, so there is nothing to answer
        self._put(name, state)
        return replace(judged, verdict=replace(verdict, warnings=judged.verdict.warnings))

    def _put(self, name: str, state: EngineState) -> None:
        self._fleet = replace(self._fleet, engines={**self._fleet.engines, name: state})

    async def close(self) -> None:
        tasks = [*(task for _, task in self._asking.values()), *self._learning]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _namesake(sample: Sample, url: str, number: int) -> Sample:
    """A second engine of the same name: blind under one of its own, because holds go by the name."""
    why = f"another engine is called {sample.engine} too: give the targets other names (docs/targets.md)"
    return Sample(sample.t, f"{sample.engine} at {url} #{number}", blind=why)


def _rank(judged: Judged) -> int | None:
    """The engine's place among those of its page: X-data-parallel-rank counts the server's own engines."""
    # NAME/LABEL: the samples also hold a rank that is missing from this page.
    labels = {sample.engine.rpartition("/")[2] for sample in judged.scrape.samples}
    order = sorted(labels, key=lambda label: (not label.isdigit(), label.zfill(9)))
    return order.index(judged.verdict.engine.rpartition("/")[2]) if len(order) > 1 else None


@asynccontextmanager
async def watching(
    watched: Sequence[Watched], policy: Policy, api_key: str | None = None
) -> AsyncIterator[Live]:
    """A Live over these targets, with the connections that it needs."""
    clock = Clock()
    async with AsyncExitStack() as stack:
        targets = [one.target for one in watched]
        scraper = await stack.enter_async_context(Scraper(targets, policy.interval_seconds, clock=clock))
        session = await stack.enter_async_context(
            aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, resolver=Resolver()),
                cookie_jar=aiohttp.DummyCookieJar(),
                headers=HEADERS,
                auto_decompress=False,
                trust_env=False,
            )
        )
        live = Live(watched, scraper, session, policy, clock, api_key)
        stack.push_async_callback(live.close)
        yield live
