"""Raw pods, owners and answers in, the planner's Fleet out."""

from __future__ import annotations

import pytest

from stanch.core.fleet import Capability, CommandOutcome, CordonMark, Way
from stanch.core.sample import Role
from stanch.edge.units import Heard, Object, Ref, fleet_of, queries, select, targets, wanted
from tests.edge.units_world import (
    LISTED,
    NAMESPACE,
    NOW,
    Raw,
    answering,
    arguments,
    by_workload,
    engine,
    facts,
    headless,
    known,
    look,
    lws,
    lws_pod,
    only,
    pod,
    rollout,
    slice_of,
    status,
    thing,
    watch,
)

pytestmark = pytest.mark.unit


def test_a_pod_that_serves() -> None:
    unit = only([pod("decode-0")], heard={"decode-0": answering()}, slices=[slice_of(pod("decode-0"))])
    assert unit.key == "serving/decode-0"
    assert (unit.role, unit.deployment, unit.way, unit.way_why) == (Role.DECODE, "pd", Way.IN_PLACE, "")
    assert unit.engines == ("decode-0",)
    found = unit.lead
    assert (found.name, found.uid, found.version) == ("decode-0", "uid-decode-0", "71")
    assert found.container_id == "containerd://decode-0-1"
    assert found.ready
    assert found.healthy
    assert found.routed is True
    assert found.arriving is False
    assert found.running == 0.0
    assert found.capability is Capability.READINESS
    assert found.kit is not None
    assert found.kit.boot_id == "boot-1"
    assert found.kit.cordoned_by is None
    assert (found.lock, found.cordon, found.command, found.leaving) == (None, None, None, None)
    assert unit.available


def test_the_fleet_says_when_its_list_was_made_what_stops_it_and_what_resets_its_breaker() -> None:
    lw = watch()
    lw = lw.model_copy(
        update={
            "metadata": lw.metadata.model_copy(update={"annotations": {"stanch.dev/reset-breaker": "today"}})
        }
    )
    fleet = fleet_of(lw, select(lw, [], {}), {}, [], {}, listed_at=LISTED, now=NOW, stop="somebody said so")
    assert (fleet.units, fleet.listed_at, fleet.stop, fleet.reset) == (
        (),
        LISTED,
        "somebody said so",
        "today",
    )


def test_a_reset_longer_than_the_status_can_remember_is_cut() -> None:
    lw = watch()
    lw.metadata.annotations["stanch.dev/reset-breaker"] = "x" * 5000
    assert fleet_of(lw, select(lw, [], {}), {}, [], {}, listed_at=LISTED, now=NOW).reset == "x" * 1024


def test_what_was_not_asked_is_unknown_and_never_well() -> None:
    found = only([pod("decode-0")]).lead
    assert (found.routed, found.arriving, found.running, found.kit) == (None, None, None, None)
    assert not found.healthy


def test_annotations_of_a_repair() -> None:
    raw = pod("decode-0")
    raw["metadata"]["annotations"] = {
        "stanch.dev/incident": "i-1",
        "stanch.dev/cordon": '{"incident": "i-1", "beat": 1796000000, "leaseSeconds": 30}',
        "stanch.dev/command": '{"id": "i-1/drain-1", "verb": "drain", "bootId": "boot-1"}',
    }
    said = facts(
        cordoned=True,
        cordon_incident="i-1",
        draining=True,
        outcomes=(
            {"id": "i-1/drain-1", "verb": "drain", "state": "running"},
            {"id": "i-1/release-1", "state": "refused", "reason": "too young"},
            {"state": "done"},
        ),
    )
    found = only([raw], heard={"decode-0": Heard(kit=said)}).lead
    assert (found.lock, found.command) == ("i-1", "i-1/drain-1")
    assert found.cordon == CordonMark("i-1", 1796000000)
    assert found.kit is not None
    assert (found.kit.cordoned_by, found.kit.draining) == ("i-1", True)
    assert found.kit.outcomes == {
        "i-1/drain-1": CommandOutcome("running"),
        "i-1/release-1": CommandOutcome("refused", "too young"),
    }


@pytest.mark.parametrize("text", ["", "yes", "{", "[]", '{"incident": "mine"}', '{"beat": true}', "7"])
def test_a_cordon_that_is_none_is_somebody_elses_and_a_command_that_is_none_is_not_ours(text: str) -> None:
    raw = pod("decode-0")
    raw["metadata"]["annotations"] = {"stanch.dev/cordon": text, "stanch.dev/command": text}
    found = only([raw]).lead
    assert (found.cordon, found.command) == (CordonMark("", 0), "")


