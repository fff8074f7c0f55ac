"""The first process of a bed's namespaces: `python -m tests.bed.inside STATE`, started by node.py.

It has network, mount and PID namespaces of its own. So whatever it starts, and whatever those start,
containers included, ends when it ends, however it ends; with it go their mounts and their network. Only
cgroups and the files below STATE stay, and `down` removes those. Standard library only.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.bed import config
from tests.bed.build import Kube
from tests.bed.place import NODE_IP, NODE_NAME, BedError, Place

START_DEADLINE_SECONDS = 180.0
# What the kubelet wants of the kernel (pkg/kubelet/cm/container_manager_linux.go, setupKernelTunables, 1.35),
# for the whole machine. It is shown files that say so already; the machine's own settings stay.
_KERNEL_SETTINGS = {
    "vm/overcommit_memory": 1,
    "vm/panic_on_oom": 0,
    "kernel/panic": 10,
    "kernel/panic_on_oops": 1,
    "kernel/keys/root_maxkeys": 1_000_000,
    "kernel/keys/root_maxbytes": 25_000_000,
}


@dataclass(frozen=True, slots=True)
class Spec:
    """What to start. images: docker archives to load before the node is called ready."""

    version: str
    programs: str
    images: Sequence[str]

    @classmethod
    def read(cls, place: Place) -> Spec:
        return cls(**json.loads(place.spec.read_text()))


class Node:
    """The running components."""

    def __init__(self, place: Place, spec: Spec) -> None:
        self._place = place
        self._spec = spec
        self._kube = Kube(spec.version, Path(spec.programs))
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._began = time.monotonic()
        # Seconds from the start to each step's end.
        self.steps: dict[str, float] = {}

    def start(self) -> None:
        """Everything up and the node Ready. Raises BedError, which names the component and its last words."""
        commands = config.components(self._place, self._kube)
        first = ("etcd", "kube-apiserver", "containerd")
        for name in first:
            self._launch(name, commands[name])
        self._until("containerd's answer", lambda: self._ok("ctr", "version"))
        for image in self._spec.images:
            _do("ctr", "-n", "k8s.io", "images", "import", image)
        self._done("the images")
        self._until("the API server's readiness", lambda: self._ok(*self._kubectl("get", "--raw", "/readyz")))
        for name in commands:
            if name not in first:
                self._launch(name, commands[name])
        ready = self._kubectl("wait", "--for=condition=Ready", f"node/{NODE_NAME}", "--timeout=1s")
        self._until("a Ready node", lambda: self._ok(*ready))
        account = self._kubectl("get", "-n", "default", "serviceaccount", "default")
        self._until("the first service account", lambda: self._ok(*account))

    def watch(self) -> None:
        """Reap what ends, for ever. A component that ends is said in `failed`; nothing is started again."""
        names = {process.pid: name for name, process in self._running.items()}
        while True:
            pid, status = os.wait()
            if pid in names:
                _report(self._place, f"{names[pid]} ended with status {os.waitstatus_to_exitcode(status)}")

    def _launch(self, name: str, command: Sequence[str]) -> None:
        with (self._place.log / f"{name}.log").open("ab") as log:
            self._running[name] = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self._place.state
            )

    def _until(self, what: str, holds: Callable[[], bool]) -> None:
        while not holds():
            for name, process in self._running.items():
                if process.poll() is not None:
                    raise BedError(f"{name} ended with exit code {process.returncode}\n{self._tail(name)}")
            if time.monotonic() > self._began + START_DEADLINE_SECONDS:
                raise BedError(f"no sign of {what} within {START_DEADLINE_SECONDS:.0f} s")
            time.sleep(0.1)
        self._done(what)

    def _done(self, what: str) -> None:
        self.steps[what] = round(time.monotonic() - self._began, 1)

    def _ok(self, *command: str) -> bool:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0

    def _kubectl(self, *arguments: str) -> list[str]:
        return [str(self._kube.program("kubectl")), f"--kubeconfig={self._place.kubeconfig}", *arguments]

    def _tail(self, name: str, lines: int = 15) -> str:
        text = (self._place.log / f"{name}.log").read_text(errors="replace")
        return "\n".join(text.splitlines()[-lines:])


def mounts(place: Place) -> None:
    """What components write to fixed paths goes below STATE or into memory."""
    _do("mount", "--make-rshared", "/")
    for target in ("lib", "log"):
        source = place.state / target
        source.mkdir(exist_ok=True)
        _do("mount", "--bind", str(source), f"/var/{target}")
    _do("mount", "-t", "tmpfs", "-o", "mode=755", "stanch-bed", "/run")
    settings = Path("/run/kernel-settings")
    for name, value in _KERNEL_SETTINGS.items():
        path = settings / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{value}\n")
        _do("mount", "--bind", str(path), f"/proc/sys/{name}")


def network() -> None:
    """The node's address, on a bridge without ports: not every kernel has dummy devices."""
    _do("ip", "link", "set", "lo", "up")
    _do("ip", "link", "add", "eth0", "type", "bridge")
    _do("ip", "address", "add", f"{NODE_IP}/24", "dev", "eth0")
    _do("ip", "link", "set", "eth0", "up")
    _do("ip", "route", "add", "default", "dev", "eth0")
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1\n")


def _do(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BedError(f"`{' '.join(command)}` failed: {done.stderr.strip() or done.stdout.strip()}")


def _report(place: Place, what: str) -> None:
    part = place.failed.with_suffix(".part")
    part.write_text(what)
    part.rename(place.failed)


def main(arguments: Sequence[str]) -> None:
    place = Place.of(Path(arguments[0]).name)
    try:
        if os.getpid() != 1:
            raise BedError("this is started by `python -m tests.bed up` in namespaces of its own")
        mounts(place)
        network()
        node = Node(place, Spec.read(place))
        node.start()
    except Exception as error:
        _report(place, str(error) if isinstance(error, BedError) else repr(error))
        raise
    part = place.ready.with_suffix(".part")
    part.write_text(json.dumps(node.steps))
    part.rename(place.ready)
    node.watch()


if __name__ == "__main__":
    main(sys.argv[1:])
