"""The ladder on real pods: found, confirmed, released; restarted in place; evicted; and left alone."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.bed.cluster import Cluster, Namespace, wait_for
from tests.cluster.installed import installed
from tests.cluster.scenes import PATIENCE_S, Operator, Scene, ending, operating, steps

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def operator(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operator]:
    directory = tmp_path_factory.mktemp("operator")
    with installed(cluster, directory) as found, operating(found, directory) as one:
        yield one


@pytest.fixture
def scene(namespace: Namespace, operator: Operator) -> Scene:
    return Scene(namespace)


def test_a_leak_is_released_and_the_engine_serves_on(scene: Scene, operator: Operator) -> None:
    scene.engines().watch().until_watching()
    scene.leak()
    assert scene.held("d0") == 3
    found = scene.ended()
    assert ending(found) == "Resolved"
    assert found["status"]["code"] == "Released"
    assert steps(found) == ["Observe:Done", "Confirm:Done", "Release:Done", "Confirm:Done"]
    assert len(found["status"]["stuckRequests"]) == 3
    assert scene.held("d0") == 0
    assert scene.restarts("d0") == 0
    wait_for("nothing of ours on the pod", lambda: not scene.marks("d0"), PATIENCE_S)
    told = [line for line in operator.lines() if line["event"] == "stuck-request"]
    assert len([line for line in told if line["incident"].startswith(scene.namespace.name)]) == 3


def test_a_leak_that_may_not_be_released_is_cordoned_drained_and_restarted_in_place(scene: Scene) -> None:
    scene.engines().watch(remediation={"steps": ["Restart"], "drainSeconds": 5}).until_watching()
    before = scene.namespace.pod("d0")
    assert before is not None
    scene.leak()
    wait_for("d0 not ready", lambda: not scene.ready("d0"), PATIENCE_S)
    found = scene.ended()
    assert ending(found) == "Resolved", json.dumps(found["status"], indent=1)
    assert [step.partition(":")[0] for step in steps(found)] == [
        "Observe", "Confirm", "Cordon", "Drain", "Capture", "Confirm", "Restart", "Verify", "Uncordon",
    ]  # fmt: skip
    after = scene.namespace.pod("d0")
    assert after is not None
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert after["status"]["podIP"] == before["status"]["podIP"]
    assert scene.restarts("d0") == 1
    assert scene.ready("d0")
    assert scene.marks("d0") == {}
    assert scene.held("d0") == 0


def test_observe_touches_nothing_and_says_what_it_would_do(scene: Scene) -> None:
    scene.engines().watch("Observe").until_watching()
    scene.leak()
    found = scene.ended()
    assert ending(found) == "WouldDo"
    assert [step for step in steps(found) if "Done" not in step] == ["Release:WouldDo"]
    assert scene.marks("d0") == {}
    assert scene.held("d0") == 3
    assert scene.ready("d0")
