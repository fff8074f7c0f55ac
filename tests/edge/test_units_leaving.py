"""A pod that another controller is about to remove, and one that only looks so."""

from __future__ import annotations

from typing import Any

import pytest

from tests.edge.units_world import NOW, Raw, look, lws, lws_pod, only, pod, rollout, thing

pytestmark = pytest.mark.unit


def test_nobody_removes_a_pod_of_the_newest_revision() -> None:
    deployment, newest = rollout()
    node = thing("Node", "node-a", "v1", spec={})
    assert only([pod("d0", owner=newest)], deployment, newest, node).leaving is None


def test_a_deletion_shows_by_itself() -> None:
    raw = pod("d0")
    raw["metadata"]["deletionTimestamp"] = "2026-11-30T13:33:00Z"
    assert only([raw]).leaving == "d0 is being deleted"


class TestDeployment:
    def old(self, **deployment_more: Any) -> tuple[Raw, Raw, Raw]:
        """A pod of revision 1 while the Deployment is at 2."""
        _, old = rollout(revision="1")
        deployment, _ = rollout(revision="2")
        deployment |= deployment_more
        return pod("d0", owner=old), old, deployment

    def test_a_rollout(self) -> None:
        raw, old, deployment = self.old()
        assert only([raw], old, deployment).leaving == "a rollout of Deployment decode removes d0"

    def test_a_rollout_that_got_stuck_removes_nothing_any_more(self) -> None:
        stuck = {"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded"}
        raw, old, deployment = self.old(status={"conditions": [stuck]})
        assert only([raw], old, deployment).leaving is None

    def test_one_that_goes_on(self) -> None:
        goes_on = {"type": "Progressing", "status": "True", "reason": "ReplicaSetUpdated"}
        raw, old, deployment = self.old(status={"conditions": [goes_on]})
        assert only([raw], old, deployment).leaving is not None

    def test_a_paused_one(self) -> None:
        raw, old, deployment = self.old(spec={"replicas": 2, "paused": True})
        assert only([raw], old, deployment).leaving is None

    def test_a_replica_set_of_nobody(self) -> None:
        alone = thing("ReplicaSet", "alone", spec={"replicas": 1})
        assert only([pod("d0", owner=alone)], alone).leaving is None
        _, fleet = look([pod("d0", owner=alone), pod("d1", owner=alone)], alone)
        assert fleet.units[0].leaving == "a scale-down of ReplicaSet alone removes d0"

    @pytest.mark.parametrize("which", [0, 1], ids=["of the Deployment", "of the ReplicaSet"])
    def test_a_revision_that_is_not_said(self, which: int) -> None:
        raw, old, deployment = self.old()
        (deployment, old)[which]["metadata"].pop("annotations")
        assert only([raw], old, deployment).leaving is None

    def test_a_deployment_that_cannot_be_read(self) -> None:
        raw, old, _ = self.old()
        assert only([raw], old).leaving is None

    def test_a_scale_down_may_take_any_of_them(self) -> None:
        deployment, newest = rollout(replicas=1)
        _, fleet = look([pod("d0", owner=newest), pod("d1", owner=newest)], deployment, newest)
        assert [unit.leaving for unit in fleet.units] == [
            f"a scale-down of Deployment decode removes {name}" for name in ("d0", "d1")
        ]

    def test_once_the_surplus_is_being_deleted_the_others_stay(self) -> None:
        deployment, newest = rollout(replicas=1)
        going = pod("d1", owner=newest)
        going["metadata"]["deletionTimestamp"] = "2026-11-30T13:33:00Z"
        _, fleet = look([pod("d0", owner=newest), going], deployment, newest)
        assert [unit.leaving for unit in fleet.units] == [None, "d1 is being deleted"]


class TestStatefulSet:
    def set_(self, replicas: int = 2, **spec: Any) -> Raw:
        status = {"updateRevision": "decode-new", "currentRevision": "decode-old"}
        return thing("StatefulSet", "decode", spec={"replicas": replicas, **spec}, status=status)

    def member(self, number: int, revision: str = "decode-old") -> Raw:
        raw = pod(f"decode-{number}", owner=self.set_())
        raw["metadata"]["labels"]["controller-revision-hash"] = revision
        return raw

    def test_a_rollout_takes_the_old_revision(self) -> None:
        _, fleet = look([self.member(0), self.member(1, "decode-new")], self.set_())
        assert [unit.leaving for unit in fleet.units] == [
            "a rollout of StatefulSet decode removes decode-0",
            None,
        ]

    def test_but_not_below_its_partition(self) -> None:
        strategy = {"type": "RollingUpdate", "rollingUpdate": {"partition": 1}}
        _, fleet = look([self.member(0), self.member(1)], self.set_(updateStrategy=strategy))
        assert [unit.leaving is None for unit in fleet.units] == [True, False]

    def test_and_nothing_on_delete(self) -> None:
        assert only([self.member(0)], self.set_(updateStrategy={"type": "OnDelete"})).leaving is None

    def test_a_scale_down_takes_the_highest(self) -> None:
        pods = [self.member(0, "decode-new"), self.member(1, "decode-new")]
        _, fleet = look(pods, self.set_(replicas=1))
        assert [unit.leaving for unit in fleet.units] == [
            None,
            "a scale-down of StatefulSet decode removes decode-1",
        ]

    def test_ordinals_that_do_not_begin_at_0(self) -> None:
        found = self.set_(replicas=2, ordinals={"start": 5})
        _, fleet = look([self.member(6, "decode-new"), self.member(7, "decode-new")], found)
        assert [unit.leaving is None for unit in fleet.units] == [True, False]