def test_a_cordoned_pod_is_healthy_and_not_ready() -> None:
    raw = pod("decode-0")
    raw["status"]["conditions"][0]["status"] = "False"
    found = only([raw], heard={"decode-0": answering()}).lead
    assert (found.ready, found.healthy, found.serving) == (False, True, False)


@pytest.mark.parametrize(
    "state",
    [{"waiting": {"reason": "CrashLoopBackOff"}}, {"terminated": {"exitCode": 137}}, {}],
    ids=["back-off", "ended", "nothing said"],
)
def test_a_container_that_does_not_run_has_no_run(state: Raw) -> None:
    raw = pod("decode-0")
    status(raw)["state"] = state
    found = only([raw], heard={"decode-0": answering()}).lead
    assert (found.container_id, found.healthy) == (None, False)


def test_a_container_within_its_startup_probe_is_not_healthy_whatever_it_answers() -> None:
    raw = pod("decode-0")
    status(raw)["started"] = False
    found = only([raw], heard={"decode-0": answering()}).lead
    assert (found.container_id, found.healthy) == ("containerd://decode-0-1", False)


class TestRouted:
    def test_no_endpoint(self) -> None:
        assert only([pod("decode-0")], slices=[slice_of(pod("decode-1"))]).lead.routed is False

    def test_an_endpoint_that_is_not_ready(self) -> None:
        found = slice_of(pod("decode-0"), ready=False, serving=False)
        assert only([pod("decode-0")], slices=[found]).lead.routed is False

    def test_a_headless_service_of_a_group_calls_every_pod_ready(self) -> None:
        found = slice_of(pod("decode-0"), ready=True, serving=False)
        assert only([pod("decode-0")], slices=[found]).lead.routed is False

    def test_what_an_endpoint_does_not_say_is_to_be_read_as_true(self) -> None:
        found = slice_of(pod("decode-0"))
        found["endpoints"][0]["conditions"] = {}
        assert only([pod("decode-0")], slices=[found]).lead.routed is True

    def test_an_endpoint_of_the_pod_that_had_the_name_before(self) -> None:
        found = slice_of(pod("decode-0"))
        found["endpoints"][0]["targetRef"]["uid"] = "another"
        assert only([pod("decode-0")], slices=[found]).lead.routed is False


class TestCapability:
    def test_a_readiness_that_asks_the_engine_and_not_the_kit(self) -> None:
        assert only([pod("decode-0", kit=False)]).lead.capability is Capability.NONE

    def test_no_readiness_probe(self) -> None:
        raw = pod("decode-0")
        del engine(raw)["readinessProbe"]
        assert not only([raw]).can_cordon

    def test_by_the_name_of_the_port_and_with_a_query(self) -> None:
        raw = pod("decode-0")
        engine(raw)["readinessProbe"]["httpGet"] = {"path": "/stanch/v1/ready?from=kubelet", "port": "http"}
        assert only([raw]).can_cordon

    def test_at_a_port_of_something_else(self) -> None:
        raw = pod("decode-0")
        engine(raw)["readinessProbe"]["httpGet"]["port"] = 9999
        assert not only([raw]).can_cordon

    def test_by_a_command(self) -> None:
        raw = pod("decode-0")
        engine(raw)["readinessProbe"] = {
            "exec": {"command": ["curl", "-f", "http://127.0.0.1:8000/stanch/v1/ready"]}
        }
        assert only([raw]).can_cordon

    def test_a_side_car_that_asks_the_kit_makes_the_pod_unready_as_well(self) -> None:
        raw = pod("decode-0", kit=False)
        probe = {"httpGet": {"path": "/stanch/v1/ready", "port": 8000}}
        raw["spec"]["initContainers"] = [
            {"name": "proxy", "restartPolicy": "Always", "readinessProbe": probe}
        ]
        assert only([raw], of=watch(roles=[named("vllm")])).can_cordon


def named(container: str | None, role: str = "decode", **more: object) -> Raw:
    found: Raw = {"name": role, "selector": {"matchLabels": {"role": role}}, **more}
    return found | ({} if container is None else {"containerName": container})


