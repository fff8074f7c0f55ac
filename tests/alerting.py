"""Debian's Prometheus and Alertmanager as processes on loopback: a rule over engines, and who hears of it."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests import prometheus as real
from tests.engine.processes import free_ports
from tests.prometheus import running, written

# People's own rule: an engine that holds cache, and nobody waits or is served.
HOLDS = {
    "alert": "EngineHoldsCache",
    "expr": "vllm:kv_cache_usage_perc >= 0.05 and on (namespace, pod, engine) vllm:num_requests_running == 0 "
    "and on (namespace, pod, engine) vllm:num_requests_waiting == 0",
    "labels": {"severity": "page"},
    "annotations": {"summary": "{{ $labels.pod }} holds {{ $value | humanizePercentage }} for nobody"},
}


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
    port = free_ports(1)
    url = f"http://127.0.0.1:{port}"
    log = folder / "alertmanager.log"
    arguments = [
        f"--config.file={written(folder / 'alertmanager.yml', settings)}",
        f"--storage.path={folder / 'alertmanager'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--cluster.listen-address=",
        "--log.level=debug",
    ]
    with running("prometheus-alertmanager", arguments, url, log):
        yield Alertmanager(url, log)


@contextmanager
def prometheus(
    folder: Path,
    sends_to: Alertmanager,
    engines: Mapping[str, Mapping[str, str]],
    rules: Sequence[Mapping[str, Any]] = (HOLDS,),
) -> Iterator[str]:
    """It scrapes these addresses (HOST:PORT), each with its labels, once a second; its URL."""
    groups = {"groups": [{"name": "engines", "interval": "1s", "rules": list(rules)}]}
    told = [sends_to.url.removeprefix("http://")]
    files = [written(folder / "rules.yml", groups)]
    with real.prometheus(folder, real.static(engines), rules=files, alertmanagers=told) as url:
        yield url
