"""Which pods die together, and how their processes are ended."""

from __future__ import annotations

from typing import Any

import pytest

from stanch.core.fleet import Way
from stanch.core.sample import Role
from stanch.edge.units import select
from tests.edge.units_world import (
    Raw,
    arguments,
    engine,
    headless,
    known,
    look,
    lws,
    lws_pod,
    only,
    pod,
    reference,
    rollout,
    thing,
    watch,
)

pytestmark = pytest.mark.unit

FIXED = '{"kv_connector": "NixlConnector", "engine_id": "decode-a"}'


class TestOnePod:
    def test_of_a_deployment_restarts_in_place(self) -> None:
        deployment, newest = rollout()
        unit = only([pod("d0", owner=newest)], deployment, newest)
        assert (unit.way, unit.way_why) == (Way.IN_PLACE, "")

    @pytest.mark.parametrize("policy", ["Never", "OnFailure"])
    def test_whose_containers_stay_ended(self, policy: str) -> None:
        raw = pod("d0", owner=rollout()[1])
        raw["spec"]["restartPolicy"] = policy
        unit = only([raw])
        assert unit.way is Way.EVICT
        assert unit.way_why.startswith(f"restartPolicy {policy}:")

    def test_whose_container_has_a_restart_policy_of_its_own(self) -> None:
        raw = pod("d0")
        raw["spec"]["restartPolicy"] = "Never"
        engine(raw)["restartPolicy"] = "Always"
        assert only([raw]).way is Way.IN_PLACE

    @pytest.mark.parametrize(
        "given",
        [
            ["--kv-transfer-config", FIXED],
            [f"--kv_transfer_config={FIXED}"],
            ["--kv-transfer-config.engine_id", "decode-a"],
            [
                "--kv-transfer-config",
                '{"kv_connector": "MultiConnector", "kv_connector_extra_config": {"connectors": ['
                '{"kv_connector": "NixlConnector", "engine_id": "decode-a"}]}}',
            ],
        ],
        ids=["two words", "one word", "dotted", "within a MultiConnector"],
    )
    def test_with_a_fixed_engine_id(self, given: list[str]) -> None:
        unit = only([arguments(pod("d0", owner=rollout()[1]), *given)])
        assert unit.way is Way.EVICT
        assert "engine_id decode-a" in unit.way_why

    def test_with_an_engine_id_in_a_script_that_only_the_shell_can_fill_in(self) -> None:
        raw = pod("d0")
        engine(raw)["command"] = ["/bin/bash", "-c"]
        engine(raw)["args"] = [
            'set -e\nexec vllm serve m --kv-transfer-config "{\\"engine_id\\": $(hostname | jq -R .)}"'
        ]
        assert only([raw]).way is Way.EVICT

    def test_with_a_random_engine_id(self) -> None:
        raw = arguments(
            pod("d0"), "--kv-transfer-config", '{"kv_connector": "NixlConnector", "engine_id": null}'
        )
        assert only([raw]).way is Way.IN_PLACE

    def test_that_nobody_would_make_anew_says_so(self) -> None:
        assert "no controller owns d0, so nobody would make it anew" in only([pod("d0")]).not_remade
        owned = pod("d0")
        owned["metadata"]["ownerReferences"] = [{**reference(rollout()[1]), "controller": False}]
        assert "no controller owns d0" in only([owned]).not_remade

    def test_a_static_pod_s_mirror(self) -> None:
        raw = pod("d0", owner=thing("Node", "node-a", api_version="v1"))
        raw["metadata"]["annotations"]["kubernetes.io/config.mirror"] = "4f1c"
        assert "d0 is a static pod of its node" in only([raw]).not_remade

    @pytest.mark.parametrize("kind", ["ReplicaSet", "StatefulSet", "DaemonSet", "PodCliqueSet"])
    def test_that_its_controller_makes_anew(self, kind: str) -> None:
        assert only([pod("d0", owner=thing(kind, "d"))]).not_remade == ""

    def test_data_parallel_within_itself(self) -> None:
        raw = arguments(pod("d0", owner=rollout()[1]), "--data-parallel-size", "8")
        assert only([raw]).way is Way.IN_PLACE