class TestSeveralServers:
    """Data-parallel ranks with a server each, in one container."""

    lw = watch(roles=[named("vllm", ports=[8000, 8001])])

    def test_each_is_a_target_and_all_are_one_unit(self) -> None:
        selection, fleet = look([pod("decode-0")], of=self.lw)
        assert [one.target.name for one in targets(self.lw, selection)] == ["decode-0/8000", "decode-0/8001"]
        (unit,) = fleet.units
        assert unit.engines == ("decode-0/8000", "decode-0/8001")

    def test_what_they_say_counts_together(self) -> None:
        heard = {
            "decode-0/8000": Heard(running=2.0, arriving=False, healthy=True),
            "decode-0/8001": Heard(running=3.0, arriving=True, healthy=True),
        }
        found = only([pod("decode-0")], of=self.lw, heard=heard).lead
        assert (found.running, found.arriving, found.healthy) == (5.0, True, True)

    def test_one_that_does_not_say_leaves_the_pod_unknown(self) -> None:
        heard = {"decode-0/8000": Heard(running=2.0, arriving=False, healthy=True, kit=facts())}
        found = only([pod("decode-0")], of=self.lw, heard=heard).lead
        assert (found.running, found.arriving, found.healthy, found.kit) == (None, None, False, None)

    def test_a_boot_id_each_cannot_be_restarted_by_one_command(self) -> None:
        heard = {
            "decode-0/8000": Heard(kit=facts("boot-1", cordoned=True, cordon_incident="i")),
            "decode-0/8001": Heard(kit=facts("boot-2")),
        }
        unit = only([pod("decode-0")], of=self.lw, heard=heard)
        assert unit.way is Way.EVICT
        assert "2 servers in one container" in unit.way_why
        assert unit.lead.kit is not None
        assert unit.lead.kit.cordoned_by is None  # one of them still takes requests

    def test_they_drain_only_together_and_the_one_that_is_meant_answers(self) -> None:
        def say(boot_id: str, draining: bool, state: str) -> Heard:
            outcomes = ({"id": "c", "state": state},)
            return Heard(kit=facts(boot_id, draining=draining, outcomes=outcomes))

        for states in (("ignored", "running"), ("running", "ignored")):
            heard = {
                "decode-0/8000": say("boot-1", True, states[0]),
                "decode-0/8001": say("boot-2", False, states[1]),
            }
            kit = only([pod("decode-0")], of=self.lw, heard=heard).lead.kit
            assert kit is not None
            assert kit.outcomes == {"c": CommandOutcome("running")}
            assert not kit.draining

    def test_one_kit_for_all_of_them_can(self) -> None:
        heard = {name: Heard(kit=facts("boot-1")) for name in ("decode-0/8000", "decode-0/8001")}
        assert only([pod("decode-0")], of=self.lw, heard=heard).way is Way.IN_PLACE


def test_ranks_behind_one_port_are_the_engines_of_one_unit() -> None:
    engines = tuple(f"decode-0/{rank}" for rank in range(8))
    assert only([pod("decode-0")], heard={"decode-0": answering(engines=engines)}).engines == engines


