"""Real vLLM 0.29.0 prefill and decode pods with the fault planted, traffic all the time, and the operator.

One set of engines serves all tests, in this order: the last one restarts one of them.
"""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from tests.bed.cluster import wait_for
from tests.cluster.scenes import ending, steps
from tests.e2e.clients import learn
from tests.e2e.endpoints import Endpoints
from tests.e2e.stage import HOLD_S, START_S, USAGE, Stage, text
from tests.engine.client import complete
from tests.engine.model import words

pytestmark = pytest.mark.e2e
PODS = ("p0", "d0", "d1")
FIX_HITS = "stanch_fix_hits"
LADDER = (
    "Observe", "Confirm", "Cordon", "Drain", "Capture", "Confirm", "Restart", "Verify", "Uncordon",
)  # fmt: skip


def test_a_leak_is_detected_named_and_released_and_nobody_else_notices(stage: Stage) -> None:
    """The stock connector; of Stanch only the plug-in and the middleware are in the engine."""
    scene = stage.scene
    stage.watch(steps=["Release"])
    assert scene.incidents() == []
    with stage.clients() as clients:
        waits = stage.park("p0", "d0", seed=9)
        gave_up = stage.leak("p0", "d0", 3)
        assert (stage.metric("d0", USAGE) or 0) >= 0.4
        found = scene.ended()
        # The client that waited all along gets the right tokens, too.
        answer = waits.pending.answer(180)
        assert text(answer.status, answer.body) == waits.text
        count = len(clients.ended)
        wait_for("the others go on", lambda: len(clients.ended) > count + 3)
    assert ending(found) == "Resolved", json.dumps(found["status"], indent=1)
    assert found["status"]["code"] == "Released"
    assert found["spec"]["podRef"]["name"] == "d0"
    assert steps(found) == ["Observe:Done", "Confirm:Done", "Release:Done", "Confirm:Done"]
    named = {one["id"]: one["clientGone"] for one in found["status"]["stuckRequests"]}
    assert named == {**dict.fromkeys(gave_up, True), waits.id: False}
    assert clients.lost == [], clients.story()
    stage.until_free("d0")
    assert stage.stuck("d0") == []
    assert [scene.restarts(pod) for pod in PODS] == [0, 0, 0]
    assert len(scene.incidents()) == 1


def test_with_stanchs_connector_the_same_requests_are_answered_and_there_is_no_incident(stage: Stage) -> None:
    scene = stage.scene
    stage.watch(steps=["Release", "Restart"])
    before = len(scene.incidents())
    hits = stage.metric("d1", FIX_HITS)
    assert hits is not None
    with stage.clients() as clients:
        planted = [stage.park("p0", "d1", seed) for seed in (21, 22, 23)]
        answers = [one.pending.answer(180) for one in planted]
        assert [text(one.status, one.body) for one in answers] == [one.text for one in planted]
        # So long the first test's leak was not; whatever were stuck would be an incident by now.
        end = time.monotonic() + 2 * HOLD_S
        wait_for("twice the hold", lambda: time.monotonic() > end)
    # Without traffic: one that has just begun is in the list as well.
    assert stage.stuck("d1") == []
    assert len(scene.incidents()) == before
    assert stage.metric("d1", FIX_HITS) == hits + len(planted), "the fault was planted, and met the fix"
    assert clients.lost == [], clients.story()
    stage.until_free("d1")
    assert [scene.restarts(pod) for pod in PODS] == [0, 0, 0]


def test_where_release_is_forbidden_it_restarts_in_place_and_no_request_is_lost(stage: Stage) -> None:
    scene = stage.scene
    stage.watch(steps=["Restart"])
    number = len(scene.incidents())
    before = pod(stage, "d0")
    with Endpoints(stage.namespace, "decode") as endpoints, stage.clients() as clients:
        stage.leak("p0", "d0", 3)
        # Some twenty seconds: the drain waits for it.
        long = complete(stage.url("d0"), words(64, seed=33), max_tokens=400, timeout_s=START_S)
        found = scene.ended(number, START_S)
        wait_for("it is routed to again", lambda: endpoints.ready("d0"))
        count = len(clients.ended)
        wait_for("the others go on", lambda: len(clients.ended) > count + 3)
        assert long.answer(180).body["usage"]["completion_tokens"] == 400
    assert ending(found) == "Resolved", json.dumps(found["status"], indent=1)
    assert found["status"]["code"] == "Restarted"
    assert steps(found) == [f"{step}:Done" for step in LADDER]
    verify = next(one for one in found["status"]["steps"] if one["name"] == "Verify")
    assert "a transfer worked with" in verify["detail"]
    assert "p0" in verify["detail"]
    endpoints.unready("d0")
    assert [ready for _, ready in endpoints.changes("d1")] == [True]
    after = pod(stage, "d0")
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert after["status"]["podIP"] == before["status"]["podIP"]
    assert [scene.restarts(one) for one in PODS] == [0, 1, 0]
    assert scene.marks("d0") == {}
    assert clients.lost == [], clients.story()
    assert stage.stuck("d0") == []
    # The restarted engine itself, not whichever the Service picked.
    assert learn(stage.url("p0"), stage.url("d0")) == stage.expected
    stage.until_free("d0")


def pod(stage: Stage, name: str) -> dict[str, Any]:
    found = stage.namespace.pod(name)
    assert found is not None
    return found
