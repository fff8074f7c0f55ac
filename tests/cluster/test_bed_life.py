"""Beds beside the one in use: up, down, crashes half-way, and two who want the same."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bed import host
from tests.bed.cluster import wait_for
from tests.bed.place import REPOSITORY, Place

pytestmark = pytest.mark.cluster

UP_SECONDS = 240.0


@pytest.fixture
def place() -> Iterator[Place]:
    """A bed of the test's own that is not up yet."""
    lack = host.missing()
    if lack is not None:
        pytest.skip(lack)
    found = Place.of(f"test-{uuid.uuid4().hex[:8]}")
    yield found
    host.clean(found)
    found.lock.unlink(missing_ok=True)


def bed(place: Place, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.bed", "--name", place.name, *arguments]
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)


def start(place: Place) -> subprocess.Popen[bytes]:
    """`up` in the background."""
    command = [sys.executable, "-m", "tests.bed", "--name", place.name, "up"]
    return subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def machine() -> dict[str, str]:
    """What a bed must leave as it found it: mounts, kernel settings, fixed paths of Kubernetes."""
    settings = ("vm/overcommit_memory", "kernel/panic", "kernel/panic_on_oops", "net/ipv4/ip_forward")
    paths = ("/var/lib/kubelet", "/var/lib/cni", "/var/log/pods", "/run/containerd")
    return {
        "mounts": Path("/proc/self/mounts").read_text(),
        "links": "\n".join(sorted(os.listdir("/sys/class/net"))),  # noqa: PTH208
        **{one: Path("/proc/sys", one).read_text() for one in settings},
        **{one: str(Path(one).exists()) for one in paths},
    }


def test_a_start_killed_half_way_is_cleaned_up_by_the_next(place: Place) -> None:
    before = machine()
    half = start(place)
    # Far enough to have processes, cgroups, mounts and a data store.
    wait_for("etcd's data", (place.state / "etcd").exists, UP_SECONDS)
    half.send_signal(signal.SIGKILL)
    half.wait()
    left = host.leftovers(place)
    assert any(line.startswith("process") for line in left)
    assert bed(place, "status").returncode == 1

    again = bed(place, "up")
    assert again.returncode == 0, again.stderr
    assert "cleaning up what an earlier bed" in again.stderr
    assert bed(place, "status").returncode == 0
    nodes = bed(place, "kubectl", "get", "nodes", "--no-headers")
    assert nodes.stdout.split()[1] == "Ready", nodes.stderr
    # A second `up` finds it running.
    assert "already" in bed(place, "up").stdout

    assert "removed" in bed(place, "down").stdout
    assert host.leftovers(place) == []
    assert machine() == before
    assert "there was none" in bed(place, "down").stdout


def test_a_bed_whose_first_process_was_killed_is_all_gone_but_for_its_files(place: Place) -> None:
    wait_for("up", lambda: bed(place, "up").returncode == 0, UP_SECONDS)
    first = host.first(place)
    assert first is not None
    os.kill(first, signal.SIGKILL)
    wait_for("the end of its processes", lambda: not host.processes(place))
    # Neither containers nor components outlive it.
    inside = subprocess.run(["pgrep", "-f", str(place.state)], capture_output=True, text=True, check=False)
    assert inside.stdout == ""
    assert bed(place, "status").returncode == 1
    assert bed(place, "down").returncode == 0
    assert host.leftovers(place) == []


def test_who_wants_a_bed_that_another_is_starting_is_refused(place: Place) -> None:
    one = start(place)
    try:
        wait_for("the first one's files", place.state.exists, UP_SECONDS)
        for verb in ("up", "down"):
            other = bed(place, verb)
            assert other.returncode == 1
            assert "BED=another-name" in other.stderr
    finally:
        one.send_signal(signal.SIGINT)
        one.wait()
    # Interrupted, it takes away what it had begun.
    assert host.leftovers(place) == []


def test_a_bed_of_another_checkout_is_left_alone(place: Place, tmp_path: Path) -> None:
    wait_for("up", lambda: bed(place, "up").returncode == 0, UP_SECONDS)
    place.state.joinpath("checkout").write_text(str(tmp_path))
    for verb in ("up", "down"):
        refused = bed(place, verb)
        assert refused.returncode == 1
        assert str(tmp_path) in refused.stderr
    assert host.first(place) is not None


def test_run_ends_the_bed_that_it_started(place: Place) -> None:
    script = "import os, sys; print(os.environ['KUBECONFIG']); sys.exit(7)"
    done = bed(place, "run", "--", sys.executable, "-c", script)
    assert (done.returncode, done.stdout.strip()) == (7, str(place.kubeconfig)), done.stderr
    assert host.leftovers(place) == []


def test_nothing_is_left_of_a_run_whose_runner_was_killed(place: Place) -> None:
    """Neither the bed nor what the command had started outside of it, which has ended as well."""
    script = "import subprocess; subprocess.Popen(['sleep', '3600'])"
    command = [sys.executable, "-c", f"{script}; {script}.wait()"]
    runner = subprocess.Popen(
        [sys.executable, "-m", "tests.bed", "--name", place.name, "run", "--", *command], cwd=REPOSITORY
    )
    wait_for("the command and its children", lambda: len(host.guests(place)) == 3, UP_SECONDS)
    runner.kill()
    runner.wait()
    wait_for("the end of it all", lambda: host.leftovers(place) == [], UP_SECONDS)
