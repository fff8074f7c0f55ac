"""Engines that other projects made: by preset, by role `auto`, and at which port."""

from __future__ import annotations

import json
from typing import Any

import pytest

from stanch.core import plan_conditions
from stanch.core.sample import Role
from stanch.edge.kit_answers import Facts
from stanch.edge.units import Heard, fleet_of, queries, select, targets
from tests.edge.units_world import (
    LISTED,
    NOW,
    Raw,
    arguments,
    by_workload,
    engine,
    known,
    pod,
    reference,
    thing,
    watch,
)

pytestmark = pytest.mark.unit

KV_BOTH = json.dumps({"kv_connector": "NixlConnector", "kv_role": "kv_both"})


def labelled(name: str, **labels: str) -> Raw:
    """A pod with nothing of the bed's on it but its container."""
    raw = arguments(pod(name), "--kv-transfer-config", KV_BOTH)
    raw["metadata"]["labels"] = {
        key.replace("__", "/").replace("_", "-"): value for key, value in labels.items()
    }
    return raw


def llm_d(name: str, role: str, model: str = "opt") -> Raw:
    """As the charts of llm-d-modelservice 0.4.12 make it: a decode's engine stands behind a side-car that has
    its usual port."""
    raw = labelled(name)
    raw["metadata"]["labels"] = {"llm-d.ai/role": role, "llm-d.ai/model": model}
    port = "8200" if role == "decode" else "8000"
    engine(raw)["args"] += ["--port", port]
    engine(raw)["ports"] = [{"containerPort": int(port)}, {"containerPort": 5600}]
    if role == "decode":
        raw["spec"]["initContainers"] = [
            {
                "name": "routing-proxy",
                "args": ["--port=8000", "--vllm-port=8200", "--connector=nixlv2"],
                "ports": [{"containerPort": 8000}],
                "restartPolicy": "Always",
            }
        ]
    return raw


def test_llm_d_by_its_labels_behind_its_side_car() -> None:
    meant = watch(roles=None, preset="llm-d", selector={"matchLabels": {"llm-d.ai/model": "opt"}})
    pods = [llm_d("d", "decode"), llm_d("p", "prefill"), llm_d("other", "decode", "llama"), labelled("x")]
    found = select(meant, pods, {})
    assert [(one.name, one.role, one.container, one.ports) for one in found.chosen] == [
        ("d", Role.DECODE, "vllm", (8200,)),
        ("p", Role.PREFILL, "vllm", (8000,)),
    ]
    assert not found.refused
    assert queries(meant, {}) == (
        "llm-d.ai/model=opt,llm-d.ai/role in (decode)",
        "llm-d.ai/model=opt,llm-d.ai/role in (prefill)",
    )


def test_kserve_whose_template_hands_the_line_to_eval() -> None:
    raw = labelled("k", kserve_io__component="workload")
    raw["metadata"]["labels"] = {"kserve.io/component": "workload", "llm-d.ai/role": "decode"}
    script = 'ARGS="--x"\neval "exec vllm serve /mnt/models \\\n  --port 8001 \\\n  ${ARGS}"'
    engine(raw).update(name="main", command=["/bin/bash", "-c", script], args=[])
    raw["status"]["containerStatuses"][0]["name"] = "main"
    (found,) = select(watch(roles=None, preset="KServe"), [raw], {}).chosen
    assert (found.role, found.container, found.ports, found.arguments.vllm) == (
        Role.DECODE,
        "main",
        (8001,),
        True,
    )


@pytest.mark.parametrize(
    ("preset", "labels", "role"),
    [
        (
            "DisaggregatedSet",
            {"disaggregatedset.x-k8s.io/name": "a", "disaggregatedset.x-k8s.io/role": "prefill"},
            Role.PREFILL,
        ),
        ("Dynamo", {"nvidia.com/dynamo-sub-component-type": "decode"}, Role.DECODE),
        ("RoleBasedGroup", {"rbg.workloads.x-k8s.io/role-name": "prefill"}, Role.PREFILL),
        ("AIBrix", {"storm-service-name": "a", "role-name": "decode"}, Role.DECODE),
        ("AIBrix", {"role-name": "decode"}, None),
        ("KServe", {"llm-d.ai/role": "decode"}, None),
        ("llm-d", {"llm-d.ai/role": "both"}, None),
    ],
)
def test_each_project_by_its_own_labels(preset: str, labels: dict[str, str], role: Role | None) -> None:
    raw = labelled("e")
    raw["metadata"]["labels"] = labels
    engine(raw)["name"] = "main"
    raw["status"]["containerStatuses"][0]["name"] = "main"
    found = select(watch(roles=None, preset=preset), [raw], {}).chosen
    assert [one.role for one in found] == ([] if role is None else [role])


