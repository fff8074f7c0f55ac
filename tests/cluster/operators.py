"""The operator as a process under its own service account, on whatever cluster the tests run on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.bed.cluster import wait_for
from tests.cluster.installed import NAMESPACE, Installed


class Operator:
    """One `stanch operator` process under its own service account."""

    def __init__(self, config: str, log: Path, **environment: str) -> None:
        self.log = log
        self._config = config
        self._environment = environment
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> Operator:
        own = {"STANCH_HTTP_HOST": "127.0.0.1", "STANCH_HTTP_PORT": "0", "STANCH_NAMESPACE": NAMESPACE}
        environment = {**os.environ, "KUBECONFIG": self._config, **own, **self._environment}
        with self.log.open("ab") as out:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "stanch", "operator"], stdout=out, stderr=out, env=environment
            )
        return self

    @contextmanager
    def twin(self, **environment: str) -> Iterator[Operator]:
        """Another one for the same Lease, not started yet. environment: what it has otherwise."""
        log = self.log.with_name(f"twin-of-{self.log.name}")
        other = Operator(self._config, log, **{**self._environment, **environment})
        try:
            yield other
        finally:
            if other.alive:
                other.stop()

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def kill(self) -> None:
        """SIGKILL: as a node that fails."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def stop(self) -> int:
        """SIGTERM, and its exit code."""
        assert self._process is not None
        self._process.terminate()
        try:
            return self._process.wait(60)
        except subprocess.TimeoutExpired:
            self.kill()
            raise

    def lines(self) -> list[dict[str, Any]]:
        """Its log so far; what is not of the log is left out."""
        found = []
        for line in self.log.read_text().splitlines():
            try:
                found.append(json.loads(line))
            except ValueError:
                continue
        return [line for line in found if isinstance(line, dict)]

    def elected(self) -> bool:
        return any(line["event"] == "elected" for line in self.lines())


@contextmanager
def operating(installed: Installed, directory: Path, **environment: str) -> Iterator[Operator]:
    """An operator that acts, ended at the end. environment: more of its variables."""
    one = Operator(
        installed.kubeconfig(directory / "operator.conf"), directory / "operator.log", **environment
    )
    one.start()
    try:
        wait_for("the operator's election", lambda: one.elected() or _ended(one), 150)
        yield one
    finally:
        if one.alive:
            one.stop()


def _ended(one: Operator) -> bool:
    assert one.alive, one.log.read_text()[-3000:]
    return False
