"""What the engines of a watch are known by from turn to turn."""

from __future__ import annotations

import aiohttp
import pytest

from stanch.edge.hearing import Hearing
from tests.edge.fake_kit import FakeKit, says
from tests.edge.fake_vllm import FakeVllm
from tests.edge.live_scene import play, scene

pytestmark = pytest.mark.unit


def test_the_ids_that_its_peers_know_it_by_are_kept_while_the_process_lives() -> None:
    async def script() -> None:
        fake = FakeVllm()
        fake.kit = FakeKit(engineIds={"0": "a_dp0", "1": "a_dp1"})
        async with scene(fake) as s, aiohttp.ClientSession() as session:
            hearing = Hearing(s.live, session)
            (name,) = s.live.watched

            async def ids() -> tuple[str, ...]:
                await s.step()
                heard = await hearing.listen(s.live.watched.values(), frozenset({name}))
                return heard[name].transfer_ids

            assert await ids() == ("a_dp0", "a_dp1")
            # A rank that hangs does not say it any more, nor does a server that is silent.
            fake.kit.facts["engineIds"] = {"0": "a_dp0"}
            assert await ids() == ("a_dp0", "a_dp1")
            fake.kit.answers["state"] = says(500, {})
            s.now += 60.0
            assert await ids() == ("a_dp0", "a_dp1")
            # Another process has others, and one of an older kit has none.
            fake.kit = FakeKit(engineIds={"0": "b"})
            fake.kit.boot_id = "boot-2"
            assert await ids() == ("b",)
            fake.kit = FakeKit()
            fake.kit.boot_id = "boot-3"
            assert await ids() == ()

    play(script)
