"""Run the product as a user does (`stanch check`, `stanch watch`, as processes) and read what it prints."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

HEALTHY, SUSPECT, FAULT, CANNOT_TELL = 0, 1, 2, 3
# The tests' holds; the defaults are a minute and more.
HOLD_S = 10
# Long enough for the hold to pass and for two turns more.
LOOK_S = HOLD_S + 4


@dataclass(frozen=True, slots=True)
class Run:
    """One finished run: its exit code, its JSON lines, and all it said, for the failure message."""

    command: Sequence[str]
    exit_code: int
    verdicts: Sequence[Mapping[str, Any]]
    said: str

    @property
    def last(self) -> Mapping[str, Any]:
        """The last verdict."""
        assert self.verdicts, self
        return self.verdicts[-1]

    def states(self, engine: str | None = None) -> list[str]:
        """The states in the order of the turns, repeats left out."""
        found: list[str] = []
        for one in self.verdicts:
            if engine in (None, one["engine"]) and found[-1:] != [one["state"]]:
                found.append(one["state"])
        return found

    @property
    def is_quiet(self) -> bool:
        """Whether nothing was wrong: no fault, never blind, healthy at the end and mostly before.

        A look that falls between two steps of a busy engine may be a suspect; the next one then tells.
        """
        states = [one["state"] for one in self.verdicts]
        healthy = states.count("healthy")
        return (
            set(states) <= {"healthy", "suspect"} and states[-1] == "healthy" and healthy >= 0.7 * len(states)
        )

    def __str__(self) -> str:
        return f"$ stanch {' '.join(self.command)}\nexit code {self.exit_code}\n{self.said}"


class Running:
    """A run under way; `finish` waits for it."""

    def __init__(self, *arguments: str) -> None:
        self._arguments = arguments
        # Files, not pipes: nobody reads before the end, and a full pipe would stop a long watch.
        # They live as long as the process, so no block of code can close them.
        self._out = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self._err = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self._process = subprocess.Popen(
            [sys.executable, "-m", "stanch", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=self._out,
            stderr=self._err,
        )

    def __enter__(self) -> Running:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        self._out.close()
        self._err.close()

    def interrupt(self) -> None:
        """Ctrl-C."""
        self._process.send_signal(signal.SIGINT)

    def finish(self, deadline_s: float = 120) -> Run:
        """Wait for its end. Raises subprocess.TimeoutExpired."""
        self._process.wait(deadline_s)
        self._out.seek(0)
        self._err.seek(0)
        out, err = self._out.read(), self._err.read()
        verdicts = [json.loads(line) for line in out.splitlines()]
        # A long watch would bury the failure message.
        said = "\n".join([*out.splitlines()[-12:], *err.splitlines()[-20:]])
        run = Run(self._arguments, self._process.returncode, verdicts, said)
        assert "Traceback" not in err, str(run)
        for one in verdicts:
            assert one["schema"] == "stanch.verdict/1", str(run)
            assert one["reason"], str(run)
        return run


def start_check(url: str, role: str, seconds: float | None = LOOK_S, *more: str) -> Running:
    """`stanch check` for that long (None: one look), holds cut to HOLD_S."""
    length = () if seconds is None else ("--for", f"{seconds:g}")
    return Running(
        "check", url, "--role", role, *length, "--hold-seconds", str(HOLD_S), "--output", "json", *more
    )


def start_watch(url: str, role: str, seconds: float = LOOK_S, *more: str) -> Running:
    """`stanch watch` for that long, a turn a second, holds cut to HOLD_S."""
    options = ("--interval", "1", "--hold-seconds", str(HOLD_S), "--output", "json")
    return Running("watch", "--target", f"{url}={role}", "--for", f"{seconds:g}", *options, *more)


def check(url: str, role: str = "decode", seconds: float | None = LOOK_S, *more: str) -> Run:
    """`stanch check` alone."""
    with start_check(url, role, seconds, *more) as running:
        return running.finish()


def look(url: str, role: str = "decode", seconds: float = LOOK_S, *more: str) -> tuple[Run, Run]:
    """`stanch check` and `stanch watch` side by side over the same seconds."""
    with start_check(url, role, seconds, *more) as checking, start_watch(url, role, seconds) as watching:
        return checking.finish(), watching.finish()
