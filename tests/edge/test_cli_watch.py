"""`stanch watch`, as a process: lines, objects or a table, until its time or its user ends it."""

from __future__ import annotations

import asyncio
import fcntl
import os
import pty
import re
import signal
import struct
import termios
from pathlib import Path

import pytest

from tests.edge.cli import Done, into_nothing, stanch, start
from tests.edge.fake_vllm import FakeVllm, Rank, until

pytestmark = pytest.mark.unit
row = pytest.param

QUICK = ("--interval", "1")
NOBODY = "http://127.0.0.1:1=decode"


def name(fake: FakeVllm) -> str:
    return fake.url.removeprefix("http://")


def test_plain_lines_tell_each_change_once() -> None:
    async def run() -> tuple[Done, str]:
        async with FakeVllm(Rank(usage=0.82)) as fake:
            targets = ("--target", f"{fake.url}=decode", "--target", NOBODY)
            return await stanch("watch", *targets, "--for", "3", *QUICK), name(fake)

    done, engine = asyncio.run(run())
    said = f"watching 2 servers ({engine}, 127.0.0.1:1), a reading every 1 s\n"
    assert (done.code, done.err) == (0, said)
    lines = sorted(re.sub(r"^\d\d:\d\d:\d\d ", "", line) for line in done.out.splitlines())
    assert lines[0] == "BLIND: cannot tell about 127.0.0.1:1: the connection was refused"
    assert lines[1].startswith(f"SUSPECT HeldIdle: {engine} holds 82 % of its KV cache with nothing")
    assert len(lines) == 2


def test_objects_come_for_every_engine_and_turn(tmp_path: Path) -> None:
    async def run() -> Done:
        async with FakeVllm() as one, FakeVllm(Rank("0"), Rank("1")) as two:
            targets = tmp_path / "targets.yaml"
            targets.write_text(
                f"targets:\n- {{url: '{one.url}', name: a, role: decode}}\n- {{url: '{two.url}', name: b}}\n"
            )
            options = ("--for", "3", *QUICK, "--output", "json")
            return await stanch("watch", "--targets", str(targets), *options)

    done = asyncio.run(run())
    assert (done.code, done.err) == (0, "")
    assert {o["schema"] for o in done.objects} == {"stanch.verdict/1"}
    assert {o["engine"]: o["role"] for o in done.objects} == {
        "a": "decode",
        "b/0": "unknown",
        "b/1": "unknown",
    }
    count = {engine: sum(o["engine"] == engine for o in done.objects) for engine in ("a", "b/0", "b/1")}
    assert count["a"] >= 2
    assert count["b/0"] == count["b/1"] >= 2
    times = [o["t"] for o in done.objects if o["engine"] == "a"]
    assert times == sorted(times)


@pytest.mark.parametrize(
    ("rank", "last"),
    [
        row(Rank(usage=0.82), ("fault", "HeldIdle", "confirmed"), id="confirmed"),
        row(Rank(usage=0.82, freed={"usage": 0.0}), ("healthy", None, None), id="vetoed"),
    ],
)
def test_a_fault_is_asked_about_once(rank: Rank, last: tuple[str, str | None, str | None]) -> None:
    """Ended by its user once the answer shows."""

    async def run() -> tuple[list[tuple[str, str | None, str | None]], int]:
        async with FakeVllm(rank) as fake:
            options = ("--interval", "1", "--hold-seconds", "1", "--canary", "--output", "json")
            process = await start("watch", "--target", f"{fake.url}=decode", *options)
            assert process.stdout is not None
            seen: list[tuple[str, str | None, str | None]] = []
            while last not in seen or not fake.asked:
                line = await asyncio.wait_for(process.stdout.readline(), 30)
                found = Done(0, line.decode(), "").objects[0]
                seen.append((found["state"], found["signature"], found["confirmation"]))
            process.send_signal(signal.SIGINT)
            await asyncio.wait_for(process.communicate(), 30)
            return seen, len(fake.asked)

    seen, asked = asyncio.run(run())
    assert asked == 1
    assert ("fault", "HeldIdle", None) in seen
    assert last[0] == "fault" or ("healthy", "StaleGauge", "vetoed") in seen


def test_its_user_ends_it() -> None:
    async def run() -> tuple[int | None, str]:
        async with FakeVllm() as fake:
            process = await start("watch", "--target", f"{fake.url}=decode", *QUICK)
            assert process.stdout is not None
            await asyncio.wait_for(process.stdout.readline(), 30)
            process.send_signal(signal.SIGINT)
            _, err = await asyncio.wait_for(process.communicate(), 30)
            return process.returncode, err.decode().strip()

    code, err = asyncio.run(run())
    assert (code, len(err.splitlines())) == (130, 1)
    assert err.startswith("watching 1 server (127.0.0.1:")


@pytest.mark.parametrize("output", ["table", "json"])
def test_it_ends_quietly_when_its_reader_has_gone(output: str) -> None:
    async def run() -> Done:
        async with FakeVllm() as fake:
            return await into_nothing("watch", "--target", f"{fake.url}=decode", *QUICK, "--output", output)

    done = asyncio.run(run())
    assert (done.code, len(done.err.splitlines())) == (0, int(output == "table"))


async def in_a_terminal(
    *arguments: str, size: tuple[int, int]
) -> tuple[asyncio.subprocess.Process, list[bytes]]:
    """The process with a terminal of (rows, columns), and the growing list of what it shows."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0))
    try:
        process = await start(
            *arguments, stdout=theirs, environment={"TERM": "xterm", "COLUMNS": "", "LINES": ""}
        )
    finally:
        os.close(theirs)
    shown: list[bytes] = []
    loop = asyncio.get_running_loop()

    def more() -> None:
        try:
            data = os.read(ours, 65536)
        except OSError:
            data = b""
        if data:
            shown.append(data)
        else:
            loop.remove_reader(ours)
            os.close(ours)

    loop.add_reader(ours, more)
    return process, shown


@pytest.mark.parametrize(
    ("size", "words"),
    [
        row((24, 80), "1 blind, 12 suspect", id="usual"),
        row((5, 20), "engine", id="tiny"),
        row((50, 200), "HeldIdle: (unknown) holds 82 % of its KV cache", id="large"),
    ],
)
def test_a_terminal_has_a_table(size: tuple[int, int], words: str) -> None:
    async def run() -> tuple[int, str, str]:
        async with FakeVllm(*(Rank(str(n), usage=0.82) for n in range(12))) as fake:
            arguments = ("watch", "--target", f"{fake.url}=auto", "--target", NOBODY, "--for", "1", *QUICK)
            process, shown = await in_a_terminal(*arguments, size=size)
            _, err = await asyncio.wait_for(process.communicate(), 30)
            return process.returncode or 0, b"".join(shown).decode(), err.decode()

    code, screen, err = asyncio.run(run())
    assert (code, err) == (0, "")
    assert words in screen


def test_the_user_of_a_terminal_ends_it_and_has_the_cursor_back() -> None:
    async def run() -> tuple[int | None, str, str]:
        async with FakeVllm() as fake:
            process, shown = await in_a_terminal(
                "watch", "--target", f"{fake.url}=decode", *QUICK, size=(24, 80)
            )
            await until(lambda: b"healthy" in b"".join(shown), 30)
            process.send_signal(signal.SIGINT)
            _, err = await asyncio.wait_for(process.communicate(), 30)
            return process.returncode, b"".join(shown).decode(), err.decode().strip()

    code, screen, err = asyncio.run(run())
    assert (code, err) == (130, "")
    assert screen.rindex("\x1b[?25h") > screen.rindex("\x1b[?25l")
