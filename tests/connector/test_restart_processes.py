"""Restart in place on processes that stand for a container's: real signals, a real annotations file."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from stanch_connector.apiserver import processes

pytestmark = pytest.mark.unit

STANDIN = Path(__file__).with_name("restart_standin.py")
CONNECTOR = Path(__file__).parents[2] / "connector"
DEADLINE_SECONDS = 15.0


class Pod:
    """A process tree and its annotations."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "annotations"
        self.hold = folder / "open"
        self.boot_id = f"boot-{os.getpid()}-{time.monotonic_ns()}"
        self.said: list[dict[str, Any]] = []
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, *argv: str) -> None:
        env = {**os.environ, "PYTHONPATH": str(CONNECTOR), "PYTHONDONTWRITEBYTECODE": "1"}
        self.process = subprocess.Popen(argv, stdout=subprocess.PIPE, env=env, start_new_session=True)
        os.set_blocking(self._stdout(), False)

    def serve(self, kind: str, hold: bool = False) -> None:
        held = [str(self.hold)] if hold else []
        self.start(sys.executable, str(STANDIN), kind, self.boot_id, str(self.file), *held)

    def command(self, verb: str, boot_id: str | None = None, seconds: float = 30) -> None:
        value = {"id": "c-1", "verb": verb, "bootId": boot_id or self.boot_id, "deadlineSeconds": seconds}
        new = self.file.with_suffix(".new")
        new.write_text(f"stanch.dev/command={json.dumps(json.dumps(value))}")
        new.replace(self.file)

    def until(self, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """The first line that is as wanted, from the start of all."""
        ends, seen = time.monotonic() + DEADLINE_SECONDS, 0
        while time.monotonic() < ends:
            self._read()
            for line in self.said[seen:]:
                if wanted(line):
                    return line
            seen = len(self.said)
            time.sleep(0.01)
        raise AssertionError(f"not said: {self.said}")

    def event(self, name: str) -> dict[str, Any]:
        return self.until(lambda line: line["event"] == name)

    def ended(self) -> int:
        assert self.process is not None
        code = self.process.wait(DEADLINE_SECONDS)
        self._read()
        return code

    def runs(self) -> bool:
        assert self.process is not None
        return self.process.poll() is None

    def close(self) -> None:
        if self.process is not None:
            if self.runs():
                os.killpg(self.process.pid, 9)
            self.process.wait()
            assert self.process.stdout is not None
            self.process.stdout.close()

    def _stdout(self) -> int:
        assert self.process is not None
        assert self.process.stdout is not None
        return self.process.stdout.fileno()

    def _read(self) -> None:
        try:
            while part := os.read(self._stdout(), 65536):
                self.said += [json.loads(line) for line in part.decode().splitlines()]
        except BlockingIOError:
            pass


@pytest.fixture
def pod(tmp_path: Path) -> Iterator[Pod]:
    made = Pod(tmp_path)
    yield made
    made.close()
    for parent in ("/dev/shm", "/tmp"):
        shutil.rmtree(Path(parent, f"stanch-{os.getuid()}-{made.boot_id}"), ignore_errors=True)


def test_polite_ends_by_sigterm(pod: Pod) -> None:
    pod.serve("polite")
    pod.event("serving")
    pod.command("restart")
    assert pod.ended() == 0
    assert [line["not_ready"] for line in pod.said if line["event"] == "state"] == [
        None,
        "a restart is under way",
    ]
    assert pod.said[-1]["event"] == "term"


def test_stuck_and_deaf_to_sigterm_ends_with_its_children(pod: Pod) -> None:
    pod.serve("stubborn")
    child = processes.read(pod.event("serving")["child"])
    assert child is not None
    pod.command("restart")
    assert pod.ended() == 137
    ends = time.monotonic() + DEADLINE_SECONDS
    while processes.is_alive(child) and time.monotonic() < ends:
        time.sleep(0.01)
    assert not processes.is_alive(child)


def test_a_request_midway_ends_first(pod: Pod) -> None:
    pod.hold.touch()
    pod.serve("polite", hold=True)
    pod.event("serving")
    pod.command("restart")
    pod.until(lambda line: line.get("not_ready") == "a restart is under way")
    pod.hold.unlink()
    assert pod.ended() == 0
    assert [line["event"] for line in pod.said if line["event"] != "state"] == ["serving", "closed", "term"]


def test_a_request_that_does_not_end_is_waited_for_until_the_deadline(pod: Pod) -> None:
    pod.hold.touch()
    pod.serve("polite", hold=True)
    pod.event("serving")
    begun = time.monotonic()
    pod.command("restart", seconds=1)
    assert pod.ended() == 0
    assert time.monotonic() - begun >= 1
    assert "closed" not in [line["event"] for line in pod.said]


def test_a_stale_command_left_in_the_file_is_never_carried_out(pod: Pod) -> None:
    pod.command("restart", boot_id="the-life-before")
    pod.serve("polite")
    state = pod.until(lambda line: bool(line.get("outcomes")))
    assert (state["not_ready"], state["outcomes"][0]["state"]) == (None, "ignored")
    # The same process still listens to what is meant for it.
    pod.command("restart")
    assert pod.ended() == 0


@pytest.mark.parametrize("parent", ["none", "sh", "script"], ids=["vllm", "a shell", "a script that goes on"])
def test_several_api_servers_end_together_once_all_are_drained(pod: Pod, tmp_path: Path, parent: str) -> None:
    """The launcher is named vllm, as in an image; it gets the signal, whoever started it does not."""
    launcher = tmp_path / "vllm"
    shutil.copy(STANDIN, launcher)
    pod.hold.touch()
    argv = [sys.executable, str(launcher), "serve", "2", pod.boot_id, str(pod.file), str(pod.hold)]
    if parent == "script":
        script = tmp_path / "start.sh"
        after = 'echo \'{"event": "after", "pid": 0}\''
        script.write_text(f"trap 'exit 99' TERM\n{' '.join(argv)}\n{after}\nexit 5\n")
        argv = ["/bin/sh", str(script)]
    elif parent == "sh":
        argv = ["/bin/sh", "-c", f"{' '.join(argv)}; exit $?"]
    pod.start(*argv)
    ready: set[int] = set()

    def both(line: dict[str, Any]) -> bool:
        ready.update({line["pid"]} if line["event"] == "serving" else ())
        return len(ready) == 2

    pod.until(both)
    pod.command("restart")
    refused: set[int] = set()

    def both_refuse(line: dict[str, Any]) -> bool:
        refused.update({line["pid"]} if line.get("not_ready") == "a restart is under way" else ())
        return len(refused) == 2

    pod.until(both_refuse)
    assert pod.runs()
    pod.hold.unlink()
    assert pod.ended() == (5 if parent == "script" else 7)
    events = [line["event"] for line in pod.said]
    assert events.index("closed") < events.index("launcher term")
    assert events.count("launcher term") == 1


def _new_pid_namespace() -> list[str]:
    return ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]


def _may_make_namespaces() -> bool:
    if shutil.which("unshare") is None:
        return False
    return subprocess.run([*_new_pid_namespace(), "true"], capture_output=True, check=False).returncode == 0


@pytest.mark.parametrize(("kind", "code"), [("polite", 0), ("stubborn", 137)])
def test_pid_1_of_a_namespace(pod: Pod, kind: str, code: int) -> None:
    """The kernel drops SIGKILL to PID 1 from within: it ends all the same."""
    if not _may_make_namespaces():
        pytest.skip("no right to make a PID namespace")
    pod.start(*_new_pid_namespace(), sys.executable, str(STANDIN), kind, pod.boot_id, str(pod.file))
    assert pod.event("serving")["pid"] == 1
    pod.command("restart")
    assert pod.ended() == code
