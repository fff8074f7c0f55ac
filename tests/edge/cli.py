"""`stanch` as a user runs it: a process of its own, with what it printed."""

from __future__ import annotations

import asyncio
import io
import json
import os
import sys
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from typing import Any

from stanch.edge.cli import commands

# Long enough for a machine that is busy with other tests; nothing is expected to take it.
_SECONDS = 60.0


@dataclass(frozen=True)
class Done:
    """How it ended."""

    code: int
    out: str
    err: str

    @property
    def objects(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.splitlines()]


async def start(
    *arguments: str, stdout: int = asyncio.subprocess.PIPE, environment: Mapping[str, str] | None = None
) -> asyncio.subprocess.Process:
    """The running process."""
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "stanch",
        *arguments,
        stdin=asyncio.subprocess.PIPE,
        stdout=stdout,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "NO_COLOR": "1", **(environment or {})},
    )


async def stanch(*arguments: str, stdin: bytes = b"", environment: Mapping[str, str] | None = None) -> Done:
    process = await start(*arguments, environment=environment)
    out, err = await asyncio.wait_for(process.communicate(stdin), _SECONDS)
    done = Done(process.returncode or 0, out.decode(errors="replace"), err.decode())
    assert "Traceback" not in done.err, done.err
    return done


async def inside(*arguments: str) -> Done:
    """The same in this process, on a thread of its own, where its loop is: for tables of many rows."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = await asyncio.to_thread(commands.run, arguments, debug=False)
    return Done(code, out.getvalue(), err.getvalue())


async def into_nothing(*arguments: str) -> Done:
    """With a standard output whose reader has gone, as with `| head`."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        process = await start(*arguments, stdout=writer)
    finally:
        os.close(writer)
    _, err = await asyncio.wait_for(process.communicate(b""), _SECONDS)
    return Done(process.returncode or 0, "", err.decode())
