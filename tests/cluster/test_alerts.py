"""Alerts as a trigger on a real cluster: Debian's Prometheus and Alertmanager, and simulated engines.

Alertmanager sends each alert to two operators, of which one acts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from stanch_connector.contract import ROUTE_REQUESTS
from tests.alerting import HOLDS, Alertmanager, To, alertmanager, prometheus
from tests.bed import manifests
from tests.bed.cluster import Namespace, Object, wait_for
from tests.cluster.installed import Installed
from tests.cluster.operators import Operator, operating
from tests.cluster.scenes import PATIENCE_S, Scene, outcome, steps
from tests.engine.processes import free_ports

pytestmark = pytest.mark.cluster

TOKEN = "alerts-of-the-cluster-tests"
# What the watchdog itself waits for.
PATIENT = dict.fromkeys(("heldIdleSeconds", "deferredStallSeconds", "queueDeadlockSeconds"), 3600)
PROOF_S = 20


@dataclass
class Alerting:
    operator: Operator
    manager: Alertmanager


@pytest.fixture(scope="module")
def alerting(stanch: Installed, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Alerting]:
    folder = tmp_path_factory.mktemp("alerting")
    (folder / "token").write_text(TOKEN)
    first = free_ports(2)
    ports = first, first + 1
    token = {"STANCH_ALERTS_TOKEN_FILE": str(folder / "token")}
    http = {"authorization": {"credentials_file": str(folder / "token")}}
    to = [To(f"http://127.0.0.1:{port}/alerts/v4", http) for port in ports]
    with (
        operating(stanch, folder, STANCH_ALERTS_PORT=str(ports[0]), **token) as operator,
        alertmanager(folder, *to) as manager,
    ):
        config = stanch.kubeconfig(folder / "twin.conf")
        twin = Operator(config, folder / "twin.log", STANCH_ALERTS_PORT=str(ports[1]), **token).start()
        try:
            for one in (operator, twin):
                wait_for("its receiver", lambda one=one: taken(one), PATIENCE_S)  # type: ignore[misc]
            yield Alerting(operator, manager)
            assert not twin.elected()
        finally:
            assert twin.stop() == 0


def taken(operator: Operator) -> bool:
    assert operator.alive, operator.log.read_text()
    return any(line["event"] == "alerts-taken" for line in operator.lines())


@pytest.fixture
def scene(namespace: Namespace, alerting: Alerting) -> Scene:
    return Scene(namespace, alerting.operator)


def alert(scene: Scene, pod: str, **labels: str) -> dict[str, str]:
    return {"alertname": "EngineHoldsCache", "namespace": scene.namespace.name, "pod": pod, **labels}


def of(incident: Object) -> dict[str, Any]:
    found: dict[str, Any] = incident["spec"]["trigger"]
    return found


def test_a_rule_fires_the_engine_is_healed_and_the_alert_ends(
    scene: Scene, alerting: Alerting, tmp_path: Path
) -> None:
    """The alert comes first, and waits for the proof."""
    scene.engines().watch(signatures={**PATIENT, "parkedRemoteKvSeconds": PROOF_S}).until_watching()
    targets = {
        f"{scene.ips[pod]}:{manifests.PORT}": {"namespace": scene.namespace.name, "pod": pod}
        for pod in ("p0", "d0")
    }
    # A prefill engine holds blocks on purpose.
    rule = {**HOLDS, "expr": f'({HOLDS["expr"]}) and on (pod) up{{pod=~"d.*"}}'}
    with prometheus(tmp_path, alerting.manager, targets, [rule]):
        scene.leak()
        made = wait_for("the alert's incident", scene.incident, PATIENCE_S)
        trigger = of(made)
        assert (trigger["type"], trigger["by"], trigger["alert"]["name"]) == (
            "Alert",
            "stanch",
            "EngineHoldsCache",
        )
        assert made["spec"]["podRef"]["name"] == "d0"
        assert scene.held("d0") == 3
        found = scene.ended()
        assert outcome(found) == ("Resolved", "Released"), found["status"]
        assert steps(found) == ["Confirm:Done", "Release:Done", "Confirm:Done"]
        assert len(found["status"]["stuckRequests"]) == 3
        assert min(one["ageSeconds"] for one in found["status"]["stuckRequests"]) >= PROOF_S
        assert scene.held("d0") == 0
        assert scene.restarts("d0") == 0
        wait_for("the end of the alert", lambda: resolved(scene), PATIENCE_S)
    assert len(scene.incidents()) == 1
    events = ("get", "events.events.k8s.io", "-o", "wide")
    wait_for("its Event", lambda: "AlertResolved" in scene.namespace.kubectl(*events), PATIENCE_S)
    told = f"-l=stanch.dev/alert={trigger['alert']['fingerprint']}"
    assert found["metadata"]["name"] in scene.namespace.kubectl("get", "leakincidents", told)


def resolved(scene: Scene) -> bool:
    (one,) = scene.incidents()
    return "alertResolved" in one["status"]


def test_healthy_engines_are_asked_and_left_alone(scene: Scene, alerting: Alerting) -> None:
    """With a kit its empty list is the answer, without one a canary."""
    scene.engines().engines(prefill=(), decode=("d1",), kit=False, arguments=("--no-kit",))
    scene.watch().until_watching()
    for pod in ("d0", "d1"):
        alerting.manager.fire(alert(scene, pod))
    ends = {one["spec"]["podRef"]["name"]: one for one in (scene.ended(0), scene.ended(1))}
    for pod in ("d0", "d1"):
        assert outcome(ends[pod])[0] == "Recovered", ends[pod]["status"]
        assert steps(ends[pod]) == ["Confirm:Done"]
        assert (scene.marks(pod), scene.restarts(pod), scene.ready(pod)) == ({}, 0, True)
    # Repeated, it is the same alert: both operators have heard it by now.
    alerting.manager.fire(alert(scene, "d0"))
    assert len(scene.incidents()) == 2


def test_a_leak_under_traffic_is_looked_at_at_once(scene: Scene, alerting: Alerting) -> None:
    """Of an engine that serves, the watchdog looks at the kit's list once in five limits."""
    scene.engines().watch(signatures={**PATIENT, "parkedRemoteKvSeconds": PROOF_S}).until_watching()
    scene.leak()
    with scene.traffic("d0"):
        wait_for("the proof", lambda: oldest(scene, "d0") > PROOF_S, PATIENCE_S)
        alerting.manager.fire(alert(scene, "d0"))
        wait_for(
            "the alert's incident",
            lambda: any(of(one)["type"] == "Alert" for one in scene.incidents()),
            PATIENCE_S,
        )
        found = scene.ended()
    assert outcome(found) == ("Resolved", "Released"), found["status"]
    assert max(one["ageSeconds"] for one in found["status"]["stuckRequests"]) < 4 * PROOF_S
    assert (scene.held("d0"), scene.restarts("d0")) == (0, 0)


