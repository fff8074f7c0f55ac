"""The operator of bench.operator: the real process, and what it says of itself on /metrics."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from collections import Counter
from pathlib import Path
from types import TracebackType

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from bench.scrape import Usage, usage
from tests.bed.cluster import wait_for
from tests.cluster.installed import NAMESPACE


class OperatorProcess:
    """A context: elected when entered, ended by SIGTERM. profile: where cProfile writes what it saw."""

    def __init__(self, kubeconfig: str, log: Path, profile: Path | None) -> None:
        self._log = log
        module = ["bench.operator_profile", str(profile)] if profile else ["stanch", "operator"]
        self._command = [sys.executable, "-m", *module]
        own = {"STANCH_HTTP_HOST": "127.0.0.1", "STANCH_HTTP_PORT": "0", "STANCH_NAMESPACE": NAMESPACE}
        self._environment = {**os.environ, **own, "KUBECONFIG": kubeconfig}

    def __enter__(self) -> OperatorProcess:
        with self._log.open("wb") as out:
            self._process = subprocess.Popen(self._command, stdout=out, stderr=out, env=self._environment)
        self._port = wait_for("the operator's port", lambda: self._said("started", "port"))
        wait_for("the operator's election", lambda: self._said("elected", "event"))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.terminate()
        self._process.wait()

    def _said(self, event: str, key: str) -> object:
        if self._process.poll() is not None:
            raise SystemExit(f"the operator ended:\n{self._log.read_text()[-3000:]}")
        for line in self._log.read_text().splitlines():
            if line.startswith("{") and (found := json.loads(line)).get("event") == event:
                value: object = found[key]
                return value
        return None

    def trouble(self) -> dict[str, int]:
        """How often its log says that something of its own went wrong."""
        said = [json.loads(line)["event"] for line in self._log.read_text().splitlines() if line[:1] == "{"]
        return {event: said.count(event) for event in ("watchdog-failed", "turn-failed", "not-elected")}

    def used(self) -> Usage:
        return usage(self._process.pid)

    def _samples(self, name: str) -> list[Sample]:
        with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/metrics", timeout=30) as answer:
            text = answer.read().decode()
        return [
            one
            for family in text_string_to_metric_families(text)
            for one in family.samples
            if one.name == name
        ]

    def healthy(self) -> int:
        """Engines that its last turn called healthy."""
        found = self._samples("stanch_engines")
        return int(sum(one.value for one in found if one.labels["state"].lower() == "healthy"))

    def open_incidents(self) -> int:
        return int(sum(one.value for one in self._samples("stanch_incidents_open")))

    def ended(self) -> dict[str, int]:
        """Incidents so far, by how they ended; by its log, since a watch's metrics go when the Lease does."""
        lines = [json.loads(line) for line in self._log.read_text().splitlines() if line[:1] == "{"]
        return Counter(str(line["ending"]) for line in lines if line["event"] == "incident-ended")

    def requests(self) -> dict[tuple[str, str], int]:
        """To the API server so far, by verb and resource."""
        found: dict[tuple[str, str], int] = {}
        for one in self._samples("stanch_api_requests_total"):
            key = one.labels["verb"], one.labels["resource"]
            found[key] = found.get(key, 0) + int(one.value)
        return found
