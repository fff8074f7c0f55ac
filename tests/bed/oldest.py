"""The API server of the oldest supported Kubernetes, alone with its data store: no node, no controllers.

    with OldestApi(tmp_path) as api:
        api.kubectl("apply", "-f", "crds/")

It listens on loopback and needs no root. Both processes end with whoever started them.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from tests.bed import build, config, pki
from tests.bed.cluster import wait_for
from tests.bed.place import BedError
from tests.engine import leash
from tests.engine.processes import free_ports, tail

_START_SECONDS = 120.0


class OldestApi:
    """A running API server; `kubectl` talks to it as an administrator. directory: for its files, empty."""

    def __init__(self, directory: Path) -> None:
        self.version = build.module_version(build.OLDEST)
        self.kubeconfig = directory / "kubeconfig"
        self._directory = directory
        self._kube = build.kube()
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> OldestApi:
        """Raises BedError or TimeoutError where it does not start; nothing is left then."""
        keys = self._directory / "pki"
        pki.write(keys)
        first = free_ports(3)
        keys.joinpath("tokens.csv").write_text('admin,admin,admin,"system:masters"\n')
        address = f"https://127.0.0.1:{first + 2}"
        self.kubeconfig.write_text(config.kubeconfig("oldest", address, keys / "ca.crt", "admin"))
        data = self._directory / "etcd"
        server = config.api_server(build.oldest(), keys, f"http://127.0.0.1:{first}", first + 2)
        try:
            self._launch("etcd", config.etcd(self._kube.program("etcd"), data, first))
            self._launch("kube-apiserver", [*server, "--bind-address=127.0.0.1"])
            wait_for("the oldest API server", self._ready, _START_SECONDS)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def kubectl(self, *arguments: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        """What came of it; the caller looks at the exit code."""
        command = [str(self._kube.program("kubectl")), f"--kubeconfig={self.kubeconfig}", *arguments]
        return subprocess.run(command, input=stdin, capture_output=True, text=True, check=False)

    def _launch(self, name: str, command: Sequence[str]) -> None:
        self._processes[name] = leash.start(command, self._log(name), cwd=self._directory)

    def _ready(self) -> bool:
        for name, process in self._processes.items():
            if process.poll() is not None:
                raise BedError(f"{name} ended with {process.returncode}:\n{tail(self._log(name), 15)}")
        return self.kubectl("get", "--raw", "/readyz").returncode == 0

    def _end(self) -> None:
        for process in self._processes.values():
            leash.end(process)

    def _log(self, name: str) -> Path:
        return self._directory / f"{name}.log"
