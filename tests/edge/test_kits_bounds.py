"""Kits that say more than they should: what is kept of all of them is bounded, and short lists stay."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import aiohttp
import pytest

from stanch.core.policy import Policy
from stanch.core.sample import Role
from stanch.edge import kit, kits
from stanch.edge.kit_answers import KitError, Lists, lists_of
from stanch.edge.kits import Kits
from stanch.edge.targets import Watched, from_url
from tests.edge.fake_kit import FakeKit, entry, says
from tests.edge.fake_vllm import FakeVllm, talk

pytestmark = pytest.mark.unit


def of_requests(count: int, rank: str = "0", **differs: Any) -> FakeKit:
    found = FakeKit()
    found.ranks = {rank: {"requests": [entry(str(number), **differs) for number in range(count)]}}
    return found


class Scene:
    """Kits, with a clock that the test turns; engine n is the one of the n-th FakeKit."""

    def __init__(self, looked: Kits, engines: list[tuple[FakeVllm, Watched]]) -> None:
        self.kits = looked
        self.engines = engines
        self.time = 1000.0

    async def look(self, *numbers: int) -> None:
        await self.kits.look([self.engines[number][1] for number in numbers])

    def listed(self, number: int) -> list[int]:
        """How many requests are kept of each rank."""
        known = self.kits._known[self.engines[number][1].target.name]
        return [len(entries) for _, entries in known.lists.values()]

    def problem(self, number: int) -> KitError | None:
        return self.kits._known[self.engines[number][1].target.name].problem


def play(servers: list[FakeKit], script: Callable[[Scene], Awaitable[None]]) -> None:
    async def whole() -> None:
        async with AsyncExitStack() as stack:
            session = await stack.enter_async_context(aiohttp.ClientSession())
            engines = []
            for server in servers:
                fake = await stack.enter_async_context(FakeVllm())
                fake.kit = server
                engines.append((fake, from_url(fake.url, Role.DECODE, Policy())))
            scene = Scene(Kits(session, lambda: scene.time, kit.no_key), engines)
            await asyncio.wait_for(script(scene), 60)
            await scene.kits.close()

    asyncio.run(whole())


def test_a_long_list_is_understood_beside_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    where: list[bool] = []

    def seen(data: Any) -> Lists:
        where.append(threading.current_thread() is threading.main_thread())
        return lists_of(data)

    monkeypatch.setattr(kit, "lists_of", seen)
    for count in (10, 2000):
        fake = FakeVllm()
        fake.kit = of_requests(count)
        found = talk(fake, lambda session, one: kit.requests(session, one.url))
        assert len(found.ranks["0"]) == count
        assert found.size > 300 * count
    assert where == [True, False]


def test_what_is_wrong_with_a_long_one_is_told_as_of_a_short_one() -> None:
    for count in (1, 2000):
        fake = FakeVllm()
        fake.kit = of_requests(count, blocks=None)
        with pytest.raises(KitError, match="blocks is missing"):
            talk(fake, lambda session, one: kit.requests(session, one.url))


def test_a_state_is_short() -> None:
    fake = FakeVllm()
    fake.kit = FakeKit(kit="x" * (2 << 20))
    with pytest.raises(KitError, match="longer than 1 MB"):
        talk(fake, lambda session, one: kit.state(session, one.url))


def test_of_lists_that_come_together_the_longest_is_given_up() -> None:
    room = kit.Room(100)
    long, short = object(), object()
    room.take(long, 90)
    room.take(short, 5)
    room.take(short, 20)
    with pytest.raises(KitError, match="too long beside others"):
        room.take(long, 95)
    room.leave(long)
    room.take(short, 99)


def test_of_lists_that_are_kept_the_longest_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kits, "_MOST_KEPT_BYTES", 500_000)

    async def script(s: Scene) -> None:
        await s.look(0)
        for number in (1, 2, 3):
            await s.look(number)
        assert s.listed(0) == [10]
        assert sum(bool(s.listed(number)) for number in (1, 2, 3)) == 1
        lost = [s.problem(number) for number in (1, 2, 3) if not s.listed(number)]
        assert all("too long to be kept" in str(one) for one in lost)

    play([of_requests(10), *(of_requests(count) for count in (1000, 900, 800))], script)


def test_before_that_what_counts_no_more_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kits, "_MOST_KEPT_BYTES", 500_000)

    async def script(s: Scene) -> None:
        s.kits._keep_seconds = 15.0
        await s.look(0)
        s.time += 20.0
        await s.look(1)
        assert (s.listed(0), s.listed(1)) == ([], [1000])
        assert s.problem(0) is None, "nothing is wrong with it"

    play([of_requests(900), of_requests(1000)], script)


def test_ranks_that_are_called_otherwise_each_time_do_not_heap_up() -> None:
    async def script(s: Scene) -> None:
        s.kits._keep_seconds = 15.0
        for look in range(20):
            server = of_requests(3, rank=f"r{look}")
            s.engines[0][0].kit = server
            await s.look(0)
            s.time += 8.0
        assert len(s.listed(0)) <= 3

    play([of_requests(1)], script)


def test_an_error_that_is_kept_holds_no_answer() -> None:
    async def script(s: Scene) -> None:
        await s.look(0)
        problem = s.problem(0)
        assert problem is not None
        assert "something else" in str(problem)
        assert (problem.__traceback__, problem.__context__) == (None, None)

    server = FakeKit()
    server.answers["requests"] = says(200, text=json.dumps({"x": "y" * 300_000}))
    play([server], script)
