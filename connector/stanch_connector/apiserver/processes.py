"""The process table of this PID namespace, and the ending of a process. The thin edge under restart.py."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import sys
from collections.abc import Iterable
from pathlib import Path

from stanch_connector.apiserver.restart import KILL_GRACE_SECONDS, Process, Target, term_grace_seconds

# What a container's supervisor sees after SIGKILL.
_KILLED_STATUS = 128 + signal.SIGKILL


def table(proc: str = "/proc") -> dict[int, Process]:
    """Every process that can be read; empty where there is no /proc."""
    found = {}
    try:
        names = os.listdir(proc)  # noqa: PTH208
    except OSError:
        return {}
    for name in names:
        if name.isdigit() and (process := read(int(name), proc)) is not None:
            found[process.pid] = process
    return found


def read(pid: int, proc: str = "/proc") -> Process | None:
    """One row; None where it is gone."""
    try:
        stat = Path(proc, str(pid), "stat").read_bytes()
        cmdline = Path(proc, str(pid), "cmdline").read_bytes()
    except OSError:
        return None
    # proc_pid_stat(5): pid (comm) state ppid ... starttime is field 22; comm may hold spaces and brackets.
    fields = stat[stat.rfind(b")") + 2 :].split()
    if len(fields) < 20:
        return None
    # A title (setproctitle) is one word padded with zeros.
    argv = (
        tuple(part.decode("utf-8", "replace") for part in cmdline.rstrip(b"\0").split(b"\0"))
        if cmdline
        else ()
    )
    return Process(pid, int(fields[1]), int(fields[19]), argv, zombie=fields[0] in (b"Z", b"X"))


def is_alive(process: Process) -> bool:
    now = read(process.pid)
    return now is not None and now.started == process.started and not now.zombie


def terminate(target: Target) -> None:
    """SIGTERM to the root, unless it is gone. Raises OSError where that is not allowed.

    Where the root is this process, a timer of the C library ends it even if Python never runs again: its
    faulthandler thread needs no interpreter lock. It is later than the watcher's own SIGKILL.
    """
    seconds = term_grace_seconds() + KILL_GRACE_SECONDS
    if target.root.pid == os.getpid():
        with contextlib.suppress(Exception):
            faulthandler.dump_traceback_later(seconds, exit=True, file=sys.__stderr__ or sys.stderr)
    try:
        if is_alive(target.root):
            os.kill(target.root.pid, signal.SIGTERM)
    except OSError:
        faulthandler.cancel_dump_traceback_later()
        raise


def kill(target: Target, late: Iterable[Process] = ()) -> None:
    """SIGKILL to all descendants, then to the root; does not return where the root is this process.

    late: descendants that came after the target was chosen. Never touches a pid that was given to another.
    """
    own = os.getpid()
    for process in (*target.descendants, *late):
        if process.pid != own and is_alive(process):
            with contextlib.suppress(OSError):
                os.kill(process.pid, signal.SIGKILL)
    if target.root.pid == own:
        # Not by a signal: the kernel drops SIGKILL to PID 1 from within its namespace.
        os._exit(_KILLED_STATUS)
    if is_alive(target.root):
        with contextlib.suppress(ProcessLookupError):
            os.kill(target.root.pid, signal.SIGKILL)
    # The own one is among the descendants where the root is another; if the root is a PID 1 that ignores
    # SIGKILL, it ends because its children did.
    if any(process.pid == own for process in target.descendants):
        os._exit(_KILLED_STATUS)
