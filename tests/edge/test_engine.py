"""Asking an engine itself, against servers on loopback: every answer and every way not to answer."""

from __future__ import annotations

import json
import re
from typing import TypeVar

import aiohttp
import pytest

from stanch.core.confirm import Canary, Outcome, Paused
from stanch.core.policy import Policy
from stanch.core.sample import Role
from stanch.core.verdict import Signature, State, Verdict
from stanch.edge import engine
from stanch.edge.engine import Address
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
)

pytestmark = pytest.mark.unit
row = pytest.param
T = TypeVar("T")

POLICY = Policy(canary_seconds=1.0)
HELD_IDLE = Verdict(1.0, "decode-3", Role.DECODE, State.FAULT, Signature.HELD_IDLE, 60.0, 60.0, usage=0.82)
NO_PROGRESS = Verdict(1.0, "decode-3", Role.DECODE, State.FAULT, Signature.NO_PROGRESS, 300.0, 300.0)


def send(completion: Completion, seconds: float = 5.0) -> Canary:
    fake = FakeVllm()
    fake.completion = completion
    return talk(fake, lambda session, fake: engine.canary(session, Address(fake.url), seconds))


@pytest.mark.parametrize(
    ("completion", "outcome", "status", "detail"),
    [
        row(answers, Outcome.FINISHED, 200, "", id="answered"),
        row(in_pieces([ANSWER[:9], ANSWER[9:30], ANSWER[30:]]), Outcome.FINISHED, 200, "", id="in-pieces"),
        row(says(200, ""), Outcome.FAILED, 200, "without a token", id="empty"),
        row(says(200, "<html>"), Outcome.FAILED, 200, "without a token", id="no-json"),
        row(says(200, "[" * 100_000), Outcome.FAILED, 200, "without a token", id="deep-json"),
        row(says(200, "[1]"), Outcome.FAILED, 200, "without a token", id="a-list"),
        row(says(200, "{}"), Outcome.FAILED, 200, "without a token", id="no-usage"),
        row(says(200, ANSWER.decode().replace('s": 1}', 's": 0}')), Outcome.FAILED, 200, "", id="no-token"),
        row(says(200, ANSWER.decode().replace('s": 1}', 's": 9}')), Outcome.FAILED, 200, "", id="too-many"),
        row(says(200, ANSWER.decode().replace('s": 1}', 's": NaN}')), Outcome.FAILED, 200, "", id="nan"),
        row(says(200, ANSWER.decode().replace('s": 1}', 's": true}')), Outcome.FAILED, 200, "", id="true"),
        row(says(200, ANSWER.decode().replace('s": 1,', 's": 99999,')), Outcome.FAILED, 200, "", id="prompt"),
        row(says(200, " " * 3_000_000 + ANSWER.decode()), Outcome.FAILED, 200, "without", id="huge"),
        row(says(204), Outcome.FAILED, 204, "", id="no-content"),
        row(says(302, "", Location="http://192.0.2.1/"), Outcome.FAILED, 302, "", id="redirect"),
        row(says(400, "no\nprompt\x1b[31m"), Outcome.REJECTED, 400, "no prompt?[31m", id="400"),
        row(says(401, "Unauthorized"), Outcome.REJECTED, 401, "Unauthorized", id="401"),
        row(says(404), Outcome.REJECTED, 404, "", id="404"),
        row(says(429, "x" * 500), Outcome.REJECTED, 429, "x" * 120, id="429"),
        row(says(500, "EngineDeadError"), Outcome.FAILED, 500, "EngineDeadError", id="500"),
        row(says(503, "draining"), Outcome.FAILED, 503, "draining", id="503"),
        row(in_pieces([b"half"], 500, end=False), Outcome.FAILED, 500, "without an end", id="500-endless"),
        row(in_pieces([b"half"], 422, end=False), Outcome.REJECTED, 422, "without an end", id="422-endless"),
        row(in_pieces([ANSWER], end=False), Outcome.FAILED, 200, "without an end", id="200-endless"),
        row(drops, Outcome.UNREACHABLE, None, "closed before the answer's end", id="dropped"),
        row(hangs, Outcome.TIMED_OUT, None, "", id="hangs"),
    ],
)
def test_every_end_of_a_canary(
    completion: Completion, outcome: Outcome, status: int | None, detail: str
) -> None:
    found = send(completion, 0.5 if outcome is Outcome.TIMED_OUT or "end" in detail else 10.0)
    assert (found.outcome, found.status) == (outcome, status)
    assert detail in found.detail
    tokens = (1.0, 1.0) if outcome is Outcome.FINISHED else (0.0, 0.0)
    assert (found.generation_tokens, found.prompt_tokens) == tokens


