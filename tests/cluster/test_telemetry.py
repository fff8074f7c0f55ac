"""What a real operator tells of a real repair: metrics, health, log lines and Events that agree."""

from __future__ import annotations

import urllib.request
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from stanch.edge.cluster.events import REPORTER
from tests.bed.cluster import Namespace, wait_for
from tests.cluster.installed import Installed
from tests.cluster.operators import Operator, operating
from tests.cluster.scenes import PATIENCE_S, Scene, ending

pytestmark = pytest.mark.cluster


def page(operator: Operator, path: str) -> str:
    port = next(line["port"] for line in operator.lines() if "port" in line)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as answer:
        text: str = answer.read().decode()
        return text


def series(operator: Operator) -> dict[tuple[str, ...], float]:
    """By name and labels' values, in the order of the labels' names."""
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(page(operator, "/metrics"))
        for sample in family.samples
    }


def events(namespace: Namespace, kind: str) -> dict[str, dict[str, Any]]:
    """Of Stanch, by reason."""
    found = namespace.cluster.api(f"/apis/events.k8s.io/v1/namespaces/{namespace.name}/events")["items"]
    ours = [
        one
        for one in found
        if one["regarding"]["kind"] == kind and one.get("reportingController") == REPORTER
    ]
    return {one["reason"]: one for one in ours}


def test_a_repair_as_it_is_told(namespace: Namespace, stanch: Installed, tmp_path: Path) -> None:
    name = namespace.name
    with operating(stanch, tmp_path) as operator:
        scene = Scene(namespace, operator)
        scene.engines().watch(remediation={"steps": ["Restart"], "drainSeconds": 1}).until_watching()
        scene.leak()
        incident = scene.ended()
        assert ending(incident) == "Resolved", incident["status"]
        whose = f"{name}/{incident['metadata']['name']}"

        found = wait_for(
            "the metrics of a turn after the end",
            lambda: s if (s := series(operator)).get(("stanch_incidents_open", name, "shop")) == 0 else None,
            PATIENCE_S,
        )
        assert found["stanch_active",] == 1
        assert found["stanch_incidents_opened_total", name, "ParkedRemoteKV", "shop"] == 1
        assert found["stanch_incidents_ended_total", "Resolved", name, "shop"] == 1
        assert found["stanch_stuck_requests_found_total", name, "shop"] == 3
        for step in ("Cordon", "Drain", "Capture", "Restart", "Verify", "Uncordon"):
            assert found["stanch_step_seconds_count", "Done", step] == 1, step
        assert found["stanch_detect_to_cordon_seconds_count", "no"] == 1
        assert found["stanch_api_requests_total", "200", "pods", "patch"] >= 2
        assert page(operator, "/healthz") == page(operator, "/readyz") == "ok\n"

        lines = [line for line in operator.lines() if line.get("incident") == whose]
        kinds = [line["event"] for line in lines]
        assert kinds[0] == "incident-opened"
        assert kinds[-1] == "incident-ended"
        assert kinds.count("stuck-request") == 3
        told = [f"{line['step']}:{line['outcome']}" for line in lines if line["event"] == "step-ended"]
        written = [f"{one['name']}:{one['outcome']}" for one in incident["status"]["steps"]]
        assert told == written

        def reasons() -> dict[str, dict[str, Any]] | None:
            seen = events(namespace, "Pod")
            return seen if "Resolved" in seen else None

        on_pod = wait_for("the Events", reasons, PATIENCE_S)
        assert {"LeakConfirmed", "Cordoned", "Captured", "Restarting", "Restarted"} <= on_pod.keys()
        stuck = [one["id"] for one in incident["status"]["stuckRequests"]]
        assert all(one in on_pod["Captured"]["note"] for one in stuck)
        assert on_pod["LeakConfirmed"]["type"] == "Warning"
        wait_for(
            "the watch's own",
            lambda: {"LeakConfirmed", "Resolved"} <= events(namespace, "LeakWatch").keys(),
            PATIENCE_S,
        )
