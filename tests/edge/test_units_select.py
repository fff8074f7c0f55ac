"""Which pods a watch means, and which of their containers is the engine."""

from __future__ import annotations

import pytest

from stanch.core.sample import Role
from stanch.edge.units import select
from tests.edge.units_world import (
    Raw,
    arguments,
    by_workload,
    engine,
    known,
    look,
    pod,
    rollout,
    thing,
    watch,
)

pytestmark = pytest.mark.unit


def one_role(**selector: object) -> Raw:
    return {"name": "decode", "selector": selector}


@pytest.mark.parametrize(
    ("selector", "meant"),
    [
        ({"matchLabels": {"role": "decode"}}, True),
        ({"matchLabels": {"role": "decode", "app": "other"}}, False),
        ({"matchLabels": {"nowhere": ""}}, False),
        ({"matchExpressions": [{"key": "role", "operator": "In", "values": ["decode", "x"]}]}, True),
        ({"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}, False),
        ({"matchExpressions": [{"key": "role", "operator": "In", "values": ["prefill"]}]}, False),
        ({"matchExpressions": [{"key": "role", "operator": "NotIn", "values": ["decode"]}]}, False),
        ({"matchExpressions": [{"key": "zone", "operator": "NotIn", "values": ["a"]}]}, True),
        ({"matchExpressions": [{"key": "role", "operator": "Exists"}]}, True),
        ({"matchExpressions": [{"key": "zone", "operator": "Exists"}]}, False),
        ({"matchExpressions": [{"key": "zone", "operator": "DoesNotExist"}]}, True),
        ({"matchExpressions": [{"key": "role", "operator": "DoesNotExist"}]}, False),
        (
            {
                "matchLabels": {"role": "decode"},
                "matchExpressions": [{"key": "zone", "operator": "Exists"}],
            },
            False,
        ),
    ],
)
def test_selectors_match_as_the_api_servers_do(selector: Raw, meant: bool) -> None:
    found = select(watch(roles=[one_role(**selector)]), [pod("d0")], {}).chosen
    assert bool(found) is meant


def test_by_the_deployment_that_owns_their_replica_set() -> None:
    deployment, newest = rollout()
    mine, stranger = pod("d0", owner=newest), pod("w0", owner=thing("ReplicaSet", "web-1"))
    found = select(by_workload("Deployment", "decode"), [mine, stranger], known(deployment, newest))
    assert [one.name for one in found.chosen] == ["d0"]


def test_by_a_workload_of_another_version_than_the_watch_says() -> None:
    raw = pod("d0", owner=thing("PodClique", "decode", "grove.io/v1beta1"))
    assert select(by_workload("PodClique", "decode", "grove.io/v1alpha1"), [raw], {}).chosen
    assert not select(by_workload("PodClique", "decode", "other.io/v1alpha1"), [raw], {}).chosen


def test_pods_of_another_namespace_are_not_meant() -> None:
    raw = pod("d0")
    raw["metadata"]["namespace"] = "elsewhere"
    assert look([raw])[0].chosen == ()


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_pod_that_has_ended_is_none(phase: str) -> None:
    raw = pod("d0")
    raw["status"]["phase"] = phase
    selection, fleet = look([raw])
    assert (selection.chosen, selection.refused, fleet.units) == ((), (), ())


def test_in_the_order_of_their_names_and_each_once() -> None:
    found = select(watch(), [pod("b"), pod("a"), pod("b")], {}).chosen
    assert [one.name for one in found] == ["a", "b"]


class TestConflict:
    def test_with_another_watch(self) -> None:
        rival = watch("other", roles=[one_role(matchLabels={"role": "decode"})])
        found = select(watch(), [pod("d0"), pod("p0", "prefill")], {}, [watch(), rival]).chosen
        assert {one.name: one.conflict for one in found} == {"d0": "LeakWatch other", "p0": None}

    def test_not_with_itself_a_disabled_one_or_one_of_another_namespace(self) -> None:
        rivals = [watch(), watch("off", mode="Disabled")]
        far = watch("far")
        rivals.append(
            far.model_copy(update={"metadata": far.metadata.model_copy(update={"namespace": "elsewhere"})})
        )
        assert select(watch(), [pod("d0")], {}, rivals).chosen[0].conflict is None

    def test_with_one_that_selects_it_by_its_workload(self) -> None:
        deployment, newest = rollout()
        rival = by_workload("Deployment", "decode").model_copy(update={"metadata": watch("by").metadata})
        found = select(watch(), [pod("d0", owner=newest)], known(deployment, newest), [rival]).chosen
        assert found[0].conflict == "LeakWatch by"

    def test_of_two_roles_of_the_same_watch(self) -> None:
        lw = watch(
            roles=[
                one_role(matchLabels={"app": "engines"}),
                {"name": "prefill", "selector": {"matchLabels": {"role": "decode"}}},
            ]
        )
        _, fleet = look([pod("d0")], of=lw)
        assert fleet.units[0].role is Role.UNKNOWN
        assert fleet.units[0].conflict == "role prefill of the same watch"
        found = select(lw, [pod("d0")], {}, [watch("other")]).chosen
        assert found[0].conflict == "role prefill of the same watch and LeakWatch other"

    def test_an_owner_that_does_not_manage_it_is_none(self) -> None:
        raw = pod("d0", owner=thing("PodClique", "decode", "grove.io/v1alpha1"))
        raw["metadata"]["ownerReferences"][0]["controller"] = False
        assert not select(by_workload("PodClique", "decode", "grove.io/v1alpha1"), [raw], {}).chosen


class TestContainer:
    def two(self, *side_car: str) -> Raw:
        raw = arguments(pod("d0"), "--port", "8000")
        raw["spec"]["containers"].append({"name": "proxy", "command": list(side_car)})
        return raw

    def chosen(self, raw: Raw, **role: object) -> str:
        lw = watch(roles=[one_role(matchLabels={"role": "decode"}) | role])
        selection = select(lw, [raw], {})
        return selection.chosen[0].container if selection.chosen else selection.refused[0].why

    def test_the_one_that_runs_vllm(self) -> None:
        assert self.chosen(self.two("/app/pd-sidecar", "--port=8200")) == "vllm"

    def test_also_as_a_module_or_in_a_script(self) -> None:
        raw = self.two("/app/pd-sidecar")
        engine(raw)["command"] = ["python3", "-m", "vllm.entrypoints.openai.api_server"]
        assert self.chosen(raw) == "vllm"
        engine(raw)["command"] = ["bash", "-c", "source env.sh; exec vllm serve /models/q --port 8000"]
        assert self.chosen(raw) == "vllm"

    def test_the_one_that_is_named(self) -> None:
        assert self.chosen(self.two("x"), containerName="proxy") == "proxy"

    def test_one_that_is_named_and_not_there(self) -> None:
        assert self.chosen(pod("d0"), containerName="engine") == "it has no container engine (it has vllm)"

    def test_the_one_at_the_engines_port_where_nothing_else_tells(self) -> None:
        raw = self.two("x")
        engine(raw)["command"] = ["/start.sh"]
        assert self.chosen(raw, ports=[8000]) == "vllm"
        # A port that nobody named tells nothing: it may be the side-car's.
        assert "containerName" in self.chosen(raw)

    def test_nothing_tells(self) -> None:
        raw = self.two("x")
        engine(raw)["command"] = ["/start.sh"]
        engine(raw).pop("ports")
        why = self.chosen(raw)
        assert "several containers (vllm, proxy)" in why
        assert "containerName of role decode" in why

    def test_a_side_car_by_an_init_container(self) -> None:
        raw = arguments(pod("d0"))
        raw["spec"]["initContainers"] = [
            {"name": "copy-kit", "command": ["cp"]},
            {"name": "proxy", "restartPolicy": "Always", "command": ["proxy"]},
        ]
        assert self.chosen(raw) == "vllm"


def test_a_pod_without_a_uid_is_refused_and_the_others_are_not() -> None:
    raw = pod("d0")
    del raw["metadata"]["uid"]
    selection = select(watch(), [raw, pod("d1")], {})
    assert [one.name for one in selection.chosen] == ["d1"]
    assert [one.pod for one in selection.refused] == ["d0"]
