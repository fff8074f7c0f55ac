"""Stands for a container and its kubelet: `python chaos_container.py RECORD COMMAND ...` runs the command,
and runs it again whenever it ends.

When the command's process ends, whatever else of the process group is left is killed, as the end of a
container's first process ends its PID namespace. RECORD gets one line of JSON for each end: {"code": exit
code, "left": processes that were killed, "at": monotonic seconds}. SIGTERM is passed on, and ends the whole.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType

# This file is run by its path, as the bed's leash is.
sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.engine import processes


def main(record: Path, command: list[str]) -> int:
    """The exit code of the last run, once SIGTERM has come."""
    ending = False
    child: subprocess.Popen[bytes] | None = None

    def end(number: int, frame: FrameType | None) -> None:
        nonlocal ending
        ending = True
        if child is not None:
            child.send_signal(number)

    signal.signal(signal.SIGTERM, end)
    while True:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL)
        code = child.wait()
        at = time.monotonic()
        left = _kill_the_rest()
        with record.open("a") as file:
            file.write(json.dumps({"code": code, "left": left, "at": at}) + "\n")
        if ending:
            return code if code >= 0 else 128 - code


def _kill_the_rest() -> int:
    """All of the group but this process and the leash, its parent; returns when they are gone."""
    kept, killed = {os.getpid(), os.getppid()}, set[int]()
    while rest := processes.in_group(os.getpgrp()).keys() - kept:
        killed |= rest
        for pid in rest:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.02)
    return len(killed)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
