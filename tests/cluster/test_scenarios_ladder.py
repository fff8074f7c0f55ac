"""The ladder on real pods: found, confirmed, released; restarted in place; evicted; and what stops it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.bed import manifests
from tests.bed.cluster import wait_for
from tests.cluster.scenes import BUSY_TOKENS, PATIENCE_S, RESTART, Scene, ending, outcome, steps
from tests.cluster.together import scenario

pytestmark = pytest.mark.cluster


@scenario
def test_a_leak_is_released_and_the_engine_serves_on(scene: Scene) -> None:
    scene.engines().watch().until_watching()
    scene.leak()
    found = scene.ended()
    assert ending(found) == "Resolved"
    assert found["status"]["code"] == "Released"
    assert steps(found) == ["Observe:Done", "Confirm:Done", "Release:Done", "Confirm:Done"]
    assert len(found["status"]["stuckRequests"]) == 3
    assert scene.held("d0") == 0
    assert scene.restarts("d0") == 0
    wait_for("nothing of ours on the pod", lambda: not scene.marks("d0"), PATIENCE_S)
    told = [line for line in scene.operator.lines() if line["event"] == "stuck-request"]
    assert len([line for line in told if line["incident"].startswith(scene.namespace.name)]) == 3


@scenario
def test_a_second_leak_after_a_release_is_another_episode(scene: Scene) -> None:
    scene.engines().watch().until_watching()
    scene.leak()
    first = scene.ended()
    scene.leak()
    second = scene.ended(1)
    assert [one["status"]["code"] for one in (first, second)] == ["Released", "Released"]
    assert [one["status"]["episode"] for one in (first, second)] == [1, 2]
    failures = scene.watched()["status"]["failures"]
    assert [one["incident"] for one in failures] == [second["metadata"]["name"]]
    assert scene.restarts("d0") == 0


@scenario
def test_a_leak_that_may_not_be_released_is_cordoned_drained_and_restarted_in_place(scene: Scene) -> None:
    scene.engines().watch(remediation=RESTART).until_watching()
    before = pod(scene, "d0")
    healthy = scene.busy("d0")
    scene.leak()
    wait_for("d0 not ready", lambda: not scene.ready("d0"), PATIENCE_S)
    assert healthy.result()["usage"]["completion_tokens"] == BUSY_TOKENS  # not lost
    found = scene.ended()
    assert ending(found) == "Resolved", json.dumps(found["status"], indent=1)
    assert [step.partition(":")[0] for step in steps(found)] == [
        "Observe", "Confirm", "Cordon", "Drain", "Capture", "Confirm", "Restart", "Verify", "Uncordon",
    ]  # fmt: skip
    after = pod(scene, "d0")
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert after["status"]["podIP"] == before["status"]["podIP"]
    assert scene.restarts("d0") == 1
    assert scene.ready("d0")
    assert scene.marks("d0") == {}
    assert scene.held("d0") == 0


@scenario
def test_observe_touches_nothing_and_says_what_it_would_do(scene: Scene) -> None:
    scene.engines().watch("Observe").until_watching()
    scene.leak()
    found = scene.ended()
    assert ending(found) == "WouldDo"
    assert [step for step in steps(found) if "Done" not in step] == ["Release:WouldDo"]
    assert scene.marks("d0") == {}
    assert scene.held("d0") == 3
    assert scene.ready("d0")


@scenario
def test_when_all_leak_at_once_they_are_restarted_one_after_another_the_worst_first(scene: Scene) -> None:
    names = ("d0", "d1", "d2")
    scene.engines(decode=names)
    for name, requests in zip(names, (2, 3, 5), strict=True):
        scene.leak(name, requests=requests)
    scene.watch_leaking(3)
    out: set[int] = set()

    def all_done() -> bool:
        out.add(sum(not scene.ready(name) for name in names))
        found = scene.incidents()
        return len(found) == 3 and all(one.get("status", {}).get("ending") for one in found)

    wait_for("all ended", all_done, 3 * PATIENCE_S)
    by_pod = {one["spec"]["podRef"]["name"]: one for one in scene.incidents()}
    assert [ending(by_pod[name]) for name in names] == ["Resolved"] * 3
    for name in names:
        scene.let_go(name)
    assert [scene.restarts(name) for name in names] == [1, 1, 1]
    assert max(out) == 1
    begun = {name: step_of(by_pod[name], "Cordon")["start"] for name in names}
    assert sorted(names, key=lambda name: begun[name]) == ["d2", "d1", "d0"]
    for before, after in (("d2", "d1"), ("d1", "d0")):
        # Each began after the one before had been given back.
        assert begun[after] >= step_of(by_pod[before], "Uncordon")["end"]


@scenario
def test_a_leak_that_recurs_opens_the_breaker_until_a_person_closes_it(scene: Scene) -> None:
    scene.engines().watch(remediation={**RESTART, "breaker": {"failures": 2}}).until_watching()
    for number in range(2):
        scene.leak()
        assert scene.ended(number)["status"]["code"] == "Restarted"
    scene.leak()
    scene.until("Degraded", "True BreakerOpen")
    wait_for("the reason", lambda: scene.reason("d0") == "BreakerOpen", PATIENCE_S)
    wait_for("d0 ready", lambda: scene.ready("d0"), PATIENCE_S)
    assert scene.restarts("d0") == 2
    scene.namespace.kubectl("annotate", "leakwatch", "shop", "stanch.dev/reset-breaker=seen")
    assert scene.ended(2)["status"]["code"] == "Restarted"
    scene.let_go("d0")
    assert scene.restarts("d0") == 3


@scenario
def test_a_pod_without_the_kit_is_evicted_and_its_disruption_budget_honoured(scene: Scene) -> None:
    budget = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "two-at-least"},
        "spec": {"minAvailable": 2, "selector": {"matchLabels": {"app": manifests.APP, "role": "decode"}}},
    }
    without = ("--no-kit",)
    scene.namespace.apply(manifests.deployment("decode", "decode", 2, without, kit=False), budget)
    scene.engines(decode=(), arguments=without, kit=False)
    names = scene.deployed("decode", 2)
    wait_for("the budget's count", lambda: scene.allowed_disruptions("two-at-least") == 0, PATIENCE_S)
    scene.watch().until_watching()
    scene.leak(names[0])
    found = wait_for("its wait", lambda: _waits(scene, "DisruptionBudget"), PATIENCE_S)
    assert "two-at-least" in found["status"]["wait"]
    assert scene.namespace.pod(names[0]) is not None
    budget["spec"]["minAvailable"] = 1  # type: ignore[index]
    scene.namespace.apply(budget)
    ended = scene.ended()
    assert (ending(ended), ended["status"]["code"]) == ("Resolved", "Evicted")
    wait_for("the pod gone", lambda: scene.namespace.pod(names[0]) is None, PATIENCE_S)


@scenario
def test_a_cordon_without_effect_restarts_nothing(scene: Scene) -> None:
    """A router that picks pods by itself."""
    scene.engines().watch(remediation=RESTART).until_watching()
    scene.leak()
    with scene.traffic("d0"):
        found = scene.ended()
    assert (ending(found), found["status"]["code"]) == ("Escalated", "CordonIneffective")
    assert "requests still arrive at d0" in found["status"]["detail"]
    assert scene.restarts("d0") == 0
    scene.let_go("d0")
    scene.until("Degraded", "True Escalated")


@scenario
def test_peers_that_fail_after_a_restart_stop_the_repairs(scene: Scene) -> None:
    """The restarted engine is verified through each live peer; one that fails is named, and all stops."""
    scene.engines(prefill=("p0", "p1"), decode=("d0", "d1")).watch(remediation=RESTART).until_watching()
    for peer in ("p0", "p1"):
        scene.transfer("d0", peer)
    scene.draining("d0")
    scene.ask("p1", "/sim/refuse", {"reads": True})
    found = scene.ended(deadline_s=2 * PATIENCE_S)
    assert outcome(found) == ("Failed", "NotVerified")
    assert "through p1" in found["status"]["detail"]
    assert "through p0" not in found["status"]["detail"]
    assert steps(found).count("Verify:Failed") == 3
    scene.until("Degraded", "True BreakerOpen")
    scene.let_go("d0")
    scene.leak("d1")
    wait_for("the reason", lambda: scene.reason("d1") == "BreakerOpen", PATIENCE_S)
    assert (scene.restarts("d0"), scene.restarts("d1")) == (1, 0)
    assert scene.ready("d1")


@scenario
def test_a_restart_that_does_not_come_back_keeps_its_place_in_the_budget(scene: Scene) -> None:
    once = "import os, sys; open('/state/once', 'x'); os.execvp(sys.argv[1], sys.argv[1:])"
    broken = manifests.engine("d0", "decode")
    container = broken["spec"]["containers"][0]
    container["command"] = ["python3", "-c", once, *container["command"]]
    container["volumeMounts"].append({"name": "state", "mountPath": "/state"})
    broken["spec"]["volumes"].append({"name": "state", "emptyDir": {}})
    scene.namespace.apply(broken)
    scene.engines(decode=("d1",)).ips |= scene.namespace.wait_ready("d0")
    scene.watch(remediation=RESTART).until_watching()
    scene.leak("d0")
    scene.at_step("Restart")
    wait_for("the container's failure", lambda: scene.restarts("d0") > 1, PATIENCE_S)
    scene.leak("d1")
    scene.until("BudgetStarved", "True BudgetStarved")
    first = scene.incident()
    assert first is not None
    assert "ending" not in first["status"]
    assert scene.restarts("d1") == 0
    assert scene.ready("d1")


def pod(scene: Scene, name: str) -> dict[str, Any]:
    found = scene.namespace.pod(name)
    assert found is not None
    return found


def step_of(incident: dict[str, Any], name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(one for one in incident["status"]["steps"] if one["name"] == name)
    return found


def _waits(scene: Scene, reason: str) -> dict[str, Any] | None:
    found = scene.incident()
    return found if found and found.get("status", {}).get("wait", "").startswith(reason) else None