class TestTargets:
    def test_name_address_role_and_deployment(self) -> None:
        lw = watch()
        (found,) = targets(lw, select(lw, [pod("decode-0")], {}))
        assert (found.target.name, found.target.url) == ("decode-0", "http://10.201.0.7:8000")
        assert (found.role, found.deployment) == (Role.DECODE, "pd")

    def test_ipv6_and_https(self) -> None:
        raw = pod("decode-0")
        raw["status"]["podIP"] = "fd00::7"
        engine(raw)["readinessProbe"]["httpGet"]["scheme"] = "HTTPS"
        lw = watch()
        assert targets(lw, select(lw, [raw], {}))[0].base == "https://[fd00::7]:8000"

    def test_no_address_yet(self) -> None:
        raw = pod("decode-0")
        del raw["status"]["podIP"]
        lw = watch()
        assert targets(lw, select(lw, [raw], {})) == []

    def test_a_pod_on_its_first_start_is_not_there_yet(self) -> None:
        raw = pod("decode-0")
        status(raw)["started"] = False
        lw = watch()
        assert targets(lw, select(lw, [raw], {})) == []

    def test_one_that_restarts_still_is_so_that_its_restart_is_noticed(self) -> None:
        raw = pod("decode-0")
        status(raw).update(started=False, restartCount=1, state={"waiting": {}})
        lw = watch()
        assert len(targets(lw, select(lw, [raw], {}))) == 1

    def test_pin_and_lease_of_the_arguments(self) -> None:
        config = (
            '{"kv_connector": "NixlConnector", "kv_role": "kv_both", "kv_connector_extra_config": '
            '{"bidirectional_kv_xfer": true, "decoder_kv_blocks_ttl": 900, "kv_lease_duration": 45}}'
        )
        lw = watch()
        raw = arguments(pod("decode-0"), "--kv-transfer-config", config)
        policy = targets(lw, select(lw, [raw], {}))[0].policy
        assert (policy.kv_pin_seconds, policy.lease_seconds) == (900.0, 45.0)

    def test_of_two_pin_times_the_longer_one_and_the_watchs_own_lease(self) -> None:
        config = '{"kv_connector_extra_config": {"bidirectional_kv_xfer": true, "kv_lease_duration": 45}}'
        lw = watch(signatures={"kvPinSeconds": 1000, "leaseSeconds": 60})
        raw = arguments(pod("decode-0"), f"--kv-transfer-config={config}")
        policy = targets(lw, select(lw, [raw], {}))[0].policy
        assert (policy.kv_pin_seconds, policy.lease_seconds) == (1000.0, 60.0)

    def test_a_headless_worker_has_none(self) -> None:
        set_ = lws("decode")
        lw = watch()
        selection = select(lw, [lws_pod(set_, 0, 0), headless(lws_pod(set_, 0, 1))], known(set_))
        assert [one.target.name for one in targets(lw, selection)] == ["decode-0"]


class TestPeers:
    def test_decodes_and_prefills_of_a_watch(self) -> None:
        _, fleet = look([pod("d0"), pod("d1"), pod("p0", "prefill")])
        assert {unit.key: unit.peers for unit in fleet.units} == {
            "serving/d0": ("serving/p0",),
            "serving/d1": ("serving/p0",),
            "serving/p0": ("serving/d0", "serving/d1"),
        }

    def test_both_has_none(self) -> None:
        both = watch(roles=[{"name": "both", "selector": {"matchLabels": {"app": "engines"}}}])
        _, fleet = look([pod("e0"), pod("e1")], of=both)
        assert [unit.peers for unit in fleet.units] == [(), ()]

    def test_revisions_of_a_disaggregated_set_do_not_talk_to_each_other(self) -> None:
        pods = []
        for name, role, revision in (("d0", "decode", "a"), ("d1", "decode", "b"), ("p1", "prefill", "b")):
            raw = pod(name, "decode" if role == "decode" else "prefill")
            raw["metadata"]["labels"] |= {
                "disaggregatedset.x-k8s.io/name": "ds",
                "disaggregatedset.x-k8s.io/revision": revision,
            }
            pods.append(raw)
        _, fleet = look(pods)
        assert {unit.lead.name: unit.peers for unit in fleet.units} == {
            "d0": (),
            "d1": ("serving/p1",),
            "p1": ("serving/d1",),
        }


class TestDesired:
    def test_as_the_deployment_says_though_pods_are_missing(self) -> None:
        deployment, newest = rollout(replicas=3)
        _, fleet = look([pod("d0", owner=newest)], deployment, newest)
        assert fleet.desired == {Role.DECODE: 3}

    def test_of_the_workload_that_the_watch_names_without_a_single_pod(self) -> None:
        deployment, newest = rollout(replicas=3)
        _, fleet = look([], deployment, newest, of=by_workload("Deployment", "decode"))
        assert fleet.desired == {Role.DECODE: 3}

    def test_groups_of_a_leader_worker_set(self) -> None:
        set_ = lws("decode", replicas=4)
        _, fleet = look([lws_pod(set_, 0, 0), lws_pod(set_, 0, 1)], set_)
        assert fleet.desired == {Role.DECODE: 4}

    def test_with_pods_that_nobody_counts(self) -> None:
        deployment, newest = rollout(replicas=2)
        _, fleet = look([pod("d0", owner=newest), pod("bare")], deployment, newest)
        assert fleet.desired == {Role.DECODE: 3}

    def test_nothing_where_no_workload_was_read(self) -> None:
        _, newest = rollout()
        _, fleet = look([pod("d0", owner=newest)])
        assert fleet.desired == {}

    def test_one_for_a_data_parallel_group_over_all_pods_of_a_stateful_set(self) -> None:
        owner = thing("StatefulSet", "decode", spec={"replicas": 2})
        pods = [
            arguments(
                pod(f"decode-{number}", owner=owner),
                *("--data-parallel-size", "16", "--data-parallel-size-local", "8"),
                *("--data-parallel-address", "decode-0.decode"),
            )
            for number in range(2)
        ]
        _, fleet = look(pods, owner)
        assert len(fleet.units) == 1
        assert fleet.desired == {Role.DECODE: 1}