class TestLeaderWorkerSet:
    @pytest.mark.parametrize("policy", ["RecreateGroupOnPodRestart", "RecreateGroupAfterStart"])
    def test_a_restart_replaces_the_group(self, policy: str) -> None:
        found = lws("decode", restartPolicy=policy)
        unit = only([lws_pod(found, 0, 1), lws_pod(found, 0, 0)], found)
        assert unit.key == "serving/decode-0"
        assert [one.name for one in unit.pods] == ["decode-0", "decode-0-1"]
        assert unit.way is Way.GROUP
        assert unit.way_why == (
            f"LeaderWorkerSet decode has {policy}: one restart replaces all pods of decode-0"
        )

    def test_recreating_is_the_default(self) -> None:
        found = lws("decode")
        assert only([lws_pod(found, 0, 0)], found).way is Way.GROUP

    def test_it_also_replaces_a_group_of_one(self) -> None:
        found = lws("decode", size=1, restartPolicy="RecreateGroupOnPodRestart")
        assert only([lws_pod(found, 0, 0)], found).way is Way.GROUP

    @pytest.mark.parametrize("policy", ["None", "Default"])
    def test_where_pods_restart_alone_they_still_die_together(self, policy: str) -> None:
        found = lws("decode", restartPolicy=policy)
        unit = only([lws_pod(found, 0, 0)], found)
        assert unit.way is Way.EVICT
        assert (
            unit.way_why == "its LeaderWorkerSet group decode-0 has several pods, which must start together"
        )

    def test_a_group_of_one_that_stays_restarts_in_place(self) -> None:
        found = lws("decode", size=1, restartPolicy="None")
        assert only([lws_pod(found, 0, 0)], found).way is Way.IN_PLACE

    def test_one_that_cannot_be_read_is_not_guessed_at(self) -> None:
        unit = only([lws_pod(lws("decode"), 0, 0)])
        assert unit.way is Way.EVICT
        assert "cannot be read" in unit.way_why

    def test_groups_are_units_of_their_own(self) -> None:
        found = lws("decode")
        pods = [lws_pod(found, group, worker) for group in (0, 1) for worker in (0, 1)]
        _, fleet = look(pods, found)
        assert [unit.key for unit in fleet.units] == ["serving/decode-0", "serving/decode-1"]

    def test_a_headless_worker_has_no_engine_but_takes_its_group_with_it(self) -> None:
        found = lws("decode")
        worker = headless(lws_pod(found, 0, 1))
        unit = only([lws_pod(found, 0, 0), worker], found)
        assert [one.name for one in unit.pods] == ["decode-0"]
        assert unit.leaving is None
        worker["metadata"]["deletionTimestamp"] = "2026-11-30T13:33:00Z"
        unit = only([lws_pod(found, 0, 0), worker], found)
        assert unit.leaving == "the deletion of its worker decode-0-1 removes decode-0"

    def test_a_worker_that_names_no_port_serves_none(self) -> None:
        found = lws("decode")
        worker = lws_pod(found, 0, 1)
        for key in ("ports", "startupProbe", "readinessProbe"):
            engine(worker).pop(key)
        assert len(only([lws_pod(found, 0, 0), worker], found).pods) == 1

    @pytest.mark.parametrize("sign", ["ports", "readinessProbe"])
    def test_a_worker_that_names_the_engines_port_serves_too(self, sign: str) -> None:
        found = lws("decode")
        worker = lws_pod(found, 0, 1)
        kept = engine(worker)[sign]
        for key in ("ports", "startupProbe", "readinessProbe"):
            engine(worker).pop(key)
        engine(worker)[sign] = kept
        assert len(only([lws_pod(found, 0, 0), worker], found).pods) == 2

    def test_a_worker_at_another_port_serves_none(self) -> None:
        found = lws("decode")
        worker = lws_pod(found, 0, 1)
        for key in ("startupProbe", "readinessProbe"):
            engine(worker).pop(key)
        engine(worker)["ports"] = [{"name": "rpc", "containerPort": 5000}]
        assert len(only([lws_pod(found, 0, 0), worker], found).pods) == 1

    def test_a_drain_of_a_workers_node_takes_the_group(self) -> None:
        found = lws("decode")
        worker = headless(lws_pod(found, 0, 1))
        worker["spec"]["nodeName"] = "node-b"
        node = thing("Node", "node-b", "v1", spec={"unschedulable": True})
        unit = only([lws_pod(found, 0, 0), worker], found, node)
        assert unit.leaving == "the drain of node node-b removes decode-0"

    def test_labels_of_its_own_kind_on_a_pod_of_none(self) -> None:
        raw = labelled("d0", {"leaderworkerset.sigs.k8s.io/group-index": "0"}, owner=rollout()[1])
        assert (only([raw]).key, only([raw]).way) == ("serving/d0", Way.IN_PLACE)

    def test_workers_alone_are_refused(self) -> None:
        found = lws("decode")
        selection, fleet = look([headless(lws_pod(found, 0, 1))], found)
        assert fleet.units == ()
        (refused,) = selection.refused
        assert refused.pod == "decode-0-1"
        assert "the pod that leads its group is not selected" in refused.why


