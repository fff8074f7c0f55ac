"""Restart in place: which process to end, and when to do what. Pure; `now` is the monotonic clock.

Order: new requests refused -> settled (two zeros) -> drained, or the deadline -> SIGTERM -> SIGKILL. With a
request open vLLM 0.29 can hang on SIGTERM for as long as its clients wait (measured: 4 of 5
times); drained it ends in 0.4 to 0.9 s, leaked 1.7 to 2.4 s.

Which process (`choose`): the topmost one of this engine. From the own process it climbs to the parent while
the parent is of the same engine, and stops below anything else, so that neither tini nor a shell nor a
supervisor is ended: what waits for vLLM ends, or starts it again, by itself.

    PID 1 vllm, alone              -> itself
    tini, or sh -c, or a script    -> the vllm below it
    vllm -> ApiServer_0, _1        -> the vllm that started them
    python serve.py -> spawned     -> python serve.py
    pause beside vllm (shared PIDs) -> vllm

The kernel ignores SIGKILL to PID 1 from inside its own PID namespace (pid_namespaces(7)). So the end of the
ladder is always: kill the descendants, then the process itself, which ends by _exit where it is the own one.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum

from stanch_connector.apiserver.drain import Settle, settle

TERM_GRACE_SECONDS = 5.0
ROCM_TERM_GRACE_SECONDS = 20.0
KILL_GRACE_SECONDS = 5.0

_PYTHON = re.compile(r"(python|pypy)[0-9.]*$")
_TAKES_ARGUMENT = ("-W", "-X", "--check-hash-based-pycs")


@dataclass(frozen=True, slots=True)
class Process:
    """One row of the table. started: the kernel's start time in ticks; with the pid it names one process for
    ever. argv: empty for what has none (a kernel thread, a zombie)."""

    pid: int
    ppid: int
    started: int
    argv: tuple[str, ...]
    zombie: bool = False


@dataclass(frozen=True, slots=True)
class Target:
    """root: what gets the signals. descendants: at the time of choosing, the deepest first."""

    root: Process
    descendants: tuple[Process, ...]


def term_grace_seconds() -> float:
    """From SIGTERM to SIGKILL. On ROCm a process that is killed while it gives its memory back may leave it
    taken, and vLLM allows its own engine processes 15 s (v1/engine/utils.py, 0.29.0 and 0.32.0)."""
    hip = getattr(getattr(sys.modules.get("torch"), "version", None), "hip", None)
    return TERM_GRACE_SECONDS if hip is None else ROCM_TERM_GRACE_SECONDS


def choose(table: Mapping[int, Process], own_pid: int) -> Target | None:
    """The process to end; None where the own one is not in the table (no /proc, or a foreign one)."""
    here = table.get(own_pid)
    if here is None:
        return None
    climbed = {here.pid}
    while (above := table.get(here.ppid)) is not None and above.pid not in climbed:
        if not _same_engine(here, above):
            break
        here = above
        climbed.add(here.pid)
    return Target(here, descendants(table, here.pid))


def descendants(table: Mapping[int, Process], root: int) -> tuple[Process, ...]:
    """All below `root`, the deepest first."""
    children: dict[int, list[Process]] = {}
    for process in table.values():
        children.setdefault(process.ppid, []).append(process)
    found: list[Process] = []
    known, level = {root}, [root]
    while level:
        below = [p for pid in level for p in children.get(pid, []) if p.pid not in known]
        known.update(p.pid for p in below)
        found += below
        level = [p.pid for p in below]
    return tuple(reversed(found))


def alive(table: Mapping[int, Process], process: Process) -> bool:
    """Whether this very process (not another one under its number) still runs."""
    now = table.get(process.pid)
    return now is not None and now.started == process.started and not now.zombie


def is_vllm(argv: tuple[str, ...]) -> bool:
    """vLLM by its own name: the command, a module of it, or a title that it gives its children (VLLM::...).
    A shell or an init with vllm among its arguments is not."""
    if not argv:
        return False
    if argv[0].startswith("VLLM::") or _base(argv[0]) == "vllm":
        return True
    if not _PYTHON.fullmatch(_base(argv[0])):
        return False
    flag, script = _script(argv)
    if flag == "-m":
        return script == "vllm" or script.startswith("vllm.")
    return flag == "" and _base(script) == "vllm"


def is_spawned(argv: tuple[str, ...]) -> bool:
    """A child that Python's multiprocessing (spawn or forkserver) or vLLM made: its parent is of one engine
    with it."""
    if not argv:
        return False
    if argv[0].startswith("VLLM::"):
        return True
    flag, script = _script(argv)
    return bool(_PYTHON.fullmatch(_base(argv[0]))) and flag == "-c" and "from multiprocessing" in script


def _same_engine(child: Process, parent: Process) -> bool:
    if is_vllm(parent.argv):
        return True
    python = bool(parent.argv) and bool(_PYTHON.fullmatch(_base(parent.argv[0])))
    # A forked child shows its parent's arguments.
    return python and (is_spawned(child.argv) or (child.argv == parent.argv))


def _base(path: str) -> str:
    return path.rsplit("/", 1)[-1]


def _script(argv: tuple[str, ...]) -> tuple[str, str]:
    """("-m", module), ("-c", code) or ("", file) of a Python command line; empty where there is none."""
    at = 1
    while at < len(argv):
        word = argv[at]
        if word in ("-m", "-c"):
            return word, argv[at + 1] if at + 1 < len(argv) else ""
        if not word.startswith("-") or word == "-":
            return "", word
        at += 2 if word in _TAKES_ARGUMENT else 1
    return "", ""


class Phase(Enum):
    DRAINING = "draining"
    TERMINATING = "terminating"
    KILLING = "killing"
    FAILED = "failed"


class Act(Enum):
    WAIT = "wait"
    TERM = "term"
    KILL = "kill"
    GIVE_UP = "give up"


@dataclass(frozen=True, slots=True)
class Restart:
    """id: the command's. phase_since: when this phase began. drained: whether it came to rest before SIGTERM;
    None while that is open."""

    id: str
    deadline: float
    rest: Settle
    phase: Phase = Phase.DRAINING
    phase_since: float = 0.0
    drained: bool | None = None


def begin(order_id: str, deadline: float, rest: Settle, now: float) -> Restart:
    """rest: how far the engine has come to rest; one that was drained before has."""
    return Restart(order_id, deadline, rest, phase_since=now)


def step(restart: Restart, open_requests: int, now: float) -> tuple[Restart, Act]:
    """One reading in, one act out; every act comes once, in the order TERM, KILL, GIVE_UP.

    open_requests: over all API-server processes of the engine. Who asks is itself the target or below it, so
    it seldom lives to see the later phases: they are for the engine that hangs.
    """
    if restart.phase is Phase.FAILED:
        return restart, Act.WAIT
    if restart.phase is Phase.DRAINING:
        rest, rested = settle(restart.rest, open_requests, now)
        if not rested and now < restart.deadline:
            return replace(restart, rest=rest), Act.WAIT
        ending = replace(restart, rest=rest, phase=Phase.TERMINATING, phase_since=now, drained=rested)
        return ending, Act.TERM
    if restart.phase is Phase.TERMINATING:
        if now - restart.phase_since < term_grace_seconds():
            return restart, Act.WAIT
        return replace(restart, phase=Phase.KILLING, phase_since=now), Act.KILL
    if now - restart.phase_since < KILL_GRACE_SECONDS:
        return restart, Act.WAIT
    return replace(restart, phase=Phase.FAILED, phase_since=now), Act.GIVE_UP
