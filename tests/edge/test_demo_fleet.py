"""The fleet: up, restarted on the same port, and gone whatever becomes of the one that started it."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import islice

import pytest

from stanch.edge.demo.child import Child
from stanch.edge.demo.fleet import Fleet
from stanch.edge.demo.router import Rotation, pauses

pytestmark = pytest.mark.unit

# The parent of a fleet, to be ended half-way.
PARENT = """
import asyncio, json
from stanch.edge.demo.fleet import Fleet

async def main():
    async with Fleet(1) as fleet:
        print(json.dumps([engine.url for engine in fleet.engines] + [fleet.router]), flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


def until(done: Callable[[], bool], seconds: float = 10.0) -> bool:
    """Poll, at most so long."""
    deadline = time.monotonic() + seconds
    while not done() and time.monotonic() < deadline:
        time.sleep(0.02)
    return done()


def serves(url: str) -> bool:
    """Whether somebody listens there; the kernel closes a process's port however it ends."""
    with suppress(OSError), socket.create_connection(("127.0.0.1", int(url.rsplit(":", 1)[1])), timeout=1):
        return True
    return False


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT], ids=lambda how: how.name)
def test_when_the_parent_ends_all_end(how: signal.Signals) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PARENT], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as parent:
        assert parent.stdout is not None
        urls = json.loads(parent.stdout.readline())
        assert len(urls) == 6
        assert all(serves(url) for url in urls)
        parent.send_signal(how)
        parent.wait(timeout=10)
    assert until(lambda: not any(serves(url) for url in urls))


def test_a_fleet_serves_restarts_and_leaves_nothing() -> None:
    async def scenario() -> list[str]:
        async with Fleet(seed=3) as fleet:
            assert [(m.name, m.role) for m in fleet.engines] == [
                ("prefill-0", "prefill"),
                ("prefill-1", "prefill"),
                ("decode-0", "decode"),
                ("decode-1", "decode"),
                ("decode-2", "decode"),
            ]
            assert await fleet.health("decode-1")
            await fleet.take_out("decode-1")
            assert (await fleet.traffic()).out == ("decode-1",)
            before = fleet.engines
            # Out of rotation, so that no request meets the closed port.
            await fleet.restart("decode-1")
            after = fleet.engines
            await fleet.put_back("decode-1")
            assert (await fleet.traffic()).out == ()
            assert [m.url for m in after] == [m.url for m in before]
            assert [a.name for a, b in zip(after, before, strict=True) if a.pid != b.pid] == ["decode-1"]
            assert await fleet.health("decode-1")
            # Traffic goes through; the seed decides when, so only that it does is asked.
            deadline = time.monotonic() + 10
            while True:
                traffic = await fleet.traffic()
                if traffic.answered or time.monotonic() > deadline:
                    break
                await asyncio.sleep(0.1)
            assert (traffic.answered > 0, traffic.failed, traffic.failures) == (True, 0, ())
            return [*(m.url for m in fleet.engines), fleet.router]

    urls = asyncio.run(scenario())
    assert [url for url in urls if serves(url)] == []


def test_who_clings_to_life_is_killed() -> None:
    """A stopped process hears no SIGTERM."""

    async def scenario() -> None:
        child = await Child.start("stanch.edge.demo.engine", ["--name", "e"])
        os.kill(child.pid, signal.SIGSTOP)
        assert not await child.end(0.3)
        assert not child.alive

    asyncio.run(scenario())


def test_an_end_that_is_interrupted_leaves_nothing() -> None:
    async def scenario() -> list[str]:
        fleet = Fleet(seed=3)
        urls: list[str] = []

        async def hold() -> None:
            async with fleet:
                urls.extend([*(m.url for m in fleet.engines), fleet.router])
                for member in fleet.engines:
                    os.kill(member.pid, signal.SIGSTOP)
                await asyncio.Event().wait()

        task = asyncio.create_task(hold())
        while not urls:
            assert not task.done()
            await asyncio.sleep(0.02)
        task.cancel()  # Ctrl-C: the fleet begins to end, and waits for processes that do not listen
        await asyncio.sleep(0.1)
        task.cancel()  # Ctrl-C again
        await asyncio.gather(task, return_exceptions=True)
        return urls

    urls = asyncio.run(scenario())
    assert [url for url in urls if serves(url)] == []


def test_the_rotation_goes_round_those_that_are_in() -> None:
    rotation = Rotation({"a": "1", "b": "2", "c": "3"})
    assert [rotation.next() for _ in range(4)] == ["a", "b", "c", "a"]
    rotation.out.add("b")
    assert set(islice(iter(rotation.next, None), 6)) == {"a", "c"}
    rotation.out |= {"a", "c"}
    assert rotation.next() is None


def test_traffic_is_seeded_and_has_waves_breaths_and_lulls() -> None:
    def first(seed: int) -> list[float]:
        return list(islice(pauses(random.Random(seed)), 2000))

    assert first(1) == first(1) != first(2)
    seen = first(1)
    assert all(0.2 <= pause <= 10.0 for pause in seen)
    assert any(pause > 8.0 for pause in seen), "a lull longer than the demo's hold, for HeldIdle"
    assert sum(pause <= 0.5 for pause in seen) > 0.8 * len(seen)
    # A few requests a second at most: two cores are enough.
    assert 1.0 < len(seen) / sum(seen) < 4.0


def test_an_engine_needs_the_standard_library_and_aiohttp_only() -> None:
    """It is to run in a small image of its own."""
    script = (
        "import sys, stanch.edge.demo.engine;"
        "print(sorted(n for n in ('rich', 'pydantic', 'yaml', 'click') if n in sys.modules),"
        "sorted(n for n in sys.modules if n.startswith('stanch.') and 'demo' not in n))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[] ['stanch.edge', 'stanch.edge.waking']"
