"""A Live over real servers on loopback, stepped by hand: the clock is the test's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import aiohttp

from stanch.core.policy import Policy
from stanch.core.sample import Role
from stanch.core.verdict import Answer, Signature, State
from stanch.edge.live import Judged, Live
from stanch.edge.scrape import Scraper
from stanch.edge.targets import from_url
from tests.edge.fake_vllm import FakeVllm

HOLD = Policy(interval_seconds=5.0, canary_seconds=1.0).with_hold(10.0)


class Scene:
    """A Live over servers, stepped by hand."""

    def __init__(self) -> None:
        self.now = 1_800_000_000.0
        self.live: Live

    def clock(self) -> float:
        return self.now

    async def step(self, seconds: float = 5.0) -> list[Judged]:
        """Read all of them so many seconds later, and judge."""
        self.now += seconds
        await self.live.look()
        return self.live.turn()

    async def steps(self, count: int) -> list[Judged]:
        for _ in range(count):
            judged = await self.step()
        return judged

    async def answered(self) -> list[Judged]:
        """The turn at the same time, once everybody who was asked has answered or not."""
        mine = asyncio.current_task()
        asking = {t for t in asyncio.all_tasks() if t is not mine and "confirm" in repr(t.get_coro())}
        assert asking, "nobody is being asked"
        await asyncio.wait(asking)
        return self.live.ask_in_background(self.live.turn())


@asynccontextmanager
async def scene(
    *fakes: FakeVllm, role: Role | None = Role.DECODE, policy: Policy = HOLD
) -> AsyncIterator[Scene]:
    """These servers, up, and a Live that looks at them."""
    one = Scene()
    for fake in fakes:
        await fake.up()
    watched = [from_url(fake.url, role, policy) for fake in fakes]
    try:
        async with (
            aiohttp.ClientSession() as session,
            Scraper([w.target for w in watched], policy.interval_seconds, clock=one.clock) as scraper,
        ):
            one.live = Live(watched, scraper, session, policy, one.clock)
            try:
                yield one
            finally:
                await one.live.close()
    finally:
        for fake in fakes:
            await fake.down()


def play(script: Callable[[], Awaitable[None]]) -> None:
    async def whole() -> None:
        await asyncio.wait_for(script(), 30)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(whole())


def shown(judged: list[Judged]) -> list[tuple[State, Signature | None, Answer | None]]:
    return [(j.verdict.state, j.verdict.signature, j.verdict.confirmation) for j in judged]