def test_dynamos_workers_are_read_at_their_status_port() -> None:
    raw = labelled("w")
    raw["metadata"]["labels"] = {"nvidia.com/dynamo-sub-component-type": "decode"}
    engine(raw).update(name="main", command=["python3", "-m", "dynamo.vllm"], args=[])
    (found,) = select(watch(roles=None, preset="Dynamo"), [raw], {}).chosen
    assert found.ports == (9090,)


def auto(**more: object) -> Any:
    return watch(roles=[{"name": "auto", "selector": {"matchLabels": {"app": "mixed"}}, **more}])


def mixed(name: str, kv_role: str = "kv_both", **labels: str) -> Raw:
    raw = arguments(pod(name), "--kv-transfer-config", json.dumps({"kv_role": kv_role}))
    raw["metadata"]["labels"] = {"app": "mixed", **labels}
    return raw


@pytest.mark.parametrize(
    ("raw", "role"),
    [
        (mixed("a", **{"stanch.dev/role": "decode"}), Role.DECODE),
        (mixed("a", **{"llm-d.ai/role": "both"}), Role.BOTH),
        # What a person says on the pod comes before what its command line says.
        (mixed("a", "kv_consumer", **{"stanch.dev/role": "prefill"}), Role.PREFILL),
        (mixed("a", "kv_consumer"), Role.DECODE),
        (mixed("a", "kv_producer"), Role.PREFILL),
        (mixed("a", "kv_both"), Role.UNKNOWN),
        (mixed("a", **{"llm-d.ai/role": "encode"}), Role.UNKNOWN),
    ],
)
def test_auto_by_label_then_by_argument(raw: Raw, role: Role) -> None:
    (found,) = select(auto(), [raw], {}).chosen
    assert (found.role, found.role_open) == (role, role is Role.UNKNOWN)


def test_what_nothing_of_the_pod_tells_is_asked_of_its_pages() -> None:
    selection = select(auto(), [mixed("a"), mixed("b", "kv_consumer")], {})
    by_name = {one.target.name: one for one in targets(auto(), selection)}
    assert (by_name["a"].role, by_name["a"].target.evidence) == (None, True)
    assert (by_name["b"].role, by_name["b"].target.evidence) == (Role.DECODE, False)


def test_the_unit_gets_the_role_that_its_engines_tell_and_the_watch_says_which_have_none() -> None:
    meant = auto()
    selection = select(meant, [mixed("a"), mixed("b"), mixed("c", "kv_producer")], {})
    heard = {
        "a": Heard(("a",), kit=Facts(boot_id="x"), role=Role.DECODE),
        "b": Heard(("b",)),
        "c": Heard(("c",), role=Role.PREFILL),
    }
    fleet = fleet_of(meant, selection, {}, [], heard, listed_at=LISTED, now=NOW)
    assert {unit.key: unit.role for unit in fleet.units} == {
        "serving/a": Role.DECODE,
        "serving/b": Role.UNKNOWN,
        "serving/c": Role.PREFILL,
    }
    peers = {unit.key: unit.peers for unit in fleet.units}
    assert (peers["serving/a"], peers["serving/c"]) == (("serving/c",), ("serving/a",))
    said = plan_conditions.role_unknown(fleet)
    assert said.true
    assert "serving/b" in said.message
    assert "stanch.dev/role" in said.message


def test_auto_counts_each_role_by_the_workloads_of_its_pods() -> None:
    meant = by_workload("StatefulSet", "engines", role="auto")
    engines = thing("StatefulSet", "engines", spec={"replicas": 3})
    raw = mixed("engines-0", "kv_consumer")
    raw["metadata"]["ownerReferences"] = [reference(engines)]
    objects = known(engines)
    selection = select(meant, [raw], objects)
    fleet = fleet_of(meant, selection, objects, [], {}, listed_at=LISTED, now=NOW)
    assert fleet.desired == {Role.DECODE: 3}


def test_the_port_of_the_arguments_where_the_watch_names_none() -> None:
    raw = arguments(pod("d0"), "--port=8300")
    role = {"name": "decode", "selector": {"matchLabels": {"role": "decode"}}}
    assert [one.ports for one in select(watch(roles=[role]), [raw], {}).chosen] == [(8300,)]
    named = select(watch(roles=[{**role, "ports": [8000, 8001]}]), [raw], {}).chosen
    assert [one.ports for one in named] == [(8000, 8001)]
    assert [one.ports for one in select(watch(roles=[role]), [pod("d1")], {}).chosen] == [(8000,)]


@pytest.mark.parametrize("port", ["0", "70000", "eight", "$PORT", ""])
def test_a_port_that_is_none_is_the_usual_one(port: str) -> None:
    raw = arguments(pod("d0"), "--port", port)
    role = {"name": "decode", "selector": {"matchLabels": {"role": "decode"}}}
    assert [one.ports for one in select(watch(roles=[role]), [raw], {}).chosen] == [(8000,)]
