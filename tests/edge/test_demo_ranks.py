"""Several data-parallel ranks behind one simulated server: schedulers, series and lists of their own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import pytest

from stanch.core.kit import Entry
from stanch.edge import kit
from stanch.edge.client import session
from stanch.edge.demo.child import Child, StartError
from stanch.edge.exposition import read
from stanch.edge.release import Order, release

pytestmark = pytest.mark.unit

TOKEN = "0123456789abcdef-of-a-test"
RANKS = 3


class Scene:
    def __init__(self, http: aiohttp.ClientSession, prefill: str, decode: str) -> None:
        self.http = http
        self.prefill = prefill
        self.decode = decode

    async def ask(self, rank: object | None, **more: object) -> tuple[int, dict[str, Any]]:
        headers = {} if rank is None else {"X-data-parallel-rank": str(rank)}
        body = {"prompt": "word", "max_tokens": 1, **more}
        url = f"{self.decode}/v1/completions"
        async with self.http.post(url, json=body, headers=headers) as answer:
            return answer.status, await answer.json()

    async def leak(self, rank: int, name: str) -> None:
        """One request of that rank meets the defect, and its client leaves."""
        plant = {"requests": 1, "rank": rank}
        async with self.http.post(f"{self.decode}/sim/plant", json=plant) as answer:
            assert answer.status == 200
        first = {"prompt": "word " * 310, "max_tokens": 1, "kv_transfer_params": {"do_remote_decode": True}}
        async with self.http.post(f"{self.prefill}/v1/completions", json=first) as answer:
            first["kv_transfer_params"] = (await answer.json())["kv_transfer_params"]
        headers = {"X-data-parallel-rank": str(rank), "X-Request-Id": name}
        client = asyncio.create_task(
            self.http.post(f"{self.decode}/v1/completions", json=first, headers=headers)
        )
        while (found := await self._entry(rank, name)) is None or not found.client_gone:
            if found is not None:
                client.cancel()
            await asyncio.sleep(0.02)

    async def _entry(self, rank: int, name: str) -> Entry | None:
        listed = (await self.listed())[str(rank)]
        return next((entry for entry in listed if entry.id == f"cmpl-{name}"), None)

    async def listed(self) -> dict[str, tuple[Entry, ...]]:
        return dict((await kit.requests(self.http, self.decode)).ranks)

    async def usages(self) -> dict[str, float | None]:
        async with self.http.get(f"{self.decode}/metrics") as answer:
            page = read(await answer.read())
        assert page.problem is None
        return {one.engine: one.usage for one in page.engines}


def play(script: Callable[[Scene], Awaitable[None]]) -> None:
    async def whole() -> None:
        decode = ["--role=decode", "--token", TOKEN, f"--data-parallel-size={RANKS}"]
        children: list[Child] = []
        try:
            for flags in (["--role=prefill"], decode):
                children.append(await Child.start("stanch.edge.demo.engine", ["--name=e", *flags]))
            async with session() as http:
                urls = [f"http://127.0.0.1:{child.port}" for child in children]
                await asyncio.wait_for(script(Scene(http, *urls)), 60)
        finally:
            await asyncio.gather(*(child.end(10) for child in children))

    asyncio.run(whole())


def test_each_rank_has_series_and_a_list_of_its_own() -> None:
    async def script(s: Scene) -> None:
        await s.leak(1, "one")
        await s.leak(2, "two")
        found = {
            rank: [(e.id, e.blocks, e.way) for e in entries] for rank, entries in (await s.listed()).items()
        }
        assert found == {"0": [], "1": [("cmpl-one", 10, "freed")], "2": [("cmpl-two", 10, "freed")]}
        assert await s.usages() == {"0": 0.0, "1": 1 - 90 / 100, "2": 1 - 90 / 100}

    play(script)


def test_one_release_frees_what_any_rank_holds() -> None:
    async def script(s: Scene) -> None:
        await s.leak(0, "zero")
        await s.leak(2, "two")
        async with session(1) as connection:
            done = await release(connection, s.decode, Order(None, deadline_seconds=10), TOKEN)
        assert sorted((fate.id or "", fate.way) for fate in done.fates) == [
            ("cmpl-two", "freed"),
            ("cmpl-zero", "freed"),
        ]
        assert await s.listed() == {"0": (), "1": (), "2": ()}

    play(script)


def test_a_request_goes_to_the_rank_that_it_names_else_to_each_in_turn() -> None:
    async def script(s: Scene) -> None:
        keep = {"kv_transfer_params": {"do_remote_decode": True}}
        seen = []
        for rank in (2, 0, None, None, None):
            status, said = await s.ask(rank, **keep)
            assert status == 200
            seen.append(said["kv_transfer_params"]["remote_engine_id"].rpartition("_dp")[2])
        assert seen == ["2", "0", "0", "1", "2"]

    play(script)


def test_what_its_peers_know_each_rank_by_is_what_its_kit_tells() -> None:
    async def script(s: Scene) -> None:
        seen = {}
        for rank in range(3):
            _, said = await s.ask(rank, kv_transfer_params={"do_remote_decode": True})
            seen[str(rank)] = said["kv_transfer_params"]["remote_engine_id"]
        assert (await kit.state(s.http, s.decode)).engine_ids == seen

    play(script)


@pytest.mark.parametrize("rank", ["3", "-1", "none"])
def test_a_rank_that_is_not_there_is_refused(rank: str) -> None:
    async def script(s: Scene) -> None:
        status, said = await s.ask(rank)
        assert status == 400
        assert said["error"]["type"] == "BadRequestError"

    play(script)


def test_a_gauge_that_stands_still_is_set_by_the_next_step() -> None:
    async def script(s: Scene) -> None:
        async with s.http.post(f"{s.decode}/sim/gauge", json={"usage": 0.4}) as answer:
            assert answer.status == 200
        assert (await s.usages())["0"] == 0.4
        assert (await s.listed())["0"] == ()
        await s.ask(0)
        assert (await s.usages())["0"] == 0.0

    play(script)


def test_a_senseless_number_of_ranks_is_refused() -> None:
    async def starts() -> None:
        await Child.start("stanch.edge.demo.engine", ["--data-parallel-size=0"])

    with pytest.raises(StartError, match="data-parallel-size"):
        asyncio.run(starts())
