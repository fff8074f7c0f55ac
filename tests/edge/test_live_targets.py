"""Targets that come and go while they are watched; holds that are shortened; an engine that is asked anew."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from stanch.core.policy import ARMED_LEAST_SECONDS, Policy
from stanch.core.sample import Role
from stanch.core.verdict import Answer, Signature, State
from stanch.edge.target import Target
from stanch.edge.targets import Watched, from_url
from stanch.edge.watching import watching
from stanch_connector.contract import CANARY_PREFIX
from tests.edge.fake_kit import FakeKit
from tests.edge.fake_vllm import FakeVllm, Rank, until
from tests.edge.live_scene import HOLD, play, scene, shown

pytestmark = pytest.mark.unit


def watched(name: str, fake: FakeVllm) -> Watched:
    return Watched(Target(name, fake.url), Role.DECODE, HOLD, "shop")


def test_engines_come_and_go_and_those_that_stay_keep_their_hold() -> None:
    async def script() -> None:
        stays, comes = FakeVllm(Rank(usage=0.4)), FakeVllm()
        async with scene(stays) as s, comes:
            first = from_url(stays.url, Role.DECODE, HOLD)
            await s.steps(2)
            s.live.retarget([first, from_url(comes.url, Role.DECODE, HOLD)])
            assert len(await s.step()) == 2
            assert shown(s.live.turn())[0] == (State.FAULT, Signature.HELD_IDLE, None)
            s.live.retarget([first])
            assert shown(await s.step()) == [(State.FAULT, Signature.HELD_IDLE, None)]

    play(script)


def test_another_address_under_the_same_name_is_another_engine() -> None:
    async def script() -> None:
        old, new = FakeVllm(Rank(usage=0.4)), FakeVllm()
        new.kit = FakeKit()
        async with old, new, watching([watched("d0", old)], HOLD) as live:
            await live.look()
            live.retarget([watched("d0", new)])
            assert live.newest("d0") is None
            assert live.turn() == []
            await live.look()
            assert live.turn()[0].verdict.usage == 0.0
            # What its kit says is learned by itself.
            await until(lambda: live.facts("d0") is not None)

    play(script)


def test_a_target_that_is_added_while_it_scrapes_is_scraped() -> None:
    async def script() -> None:
        one, two = FakeVllm(), FakeVllm()
        policy = replace(HOLD, interval_seconds=0.2)
        async with one, two, watching([watched("d0", one)], policy) as live:
            scraping = asyncio.create_task(live.scraping())
            await until(lambda: live.newest("d0") is not None)
            live.retarget([watched("d0", one), watched("d1", two)])
            await until(lambda: live.newest("d1") is not None)
            live.retarget([watched("d1", two)])
            await until(lambda: two.paths.count("/metrics") > 3)
            seen = one.paths.count("/metrics")
            await until(lambda: two.paths.count("/metrics") > 6)
            assert one.paths.count("/metrics") == seen
            scraping.cancel()
            await asyncio.gather(scraping, return_exceptions=True)

    play(script)


def test_a_page_that_comes_after_its_target_has_left_is_nobody_s() -> None:
    async def script() -> None:
        one, two = FakeVllm(Rank(usage=0.4)), FakeVllm()
        async with one, two, watching([watched("d0", one), watched("d1", two)], HOLD) as live:
            await live.look()
            late = live.newest("d0")
            assert late is not None
            live.retarget([watched("d1", two)])
            live.take(late)
            assert [judged.verdict.engine for judged in live.turn()] == ["d1"]
            # Nor is it that of another pod which has its name now.
            live.retarget([watched("d1", two), watched("d0", two)])
            live.take(late)
            assert live.newest("d0") is None

    play(script)


def test_two_targets_of_one_name_are_refused() -> None:
    async def script() -> None:
        async with FakeVllm() as one, FakeVllm() as two, watching([], HOLD) as live:
            with pytest.raises(ValueError, match="same name: d0"):
                live.retarget([watched("d0", one), watched("d0", two)])

    play(script)


def test_a_deployment_that_is_armed_has_shorter_holds() -> None:
    """At a usual policy: its decode is a fault after half the time."""

    async def script() -> None:
        policy = replace(Policy(), held_idle_seconds=3 * ARMED_LEAST_SECONDS, canary_seconds=1.0)
        fake = FakeVllm(Rank(usage=0.4))
        async with scene(fake, policy=policy) as s:
            await s.step()
            limit = (await s.step())[0].verdict.limit_seconds
            s.live.arm([""])
            armed = (await s.step())[0].verdict.limit_seconds
            assert (limit, armed) == (3 * ARMED_LEAST_SECONDS, 1.5 * ARMED_LEAST_SECONDS)

    play(script)


def test_a_draining_engine_is_asked_by_a_canary_that_names_its_process() -> None:
    async def script() -> None:
        fake = FakeVllm(Rank(usage=0.4))
        async with scene(fake) as s:
            (judged,) = await s.steps(3)
            said = await s.live.ask(judged, canary=True, boot_id="boot-7")
            assert said.ruling.answer is Answer.CONFIRMED
            assert fake.asked[0].headers["X-Request-Id"].startswith(f"{CANARY_PREFIX}boot-7-")
            # The detector has learned it.
            assert shown(s.live.turn()) == [(State.FAULT, Signature.HELD_IDLE, Answer.CONFIRMED)]

    play(script)


def test_what_an_engine_does_not_show_may_be_asked_all_the_same() -> None:
    async def script() -> None:
        fake = FakeVllm(Rank(usage=0.01))
        async with scene(fake) as s:
            (judged,) = await s.steps(2)
            was = replace(
                judged.verdict,
                state=State.FAULT,
                signature=Signature.HELD_IDLE,
                held_seconds=60.0,
                limit_seconds=60.0,
            )
            said = await s.live.ask(replace(judged, verdict=was), canary=True)
            assert said.ruling.answer is Answer.VETOED
            assert said.canary is not None
            assert shown(s.live.turn()) == [(State.HEALTHY, None, None)]

    play(script)
