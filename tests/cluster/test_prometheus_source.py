"""A LeakWatch with source Prometheus on a real cluster: Debian's Prometheus finds the pods by the API server and
scrapes them, the operator finds the leak by what it scraped and heals it with the engine itself.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tests.bed import manifests
from tests.bed.cluster import Cluster, Namespace, wait_for
from tests.cluster.installed import Installed
from tests.cluster.operators import Operator, operating
from tests.cluster.scenes import PATIENCE_S, RESTART, Scene, outcome, steps
from tests.edge.authority import Authority
from tests.edge.prometheus_server import free_port, prometheus

pytestmark = pytest.mark.cluster

# Of user stanch; the hash is bcrypt's, as Prometheus wants it.
PASSWORD = "not-a-secret"
HASH = "$2b$05$abcdefghijklmnopqrstuuVPNOToLP9MHdthRCXkVoiIF0qNKnk2G"


@dataclass
class World:
    """operator: has the table of credentials. plain: a Prometheus that anybody may ask. guarded: one by TLS and
    basic authentication, whose series have other labels."""

    operator: Operator
    plain: str
    guarded: str


@pytest.fixture(scope="module")
def world(cluster: Cluster, stanch: Installed, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("prometheus")
    authority, port = Authority(folder), free_port()
    (folder / "password").write_text(PASSWORD)
    guarded = f"https://127.0.0.1:{port}"
    table = [
        {
            "url": guarded,
            "caFile": str(authority.file),
            "basicAuth": {"username": "stanch", "passwordFile": str(folder / "password")},
        }
    ]
    (folder / "table.yaml").write_text(json.dumps(table))
    web = {
        "tls_server_config": {"cert_file": str(authority.pair), "key_file": str(authority.pair)},
        "basic_auth_users": {"stanch": HASH},
    }
    with (
        prometheus(folder / "plain", found_by(cluster, "namespace", "pod")) as plain,
        prometheus(folder / "guarded", found_by(cluster, "team", "replica_of"), port=port, web=web),
        operating(stanch, folder, STANCH_PROMETHEUS_TABLE=str(folder / "table.yaml")) as operator,
    ):
        yield World(operator, plain, guarded)


def found_by(cluster: Cluster, namespace: str, pod: str) -> dict[str, Any]:
    """Every engine's pod, as a PodMonitor's relabelling has it, but for the names of its labels."""
    meta = "__meta_kubernetes"
    return {
        "kubernetes_sd_configs": [{"role": "pod", "kubeconfig_file": str(cluster.kubeconfig)}],
        "relabel_configs": [
            {"source_labels": [f"{meta}_pod_label_app"], "regex": manifests.APP, "action": "keep"},
            {"source_labels": [f"{meta}_pod_container_port_name"], "regex": "http", "action": "keep"},
            {"source_labels": [f"{meta}_namespace"], "target_label": namespace},
            {"source_labels": [f"{meta}_pod_name"], "target_label": pod},
            {"source_labels": [f"{meta}_pod_container_name"], "target_label": "container"},
        ],
    }


@pytest.fixture
def scene(namespace: Namespace, world: World) -> Scene:
    return Scene(namespace, world.operator)


def by(url: str, **more: Any) -> dict[str, Any]:
    return {"source": "Prometheus", "prometheus": {"url": url, **more}}


def test_a_leak_is_healed(scene: Scene, world: World) -> None:
    scene.engines().watch(**by(world.plain)).until_watching()
    scene.leak()
    found = scene.ended()
    assert outcome(found) == ("Resolved", "Released"), found["status"]
    assert steps(found) == ["Observe:Done", "Confirm:Done", "Release:Done", "Confirm:Done"]
    assert len(found["status"]["stuckRequests"]) == 3
    assert scene.held("d0") == 0
    scene.let_go("d0")
    assert scene.restarts("d0") == 0
    assert scene.condition("Ready") == "True Watching"


def test_with_credentials_and_labels_of_ones_own_an_engine_is_restarted(scene: Scene, world: World) -> None:
    labels = {"namespace": "team", "pod": "replica_of"}
    scene.engines().watch(**by(world.guarded, labels=labels), remediation=RESTART).until_watching()
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
    scene.engines().watch(**by(f"http://127.0.0.1:{free_port()}"))
    wait_for("unreachable", lambda: scene.condition("Ready") == "False PrometheusUnreachable", PATIENCE_S)
    scene.leak()
    # Nobody sees it.
    scene.watch(**by(world.plain, matchers={"cluster": "elsewhere"}))
    wait_for("no series", lambda: scene.condition("Ready") == "False NoSeries", PATIENCE_S)
    scene.watch(**by(f"{world.guarded}/"))
    wait_for("no series there", lambda: scene.condition("Ready") == "False NoSeries", PATIENCE_S)
    assert scene.incidents() == []
    scene.watch(**by(world.plain))
    assert outcome(scene.ended()) == ("Resolved", "Released")


def test_doctor_and_plan(scene: Scene, world: World) -> None:
    scene.engines().watch(**by(world.plain)).until_watching()
    told = said(scene, "doctor")
    assert f"{world.plain} has readings of 2 of 2 engines" in told
    assert "nothing to do: 2 engines read" in said(scene, "plan", "shop")


def said(scene: Scene, *arguments: str) -> str:
    config = str(scene.namespace.cluster.kubeconfig)
    command = [sys.executable, "-m", "stanch", *arguments, "-n", scene.namespace.name, "--kubeconfig", config]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    assert done.stdout, done.stderr
    return " ".join(done.stdout.split())
