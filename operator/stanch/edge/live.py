"""Live engines: the newest page of every target and the newest word of its kit, judged turn by turn."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

import aiohttp

from stanch.core.detector import EngineState
from stanch.core.kit import KitReport
from stanch.core.look import look_every
from stanch.core.plan_conditions import Readings
from stanch.core.policy import Policy
from stanch.core.sample import Role, Sample
from stanch.core.turn import Deployment, Memory, Reading, turn
from stanch.core.verdict import State, Verdict
from stanch.edge import one_engine
from stanch.edge.asking import Asking, Judged, Said
from stanch.edge.kit import Key, no_key
from stanch.edge.kit_answers import Facts, KitError
from stanch.edge.kits import Kits
from stanch.edge.learned import Learned
from stanch.edge.one_engine import SeveralError
from stanch.edge.scrape import Scrape
from stanch.edge.target import Target
from stanch.edge.targets import Watched
from stanch.edge.waking import ended

__all__ = ["Judged", "Live"]

_AT_ONCE = 32


class Source(Protocol):
    """Where readings come from: the engines themselves (Scraper), or a Prometheus (Prometheus)."""

    @property
    def readings(self) -> Readings | None: ...

    def judged_every(self, name: str, /) -> float:
        """Seconds between two readings of a target, which its holds are judged by."""

    async def run(self, deliver: Callable[[Scrape], None]) -> None:
        """Deliver every new reading, until cancelled."""

    async def look(self, targets: Sequence[Target]) -> list[Scrape]:
        """What is new of these, now."""

    async def once(self, target: Target) -> Scrape:
        """What the engine itself says, now."""

    def retarget(self, targets: Sequence[Target]) -> None: ...


class Live:
    """Judges what a Source brings. Use `watching(...)` (watching.py), which opens and closes all of it."""

    def __init__(
        self,
        watched: Sequence[Watched],
        source: Source,
        session: aiohttp.ClientSession,
        policy: Policy,
        clock: Callable[[], float],
        key: Key = no_key,
    ) -> None:
        self.watched = {one.target.name: one for one in watched}
        self.policy = policy
        self.clock = clock
        self.key = key
        self._source = source
        self._kits = Kits(session, clock, key)
        self._learned = Learned(session, clock, self._kits)
        self._asking = Asking(self, session, clock, key)
        self.blind_fleet = False
        self._memory = Memory()
        self._newest: dict[str, Scrape] = {}
        self._restarts: dict[str, float | None] = {}
        self._several: set[str] = set()
        self._gate = asyncio.Semaphore(_AT_ONCE)

    async def learn(self) -> None:
        """Ask every target's version and its kit's state, which tell lease and pin times; one that does not
        say is unknown."""
        await asyncio.gather(*(self._learned.learn(one) for one in self.watched.values()))

    @property
    def versions(self) -> Mapping[str, str | None]:
        """By the target's name; None where it did not say, absent until it was asked."""
        return self._learned.versions

    def retarget(self, watched: Sequence[Watched]) -> None:
        """Watch these from now on; what is known of an engine that stays is kept, a new one is learned of in
        the background. Raises ValueError where two have the same name."""
        before, after = self.watched, {one.target.name: one for one in watched}
        self._source.retarget([one.target for one in watched])
        self.watched = after
        for name, old in before.items():
            if name not in after or after[name].target != old.target:
                self._newest.pop(name, None)
                self._learned.forget(name)
        for name, one in after.items():
            if name not in before or before[name].target != one.target:
                self._learned.learn_again(one)

    async def scraping(self) -> None:
        """Read every target once per interval, until cancelled: for those who call turn() themselves."""
        await self._source.run(self.take)

    @property
    def readings(self) -> Readings | None:
        """What is to be said of where the readings come from; None where the engines themselves are read."""
        return self._source.readings

    def judged_every(self, name: str) -> float:
        """Seconds between two readings of a target, which its holds are judged by."""
        return self._source.judged_every(name)

    async def look_again(self, names: Iterable[str]) -> None:
        """Read these once more, now, from the engines themselves."""
        await self._read([self.watched[name] for name in names if name in self.watched])

    def newest(self, name: str) -> Scrape | None:
        """The last page of a target; None before the first."""
        return self._newest.get(name)

    def facts(self, name: str) -> Facts | None:
        """What the kit of a target last said of itself; None where it has none, or did not say."""
        return self._kits.facts(name)

    def arm(self, deployments: Iterable[str]) -> None:
        """Shorten the holds of these deployments' decodes for a while, from now on."""
        until = self.clock() + self.policy.transfer_fault_seconds
        known = dict(self._memory.deployments)
        for name in deployments:
            known[name] = replace(known.get(name, Deployment()), armed_until=until)
        self._memory = replace(self._memory, deployments=known)

    async def look(self) -> None:
        """Read every target once, now."""
        for scrape in await self._source.look([one.target for one in self.watched.values()]):
            self.take(scrape)

    async def _read(self, watched: Sequence[Watched]) -> None:
        for scrape in await asyncio.gather(*(self._source.once(one.target) for one in watched)):
            self.take(scrape)

    def take(self, scrape: Scrape) -> None:
        watched = self.watched.get(scrape.target.name)
        if watched is None or watched.target != scrape.target:
            return  # it was on its way when its target left
        self._newest[scrape.target.name] = scrape
        self._learned.take(scrape)

    def role(self, watched: Watched) -> Role:
        return self._learned.role(watched)

    async def ask_kits(self) -> None:
        """Look at the lists of all targets once, now: for an answer that will not wait for the next turn.

        Then one list alone may make a fault, so it is seen to it that one engine gave page and list.
        """
        before = {name: self._kits.facts(name) for name in self.watched}
        await self._kits.look(self.watched.values())
        await asyncio.gather(*(self._see_if_one(one) for one in self._kits.known(self.watched.values())))
        for name, facts in before.items():
            now = self._kits.facts(name)
            if facts is not None and now is not None and facts.boot_id != now.boot_id:
                self._several.add(name)

    async def _see_if_one(self, watched: Watched) -> None:
        async with self._gate:
            try:
                await one_engine.state(watched.base)
            except SeveralError:
                self._several.add(watched.target.name)
            except KitError:
                pass  # whoever is silent proves nothing

    async def turns(self, seconds: float | None) -> AsyncIterator[list[Judged]]:
        """A turn every interval and one at the end of `seconds` (None: until cancelled).

        The first is one interval from now. An engine that has not answered yet has no place in a turn, but in
        the last, which waits for it.
        """
        interval = self.policy.interval_seconds
        loop = asyncio.get_running_loop()
        running = asyncio.create_task(self._source.run(self.take))
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
                    suspects = self._suspects()
                    others = [one for one in self.watched.values() if one not in suspects]
                    await asyncio.gather(self._kits.look(suspects), *map(self._kits.refresh, others))
                if self._newest:
                    yield self.turn()
        finally:
            await ended(running)

    def turn(self) -> list[Judged]:
        """Judge the newest reading of every engine."""
        now = self.clock()
        readings: list[Reading] = []
        scrapes, named = list[Scrape](), set[str]()
        for name, scrape in self._newest.items():
            watched = self.watched[name]
            policy = self.policy_of(watched)
            for sample in scrape.samples:
                if sample.engine in named:
                    sample = _namesake(sample, watched.target.shown, len(named))
                named.add(sample.engine)
                report = self._kits.report(scrape, sample.engine, now, policy.gap_seconds)
                sample = _aged(sample, now, policy.gap_seconds)
                if name in self._several:
                    sample = Sample(sample.t, sample.engine, blind=one_engine.SEVERAL)
                readings.append(Reading(sample, self.role(watched), watched.deployment, policy, report))
                scrapes.append(scrape)
        self._memory, result = turn(self._memory, readings, self.policy, now)
        self.blind_fleet = result.blind_fleet
        self._notice_restarts(zip(result.verdicts, scrapes, strict=True))
        self._look_where_due(zip(result.verdicts, scrapes, strict=True))
        for name, scrape in self._newest.items():
            self._learned.learn_if_unsaid(self.watched[name], scrape)
        return [
            Judged(self.watched[scrape.target.name], verdict, scrape)
            for verdict, scrape in zip(result.verdicts, scrapes, strict=True)
        ]

    def _notice_restarts(self, judged: Iterable[tuple[Verdict, Scrape]]) -> None:
        """A process that restarted may be another vLLM: its version is unknown until it says it again."""
        before, self._restarts = self._restarts, {}
        for verdict, scrape in judged:
            restarted = self._memory.engines[verdict.engine].restarted_t
            self._restarts[verdict.engine] = restarted
            if restarted != before.get(verdict.engine):
                self._learned.learn_again(self.watched[scrape.target.name])

    def _look_where_due(self, judged: Iterable[tuple[Verdict, Scrape]]) -> None:
        for verdict, scrape in judged:
            every = look_every(verdict, self.policy)
            suspect = verdict.state is not State.HEALTHY
            if every is not None and self._kits.is_due(scrape.target.name, every, suspect=suspect):
                self._kits.start(self.watched[scrape.target.name])

    def _suspects(self) -> list[Watched]:
        """The targets of which an engine was not healthy in the last turn, or was in none."""
        found = []
        for name, scrape in self._newest.items():
            states = [self.state_of(sample.engine) for sample in scrape.samples]
            verdicts = [state.verdict for state in states if state is not None and state.verdict is not None]
            if not verdicts or any(v.state in (State.SUSPECT, State.FAULT) for v in verdicts):
                found.append(self.watched[name])
        return found

    def policy_of(self, watched: Watched) -> Policy:
        """The target's policy, with the lease and pin times that its kit or its version tells."""
        return self._learned.policy_of(watched)

    def policy_for_a_person(self, watched: Watched) -> Policy:
        """The same for what a person suspects of the target."""
        return self._learned.policy_for_a_person(watched)

    async def confirm(self, judged: Judged, *, canary: bool = True) -> Judged:
        """Ask one engine about its verdict, and enter what it says. canary: whether one may be sent."""
        return await self._asking.confirm(judged, canary=canary)

    async def ask(self, judged: Judged, *, canary: bool, boot_id: str | None = None) -> Said:
        """What one engine says of judged.verdict, whether or not that is its last one."""
        return await self._asking.ask(judged, canary=canary, boot_id=boot_id)

    def ask_in_background(self, judged: Sequence[Judged]) -> list[Judged]:
        """Ask about every fault that was not asked about; the turn with what the answers so far changed."""
        return self._asking.in_background(judged)

    def state_of(self, name: str) -> EngineState | None:
        """What is remembered of an engine; None where it has left its page."""
        return self._memory.engines.get(name)

    def put(self, name: str, state: EngineState) -> None:
        self._memory = replace(self._memory, engines={**self._memory.engines, name: state})

    async def read(self, judged: Judged) -> Sample:
        """A new reading of one engine."""
        name = judged.verdict.engine
        scrape = await self._source.once(judged.watched.target)
        for sample in scrape.samples:
            if sample.engine == name:
                return sample
        return Sample(scrape.t, name, blind="it is no longer on the page")

    async def look_at(self, judged: Judged) -> KitReport | None:
        """A list of one engine's kit that is newer than this question, or why there is none."""
        start = self.clock()
        await self._kits.look([judged.watched])
        now = self.clock()
        return self._kits.report(judged.scrape, judged.verdict.engine, now, now - start)

    async def close(self) -> None:
        await asyncio.gather(
            self._learned.close(), self._asking.close(), self._kits.close(), return_exceptions=True
        )


def _aged(sample: Sample, now: float, gap_seconds: float) -> Sample:
    """The sample, or where no newer one came for long, the same with its age."""
    age = now - sample.t
    return replace(sample, age_seconds=age) if age > gap_seconds else sample


def _namesake(sample: Sample, url: str, number: int) -> Sample:
    """A second engine of the same name: blind under one of its own, because holds go by the name."""
    why = f"another engine is called {sample.engine} too: give the targets other names (docs/targets.md)"
    return Sample(sample.t, f"{sample.engine} at {url} #{number}", blind=why)
