"""A process of the demo's own: started with a leash, ready when it says so, ended by its handle."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from typing import IO

_READY_SECONDS = 20.0
_MOST_LOG_BYTES = 256 << 10


class StartError(Exception):
    """A process did not come up; the text says what it wrote last."""


class Child:
    """One running process. Its standard input is the leash: when we end, however we end, it ends."""

    def __init__(self, process: subprocess.Popen[bytes], errors: IO[bytes]) -> None:
        self._process = process
        self._errors = errors
        self.port = 0

    @classmethod
    async def start(cls, module: str, arguments: Sequence[str]) -> Child:
        """Start `python -m module` and wait for its ready line. Raises StartError; nothing is left then."""
        child = cls(*_spawn(module, arguments))
        try:
            line = await asyncio.wait_for(asyncio.to_thread(child._first_line), _READY_SECONDS)
            child.port = int(json.loads(line)["port"])
        except (asyncio.TimeoutError, ValueError, KeyError) as error:
            last = child.log(1)
            await child.end(0)
            raise StartError(f"{module} did not start: {last or error!r}") from error
        except BaseException:
            # Cancelled: killed, the thread that reads its output is free again.
            child.kill()
            raise
        return child

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def terminate(self) -> None:
        """SIGTERM; a second call or a dead process are no trouble."""
        self._process.terminate()

    async def end(self, deadline_seconds: float) -> bool:
        """SIGTERM, after the deadline SIGKILL, and everything of it closed. Whether SIGTERM was enough."""
        self._process.terminate()
        try:
            await asyncio.to_thread(self._process.wait, deadline_seconds)
        except subprocess.TimeoutExpired:
            return False
        finally:
            self.kill()
        return True

    def kill(self) -> None:
        """SIGKILL and reap, at once."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            if stream is not None:
                stream.close()

    def log(self, lines: int) -> str:
        """The last lines of what it wrote to standard error."""
        # Not by seek: it writes where the file's one offset is.
        descriptor = self._errors.fileno()
        size = os.fstat(descriptor).st_size
        start = max(0, size - _MOST_LOG_BYTES)
        text = os.pread(descriptor, size - start, start).decode(errors="replace")
        return "\n".join(text.splitlines()[-lines:])

    def _first_line(self) -> bytes:
        assert self._process.stdout is not None
        return self._process.stdout.readline()


def _spawn(module: str, arguments: Sequence[str]) -> tuple[subprocess.Popen[bytes], IO[bytes]]:
    # Not a pipe: nobody would read it, and a full pipe stops its writer. It lives as long as the process.
    errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments, "--leash"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            # Ctrl-C in a terminal goes to the whole group: only we shall get it, and end them in order.
            start_new_session=True,
        )
    except OSError as error:
        errors.close()
        raise StartError(f"{module} did not start: {error}") from error
    return process, errors
