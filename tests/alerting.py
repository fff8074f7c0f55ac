"""Debian's Prometheus and Alertmanager as processes on loopback: a rule over engines, and who hears of it."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

_PATIENCE_S = 60.0
# People's own rule: an engine that holds cache, and nobody waits or is served.
HOLDS = {
    "alert": "EngineHoldsCache",
    "expr": "vllm:kv_cache_usage_perc >= 0.05 and on (namespace, pod, engine) vllm:num_requests_running == 0 "
    "and on (namespace, pod, engine) vllm:num_requests_waiting == 0",
    "labels": {"severity": "page"},
    "annotations": {"summary": "{{ $labels.pod }} holds {{ $value | humanizePercentage }} for nobody"},
}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as one:
        port: int = one.getsockname()[1]
    return port


@dataclass(frozen=True)
class Alertmanager:
    """url: of its API."""

    url: str
    log: Path

    def fire(self, labels: Mapping[str, str], **more: Any) -> None:
        """An alert of whoever may post to it."""
        body = json.dumps([{"labels": dict(labels), **more}]).encode()
        request = urllib.request.Request(
            f"{self.url}/api/v2/alerts", body, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=10):
            pass


@dataclass(frozen=True)
class To:
    """One receiver of ours. http: the http_config of Alertmanager for it."""

    url: str
    http: Mapping[str, Any] = field(default_factory=dict)


@contextmanager
def alertmanager(folder: Path, *to: To) -> Iterator[Alertmanager]:
    """It sends all that it gets to each of these."""
    hooks = [{"url": one.url, "send_resolved": True, "http_config": dict(one.http)} for one in to]
    route = {
        "receiver": "stanch",
        "group_by": ["namespace", "alertname"],
        "group_wait": "0s",
        "group_interval": "1s",
        "repeat_interval": "1h",
    }
    settings = {"route": route, "receivers": [{"name": "stanch", "webhook_configs": hooks}]}
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    log = folder / "alertmanager.log"
    arguments = [
        f"--config.file={_written(folder / 'alertmanager.yml', settings)}",
        f"--storage.path={folder / 'alertmanager'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--cluster.listen-address=",
        "--log.level=debug",
    ]
    with _running("prometheus-alertmanager", arguments, url, log):
        yield Alertmanager(url, log)


@contextmanager
def prometheus(
    folder: Path,
    sends_to: Alertmanager,
    engines: Mapping[str, Mapping[str, str]],
    rules: Sequence[Mapping[str, Any]] = (HOLDS,),
) -> Iterator[str]:
    """It scrapes these addresses (HOST:PORT), each with its labels, once a second; its URL."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    groups = {"groups": [{"name": "engines", "interval": "1s", "rules": list(rules)}]}
    targets = [{"targets": [address], "labels": dict(labels)} for address, labels in engines.items()]
    settings = {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(_written(folder / "rules.yml", groups))],
        "scrape_configs": [{"job_name": "engines", "static_configs": targets}],
        "alerting": {
            "alertmanagers": [{"static_configs": [{"targets": [sends_to.url.removeprefix("http://")]}]}]
        },
    }
    arguments = [
        f"--config.file={_written(folder / 'prometheus.yml', settings)}",
        f"--storage.tsdb.path={folder / 'prometheus'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--log.level=warn",
    ]
    with _running("prometheus", arguments, url, folder / "prometheus.log"):
        yield url


def _written(path: Path, data: object) -> Path:
    path.write_text(json.dumps(data))  # JSON is YAML
    return path


@contextmanager
def _running(program: str, arguments: Sequence[str], url: str, log: Path) -> Iterator[None]:
    found = shutil.which(program)
    if found is None:
        pytest.skip(f"no {program}: apt-get install prometheus prometheus-alertmanager")
    with log.open("wb") as out:
        process = subprocess.Popen([found, *arguments], stdout=out, stderr=out)
    try:
        end = time.monotonic() + _PATIENCE_S
        while not _ready(url):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < end, log.read_text()
            time.sleep(0.05)
        yield
    finally:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(20)
        process.kill()
        process.wait()


def _ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/-/ready", timeout=5):
            return True
    except OSError:
        return False
