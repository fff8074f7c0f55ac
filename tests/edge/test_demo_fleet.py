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
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path

import pytest

from stanch.edge.demo.child import Child
from stanch.edge.demo.deployment import Member
from stanch.edge.demo.fleet import Fleet
from stanch.edge.demo.router import Rotation, pauses
from stanch_connector.contract import ANNOTATION_COMMAND, ANNOTATION_CORDON

pytestmark = pytest.mark.unit

# The parent of a fleet, to be ended half-way.
PARENT = """
import asyncio, json
from stanch.edge.demo.fleet import Fleet

async def main():
    async with Fleet(1) as fleet:
        urls = [engine.url for engine in fleet.engines] + [fleet.router]
        print(json.dumps([urls, fleet._folder.name]), flush=True)
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
        urls, folder = json.loads(parent.stdout.readline())
        assert len(urls) == 6
        assert len(list(Path(folder).iterdir())) == 5
        assert all(serves(url) for url in urls)
        parent.send_signal(how)
        parent.wait(timeout=10)
    assert until(lambda: not any(serves(url) for url in urls))
    assert until(lambda: not Path(folder).exists())


def cordoned(beat: int) -> dict[str, str]:
    return {ANNOTATION_CORDON: json.dumps({"incident": "li-1", "beat": beat, "leaseSeconds": 30.0})}


def test_a_fleet_serves_those_that_are_ready_restarts_and_leaves_nothing() -> None:
    async def scenario() -> tuple[list[str], Path]:
        async with Fleet(seed=3) as fleet:
            folder = fleet._annotations("decode-1").parent
            before = fleet.engines
            assert [(m.name, m.role) for m in before] == [
                ("prefill-0", "prefill"),
                ("prefill-1", "prefill"),
                ("decode-0", "decode"),
                ("decode-1", "decode"),
                ("decode-2", "decode"),
            ]
            assert await fleet.health("decode-1")
            fleet.annotate("decode-1", cordoned(1))
            await true(lambda: router_keeps_out(fleet, "decode-1"))
            fleet.annotate("decode-1", {})
            await true(lambda: router_keeps_out(fleet))

            os.kill(pid_of(fleet, "decode-1"), signal.SIGTERM)
            await true(lambda: another(fleet, before))
            await true(lambda: router_keeps_out(fleet))
            assert [m.url for m in fleet.engines] == [m.url for m in before]
            assert await fleet.health("decode-1")
            # Traffic goes through; the seed decides when, so only that it does is asked.
            answered = (await fleet.traffic()).answered
            await true(lambda: more(fleet, answered))
            return [*(m.url for m in fleet.engines), fleet.router], folder

    urls, folder = asyncio.run(scenario())
    assert [url for url in urls if serves(url)] == []
    assert not folder.exists()


async def true(condition: Callable[[], Awaitable[bool]], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not await condition():
        assert time.monotonic() < deadline, "it did not come true"
        await asyncio.sleep(0.05)


async def router_keeps_out(fleet: Fleet, *names: str) -> bool:
    return (await fleet.traffic()).out == names


async def another(fleet: Fleet, before: Sequence[Member]) -> bool:
    """Whether another process serves in the place of decode-1, and of nobody else."""
    pairs = zip(fleet.engines, before, strict=True)
    return [a.name for a, b in pairs if a.pid not in (b.pid, None)] == ["decode-1"]


async def more(fleet: Fleet, answered: int) -> bool:
    return (await fleet.traffic()).answered > answered


def pid_of(fleet: Fleet, name: str) -> int:
    pid = next(member.pid for member in fleet.engines if member.name == name)
    assert pid is not None
    return pid


def test_the_end_of_a_log_is_read_while_it_is_written(tmp_path: Path) -> None:
    annotations = tmp_path / "annotations"

    async def scenario() -> None:
        child = await Child.start("stanch.edge.demo.engine", ["--annotations", str(annotations)])
        try:
            assert child.log(5) == ""
            for number in (1, 2, 3):
                command = {"id": f"c{number}", "verb": "release", "bootId": "another"}
                annotations.write_text(f"{ANNOTATION_COMMAND}={json.dumps(json.dumps(command))}")
                await true(lambda said=f'"id": "c{number}"': logged(child, said))  # type: ignore[misc]
            assert len(child.log(2).splitlines()) == 2
        finally:
            child.kill()

    asyncio.run(scenario())


async def logged(child: Child, text: str) -> bool:
    return text in child.log(1)


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
                    os.kill(pid_of(fleet, member.name), signal.SIGSTOP)
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


def test_traffic_is_seeded_and_has_waves_and_breaths() -> None:
    def first(seed: int) -> list[float]:
        return list(islice(pauses(random.Random(seed)), 2000))

    assert first(1) == first(1) != first(2)
    seen = first(1)
    assert all(0.2 <= pause <= 2.5 for pause in seen)
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
