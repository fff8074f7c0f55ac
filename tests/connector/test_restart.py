"""Which process to end, and when to do what: tables, no process."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stanch_connector.apiserver.drain import Settle
from stanch_connector.apiserver.restart import (
    KILL_GRACE_SECONDS,
    ROCM_TERM_GRACE_SECONDS,
    TERM_GRACE_SECONDS,
    Act,
    Process,
    begin,
    choose,
    is_vllm,
    step,
)

pytestmark = pytest.mark.unit

SERVE = ("/usr/bin/python3", "/usr/local/bin/vllm", "serve", "m")
SPAWN = (
    "/usr/bin/python3",
    "-c",
    "from multiprocessing.spawn import spawn_main; spawn_main(5)",
    "--multiprocessing-fork",
)
TRACKER = ("/usr/bin/python3", "-c", "from multiprocessing.resource_tracker import main;main(4)")
Rows = list[tuple[int, int, tuple[str, ...]]]

# (rows of pid, ppid, argv; the own pid; the root; what is below it, deepest first)
TREES: dict[str, tuple[Rows, int, int, list[int]]] = {
    "PID 1 is vllm": (
        [(1, 0, SERVE), (20, 1, ("VLLM::EngineCore",)), (30, 20, ("VLLM::Worker_0",))],
        1,
        1,
        [30, 20],
    ),
    "tini": (
        [(1, 0, ("/usr/bin/tini", "--", "vllm", "serve", "m")), (7, 1, SERVE), (20, 7, SPAWN)],
        7,
        7,
        [20],
    ),
    "dumb-init": ([(1, 0, ("dumb-init", "vllm", "serve")), (7, 1, SERVE)], 7, 7, []),
    "a shell that waits": ([(1, 0, ("sh", "-c", "vllm serve m; echo")), (7, 1, SERVE)], 7, 7, []),
    "a script": ([(1, 0, ("/bin/bash", "/vllm", "serve")), (7, 1, SERVE)], 7, 7, []),
    "a supervisor in Python": ([(1, 0, ("python3", "/opt/respawn.py", "vllm")), (7, 1, SERVE)], 7, 7, []),
    "API servers, titled": (
        [(1, 0, SERVE), (20, 1, ("VLLM::ApiServer_0",)), (21, 1, ("VLLM::ApiServer_1",)), (22, 1, TRACKER)],
        21,
        1,
        [22, 21, 20],
    ),
    "API servers below tini": (
        [(1, 0, ("tini", "--")), (7, 1, SERVE), (20, 7, SPAWN), (21, 7, SPAWN)],
        20,
        7,
        [21, 20],
    ),
    "API servers, forked": ([(1, 0, ("tini",)), (7, 1, SERVE), (20, 7, SERVE)], 20, 7, [20]),
    "vllm as one frozen file": ([(1, 0, ("/opt/vllm", "serve")), (9, 1, ("VLLM::ApiServer_0",))], 9, 1, [9]),
    "a titled launcher": ([(1, 0, ("VLLM::Launcher",)), (9, 1, ("VLLM::ApiServer_0",))], 9, 1, [9]),
    "a launcher of the user's": (
        [(1, 0, ("bash", "start.sh")), (7, 1, ("python", "serve.py")), (20, 7, SPAWN), (21, 20, SPAWN)],
        20,
        7,
        [21, 20],
    ),
    "by module": (
        [(1, 0, ("python", "-u", "-m", "vllm.entrypoints.openai.api_server")), (9, 1, SPAWN)],
        9,
        1,
        [9],
    ),
    "by module, with an option's argument": (
        [(1, 0, ("python3.12", "-X", "dev", "-m", "vllm.entrypoints.cli.main", "serve")), (9, 1, SPAWN)],
        9,
        1,
        [9],
    ),
    "shared PIDs: pause is not ours": ([(1, 0, ("/pause",)), (7, 0, SERVE), (8, 0, ("envoy",))], 7, 7, []),
    "on a machine, below a session": ([(1, 0, ("systemd",)), (5, 1, ("bash",)), (7, 5, SERVE)], 7, 7, []),
    "a spawned child of a shell": ([(1, 0, ("bash",)), (7, 1, SPAWN)], 7, 7, []),
    "a Ray worker": ([(1, 0, ("/ray/raylet",)), (7, 1, ("ray::EngineCore",))], 7, 7, []),
    "a parent that cannot be read": ([(7, 3, SERVE)], 7, 7, []),
    "a circle": ([(7, 8, SERVE), (8, 7, SERVE)], 7, 8, [7]),
    "without arguments": ([(1, 0, ()), (7, 1, ())], 7, 7, []),
}


@pytest.mark.parametrize(("rows", "own", "root", "below"), TREES.values(), ids=TREES.keys())
def test_choose(rows: Rows, own: int, root: int, below: list[int]) -> None:
    target = choose({pid: Process(pid, ppid, pid * 10, argv) for pid, ppid, argv in rows}, own)
    assert target is not None
    assert (target.root.pid, [process.pid for process in target.descendants]) == (root, below)


def test_no_process_where_the_own_one_is_not_in_the_table() -> None:
    assert choose({}, 7) is None


NAMES = {
    "the command": (SERVE, True),
    "frozen": (("/opt/vllm", "serve"), True),
    "a title": (("VLLM::EngineCore_DP1",), True),
    "its argument": (("python", "train.py", "vllm"), False),
    "a shell's words": (("sh", "-c", "vllm serve"), False),
    "another module": (("python", "-m", "vllmx"), False),
    "python alone": (("python",), False),
    "-m alone": (("python", "-m"), False),
}


@pytest.mark.parametrize(("argv", "expected"), NAMES.values(), ids=NAMES.keys())
def test_is_vllm(argv: tuple[str, ...], expected: bool) -> None:
    assert is_vllm(argv) is expected


# Readings (now, open) of a restart ordered at 0 with the deadline 10; what was done, and when.
PLANS: dict[str, tuple[list[tuple[float, int]], list[tuple[float, Act]]]] = {
    "settled, then SIGTERM": ([(0.1, 0), (0.3, 0), (0.5, 0)], [(0.5, Act.TERM)]),
    "a straggler": ([(0.3, 0), (0.4, 1), (5.0, 0), (5.2, 0)], [(5.2, Act.TERM)]),
    "the deadline": ([(0.3, 3), (9.9, 3), (10.0, 3)], [(10.0, Act.TERM)]),
    "hangs": (
        [(0.3, 0), (0.5, 0), (5.4, 0), (5.5, 0), (10.4, 0), (10.5, 0), (99, 0)],
        [(0.5, Act.TERM), (5.5, Act.KILL), (10.5, Act.GIVE_UP)],
    ),
    "a watcher that was held up does not skip SIGTERM": ([(60.0, 1), (60.1, 1)], [(60.0, Act.TERM)]),
}


@pytest.mark.parametrize(("readings", "done"), PLANS.values(), ids=PLANS.keys())
def test_plan(readings: list[tuple[float, int]], done: list[tuple[float, Act]]) -> None:
    restart, got = begin("r", 10.0, Settle(0.0), 0.0), []
    for now, count in readings:
        restart, act = step(restart, count, now)
        if act is not Act.WAIT:
            got.append((now, act))
    assert got == done


def test_on_rocm_a_process_has_longer_to_give_its_memory_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(version=SimpleNamespace(hip="7.0")))
    restart, act = step(begin("r", 0.0, Settle(0.0), 0.0), 0, 0.0)
    assert act is Act.TERM
    assert step(restart, 0, ROCM_TERM_GRACE_SECONDS - 0.1)[1] is Act.WAIT
    assert step(restart, 0, ROCM_TERM_GRACE_SECONDS)[1] is Act.KILL


def test_an_engine_that_has_come_to_rest_before_is_ended_at_once() -> None:
    rest = Settle(50.0, zero_since=52.0)
    assert step(begin("r", 70.0, rest, 60.0), 0, 60.0)[1] is Act.TERM


def test_whatever_arrives_then_is_waited_for() -> None:
    rest = Settle(50.0, zero_since=52.0)
    restart, got = begin("r", 70.0, rest, 60.0), []
    for now, count in [(60.0, 1), (60.1, 0), (60.2, 0), (60.4, 0)]:
        restart, act = step(restart, count, now)
        got.append(act)
    assert got == [Act.WAIT, Act.WAIT, Act.WAIT, Act.TERM]


@settings(deadline=None)
@given(st.floats(0, 30), st.lists(st.tuples(st.floats(0.01, 8), st.integers(0, 2)), max_size=40))
def test_each_act_once_in_order_and_never_early(deadline: float, readings: list[tuple[float, int]]) -> None:
    restart, now = begin("r", deadline, Settle(0.0), 0.0), 0.0
    at: dict[Act, float] = {}
    for gap, count in readings:
        now += gap
        restart, act = step(restart, count, now)
        if act is not Act.WAIT:
            assert act not in at
            at[act] = now
        if act is Act.TERM:
            assert now >= deadline or (count == 0 and now >= 0.5)
    assert list(at) == [Act.TERM, Act.KILL, Act.GIVE_UP][: len(at)]
    if Act.KILL in at:
        assert at[Act.KILL] - at[Act.TERM] >= TERM_GRACE_SECONDS
    if Act.GIVE_UP in at:
        assert at[Act.GIVE_UP] - at[Act.KILL] >= KILL_GRACE_SECONDS
    if now >= deadline and readings:
        assert Act.TERM in at
