"""The steps from a suspicion to a healed engine, each with its proof; an outcome is one sentence."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol
from uuid import uuid4

import aiohttp

from stanch.core.confirm import Outcome
from stanch.core.policy import Policy
from stanch.core.report import percent, sentence
from stanch.core.sample import Sample
from stanch.core.verdict import Answer, State, Verdict
from stanch.edge import client, engine
from stanch.edge.demo.board import Board, NotInTimeError
from stanch.edge.demo.fleet import Member, Stuck, Traffic
from stanch.edge.demo.pd import PdRequest, RequestFailedError, pd_request
from stanch.edge.kit import KitError
from stanch.edge.live import Judged
from stanch.edge.release import Order, release

Say = Callable[[str], None]
_PROBE_TRIES = 3
# The longest that an honest transfer takes here.
_TRANSFER_SECONDS = 1.0
_PROBE_WORDS = 64


class Deployment(Protocol):
    """A prefill/decode deployment that the story can be played on. kind: what its engines are."""

    @property
    def kind(self) -> str: ...

    @property
    def token(self) -> str | None:
        """What the engines' kits take commands by; None where they have no kit."""

    @property
    def engines(self) -> Sequence[Member]: ...

    async def traffic(self) -> Traffic: ...

    async def plant(self, name: str, requests: int) -> None: ...

    async def take_out(self, name: str) -> None: ...

    async def put_back(self, name: str) -> None: ...

    async def restart(self, name: str) -> None: ...

    async def health(self, name: str) -> bool: ...

    async def stuck(self, name: str) -> tuple[Stuck, ...] | None:
        """The engine's own list of stuck requests; None where it has none."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How long what may take, in seconds; real engines need more. planted: requests that meet the defect."""

    planted: int = 4
    look: float = 20.0
    detect: float = 60.0
    confirm: float = 40.0
    drain: float = 15.0
    ready: float = 20.0
    request: float = 5.0
    serve: float = 5.0


class StepFailedError(Exception):
    """A step did not do what it is for; the text says what went wrong."""