def labelled(name: str, labels: Raw, role: str = "decode", **more: Any) -> Raw:
    raw = pod(name, "decode" if role == "decode" else "prefill", **more)
    raw["metadata"]["labels"] |= labels
    return raw


class TestOtherGroups:
    RBG = "rbg.workloads.x-k8s.io/"

    @pytest.mark.parametrize(
        ("spec", "way"),
        [
            ({"restartPolicy": "RecreateRoleInstanceOnPodRestart"}, Way.GROUP),
            ({"restartPolicyConfig": {"type": "RecreateRoleInstanceOnPodRestart"}}, Way.GROUP),
            ({"restartPolicyConfig": {"type": "None"}, "restartPolicy": "RecreateX"}, Way.IN_PLACE),
            ({}, Way.IN_PLACE),
        ],
        ids=["old field", "new field", "new field wins", "nothing said"],
    )
    def test_role_instance(self, spec: Raw, way: Way) -> None:
        owner = thing("RoleInstance", "rbg-decode-0", "workloads.x-k8s.io/v1alpha2", spec=spec)
        raw = labelled("rbg-decode-0-0", {f"{self.RBG}role-instance-name": "rbg-decode-0"}, owner=owner)
        unit = only([raw], owner)
        assert (unit.key, unit.way) == ("serving/rbg-decode-0", way)

    def test_role_instance_that_cannot_be_read(self) -> None:
        owner = thing("RoleInstance", "rbg-decode-0", "workloads.x-k8s.io/v1alpha2")
        raw = labelled("rbg-decode-0-0", {f"{self.RBG}role-instance-name": "rbg-decode-0"}, owner=owner)
        assert only([raw]).way is Way.EVICT

    def test_role_instance_of_several_pods(self) -> None:
        owner = thing("RoleInstance", "rbg-decode-0", "workloads.x-k8s.io/v1alpha2", spec={})
        labels = {f"{self.RBG}role-instance-name": "rbg-decode-0", f"{self.RBG}component-size": "2"}
        assert only([labelled("rbg-decode-0-0", labels, owner=owner)], owner).way is Way.EVICT
        labels[f"{self.RBG}component-size"] = "1"
        assert only([labelled("rbg-decode-0-0", labels, owner=owner)], owner).way is Way.IN_PLACE

    def test_grove(self) -> None:
        def member(clique: str) -> Raw:
            labels = {
                "grove.io/podclique": f"qwen-0-decode-0-{clique}",
                "grove.io/podcliquescalinggroup": "qwen-0-decode",
                "grove.io/podcliquescalinggroup-replica-index": "0",
                "grove.io/podclique-pod-index": "0",
            }
            owner = thing("PodClique", labels["grove.io/podclique"], "grove.io/v1alpha1")
            return labelled(f"{clique}-0", labels, owner=owner)

        unit = only([headless(member("decode-wkr")), member("decode-ldr")])
        assert (unit.key, unit.way) == ("serving/qwen-0-decode-0", Way.EVICT)
        assert unit.lead.name == "decode-ldr-0"

    def test_a_clique_of_its_own_is_one_pod_each(self) -> None:
        owner = thing("PodClique", "qwen-0-decode", "grove.io/v1alpha1")
        unit = only([labelled("d0", {"grove.io/podclique": "qwen-0-decode"}, owner=owner)])
        assert (unit.key, unit.way) == ("serving/d0", Way.IN_PLACE)

    def test_aibrix(self) -> None:
        prefix = "stormservice.orchestration.aibrix.ai/"
        pods = [
            labelled(f"d-{n}", {f"{prefix}podset-name": "decode-x", f"{prefix}pod-group-index": str(n)})
            for n in (1, 0)
        ]
        unit = only(pods)
        assert (unit.key, unit.lead.name, unit.way) == ("serving/decode-x", "d-0", Way.EVICT)
        assert only(pods[1:]).way is Way.EVICT

    def test_ray(self) -> None:
        head = labelled("head", {"ray.io/cluster": "dec", "ray.io/node-type": "head"})
        worker = labelled("a-worker", {"ray.io/cluster": "dec", "ray.io/node-type": "worker"})
        engine(worker).pop("ports")
        for probe in ("startupProbe", "readinessProbe"):
            engine(worker).pop(probe)
        unit = only([worker, head])
        assert (unit.key, unit.lead.name, unit.way) == ("serving/dec", "head", Way.EVICT)
        assert only([head]).way is Way.EVICT


