"""Debian's Prometheus as a process on loopback; and what else of Debian's is started as it is."""

from __future__ import annotations

import json
import shutil
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.engine.processes import free_ports

_START_S, _END_S = 120.0, 20.0


def static(
    targets: Mapping[str, Mapping[str, str]], relabel: Sequence[Mapping[str, Any]] = ()
) -> dict[str, Any]:
    """A scrape_config of these addresses (host:port), each with its labels. relabel: of the series."""
    configs = [{"targets": [address], "labels": dict(labels)} for address, labels in targets.items()]
    return {"metric_relabel_configs": list(relabel), "static_configs": configs}


@contextmanager
def prometheus(
    folder: Path,
    scrape: Mapping[str, Any],
    seconds: float = 1.0,
    port: int = 0,
    web: Mapping[str, Any] | None = None,
    rules: Sequence[Path] = (),
    alertmanagers: Sequence[str] = (),
) -> Iterator[str]:
    """It scrapes that every so many seconds; its URL. port: 0 for a free one. web: its TLS and who may ask.
    rules: files of rules. alertmanagers: who hears of alerts (host:port). Skips where it is not installed."""
    every = f"{int(seconds * 1000)}ms"
    settings = {
        "global": {"scrape_interval": every, "scrape_timeout": every, "evaluation_interval": every},
        "rule_files": [str(path) for path in rules],
        "scrape_configs": [{"job_name": "vllm", **scrape}],
        "alerting": {"alertmanagers": [{"static_configs": [{"targets": list(alertmanagers)}]}]},
    }
    folder.mkdir(parents=True, exist_ok=True)
    port = port or free_ports(1)
    arguments = [
        f"--config.file={written(folder / 'prometheus.yml', settings)}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
        f"--web.config.file={written(folder / 'web.yml', web or {})}",
        "--log.level=error",
    ]
    url = f"{'https' if web and 'tls_server_config' in web else 'http'}://127.0.0.1:{port}"
    with running("prometheus", arguments, url, folder / "prometheus.log"):
        yield url


@contextmanager
def running(program: str, arguments: Sequence[str], url: str, log: Path) -> Iterator[None]:
    """Of Debian's packages; from when it is ready. Skips where it is not installed."""
    found = shutil.which(program)
    if found is None:
        pytest.skip(f"no {program}: apt-get install prometheus prometheus-alertmanager")
    with log.open("wb") as out:
        process = subprocess.Popen([found, *arguments], stdout=out, stderr=out)
    try:
        end = time.monotonic() + _START_S
        while not _ready(url):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < end, log.read_text()
            time.sleep(0.05)
        yield
    finally:
        process.terminate()
        try:
            process.wait(_END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def written(path: Path, data: object) -> Path:
    path.write_text(json.dumps(data, ensure_ascii=False))  # JSON is YAML
    return path


def _ready(url: str) -> bool:
    """Whether it serves, to whomever."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with urllib.request.urlopen(f"{url}/-/ready", timeout=5, context=context):
            return True
    except urllib.error.HTTPError as error:
        with error:
            return error.code == 401
    except OSError:
        return False
