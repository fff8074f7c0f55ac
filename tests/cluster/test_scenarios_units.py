"""What dies together: the ranks of one container, and a group that restarts as one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.bed import manifests
from tests.bed.cluster import Cluster, wait_for
from tests.bed.lws import LeaderWorkerSets
from tests.cluster.scenes import PATIENCE_S, RESTART, Scene, outcome, steps
from tests.cluster.together import scenario

pytestmark = pytest.mark.cluster

RANKS = range(8)
ENGINES = [f"d0/{rank}" for rank in RANKS]


@pytest.fixture(scope="module", autouse=True)
def groups(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """LeaderWorkerSets have a controller, in the bed."""
    if cluster.bed is None:
        yield
        return
    with LeaderWorkerSets(cluster, tmp_path_factory.mktemp("lws")):
        yield


@scenario
def test_eight_ranks_that_leak_in_one_container_are_one_incident_and_one_restart(scene: Scene) -> None:
    eight_leak(scene).watch(remediation=RESTART)
    found = scene.ended()
    assert outcome(found) == ("Resolved", "Restarted")
    assert sorted(one["name"] for one in found["status"]["engines"]) == ENGINES
    assert len(found["status"]["stuckRequests"]) == 8
    assert len(scene.incidents()) == 1
    assert [one["unit"] for one in scene.watched()["status"]["repairs"]] == [f"{scene.namespace.name}/d0"]
    scene.let_go("d0")
    assert scene.restarts("d0") == 1
    assert scene.held("d0") == 0


@scenario
def test_eight_ranks_that_leak_in_one_container_are_released_by_one_incident(scene: Scene) -> None:
    eight_leak(scene).watch()
    found = scene.ended()
    assert outcome(found) == ("Resolved", "Released")
    assert steps(found) == ["Observe:Done", "Confirm:Done", "Release:Done", "Confirm:Done"]
    assert sorted(one["name"] for one in found["status"]["engines"]) == ENGINES
    assert len(found["status"]["stuckRequests"]) == 8
    assert len(scene.incidents()) == 1
    assert scene.restarts("d0") == 0
    assert scene.held("d0") == 0
    assert scene.ask("d0", "/stanch/v1/state")["releases"] == {"freed": 8}


@scenario
def test_a_group_that_restarts_as_one_is_one_unit_replaced_in_one_step(scene: Scene) -> None:
    """Two groups of a leader and a worker, by the LeaderWorkerSet controller; both leak, and one may be
    away."""
    if scene.namespace.cluster.bed is None:
        pytest.skip("the controller runs beside the bed's own API server")
    scene.engines(decode=())
    scene.namespace.apply(manifests.leader_worker_set("decode", "decode", 2))
    before = uids(scene)
    scene.leak("decode-0", requests=2)
    scene.leak("decode-1", requests=4)
    scene.watch_leaking(2)
    leaders = ("decode-0", "decode-1")
    away: set[int] = set()

    def both_ended() -> bool:
        away.add(sum(not scene.ready(leader) for leader in leaders))
        found = scene.incidents()
        return len(found) == 2 and all(one.get("status", {}).get("ending") for one in found)

    wait_for("both ended", both_ended, 3 * PATIENCE_S)
    after = uids(scene)
    assert set(after) == set(before)
    assert not set(after.values()) & set(before.values())
    assert max(away) == 1
    by_pod = {one["spec"]["podRef"]["name"]: one for one in scene.incidents()}
    for leader in leaders:
        assert outcome(by_pod[leader]) == ("Resolved", "Restarted")
        assert steps(by_pod[leader]).count("Restart:Done") == 1
        assert scene.restarts(leader) == 0  # it is another pod
        assert scene.held(leader) == 0
    # As units of the group's name, the worse one first.
    repairs = scene.watched()["status"]["repairs"]
    assert [one["unit"].rpartition("/")[2] for one in repairs] == ["decode-1", "decode-0"]

    def counted() -> bool:
        (role,) = [one for one in scene.watched()["status"]["roles"] if one["name"] == "decode"]
        return (role["units"], role["available"], role["engines"]) == (2, 2, 2)

    wait_for("both counted as available", counted, PATIENCE_S)


def eight_leak(scene: Scene) -> Scene:
    """Every rank of d0 has leaked before anybody looks."""
    scene.engines(decode=())
    scene.engines(prefill=(), arguments=[f"--data-parallel-size={len(RANKS)}"])
    scene.leak(requests=1, ranks=RANKS)
    assert scene.held("d0") == 8
    return scene


def uids(scene: Scene) -> dict[str, str]:
    """Of the four pods of the two groups, once all are ready."""
    found = scene.labelled(manifests.LWS_NAME, "decode", 4)
    return {name: pod["metadata"]["uid"] for name, pod in found.items()}