def oldest(scene: Scene, pod: str) -> float:
    """Seconds, by the kit's own list."""
    ranks = scene.ask(pod, ROUTE_REQUESTS)["ranks"].values()
    return max((one["ageSeconds"] for rank in ranks for one in rank["requests"]), default=0.0)


def test_under_observe_it_ends_by_saying_what_would_be_done(scene: Scene, alerting: Alerting) -> None:
    scene.engines().watch("Observe", signatures={**PATIENT, "parkedRemoteKvSeconds": 3}).until_watching()
    scene.leak()
    alerting.manager.fire(alert(scene, "d0"))
    assert outcome(scene.ended())[0] == "WouldDo"
    assert (scene.held("d0"), scene.marks("d0")) == (3, {})


def test_a_pod_that_no_watch_means(scene: Scene, alerting: Alerting) -> None:
    scene.engines(prefill=())
    alerting.manager.fire(alert(scene, "d0"))
    found = scene.ended()
    assert outcome(found) == ("NotWatched", "NotWatched")
    assert scene.marks("d0") == {}


def test_a_pod_by_its_address_and_one_that_is_none(scene: Scene, alerting: Alerting) -> None:
    scene.engines(prefill=()).watch().until_watching()
    labels = {"alertname": "EngineHoldsCache", "instance": f"{scene.ips['d0']}:{manifests.PORT}"}
    alerting.manager.fire(alert(scene, "d9"))
    alerting.manager.fire(labels)
    found = scene.ended()
    assert (found["spec"]["podRef"]["name"], outcome(found)[0]) == ("d0", "Recovered")

    def told() -> bool:
        lines = [one for one in scene.operator.lines() if one["event"] == "alert-without-pod"]
        return any(
            f"there is no pod d9 in namespace {scene.namespace.name}" in one["message"] for one in lines
        )

    wait_for("the line in the log", told, PATIENCE_S)
    assert len(scene.incidents()) == 1
