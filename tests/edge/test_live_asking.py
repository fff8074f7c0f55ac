"""Live engines that are asked about their faults: once, the right one, and only while it matters."""

from __future__ import annotations

import asyncio

import pytest
from aiohttp import web

from stanch.core.verdict import Answer, Signature, State
from tests.edge.fake_vllm import FakeVllm, Rank, answers, hangs, says, until
from tests.edge.live_scene import play, scene, shown

pytestmark = pytest.mark.unit
row = pytest.param

HELD = (State.FAULT, Signature.HELD_IDLE)


@pytest.mark.parametrize("order", [("4", "5", "10"), ("10", "5", "4")], ids=["in-order", "backwards"])
def test_the_rank_header_is_the_engine_s_place_among_its_neighbours(order: tuple[str, ...]) -> None:
    """One leaks; it alone is asked, and only it runs the canary."""

    async def script() -> None:
        ranks = {label: Rank(label, usage=0.82 if label == "5" else 0.0) for label in order}
        fake = FakeVllm(*ranks.values())
        async with scene(fake) as s:
            judged = await s.steps(3)
            name = f"{fake.url.removeprefix('http://')}/5"
            assert [j.verdict.engine for j in judged if j.verdict.state is State.FAULT] == [name]
            s.live.ask_in_background(judged)
            told = await s.answered()
            assert {j.verdict.engine: j.verdict.confirmation for j in told}[name] is Answer.CONFIRMED
        assert [asked.headers["X-data-parallel-rank"] for asked in fake.asked] == ["1"]
        assert {label: rank.finished for label, rank in ranks.items()} == {"4": 10, "5": 11, "10": 10}

    play(script)


def test_a_lone_engine_gets_no_rank_header() -> None:
    async def script() -> None:
        fake = FakeVllm(Rank("7", usage=0.82))
        async with scene(fake) as s:
            s.live.ask_in_background(await s.steps(3))
            await s.answered()
        assert "X-data-parallel-rank" not in fake.asked[0].headers

    play(script)


def test_it_asks_once_per_fault_and_its_own_tokens_are_no_progress() -> None:
    async def script() -> None:
        fake = FakeVllm(Rank(usage=0.82))
        async with scene(fake) as s:
            s.live.ask_in_background(await s.steps(3))
            assert shown(await s.answered()) == [(*HELD, Answer.CONFIRMED)]
            for _ in range(20):
                assert shown(s.live.ask_in_background(await s.step())) == [(*HELD, Answer.CONFIRMED)]
        assert len(fake.asked) == 1

    play(script)


def test_nobody_is_asked_about_a_suspicion() -> None:
    async def script() -> None:
        fake = FakeVllm(Rank(usage=0.82))
        async with scene(fake) as s:
            for _ in range(2):
                judged = s.live.ask_in_background(await s.step())
                assert shown(judged) == [(State.SUSPECT, Signature.HELD_IDLE, None)]
        assert fake.asked == []

    play(script)


def test_an_inconclusive_answer_is_asked_for_again_after_a_minute() -> None:
    async def script() -> None:
        fake = FakeVllm(Rank(usage=0.82))
        fake.completion = says(503, "draining")
        async with scene(fake) as s:
            s.live.ask_in_background(await s.steps(3))
            assert shown(await s.answered()) == [(*HELD, Answer.INCONCLUSIVE)]
            for _ in range(11):
                s.live.ask_in_background(await s.step())
            assert len(fake.asked) == 1
            fake.completion = answers
            s.live.ask_in_background(await s.step())
            assert shown(await s.answered()) == [(*HELD, Answer.CONFIRMED)]
        assert len(fake.asked) == 2

    play(script)


def test_a_veto_makes_healthy_and_the_next_turns_stay_so() -> None:
    async def script() -> None:
        fake = FakeVllm(Rank(usage=0.82, freed={"usage": 0.0}))
        async with scene(fake) as s:
            s.live.ask_in_background(await s.steps(3))
            vetoed = await s.answered()
            assert shown(vetoed) == [(State.HEALTHY, Signature.STALE_GAUGE, Answer.VETOED)]
            assert shown(await s.steps(5)) == [(State.HEALTHY, None, None)]

    play(script)


@pytest.mark.parametrize(
    ("later", "expected"),
    [
        row({"usage": 0.0}, (State.HEALTHY, None, None), id="recovered"),
        row({"waiting": 3}, (State.SUSPECT, Signature.QUEUE_DEADLOCK, None), id="another-pattern"),
        row({"generation_tokens": 2000}, (State.SUSPECT, Signature.HELD_IDLE, None), id="the-same-anew"),
    ],
)
def test_an_answer_that_comes_too_late_changes_nothing(
    later: dict[str, float], expected: tuple[State, Signature | None, Answer | None]
) -> None:
    async def script() -> None:
        fake = FakeVllm(Rank(usage=0.82))
        go = asyncio.Event()

        async def slow(fake: FakeVllm, request: web.Request) -> web.StreamResponse:
            await go.wait()
            return await answers(fake, request)

        fake.completion = slow
        async with scene(fake) as s:
            s.live.ask_in_background(await s.steps(3))
            await until(lambda: bool(fake.asked))
            for name, value in later.items():
                setattr(fake.rank, name, value)
            for _ in range(2):
                s.live.ask_in_background(await s.step())
            go.set()
            assert shown(await s.answered()) == [expected]

    play(script)


def test_a_canary_that_was_rejected_hides_nobody_s_token() -> None:
    async def script() -> None:
        fake = FakeVllm(Rank(usage=0.82))
        fake.completion = says(401)
        async with scene(fake) as s:
            s.live.ask_in_background(await s.steps(3))
            await s.answered()
            fake.rank.serve()
            # Somebody was served, so it is not idle any more; what is left is the leak under traffic.
            assert shown(await s.step()) == [(State.SUSPECT, Signature.HELD_FLOOR, None)]

    play(script)


def test_one_that_leaves_its_page_while_it_is_asked_is_no_trouble() -> None:
    async def script() -> None:
        fake = FakeVllm(Rank("0", usage=0.82), Rank("1"))
        fake.completion = hangs
        async with scene(fake) as s:
            s.live.ask_in_background(await s.steps(3))
            await until(lambda: bool(fake.asked))
            fake.restart()
            fake.ranks = fake.ranks[1:]
            assert len(s.live.ask_in_background(await s.step())) == 1

    play(script)
