"""An address behind which several engines are: one-look commands say so, and order nothing there."""

from __future__ import annotations

import asyncio

import pytest

from tests.edge.balancer import Balancer, second
from tests.edge.cli import Done, inside
from tests.edge.fake_kit import FakeKit, entry
from tests.edge.fake_vllm import FakeVllm, Rank

pytestmark = pytest.mark.unit

SEVERAL = "several engines (or a restart) answer at this address; give one engine's own URL"


def run(command: str, server: FakeKit, *arguments: str) -> Done:
    async def scene() -> Done:
        fake = FakeVllm(Rank(usage=0.3))
        fake.kit = server
        async with fake:
            return await inside(command, fake.url, *arguments)

    return asyncio.run(scene())


def test_requests() -> None:
    done = run("requests", Balancer(FakeKit(entry("a")), second()))
    assert (done.code, done.out, SEVERAL in done.err) == (3, "", True)


def test_requests_where_only_one_has_a_kit() -> None:
    done = run("requests", Balancer(FakeKit(entry("a")), None))
    assert (done.code, done.out, SEVERAL in done.err) == (3, "", True)


def test_release_orders_nothing() -> None:
    first, other = FakeKit(entry("a")), second(entry("a"))
    first.takes(state="done")
    other.takes(state="done")
    done = run("release", Balancer(first, other), "--all")
    assert (done.code, done.out, SEVERAL in done.err) == (3, "", True)
    assert first.commands + other.commands == []


def test_two_processes_of_one_engine_are_one() -> None:
    """Its API-server processes share the boot id."""
    first, other = FakeKit(entry("a")), FakeKit(entry("a"))
    assert run("requests", Balancer(first, other)).code == 0


def test_check_cannot_tell() -> None:
    """The page may be of one engine, the list of another."""
    done = run("check", Balancer(FakeKit(entry("a")), second()), "--role", "decode")
    assert (done.code, SEVERAL in done.out) == (3, True)
    assert "cmpl-a" not in done.out


def test_check_of_one_engine_with_several_processes() -> None:
    done = run("check", Balancer(FakeKit(entry("a")), FakeKit(entry("a"))), "--role", "decode")
    assert (done.code, "cmpl-a" in done.out) == (2, True)
