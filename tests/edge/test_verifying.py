"""Whether an engine that was restarted is called well."""

from __future__ import annotations

import asyncio

import pytest

from stanch.core.history import Result
from stanch.core.policy import Policy
from stanch.core.sample import Role
from stanch.edge import client
from stanch.edge.target import Target
from stanch.edge.targets import Watched
from stanch.edge.verifying import verified
from stanch.edge.watching import watching
from tests.edge.fake_vllm import Completion, FakeVllm, Rank, answers, says

pytestmark = pytest.mark.unit
row = pytest.param


def look(rank: Rank, completion: Completion = answers) -> tuple[Result, str]:
    async def scene() -> tuple[Result, str]:
        policy = Policy()
        async with FakeVllm(rank) as fake, client.session() as session:
            fake.completion = completion
            own = Watched(Target("d0", fake.url), Role.DECODE, policy, "shop")
            async with watching([own], policy) as live:
                return await verified(live, session, Role.DECODE, [own], [], policy.floor_ratio)

    return asyncio.run(scene())


@pytest.mark.parametrize(
    "rank",
    [
        row(Rank(usage=0.01), id="idle"),
        row(Rank(usage=0.3, running=1), id="at work"),
        row(Rank(usage=0.3, waiting=1, deferred=1), id="a request whose KV is on its way"),
    ],
)
def test_an_engine_that_answers_and_holds_nothing_for_nobody_is_well(rank: Rank) -> None:
    result, detail = look(rank)
    assert (result, detail[:22]) == (Result.NO_PEER, "a canary was answered;")


def test_one_that_holds_blocks_for_nobody_is_not() -> None:
    why = "d0 holds 30 % of its KV cache with nothing running or waiting"
    assert look(Rank(usage=0.3)) == (Result.FAILED, why)


def test_nor_is_one_that_refuses_a_canary() -> None:
    result, detail = look(Rank(usage=0.01), says(500))
    assert result is Result.FAILED
    assert detail.startswith("d0: the canary failed")


@pytest.mark.parametrize(("well", "result"), [(True, Result.FAILED), (False, Result.NO_PEER)])
def test_a_peer_that_is_not_well_itself_says_nothing_of_the_restarted_one(well: bool, result: Result) -> None:
    """It refuses its half of the request."""

    async def scene() -> tuple[Result, str]:
        policy = Policy()
        async with FakeVllm(Rank(usage=0.01)) as fake, FakeVllm(Rank()) as other, client.session() as session:
            other.completion, other.healthy = says(500), well
            own = Watched(Target("d0", fake.url), Role.DECODE, policy, "shop")
            peer = Watched(Target("p0", other.url), Role.PREFILL, policy, "shop")
            async with watching([own], policy) as live:
                return await verified(live, session, Role.DECODE, [own], [peer], policy.floor_ratio)

    said, detail = asyncio.run(scene())
    assert (said, "through p0" in detail) == (result, True)
