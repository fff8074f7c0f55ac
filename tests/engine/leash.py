"""Hold an engine on a leash: `python leash.py COMMAND ...` ends with its parent, however that one dies.

vLLM is three processes or more, and none of them notices that the test run that started it was killed. So
the bed starts this script as the leader of a process group of its own, holds the writing end of its
standard input, and the leash kills the whole group as soon as that pipe closes: at the end of the bed, and
just as well when pytest was killed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType


def start(
    command: Sequence[str], log: Path, *, cwd: Path | None = None, env: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """The command on a leash of this process's; the log gets all that it prints. The leash leads a process
    group: its pid is the group's number."""
    with log.open("ab") as out:
        return subprocess.Popen(
            [sys.executable, __file__, *command],
            stdin=subprocess.PIPE,
            stdout=out,
            stderr=out,
            cwd=cwd,
            env=env,
            start_new_session=True,
        )


def end(held: subprocess.Popen[bytes]) -> None:
    """Let go of the leash, which kills its whole group at once; returns when it has ended."""
    assert held.stdin is not None
    held.stdin.close()
    held.wait()


def main(command: list[str]) -> int:
    """Run the command, pass SIGTERM on, kill the group when the parent is gone; return its exit code."""
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL)

    def pass_on(number: int, frame: FrameType | None) -> None:
        child.send_signal(number)

    signal.signal(signal.SIGTERM, pass_on)
    threading.Thread(target=_kill_when_the_parent_is_gone, daemon=True).start()
    code = child.wait()
    return code if code >= 0 else 128 - code


def _kill_when_the_parent_is_gone() -> None:
    # Not sys.stdin.read(): that holds a lock which the interpreter wants when it ends before the pipe does.
    while os.read(0, 1):
        pass
    os.killpg(os.getpgrp(), signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