class TestWanted:
    def test_owners_and_nodes_are_asked_for_until_all_are_known(self) -> None:
        deployment, newest = rollout()
        node = thing("Node", "node-a", "v1")
        world = known(deployment, newest, node)
        lw, raw = watch(), pod("d0", owner=newest)
        have: dict[Ref, Object | None] = {}
        rounds = 0
        while need := wanted(lw, [raw], have):
            rounds += 1
            have |= {one: world.get(one) for one in need}
        assert rounds == 2
        assert set(have) == set(world)

    def test_what_may_not_be_read_is_asked_for_once(self) -> None:
        _, newest = rollout()
        lw, raw = watch(), pod("d0", owner=newest)
        assert wanted(lw, [raw], dict.fromkeys(wanted(lw, [raw], {}))) == frozenset()

    def test_pods_of_others_are_followed_only_to_a_workload_that_the_watch_names(self) -> None:
        stranger = pod("web-0", owner=thing("ReplicaSet", "web-1"))
        stranger["metadata"]["labels"] = {"app": "web"}
        assert wanted(watch(), [stranger], {}) == frozenset()
        need = wanted(by_workload("Deployment", "decode"), [stranger], {})
        assert {one.kind for one in need} == {"Deployment", "ReplicaSet"}

    def test_through_kinds_that_nobody_knows_to_a_workload_that_the_watch_names(self) -> None:
        graph = thing("DynamoGraphDeployment", "qwen", "nvidia.com/v1alpha1")
        component = thing("DynamoComponentDeployment", "qwen-decode", "nvidia.com/v1alpha1", owner=graph)
        deployment = thing("Deployment", "qwen-decode", owner=component, spec={"replicas": 1})
        newest = thing("ReplicaSet", "qwen-decode-1", owner=deployment, spec={"replicas": 1})
        lw = by_workload("DynamoGraphDeployment", "qwen", "nvidia.com/v1alpha1")
        raw, world = pod("d0", owner=newest), known(component, deployment, newest)
        have: dict[Ref, Object | None] = {}
        while need := wanted(lw, [raw], have):
            have |= {one: world.get(one) for one in need}
        assert [one.name for one in select(lw, [raw], have).chosen] == ["d0"]


class TestQueries:
    def test_selectors_as_the_api_takes_them(self) -> None:
        selector = {
            "matchLabels": {"b": "2", "a": "1"},
            "matchExpressions": [
                {"key": "tier", "operator": "In", "values": ["x", "y"]},
                {"key": "zone", "operator": "NotIn", "values": ["z"]},
                {"key": "gpu", "operator": "Exists"},
                {"key": "canary", "operator": "DoesNotExist"},
            ],
        }
        lw = watch(roles=[{"name": "decode", "selector": selector}])
        assert queries(lw, {}) == ("a=1,b=2,tier in (x,y),zone notin (z),gpu,!canary",)

    def test_one_per_role(self) -> None:
        assert queries(watch(), {}) == ("app=engines,role=decode", "app=engines,role=prefill")

    def test_a_workloads_own_selector_and_the_whole_namespace_until_it_is_known(self) -> None:
        lw = by_workload("Deployment", "decode")
        assert queries(lw, {}) == ("",)
        found = thing("Deployment", "decode", spec={"selector": {"matchLabels": {"app": "d"}}})
        assert queries(lw, known(found)) == ("app=d",)

    def test_a_leader_worker_set_by_its_label(self) -> None:
        lw = by_workload("LeaderWorkerSet", "decode", "leaderworkerset.x-k8s.io/v1")
        assert queries(lw, {}) == ("leaderworkerset.sigs.k8s.io/name=decode",)


def test_the_namespace_of_the_watch_is_in_the_key() -> None:
    assert only([pod("decode-0")]).key.startswith(f"{NAMESPACE}/")