@dataclass(slots=True)
class Repair:
    """One engine's repair; `suspect` is empty until the watchdog has named one."""

    fleet: Deployment
    policy: Policy
    board: Board
    session: aiohttp.ClientSession
    limits: Limits
    say: Say
    suspect: str = ""
    verdict: Verdict | None = None
    held: float = 0.0
    stuck: tuple[Stuck, ...] | None = None

    @property
    def held_blocks(self) -> int:
        """How many blocks the held share of the cache is."""
        return round(self.held * self._member(self.suspect).blocks) if self.suspect else 0

    async def observe(self) -> str:
        """The watchdog finds a fault; nobody tells it where."""
        one = await self.board.until(_fault, self.limits.detect, "no engine was found at fault")
        self.suspect, self.verdict = one.verdict.engine, one.verdict
        return f"the watchdog calls {self.suspect} at fault: {one.verdict.signature_name}"

    async def confirm(self) -> str:
        """The engine itself is asked, by a canary, until it says yes or no."""
        deadline = asyncio.get_running_loop().time() + self.limits.confirm
        while True:
            left = deadline - asyncio.get_running_loop().time()
            one = await self.board.until(
                self._askable, max(0.0, left), f"{self.suspect} gave no clear answer"
            )
            asked = (await self.board.live.confirm(one)).verdict
            if asked.confirmation is Answer.CONFIRMED:
                self.verdict = asked
                return asked.cause or "confirmed"
            if asked.confirmation is Answer.VETOED:
                raise StepFailedError(sentence(asked))
            self.say(f"asked {self.suspect}, inconclusive: {asked.cause}; it is asked again")
            await self.board.turns(1, self.limits.look)

    async def cordon(self) -> str:
        await self.fleet.take_out(self.suspect)
        if self.suspect not in (await self.fleet.traffic()).out:
            raise StepFailedError(f"the router still sends to {self.suspect}")
        return f"{self.suspect} gets no new request; the others serve on"

    async def drain(self) -> str:
        """Work that is not stuck is not lost: it ends first."""
        since = self.board.live.clock()

        def quiet(now: Mapping[str, Judged]) -> bool | None:
            one = now[self.suspect]
            flying = self.board.traffic is None or self.board.traffic.in_flight.get(self.suspect, 0)
            idle = one.scrape.t > since and one.verdict.running == 0 and one.verdict.waiting == 0
            return True if idle and not flying else None

        await self.board.until(quiet, self.limits.drain, f"{self.suspect} still has work")
        return "nothing is running, waiting or on its way"

    async def capture(self) -> str:
        listed = await self.fleet.stuck(self.suspect)
        self.held = self._sample(self.suspect).usage or 0.0
        if listed is not None:
            # The engine serves on where it has a kit, so an honest transfer may be under way.
            self.stuck = tuple(one for one in listed if not _transfers(one))
            self.held = sum(one.cache_share for one in self.stuck)
        if self.stuck is None:
            return f"{self.held_blocks} blocks are held, {percent(self.held)} of the KV cache"
        blocks = sum(held.blocks for held in self.stuck)
        return f"{len(self.stuck)} stuck requests hold {blocks} blocks, {percent(self.held)} of the KV cache"

    async def release(self) -> str:
        """Exactly the stuck requests, by the kit; the engine serves on. Raises StepFailedError."""
        order = Order(older_than_seconds=self.policy.parked_remote_kv_seconds)
        base, done, blocks = self._member(self.suspect).url, 0, 0
        deadline = asyncio.get_running_loop().time() + self.limits.confirm
        async with client.session(connections=1) as connection:
            while True:
                try:
                    released = await release(connection, base, order, self.fleet.token)
                except KitError as error:
                    raise StepFailedError(f"the kit of {self.suspect}: {error}") from error
                freed = [fate for fate in released.fates if fate.way is not None]
                done, blocks = done + len(freed), blocks + sum(fate.blocks or 0 for fate in freed)
                if not released.refusals:
                    break
                # What is too young yet, or reads in this moment, is asked about again.
                if asyncio.get_running_loop().time() > deadline:
                    why = next(fate.refusal for fate in released.fates if fate.way is None)
                    raise StepFailedError(f"the kit of {self.suspect} refused: {why}")
                await self.board.turns(1, self.limits.look)
        since = self.board.live.clock()

        def free(now: Mapping[str, Judged]) -> bool | None:
            one, usage = now[self.suspect], self._sample(self.suspect).usage
            idle = one.scrape.t > since and one.verdict.running == 0 and one.verdict.waiting == 0
            return True if idle and usage is not None and usage < self.policy.floor_ratio else None

        await self.board.until(free, self.limits.look, f"{self.suspect} still holds what was released")
        return f"{done} requests released, {blocks} blocks are free again, and nothing was restarted"

    async def restart(self) -> str:
        before = self._sample(self.suspect).process_start
        old = self._member(self.suspect).pid
        await self.fleet.restart(self.suspect)
        since = self.board.live.clock()

        def new(now: Mapping[str, Judged]) -> bool | None:
            one = now[self.suspect]
            started = next((s.process_start for s in one.scrape.samples), None)
            return True if one.scrape.t > since and started is not None and started != before else None

        await self.board.until(new, self.limits.ready, f"{self.suspect} did not come back")
        return f"a new process at the same address (pid {old} -> {self._member(self.suspect).pid})"

    async def verify(self) -> str:
        """A canary, an empty cache, and a real request through each prefill with no failure counted."""
        base = self._member(self.suspect).url
        canary = await engine.canary(self.session, engine.Address(base), self.limits.request)
        if canary.outcome is not Outcome.FINISHED:
            raise StepFailedError(f"the canary was {canary.outcome.value} {canary.detail}".rstrip())
        await self._fresh()
        prefills = [member for member in self.fleet.engines if member.role == "prefill"]
        for attempt in range(1, _PROBE_TRIES + 1):
            if (problem := await self._through(prefills, base)) is None:
                break
            self.say(f"a request through a prefill engine failed ({attempt} of {_PROBE_TRIES}): {problem}")
        else:
            raise StepFailedError(problem)
        one = self.board.now[self.suspect]
        usage = self._sample(self.suspect).usage
        if one.verdict.state is not State.HEALTHY or usage is None or usage >= self.policy.floor_ratio:
            raise StepFailedError(sentence(one.verdict))
        names = ("each of " if len(prefills) > 1 else "") + " and ".join(p.name for p in prefills)
        return (
            f"a canary answered in {canary.seconds:.1f} s, a real request through {names}, "
            f"no transfer failed, {percent(usage)} of the KV cache held"
        )

    async def uncordon(self) -> str:
        before = self._sample(self.suspect).generation_tokens or 0.0
        await self.fleet.put_back(self.suspect)

        def serves(now: Mapping[str, Judged]) -> bool | None:
            return True if (self._sample(self.suspect).generation_tokens or 0.0) > before else None

        try:
            await self.board.until(serves, self.limits.serve, "")
        except NotInTimeError:
            return f"{self.suspect} is back in rotation; no request has come its way yet"
        return f"{self.suspect} is back in rotation and serves"

    async def _through(self, prefills: Sequence[Member], decode: str) -> str | None:
        """One real request through each pair, then a new reading; what went wrong, or None."""
        ends = [self.suspect, *(prefill.name for prefill in prefills)]
        before = {name: self._failures(name) for name in ends}
        try:
            for prefill in prefills:
                ask = PdRequest(f"verify-{uuid4().hex[:12]}", "word " * _PROBE_WORDS, 4, self.limits.request)
                await pd_request(self.session, prefill.url, decode, ask)
        except RequestFailedError as error:
            return f"{prefill.name}: {error}"
        finally:
            await self._fresh()
        failing = [name for name in ends if self._failures(name) != before[name]]
        return f"transfers or notifications failed on {' and '.join(failing)}" if failing else None

    async def _fresh(self) -> Judged:
        """The suspect's verdict once every engine was read anew."""
        since = self.board.live.clock()

        def read(now: Mapping[str, Judged]) -> Judged | None:
            return now[self.suspect] if all(one.scrape.t > since for one in now.values()) else None

        return await self.board.until(read, self.limits.look, "the engines could not be read")

    def _askable(self, now: Mapping[str, Judged]) -> Judged | None:
        """The suspect between two requests: one that ends while the canary runs looks like a block freed."""
        one = now[self.suspect]
        fault = one.verdict.state is State.FAULT and not one.verdict.spared
        return one if fault and one.verdict.running == 0 and one.verdict.waiting == 0 else None

    def _failures(self, name: str) -> tuple[float | None, float | None]:
        sample = self._sample(name)
        return sample.failed_transfers, sample.failed_notifications

    def _sample(self, name: str) -> Sample:
        return next(s for s in self.board.now[name].scrape.samples if s.engine == name)

    def _member(self, name: str) -> Member:
        return next(member for member in self.fleet.engines if member.name == name)


def _transfers(one: Stuck) -> bool:
    return one.status == "WAITING_FOR_REMOTE_KVS" and one.age_seconds < _TRANSFER_SECONDS


def _fault(now: Mapping[str, Judged]) -> Judged | None:
    return next((one for one in now.values() if one.verdict.state is State.FAULT), None)
