"""Confirming a verdict end to end: a canary, the engine's page around it, and what that proves."""

from __future__ import annotations

import asyncio

import aiohttp
import pytest
from aiohttp import web

from stanch.core.confirm import Canary, Outcome, Ruling
from stanch.core.policy import Policy
from stanch.core.sample import Role, Sample
from stanch.core.verdict import Answer, Signature, State, Verdict
from stanch.edge import engine
from stanch.edge.engine import Address
from stanch.edge.scrape import Scraper
from stanch.edge.target import Target
from tests.edge.fake_vllm import (
    ANSWER,
    Completion,
    FakeVllm,
    Rank,
    answers,
    drops,
    hangs,
    in_pieces,
    says,
    talk,
    until,
)

pytestmark = pytest.mark.unit
row = pytest.param

POLICY = Policy(canary_seconds=1.0)
HELD_IDLE = Verdict(1.0, "decode-3", Role.DECODE, State.FAULT, Signature.HELD_IDLE, 60.0, 60.0, usage=0.82)
NO_PROGRESS = Verdict(1.0, "decode-3", Role.DECODE, State.FAULT, Signature.NO_PROGRESS, 300.0, 300.0)


def asked(
    fake: FakeVllm, verdict: Verdict = HELD_IDLE, policy: Policy = POLICY
) -> tuple[Ruling, Canary | None]:
    """Confirm a verdict about this engine, read by the scraper."""

    async def ask(session: aiohttp.ClientSession, fake: FakeVllm) -> tuple[Ruling, Canary | None]:
        async with Scraper([Target("decode-3", fake.url)], 1.0) as scraper:

            async def read() -> Sample:
                return (await scraper.once(scraper.targets[0])).samples[0]

            return await engine.confirm(session, Address(fake.url), verdict, policy, read)

    return talk(fake, ask)


def test_held_blocks_that_stay_are_confirmed() -> None:
    ruling, sent = asked(FakeVllm(Rank(usage=0.82)))
    assert ruling.answer is Answer.CONFIRMED
    assert sent is not None
    assert sent.outcome is Outcome.FINISHED


def test_a_gauge_that_falls_only_after_the_canary_is_a_veto() -> None:
    ruling, _ = asked(FakeVllm(Rank(usage=0.82, freed={"usage": 0.0})))
    assert ruling.answer is Answer.VETOED


def test_a_page_that_lags_behind_the_answer_is_waited_for() -> None:
    """vLLM sets its gauges after it has answered: the first pages after it are the old ones."""
    fake = FakeVllm(Rank(usage=0.82, freed={"usage": 0.0}))

    async def late(fake: FakeVllm, request: web.Request) -> web.StreamResponse:
        asyncio.get_running_loop().call_later(1.0, fake.rank.serve)
        return await in_pieces([ANSWER])(fake, request)

    fake.completion = late
    assert asked(fake)[0].answer is Answer.VETOED