def test_a_trickle_ends_at_the_deadline() -> None:
    found = send(in_pieces([b" "] * 10_000), 0.5)
    assert (found.outcome, found.detail) == (Outcome.FAILED, "an answer without an end")


def test_nobody_there() -> None:
    found = talk(FakeVllm(), lambda session, _: engine.canary(session, Address("http://127.0.0.1:1"), 10.0))
    assert (found.outcome, found.status) == (Outcome.UNREACHABLE, None)
    assert found.detail == "the connection was refused"


@pytest.mark.parametrize(
    ("rank", "key", "headers"),
    [
        row(None, None, {"X-data-parallel-rank": None, "Authorization": None}, id="plain"),
        row(0, None, {"X-data-parallel-rank": "0", "Authorization": None}, id="rank-0"),
        row(1, "secret", {"X-data-parallel-rank": "1", "Authorization": "Bearer secret"}, id="rank-and-key"),
    ],
)
def test_the_request(rank: int | None, key: str | None, headers: dict[str, str | None]) -> None:
    fake = FakeVllm(Rank("0"), Rank("1"))

    async def two(session: aiohttp.ClientSession, fake: FakeVllm) -> None:
        for _ in range(2):
            await engine.canary(session, Address(fake.url, rank, key), 5.0)

    talk(fake, two)
    first, second = fake.asked
    assert first.body == {
        "prompt": [1],
        "max_tokens": 1,
        "ignore_eos": True,
        "temperature": 0,
        "stream": False,
    }
    assert {name: first.headers.get(name) for name in headers} == headers
    names = [asked.headers["X-Request-Id"] for asked in (first, second)]
    assert all(re.fullmatch(r"stanch-canary-[0-9a-f]{12}", name) for name in names)
    assert names[0] != names[1]


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        row('{"version": "0.29.0+cpu"}', "0.29.0+cpu", id="a-version"),
        row('{"version": 29}', None, id="a-number"),
        row('{"version": ""}', None, id="empty"),
        row('{"version": "0.29\\u001b[2J"}', None, id="control-characters"),
        row(json.dumps({"version": "9" * 101}), None, id="too-long"),
        row('["0.29.0"]', None, id="a-list"),
        row("<html>Welcome</html>", None, id="a-page-without-a-charset"),
        row("", None, id="nothing"),
        row("[" * 100_000, None, id="deep"),
    ],
)
def test_the_version(said: str, expected: str | None) -> None:
    fake = FakeVllm()
    fake.version_text = said
    assert talk(fake, lambda session, fake: engine.version(session, fake.url)) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        row("0.29.0", (0, 29), id="release"),
        row("0.30.1rc2.dev7+g1234", (0, 30), id="dev"),
        row("v1.2", (1, 2), id="v"),
        row("0.0.0", None, id="none"),
        row("dev", None, id="dev-build"),
        row("", None, id="empty"),
        row(None, None, id="unknown"),
    ],
)
def test_the_version_as_numbers(text: str | None, expected: tuple[int, int] | None) -> None:
    assert engine.parsed_version(text) == expected


@pytest.mark.parametrize(
    ("served", "expected"),
    [
        row(None, Paused.NOT_SERVED, id="404"),
        row(True, Paused.YES, id="paused"),
        row(False, Paused.NO, id="not-paused"),
        row("yes", Paused.UNKNOWN, id="text"),
        row(1, Paused.UNKNOWN, id="a-number"),
    ],
)
def test_whether_it_is_paused(served: object, expected: Paused) -> None:
    fake = FakeVllm()
    fake.paused = served
    assert talk(fake, lambda session, fake: engine.paused(session, fake.url)) is expected


def test_nobody_there_is_neither_paused_nor_healthy_nor_of_a_version() -> None:
    async def ask(session: aiohttp.ClientSession, _: FakeVllm) -> tuple[Paused, bool, str | None]:
        base = "http://127.0.0.1:1"
        return (
            await engine.paused(session, base),
            await engine.healthy(session, base),
            await engine.version(session, base),
        )

    assert talk(FakeVllm(), ask) == (Paused.UNKNOWN, False, None)


@pytest.mark.parametrize("healthy", [True, False])
def test_health(healthy: bool) -> None:
    fake = FakeVllm()
    fake.healthy = healthy
    assert talk(fake, lambda session, fake: engine.healthy(session, fake.url)) is healthy