class TestParallelWithoutAGroup:
    """Pods of one StatefulSet or Deployment whose arguments make them one data-parallel group."""

    def member(self, number: int, *given: str, owner: str = "decode") -> Raw:
        return arguments(pod(f"{owner}-{number}", owner=thing("StatefulSet", owner)), *given)

    @pytest.mark.parametrize(
        "given",
        [
            ["--data-parallel-size", "16", "--data-parallel-size-local", "8"],
            ["-dp", "16", "-dpl", "8", "-dpr", "8"],
            ["--data-parallel-size=16", "--data-parallel-rank=3"],
            ["--data-parallel-size", "16", "--data-parallel-external-lb"],
            ["--data-parallel-size", "$(expr 2 \\* 8)", "--data-parallel-start-rank", "8"],
            ["--nnodes", "2", "--node-rank", "0"],
        ],
        ids=["hybrid", "short", "rank", "external", "a shell's arithmetic", "nodes"],
    )
    def test_are_one_unit(self, given: list[str]) -> None:
        unit = only([self.member(0, *given), self.member(1, *given)])
        assert (unit.key, unit.way) == ("serving/decode", Way.EVICT)
        assert unit.way_why.startswith("its data-parallel group of StatefulSet decode has several pods")
        assert len(unit.pods) == 2

    def test_of_which_one_is_selected(self) -> None:
        assert only([self.member(0, "-dp", "16", "-dpl", "8")]).way is Way.EVICT

    def test_those_without_a_server_come_last(self) -> None:
        pods = [
            self.member(0, "-dp", "16", "-dpl", "8", "--headless"),
            self.member(1, "-dp", "16", "-dpl", "8"),
        ]
        unit = only(pods)
        assert [one.name for one in unit.pods] == ["decode-1"]

    def test_heads_tell_groups_of_one_workload_apart(self) -> None:
        def of(head: str) -> list[str]:
            return ["-dp", "16", "-dpl", "8", "--data-parallel-address", head]

        _, fleet = look([self.member(0, *of("a")), self.member(1, *of("a")), self.member(2, *of("b"))])
        assert [unit.key for unit in fleet.units] == ["serving/decode@a", "serving/decode@b"]

    def test_a_server_for_each_rank_in_one_container_is_no_group(self) -> None:
        raw = self.member(0, "-dp", "2", "--data-parallel-rank", "0")
        lw = watch(
            roles=[{"name": "decode", "selector": {"matchLabels": {"role": "decode"}}, "ports": [8000, 8001]}]
        )
        assert only([raw], of=lw).way is Way.IN_PLACE


def test_a_group_of_both_roles_is_in_conflict() -> None:
    found = lws("mixed")
    unit = only([lws_pod(found, 0, 0, "decode"), lws_pod(found, 0, 1, "prefill")], found)
    assert unit.role is Role.UNKNOWN
    assert unit.conflict == "roles decode and prefill of the same watch"


def test_a_group_keeps_its_key_when_its_pods_are_replaced() -> None:
    found = lws("decode")
    before = only([lws_pod(found, 0, 0)], found)
    again = lws_pod(found, 0, 0)
    again["metadata"]["uid"] = "another"
    after = only([again], found)
    assert before.key == after.key
    assert before.lead.uid != after.lead.uid
    assert select(watch(), [again], known(found)).refused == ()
