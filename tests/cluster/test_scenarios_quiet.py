"""Where nothing may happen, or what was begun must end: blindness, conflicts, people, edits, deletions."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from tests.bed import host, manifests
from tests.bed.cluster import Cluster, Object, wait_for
from tests.cluster.installed import installed
from tests.cluster.scenes import PATIENCE_S, Scene, ending, operating
from tests.cluster.together import Played, playing, scenario

pytestmark = pytest.mark.cluster

RESTART = {"steps": ["Restart"], "drainSeconds": 60, "cooldownSeconds": 0}


@pytest.fixture(scope="module")
def played(
    cluster: Cluster, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Played]:
    directory = tmp_path_factory.mktemp("operator")
    tests = [getattr(item, "function", None) for item in request.session.items if item.path == request.path]
    with (
        installed(cluster, directory) as found,
        operating(found, directory) as operator,
        playing(cluster, operator, tests) as scenes,
    ):
        yield scenes


@scenario
def test_a_fleet_of_which_most_is_blind_is_left_alone(scene: Scene) -> None:
    scene.engines()
    scene.namespace.apply(*(_mute(f"mute-{number}") for number in range(3)))
    scene.watch()
    scene.leak()
    wait_for("the reason", lambda: scene.reason("d0") == "BlindFleet", PATIENCE_S)
    assert scene.condition("Degraded") == "True BlindFleet"
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
        wait_for(
            f"{name}'s conflict",
            lambda name=name: scene.condition("Conflict", name) == "True Conflict",  # type: ignore[misc]
            PATIENCE_S,
        )
    assert scene.incidents() == []
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
    scene.namespace.apply(_of_person("well", "d1"))
    scene.namespace.apply(_of_person("leaking", "d0"))
    ends = {one["metadata"]["name"]: one for one in (scene.ended(0), scene.ended(1))}
    assert ending(ends["well"]) == "Recovered"
    assert (ending(ends["leaking"]), ends["leaking"]["status"]["code"]) == ("Resolved", "Released")
    assert scene.held("d0") == 0


@scenario
def test_a_persons_incident_that_no_watch_means_ends(scene: Scene) -> None:
    scene.engines(prefill=())
    scene.namespace.apply(_of_person("mine", "d0"))
    assert ending(scene.ended()) == "NotWatched"


@scenario
def test_a_crash_looping_pod_beside_them_hinders_nothing(scene: Scene) -> None:
    scene.engines()
    scene.namespace.apply(_mute("looping", label=False, code="raise SystemExit(1)"))
    scene.watch().until_watching()
    scene.leak()
    assert ending(scene.ended()) == "Resolved"
    assert scene.marks("looping") == {}


@scenario
def test_a_pod_that_is_deleted_half_way_ends_its_incident(scene: Scene) -> None:
    scene.engines().watch(remediation=RESTART).until_watching()
    scene.busy("d0")
    scene.leak()
    scene.at_step("Drain")
    scene.namespace.kubectl("delete", "pod", "d0", "--wait=false")
    found = scene.ended()
    assert ending(found) == "PodGone"
    assert scene.watched()["status"].get("claims", []) == []


@scenario
def test_a_watch_that_goes_to_observe_half_way_lets_go(scene: Scene) -> None:
    scene.engines().watch(remediation=RESTART).until_watching()
    scene.busy("d0")
    scene.leak()
    scene.at_step("Drain")
    scene.watch("Observe", remediation=RESTART)
    assert ending(scene.ended()) == "WouldDo"
    wait_for("d0 ready again", lambda: scene.ready("d0"), PATIENCE_S)
    assert scene.restarts("d0") == 0


@scenario
def test_a_watch_that_is_deleted_half_way_lets_go_within_a_lease(scene: Scene) -> None:
    scene.engines().watch(remediation=RESTART).until_watching()
    scene.busy("d0")
    scene.leak()
    scene.at_step("Drain")
    scene.namespace.kubectl("delete", "leakwatch", "shop")
    assert ending(scene.ended()) == "NotWatched"
    wait_for("d0 ready again", lambda: scene.ready("d0"), PATIENCE_S)
    assert scene.restarts("d0") == 0


def _of_person(name: str, pod: str) -> Object:
    return {
        "apiVersion": "stanch.dev/v1alpha1",
        "kind": "LeakIncident",
        "metadata": {"name": name},
        "spec": {"podRef": {"name": pod}},
    }


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