class TestLeaderWorkerSet:
    def leaders(self, revision: str) -> Raw:
        mark = {"leaderworkerset.sigs.k8s.io/template-revision-hash": revision}
        return thing("StatefulSet", "decode", metadata={"labels": mark}, spec={"replicas": 2})

    def test_a_rollout_takes_groups_of_the_old_revision(self) -> None:
        found = lws("decode")
        pods = [lws_pod(found, 0, 0), lws_pod(found, 1, 0, revision="bbb")]
        _, fleet = look(pods, found, self.leaders("bbb"))
        assert [unit.leaving for unit in fleet.units] == [
            "a rollout of LeaderWorkerSet decode removes decode-0",
            None,
        ]

    def test_but_not_below_its_partition(self) -> None:
        found = lws("decode")
        found["spec"]["rolloutStrategy"] = {"rollingUpdateConfiguration": {"partition": 1}}
        assert only([lws_pod(found, 0, 0)], found, self.leaders("bbb")).leaving is None

    def test_a_scale_down_takes_the_highest_group(self) -> None:
        found = lws("decode", replicas=1)
        _, fleet = look([lws_pod(found, 0, 0), lws_pod(found, 1, 0)], found)
        assert [unit.leaving is None for unit in fleet.units] == [True, False]

    def test_a_disaggregated_set_drains_its_old_revisions(self) -> None:
        mark = {"disaggregatedset.x-k8s.io/initial-replicas": "2"}
        owner = thing("DisaggregatedSet", "pd", "disaggregatedset.x-k8s.io/v1")
        found = lws("decode", metadata={"annotations": mark}, owner=owner)
        unit = only([lws_pod(found, 0, 0)], found)
        assert unit.leaving == "a rollout of DisaggregatedSet pd removes decode-0"

    def test_but_not_its_newest_one_nor_one_of_nobody(self) -> None:
        owner = thing("DisaggregatedSet", "pd", "disaggregatedset.x-k8s.io/v1")
        newest = lws("decode", owner=owner)
        assert only([lws_pod(newest, 0, 0)], newest).leaving is None
        mark = {"disaggregatedset.x-k8s.io/initial-replicas": "2"}
        alone = lws("decode", metadata={"annotations": mark})
        assert only([lws_pod(alone, 0, 0)], alone).leaving is None


class TestNode:
    def node(self, *taints: Raw, unschedulable: bool = True, **metadata: Any) -> Raw:
        spec = {"unschedulable": unschedulable, "taints": list(taints)}
        return thing("Node", "node-a", "v1", metadata=metadata, spec=spec)

    def taint(self, since: str | None) -> Raw:
        found = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
        return found | ({} if since is None else {"timeAdded": since})

    def test_a_drain(self) -> None:
        node = self.node(self.taint("2026-11-30T13:30:00Z"))
        assert only([pod("d0")], node).leaving == "the drain of node node-a removes d0"

    def test_one_whose_beginning_is_not_known(self) -> None:
        assert only([pod("d0")], self.node()).leaving is not None
        assert only([pod("d0")], self.node(self.taint(None))).leaving is not None

    def test_a_node_that_is_kept_unschedulable(self) -> None:
        node = self.node(self.taint("2026-11-30T12:00:00Z"))
        assert only([pod("d0")], node).leaving is None
        assert only([pod("d0")], node, now=NOW - 5400).leaving is not None

    @pytest.mark.parametrize(
        ("key", "who"),
        [
            ("ToBeDeletedByClusterAutoscaler", "the cluster autoscaler"),
            ("karpenter.sh/disrupted", "Karpenter"),
        ],
    )
    def test_taken_away(self, key: str, who: str) -> None:
        node = self.node({"key": key, "effect": "NoSchedule"}, unschedulable=False)
        unit = only([pod("d0")], node)
        assert unit.leaving == f"{who}, which takes node node-a away, removes d0"

    def test_deleted(self) -> None:
        node = self.node(unschedulable=False, deletionTimestamp="2026-11-30T13:33:00Z")
        assert only([pod("d0")], node).leaving == "the deletion of node node-a removes d0"

    def test_a_node_in_service_or_unknown(self) -> None:
        assert only([pod("d0")], self.node(unschedulable=False)).leaving is None
        assert only([pod("d0")]).leaving is None


@pytest.mark.parametrize(("status", "leaves"), [("True", True), ("False", False)])
def test_a_disruption(status: str, leaves: bool) -> None:
    raw = pod("d0")
    raw["status"]["conditions"].append(
        {"type": "DisruptionTarget", "status": status, "reason": "EvictionByEvictionAPI"}
    )
    unit = only([raw])
    assert (unit.leaving == "a disruption (EvictionByEvictionAPI) removes d0") is leaves
