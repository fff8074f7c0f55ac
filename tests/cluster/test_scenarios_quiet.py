"""Where nothing may happen, or what was begun must end: blindness, conflicts, people, edits, deletions."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest

from tests.bed import host, manifests
from tests.bed.cluster import Object, wait_for
from tests.cluster.scenes import PATIENCE_S, RESTART, Scene, ending, of_person, outcome
from tests.cluster.together import scenario

pytestmark = pytest.mark.cluster


@scenario
def test_a_fleet_of_which_most_is_blind_is_left_alone(scene: Scene) -> None:
    scene.engines()
    scene.namespace.apply(*(_mute(f"mute-{number}") for number in range(3)))
    scene.watch()
    scene.until("Degraded", "True BlindFleet")
    scene.leak()
    wait_for("the reason", lambda: scene.reason("d0") == "BlindFleet", PATIENCE_S)
    assert scene.incidents() == []
    assert scene.marks("d0") == {}
    assert scene.held("d0") == 3


@scenario
def test_an_engine_that_may_not_be_asked_is_left_alone(scene: Scene) -> None:
    """No kit, and no canary."""
    scene.engines(kit=False, arguments=("--no-kit",)).watch(canary={"enabled": False}).until_watching()
    scene.leak()
    wait_for("the reason", lambda: scene.reason("d0") == "CannotAsk", PATIENCE_S)
    assert scene.incidents() == []


@scenario
def test_a_gauge_that_stands_still_is_not_believed(scene: Scene) -> None:
    """Nothing is held, and a canary makes the gauge fall: d0 has no kit, d2 one that lists nothing. d1 leaks,
    and what is done there shows that the watch acts."""
    without = ("--no-kit",)
    scene.engines(decode=("d0",), arguments=without, kit=False).engines(prefill=(), decode=("d1", "d2"))
    scene.watch().until_watching()
    for name in ("d0", "d2"):
        scene.ask(name, "/sim/gauge", {"usage": 0.4})
    for name in ("d0", "d2"):
        told = wait_for(f"{name}'s veto", lambda name=name: _veto(scene, name), PATIENCE_S)  # type: ignore[misc]
        assert "after a canary it holds 0 %, not 40 %: nothing leaked" in told
    scene.leak("d1")
    assert outcome(scene.ended()) == ("Resolved", "Released")
    assert [one["spec"]["podRef"]["name"] for one in scene.incidents()] == ["d1"]
    for name in ("d0", "d2"):
        assert (scene.marks(name), scene.restarts(name), scene.ready(name)) == ({}, 0, True)


@scenario
def test_a_canary_that_a_packet_filter_blocks_proves_nothing(scene: Scene) -> None:
    """Connections that are there go on, so the engine is read; new ones are not answered."""
    bed = scene.namespace.cluster.bed
    if bed is None:
        pytest.skip("only in the bed may packets be filtered")
    scene.engines(kit=False, arguments=("--no-kit",))
    # Longer than a connection that nobody uses is kept; with gaps between readings that a busy machine keeps.
    slow: dict[str, Any] = {
        "intervalSeconds": 3,
        "signatures": {"heldIdleSeconds": 25},
        "canary": {"timeoutSeconds": 3},
    }
    scene.watch(**slow).until_watching()
    scene.leak()
    rule = ["OUTPUT", "-d", scene.ips["d0"], "-p", "tcp", "--syn", "-j", "DROP"]
    subprocess.run(host.enter(bed, ["iptables", "-I", *rule]), check=True)
    try:
        wait_for("the reason", lambda: scene.reason("d0") == "Inconclusive", PATIENCE_S)
        assert scene.incidents() == []
    finally:
        subprocess.run(host.enter(bed, ["iptables", "-D", *rule]), check=True)
    assert scene.held("d0") == 3


@scenario
def test_a_pod_that_two_watches_select_is_repaired_by_neither(scene: Scene) -> None:
    scene.engines().watch().watch(name="other").until_watching()
    scene.leak()
    for name in ("shop", "other"):
        scene.until("Conflict", "True Conflict", name)
    assert scene.incidents() == []
    assert scene.marks("d0") == {}
    assert scene.held("d0") == 3


@scenario
def test_a_cordon_by_hand_is_left_alone(scene: Scene) -> None:
    scene.engines().watch().until_watching()
    by_hand = json.dumps({"incident": "maintenance", "beat": 1, "leaseSeconds": 200})
    scene.namespace.annotate("d0", cordon=by_hand)
    scene.leak()
    wait_for("the reason", lambda: scene.reason("d0") == "HandCordon", PATIENCE_S)
    assert scene.marks("d0") == {"stanch.dev/cordon": by_hand}
    assert scene.incidents() == []


@scenario
def test_a_persons_incident_is_confirmed_like_any_other(scene: Scene) -> None:
    """The watch itself would see nothing for an hour."""
    patient = dict.fromkeys(("heldIdleSeconds", "deferredStallSeconds", "queueDeadlockSeconds"), 3600)
    scene.engines(decode=("d0", "d1"))
    scene.watch(signatures={**patient, "parkedRemoteKvSeconds": 10}).until_watching()
    scene.leak("d0")
    scene.namespace.apply(of_person("well", "d1"))
    scene.namespace.apply(of_person("leaking", "d0"))
    ends = {one["metadata"]["name"]: one for one in (scene.ended(0), scene.ended(1))}
    assert ending(ends["well"]) == "Recovered"
    assert (ending(ends["leaking"]), ends["leaking"]["status"]["code"]) == ("Resolved", "Released")
    assert scene.held("d0") == 0


@scenario
def test_a_persons_incident_that_no_watch_means_ends(scene: Scene) -> None:
    scene.engines(prefill=())
    scene.namespace.apply(of_person("mine", "d0"))
    assert ending(scene.ended()) == "NotWatched"


@scenario
def test_crash_looping_pods_beside_them_hinder_no_release_and_are_left_alone(scene: Scene) -> None:
    """One that the watch does not mean, and one of its own decodes."""
    looping = {"looping": False, "decode-looping": True}
    code = "raise SystemExit(1)"
    scene.namespace.apply(*(_mute(name, label, code) for name, label in looping.items()))
    scene.engines()
    for name in looping:
        wait_for(f"{name}'s crashes", lambda name=name: scene.restarts(name) > 1, PATIENCE_S)  # type: ignore[misc]
    scene.watch().until_watching()
    scene.leak()
    assert outcome(scene.ended()) == ("Resolved", "Released")
    assert [one["spec"]["podRef"]["name"] for one in scene.incidents()] == ["d0"]
    assert [scene.marks(name) for name in looping] == [{}, {}]


@scenario
def test_a_crash_looping_decode_counts_in_the_budget(scene: Scene) -> None:
    """With it away, a restart would leave one decode too few."""
    scene.namespace.apply(_mute("decode-looping", code="raise SystemExit(1)"))
    scene.engines().watch(remediation=RESTART).until_watching()
    scene.leak()
    wait_for("its wait", lambda: "decode-looping already unavailable" in _wait_of(scene), PATIENCE_S)
    scene.until("BudgetStarved", "True BudgetStarved")
    assert (scene.restarts("d0"), scene.ready("d0")) == (0, True)
    scene.namespace.kubectl("delete", "pod", "decode-looping", "--wait=false")
    assert outcome(scene.ended()) == ("Resolved", "Restarted")


@scenario
def test_a_pod_that_is_deleted_half_way_ends_its_incident(scene: Scene) -> None:
    scene.engines().watch(remediation=RESTART).until_watching()
    scene.draining("d0")
    scene.namespace.kubectl("delete", "pod", "d0", "--wait=false")
    found = scene.ended()
    assert ending(found) == "PodGone"
    wait_for("no claim", lambda: not scene.watched()["status"].get("claims"), PATIENCE_S)


@scenario
def test_a_persons_incident_for_a_pod_under_repair_is_a_duplicate(scene: Scene) -> None:
    scene.engines().watch(remediation=RESTART).until_watching()
    scene.draining("d0")
    scene.namespace.apply(of_person("mine", "d0"))
    wait_for("both ended", lambda: len(_endings(scene)) == 2, PATIENCE_S)
    ends = _endings(scene)
    assert ends.pop("mine") == "Duplicate"
    assert list(ends.values()) == ["Resolved"]
    scene.let_go("d0")
    assert scene.restarts("d0") == 1


@scenario
def test_a_watch_whose_thresholds_are_edited_half_way_goes_on(scene: Scene) -> None:
    """Other thresholds are another loop, which takes the repair up where it was."""
    scene.engines().watch(remediation=RESTART).until_watching()
    scene.draining("d0")
    scene.watch(remediation=RESTART, signatures={"heldIdleSeconds": 3, "parkedRemoteKvSeconds": 3})
    found = scene.ended()
    assert outcome(found) == ("Resolved", "Restarted")
    assert len(scene.incidents()) == 1
    scene.let_go("d0")
    assert scene.restarts("d0") == 1


@scenario
def test_a_watch_that_goes_to_observe_half_way_lets_go(scene: Scene) -> None:
    scene.engines().watch(remediation=RESTART).until_watching()
    scene.draining("d0")
    scene.watch("Observe", remediation=RESTART)
    assert ending(scene.ended()) == "WouldDo"
    wait_for("d0 ready again", lambda: scene.ready("d0"), PATIENCE_S)
    assert scene.restarts("d0") == 0
    assert scene.held("d0") == 3


@scenario
def test_a_watch_that_is_deleted_half_way_lets_go_within_a_lease(scene: Scene) -> None:
    scene.engines().watch(remediation=RESTART).until_watching()
    scene.draining("d0")
    scene.namespace.kubectl("delete", "leakwatch", "shop")
    assert ending(scene.ended()) == "NotWatched"
    wait_for("d0 ready again", lambda: scene.ready("d0"), PATIENCE_S)
    assert scene.restarts("d0") == 0


def _endings(scene: Scene) -> dict[str, str]:
    found = {one["metadata"]["name"]: one.get("status", {}).get("ending") for one in scene.incidents()}
    return {name: how for name, how in found.items() if how}


def _wait_of(scene: Scene) -> str:
    found = scene.incident()
    return "" if found is None else str(found.get("status", {}).get("wait", ""))


def _veto(scene: Scene, pod: str) -> str | None:
    """What the operator's log says of a veto by that pod's engine."""
    unit = f"{scene.namespace.name}/{pod}"
    said = (one for one in scene.operator.lines() if one["event"] == "fault-vetoed" and one["unit"] == unit)
    return next((str(one["message"]) for one in said), None)


def _mute(name: str, label: bool = True, code: str = "import time; time.sleep(3600)") -> Object:
    """A decode by its labels in which nothing listens."""
    pod = manifests.engine(name, "decode", kit=False)
    container = pod["spec"]["containers"][0]
    container["command"] = ["python3", "-c", code]
    for probe in ("startupProbe", "readinessProbe"):
        del container[probe]
    if not label:
        pod["metadata"]["labels"] = {}
    return pod
