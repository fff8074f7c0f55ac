"""A LeakWatch with source Prometheus on a real cluster: Debian's Prometheus finds the pods by the API server
and scrapes them, the operator finds the leak by what it scraped and heals it with the engine itself.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.bed import manifests
from tests.bed.cluster import Namespace, wait_for
from tests.cluster.installed import Installed
from tests.cluster.operators import Operator, operating
from tests.cluster.scenes import PATIENCE_S, RESTART, Scene, outcome, steps
from tests.edge.authority import Authority
from tests.engine.processes import free_ports
from tests.prometheus import prometheus

pytestmark = pytest.mark.cluster

# Of user stanch; the hash is bcrypt's, as Prometheus wants it.
PASSWORD = "not-a-secret"
HASH = "$2b$05$abcdefghijklmnopqrstuuVPNOToLP9MHdthRCXkVoiIF0qNKnk2G"


@dataclass
class World:
    """operator: has the table of credentials. plain: a Prometheus that anybody may ask. guarded: one by TLS
    and basic authentication, whose series have other labels. folder: with the file of what they scrape."""

    operator: Operator
    plain: str
    guarded: str
    silent: str
    folder: Path


@pytest.fixture(scope="module")
def world(stanch: Installed, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("prometheus")
    authority, port = Authority(folder), free_ports(1)
    (folder / "password").write_text(PASSWORD)
    guarded = f"https://127.0.0.1:{port}"
    table = [
        {
            "url": guarded,
            "caFile": str(authority.file),
            "basicAuth": {"username": "stanch", "passwordFile": str(folder / "password")},
        }
    ]
    web = {
        "tls_server_config": {"cert_file": str(authority.pair), "key_file": str(authority.pair)},
        "basic_auth_users": {"stanch": HASH},
    }
    with (
        prometheus(folder / "plain", found_by(folder, "namespace", "pod")) as plain,
        prometheus(folder / "guarded", found_by(folder, "team", "replica_of"), port=port, web=web),
        operating(stanch, folder, STANCH_PROMETHEUS_TABLE=str(folder / "table.yaml")) as operator,
    ):
        silent = f"http://127.0.0.1:{free_ports(1)}"
        (folder / "table.yaml").write_text(json.dumps([{"url": plain}, {"url": silent}, *table]))
        yield World(operator, plain, guarded, silent, folder)


def found_by(folder: Path, namespace: str, pod: str) -> dict[str, Any]:
    """The pods in the folder's targets.json (Debian's Prometheus cannot ask an API server), as a PodMonitor's
    relabelling has them, but for the names of the labels."""
    relabel = [
        {"source_labels": ["__meta_namespace"], "target_label": namespace},
        {"source_labels": ["__meta_pod"], "target_label": pod},
    ]
    return {"file_sd_configs": [{"files": [str(folder / "targets.json")]}], "relabel_configs": relabel}


@pytest.fixture
def scene(namespace: Namespace, world: World) -> Scene:
    """A prefill and a decode engine, which both scrape."""
    made = Scene(namespace, world.operator).engines()
    targets = [
        {
            "targets": [f"{ip}:{manifests.PORT}"],
            "labels": {"__meta_namespace": namespace.name, "__meta_pod": pod, "container": "vllm"},
        }
        for pod, ip in made.ips.items()
    ]
    fresh = world.folder / "targets.new"
    fresh.write_text(json.dumps(targets))
    fresh.replace(world.folder / "targets.json")
    return made


def by(url: str, **more: Any) -> dict[str, Any]:
    return {"source": "Prometheus", "prometheus": {"url": url, **more}}


def test_a_leak_is_healed(scene: Scene, world: World) -> None:
    scene.watch(**by(world.plain)).until_watching()
    scene.leak()
    found = scene.ended()
    assert outcome(found) == ("Resolved", "Released"), found["status"]
    assert steps(found) == ["Observe:Done", "Confirm:Done", "Release:Done", "Confirm:Done"]
    assert len(found["status"]["stuckRequests"]) == 3
    assert scene.held("d0") == 0
    scene.let_go("d0")
    assert scene.restarts("d0") == 0
    scene.until_watching()


def test_with_credentials_and_labels_of_ones_own_an_engine_is_restarted(scene: Scene, world: World) -> None:
    labels = {"namespace": "team", "pod": "replica_of"}
    scene.watch(**by(world.guarded, labels=labels), remediation=RESTART).until_watching()
    scene.leak()
    found = scene.ended()
    assert outcome(found) == ("Resolved", "Restarted"), found["status"]
    scene.let_go("d0")
    assert scene.restarts("d0") == 1
    # The new process is read by way of Prometheus again, and the engines work.
    scene.until_watching()
    assert scene.transfer()["usage"]["completion_tokens"] == 4
    assert len(scene.incidents()) == 1


def test_a_watch_says_what_is_wrong_and_goes_on_when_it_is_put_right(scene: Scene, world: World) -> None:
    scene.watch(**by(world.silent))
    scene.until("Ready", "False PrometheusUnreachable")
    scene.leak()
    # Nobody sees it.
    scene.watch(**by(world.plain, matchers={"cluster": "elsewhere"}))
    scene.until("Ready", "False NoSeries")
    scene.watch(**by(f"{world.guarded}/", matchers={"cluster": "elsewhere"}))
    scene.until("Ready", "False NoSeries")
    # What the operator's admin has not listed is not asked, whoever writes the watch.
    scene.watch(**by(f"{world.plain}/elsewhere"))
    scene.until("Ready", "False PrometheusNotAllowed")
    assert scene.incidents() == []
    scene.watch(**by(world.plain))
    assert outcome(scene.ended()) == ("Resolved", "Released")


def test_doctor_and_plan(scene: Scene, world: World) -> None:
    scene.watch(**by(world.plain)).until_watching()
    # Prometheus scrapes each of them when it likes.
    for words, command in (
        (f"{world.plain} has readings of 2 of 2 engines", ("doctor",)),
        ("nothing to do: 2 engines read", ("plan", "shop")),
    ):
        wait_for(words, lambda w=words, c=command: w in said(scene, world, *c), PATIENCE_S)  # type: ignore[misc]


def said(scene: Scene, world: World, *arguments: str) -> str:
    config = str(scene.namespace.cluster.kubeconfig)
    where = ["-n", scene.namespace.name, "--kubeconfig", config]
    table = ["--prometheus-table", str(world.folder / "table.yaml")]
    command = [sys.executable, "-m", "stanch", *arguments, *where, *table]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    assert done.stdout, done.stderr
    return " ".join(done.stdout.split())
