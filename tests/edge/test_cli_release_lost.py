"""`stanch release` when the answers stop: an order that was given is told of, whatever comes after it."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web

from stanch.edge import kit
from stanch.edge import release as releasing
from stanch.edge.client import session
from stanch.edge.kit_answers import KitError
from stanch.edge.release import Order, Released
from tests.edge.cli import Done, inside
from tests.edge.fake_kit import Answer, FakeKit, entry, hangs, says
from tests.edge.fake_vllm import FakeVllm

pytestmark = pytest.mark.unit
row = pytest.param

DONE = {"state": "done", "released": ["cmpl-a-0-0badcafe"], "ways": {"cmpl-a-0-0badcafe": "freed"}}


async def drops(request: web.Request) -> web.StreamResponse:
    assert request.transport is not None
    request.transport.close()
    return web.Response()


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits long in these tests."""
    monkeypatch.setattr(releasing, "_SLACK_SECONDS", 0.0)
    monkeypatch.setattr(releasing, "_LOST_SECONDS", 0.5)
    monkeypatch.setattr(releasing, "_POLL_SECONDS", 0.02)


def released(server: FakeKit, seconds: float = 30.0) -> Released:
    async def scene() -> Released:
        fake = FakeVllm()
        fake.kit = server
        async with fake, session(connections=1) as connection:
            return await releasing.release(connection, fake.url, Order(deadline_seconds=seconds), "t")

    return asyncio.run(scene())


def after_the_order(server: FakeKit, then: Callable[[], None]) -> None:
    """The server takes the order, and this happens."""
    take = server.answers["command"]

    async def command(request: web.Request) -> web.StreamResponse:
        answer = await take(request)
        then()
        return answer

    server.answers["command"] = command


def server(**outcome: Any) -> FakeKit:
    one = FakeKit(entry("a"))
    one.takes(**(outcome or DONE))
    return one


@pytest.mark.parametrize("wrong", [says(500), says(404), drops, says(200, text="<html>")])
def test_questions_that_fail_meanwhile_lose_nothing(hasty: None, wrong: Answer) -> None:
    one = server()
    failing = itertools.count()

    async def state(request: web.Request) -> web.StreamResponse:
        if next(failing) < 3:
            return await wrong(request)
        del one.answers["state"]
        return await one.serve(request)

    after_the_order(one, lambda: one.answers.update(state=state))
    found = released(one)
    assert [fate.way for fate in found.fates] == ["freed"]


@pytest.mark.parametrize(
    ("then", "words"),
    [
        row(
            lambda one: one.answers.update(state=says(500)),
            "was given; its kit answers HTTP 500: look",
            id="500",
        ),
        row(
            lambda one: one.answers.update(state=drops), "was given; its kit could not be asked", id="silent"
        ),
        row(
            lambda one: one.facts.update(outcomes=[]), "was given; its kit does not know it: look", id="lost"
        ),
        row(
            lambda one: one.facts.update(outcomes=[{"id": "another", "state": "done"}]),
            "was given; its kit does not know it: look at `stanch requests`",
            id="only-another",
        ),
        row(
            lambda one: setattr(one, "boot_id", "boot-2"),
            r"was given; since then several engines \(or a restart\) answer at this address",
            id="restarted",
        ),
        row(
            lambda one: one.facts["outcomes"][0].update(state="running"),
            "was given; its kit has not said yet what became of it: look",
            id="never-ends",
        ),
    ],
)
def test_an_outcome_that_does_not_come(hasty: None, then: Callable[[FakeKit], None], words: str) -> None:
    one = server()
    after_the_order(one, lambda: then(one))
    with pytest.raises(KitError, match=f"^the order cli-[0-9a-f]{{16}} {words}"):
        released(one, 1.0)
    assert len(one.commands) == 1


def test_the_outcome_is_asked_for_with_the_token(hasty: None) -> None:
    """The kit names ids only to those who may command, or have the list."""
    one = server()
    given: list[str | None] = []

    async def state(request: web.Request) -> web.StreamResponse:
        given.append(request.headers.get("Authorization"))
        del one.answers["state"]
        return await one.serve(request)

    after_the_order(one, lambda: one.answers.update(state=state))
    released(one)
    assert given == ["Bearer t"]


class TestNoAnswerToTheOrder:
    """It may have been given all the same."""

    def unanswered(self, *, taken: bool, end: Callable[[web.Request], Awaitable[Any]]) -> FakeKit:
        one = server()
        take = one.answers["command"]

        async def command(request: web.Request) -> web.StreamResponse:
            if taken:
                await take(request)
            answer: web.StreamResponse = await end(request)
            return answer

        one.answers["command"] = command
        return one

    @pytest.mark.parametrize("end", [hangs, drops, says(502), says(504)])
    def test_it_was_taken(self, hasty: None, end: Answer, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(kit, "STATE_SECONDS", 1.0)
        assert [fate.way for fate in released(self.unanswered(taken=True, end=end)).fates] == ["freed"]

    def test_it_was_not(self, hasty: None) -> None:
        with pytest.raises(KitError, match=r"^the order cli-.* may have been given .*does not know it: look"):
            released(self.unanswered(taken=False, end=drops))

    def test_the_address_is_gone_before_the_order(self, hasty: None) -> None:
        """Nothing was sent, so nothing was given."""
        with pytest.raises(KitError, match="the connection was refused") as told:
            asyncio.run(_nobody_there())
        assert "given" not in str(told.value)


async def _nobody_there() -> None:
    async with session(connections=1) as connection:
        await releasing.release(connection, "http://127.0.0.1:1", Order(), "t")


def test_what_is_not_known_is_not_said_on_standard_output_too() -> None:
    done = run(server(state="failed", reason="not finished by its deadline"), "--all")
    assert (done.code, done.out) == (3, "")
    assert done.err.count("not finished by its deadline") == 1


def test_one_that_is_too_young_is_called_so() -> None:
    refused = {"cmpl-a-0-0badcafe": "rank 0: it has been so for 77 s"}
    one = server(state="done", refused=refused, refusals={"too-young": 1})
    done = run(one, "cmpl-a", "--older-than", "2m")
    assert (done.code, "refused: rank 0: too young: it has been so for 77 s" in done.out) == (1, True)


def run(one: FakeKit, *arguments: str) -> Done:
    async def scene() -> Done:
        fake = FakeVllm()
        fake.kit = one
        async with fake:
            return await inside("release", fake.url, *arguments)

    return asyncio.run(scene())