def test_an_answer_of_another_engine_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that ignores the rank header: the canary runs, but not on the engine that is read."""
    monkeypatch.setattr(engine, "_SETTLE_SECONDS", 0.5)
    fake = FakeVllm(Rank(usage=0.82))
    fake.completion = in_pieces([ANSWER])
    ruling, sent = asked(fake)
    assert sent is not None
    assert sent.outcome is Outcome.FINISHED
    assert (ruling.answer, ruling.restart_hold) == (Answer.INCONCLUSIVE, False)
    assert "its token is not on the page" in ruling.cause


def test_a_part_that_is_freed_restarts_the_hold() -> None:
    ruling, _ = asked(FakeVllm(Rank(usage=0.82, freed={"usage": 0.5})))
    assert (ruling.answer, ruling.restart_hold) == (Answer.INCONCLUSIVE, True)


@pytest.mark.parametrize(
    ("healthy", "paused", "expected"),
    [
        row(True, None, Answer.CONFIRMED, id="pause-not-served"),
        row(True, False, Answer.CONFIRMED, id="not-paused"),
        row(True, True, Answer.INCONCLUSIVE, id="paused"),
        row(True, "?", Answer.INCONCLUSIVE, id="pause-unknown"),
        row(False, None, Answer.INCONCLUSIVE, id="no-health"),
    ],
)
def test_a_time_out(healthy: bool, paused: object, expected: Answer) -> None:
    fake = FakeVllm(Rank(usage=0.4, running=2))
    fake.completion, fake.healthy, fake.paused = hangs, healthy, paused
    ruling, sent = asked(fake, NO_PROGRESS)
    assert ruling.answer is expected
    assert sent is not None
    assert sent.outcome is Outcome.TIMED_OUT


def test_an_engine_that_prefills_while_the_canary_waits_is_let_be() -> None:
    fake = FakeVllm(Rank(usage=0.4, running=2))

    async def prefills(fake: FakeVllm, request: web.Request) -> web.StreamResponse:
        fake.rank.usage = 0.5
        return await hangs(fake, request)

    fake.completion = prefills
    ruling, _ = asked(fake, NO_PROGRESS)
    assert (ruling.answer, "was working" in ruling.cause) == (Answer.INCONCLUSIVE, True)


@pytest.mark.parametrize(
    ("completion", "words"),
    [
        row(
            says(401, "Unauthorized"), "rejected with HTTP 401 (it wants an API key: Unauthorized)", id="4xx"
        ),
        row(says(500, "dead"), "failed with HTTP 500 (dead)", id="5xx"),
        row(says(200, "{}"), "failed with HTTP 200 (an answer without a token)", id="no-token"),
        row(drops, "had no answer (the connection was closed", id="dropped"),
    ],
)
def test_what_proves_nothing_asks_for_nothing_more(completion: Completion, words: str) -> None:
    fake = FakeVllm(Rank(usage=0.82))
    fake.completion = completion
    ruling, _ = asked(fake)
    assert (ruling.answer, words in ruling.cause) == (Answer.INCONCLUSIVE, True)
    assert not {"/health", "/is_paused"} & set(fake.paths)


@pytest.mark.parametrize(
    ("rank", "sleeping", "words"),
    [
        row(Rank(usage=0.82), True, "it is asleep", id="by-its-route"),
        row(Rank(usage=0.82, awake=0), None, "it is asleep", id="by-its-gauge"),
    ],
)
def test_a_sleeping_engine_never_gets_a_canary(rank: Rank, sleeping: bool | None, words: str) -> None:
    fake = FakeVllm(rank)
    fake.sleeping = sleeping
    ruling, sent = asked(fake)
    assert (ruling.answer, sent, fake.asked) == (Answer.VETOED, None, [])
    assert words in ruling.cause


def test_an_engine_that_cannot_be_read_never_gets_a_canary() -> None:
    fake = FakeVllm(Rank(usage="NaN"))
    ruling, sent = asked(fake)
    assert (ruling.answer, sent, fake.asked) == (Answer.INCONCLUSIVE, None, [])
    assert "usage is nan" in ruling.cause


def test_one_that_restarts_while_it_is_asked_is_no_proof() -> None:
    fake = FakeVllm(Rank(usage=0.82))

    async def restarts(fake: FakeVllm, request: web.Request) -> web.StreamResponse:
        fake.restart()
        return await answers(fake, request)

    fake.completion = restarts
    ruling, _ = asked(fake)
    assert (ruling.answer, "restarted" in ruling.cause) == (Answer.INCONCLUSIVE, True)


def test_when_it_is_cancelled_its_request_ends_with_it() -> None:
    fake = FakeVllm(Rank(usage=0.82))
    fake.completion = hangs

    async def ask(session: aiohttp.ClientSession, fake: FakeVllm) -> None:
        sample = Sample(1.0, "decode-3", 0.82, 0, 0, generation_tokens=1.0)

        async def read() -> Sample:
            return sample

        asking = asyncio.ensure_future(engine.confirm(session, Address(fake.url), HELD_IDLE, POLICY, read))
        await until(lambda: bool(fake.asked))
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert not [task for task in asyncio.all_tasks() if "canary" in repr(task.get_coro())]

    talk(fake, ask)
