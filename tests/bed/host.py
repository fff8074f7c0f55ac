"""What a bed has on the machine itself: its first process, its cgroups, its files; and their removal."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tests.bed.place import BedError, Place

FIRST = "tests.bed.inside"
# In the environment of commands that are run in a bed: its `state`. By it they and their children are found.
ENV_STATE = "STANCH_BED_STATE"
_NEEDED = {
    "containerd": "containerd",
    "ctr": "containerd",
    "runc": "runc",
    "ip": "iproute2",
    "iptables": "iptables",
    "conntrack": "conntrack",
    "unshare": "util-linux",
    "nsenter": "util-linux",
    "mount": "mount",
    "openssl": "openssl",
}


@dataclass(frozen=True, slots=True)
class Found:
    """A process of the bed, seen from the machine. first: whether it is PID 1 of the bed's namespace."""

    pid: int
    first: bool


def missing() -> str | None:
    """One sentence on what the machine lacks to run a bed; None where it has all."""
    if os.geteuid() != 0:
        return "a bed needs root (namespaces, mounts, cgroups)"
    packages = {package for program, package in _NEEDED.items() if shutil.which(program) is None}
    if not Path("/usr/lib/cni/ptp").exists():
        packages.add("containernetworking-plugins")
    if packages:
        return (
            f"a bed needs more programs: apt-get install --no-install-recommends {' '.join(sorted(packages))}"
        )
    return None


def processes(place: Place) -> list[Found]:
    """The bed's first process and the one that made its namespaces, by their exact command line.

    No file with a number: that could be stale, or not yet be written when its writer dies.
    """
    tail = [b"-m", FIRST.encode(), str(place.state).encode()]
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        # It may end while we look.
        with suppress(OSError):
            words = (entry / "cmdline").read_bytes().rstrip(b"\0").split(b"\0")
            if words[-3:] == tail:
                found.append(Found(int(entry.name), _is_first(entry)))
    return found


def guests(place: Place) -> list[int]:
    """The processes of commands that were run in the bed (`run`), by the environment that they were given and
    hand on. Not this process itself."""
    mark = f"{ENV_STATE}={place.state}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with suppress(OSError):
                if mark in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
    return found


def first(place: Place) -> int | None:
    """The PID of the bed's first process, None where there is none."""
    return next((one.pid for one in processes(place) if one.first), None)


def enter(place: Place, command: Sequence[str], whole: bool = False) -> list[str]:
    """The command line that runs a command in the bed's network; whole: with its mounts and processes too.

    Not by `ip netns exec`, which would mount another /sys.
    """
    pid = first(place)
    if pid is None:
        raise BedError(f"bed {place.name!r} is not up; `make cluster-up` starts it")
    spaces = ["--net", "--mount", "--pid"] if whole else ["--net"]
    return ["nsenter", f"--target={pid}", *spaces, "--", *command]


def make_cgroups(place: Place) -> None:
    """The cgroup of the bed's pods, in every hierarchy; the kubelet makes the rest below it."""
    for top in _hierarchies():
        (top / place.cgroup).mkdir(exist_ok=True)


def clean(place: Place, deadline_seconds: float = 30.0) -> None:
    """Take away all that the bed has or had on the machine. Raises BedError where something stays."""

    def ended() -> bool:
        left = [*guests(place), *(one.pid for one in processes(place))]
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return not left

    _until(ended, f"the processes of bed {place.name!r} do not end", deadline_seconds)
    _until(lambda: _remove_cgroups(place), f"the cgroups /{place.cgroup} cannot be removed", deadline_seconds)
    inside = [path for path in _mount_points() if path.is_relative_to(place.state)]
    if inside:
        raise BedError(f"{inside[0]} is a mount of the machine itself, so its files stay: umount it first")
    if place.state.exists():
        shutil.rmtree(place.state)


def leftovers(place: Place) -> list[str]:
    """What there is of the bed, a line each; empty after `clean`."""
    lines = [f"process {one.pid}" for one in processes(place)]
    lines += [f"process {pid}, of a command in it" for pid in guests(place)]
    lines += [f"cgroup {top / place.cgroup}" for top in _hierarchies() if (top / place.cgroup).exists()]
    return lines + ([f"files {place.state}"] if place.state.exists() else [])


def _is_first(entry: Path) -> bool:
    """proc_pid_status(5): NSpid has the PID in every PID namespace, the innermost last."""
    for line in (entry / "status").read_text().splitlines():
        if line.startswith("NSpid:"):
            return line.split()[2:] == ["1"]
    return False


def _hierarchies() -> list[Path]:
    """Where the machine's cgroup hierarchies are mounted: one of version 2, or each of version 1 and that."""
    found = []
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        if after.split()[0] in ("cgroup", "cgroup2"):
            found.append(Path(before.split()[4]))
    return found


def _mount_points() -> Iterator[Path]:
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        yield Path(line.split()[4].encode().decode("unicode_escape"))


def _remove_cgroups(place: Place) -> bool:
    """Try to; whether none is left. One whose last process is still ending is busy for a moment."""
    for top in _hierarchies():
        own = top / place.cgroup
        for directory, _, _ in os.walk(own, topdown=False):
            # Busy: the next round tries again.
            with suppress(OSError):
                Path(directory).rmdir()
    return not any((top / place.cgroup).exists() for top in _hierarchies())


def _until(holds: Callable[[], bool], otherwise: str, deadline_seconds: float) -> None:
    end = time.monotonic() + deadline_seconds
    while not holds():
        if time.monotonic() > end:
            raise BedError(otherwise)
        time.sleep(0.05)
