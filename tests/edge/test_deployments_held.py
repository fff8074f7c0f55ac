"""An upgrade of Stanch replaces no pod; a change of what the spec says of pods does."""

from __future__ import annotations

import json
from copy import deepcopy
from typing import Any

import pytest

from stanch.api.deployment import DisaggDeployment
from stanch.edge.deployments_held import ANNOTATION_RENDERED, held, said_of_pods
from stanch.edge.render import Place, render

pytestmark = pytest.mark.unit

Object = dict[str, Any]
OLD, NEW = Place("stanch.test/kit:1"), Place("stanch.test/kit:2")
SPEC: Object = {
    "model": {"uri": "tiny"},
    "roles": [
        {"name": name, "replicas": 2, "engine": {"image": "stanch.test/vllm:1"}}
        for name in ("prefill", "decode")
    ],
    "router": {"image": "stanch.test/router:1"},
}


def deployment(spec: Object = SPEC, update: str | None = None) -> DisaggDeployment:
    annotations = {} if update is None else {"stanch.dev/update": update}
    meta = {"name": "shop", "namespace": "ns", "annotations": annotations}
    return DisaggDeployment.model_validate({"metadata": meta, "spec": spec})


def changed(*path: Any, value: Any) -> Object:
    spec = deepcopy(SPEC)
    at = spec
    for key in path[:-1]:
        at = at.setdefault(key, {}) if isinstance(at, dict) else at[key]
    at[path[-1]] = value
    return spec


def workloads(one: DisaggDeployment, place: Place) -> dict[str, Object]:
    found = render(one, place)
    assert not found.problems
    return {o["metadata"]["name"]: o for o in found.objects if o["kind"] == "Deployment"}


def applied(
    one: DisaggDeployment, place: Place, live: dict[str, Object]
) -> tuple[dict[str, Object], set[str]]:
    """As they would be afterwards, and which of them were held."""
    found = {
        name: held(rendered, live.get(name), said_of_pods(one, router=name == "shop-router"))
        for name, rendered in workloads(one, place).items()
    }
    return {name: made for name, (made, _) in found.items()}, {
        name for name, (_, old) in found.items() if old
    }


def templates(live: dict[str, Object]) -> dict[str, Object]:
    return {name: one["spec"]["template"] for name, one in live.items()}


def test_another_kit_changes_no_template_of_the_same_spec() -> None:
    first, old = applied(deployment(), OLD, {})
    assert old == set()
    second, old = applied(deployment(), NEW, first)
    assert old == {"shop-prefill", "shop-decode"}, "the router has no kit"
    assert second == first
    third, old = applied(deployment(), OLD, second)
    assert (third, old) == (first, set())


@pytest.mark.parametrize(
    "spec",
    [
        changed("roles", 1, "replicas", value=7),
        changed("roles", 1, "rollout", value={"maxSurge": 1}),
        changed("roles", 0, "disruptionBudget", value={}),
        changed("router", "replicas", value=3),
        changed("watch", "mode", value="Enforce"),
        changed("watch", "intervalSeconds", value=30),
        changed("kvTransfer", value={"mode": "Pull", "connectorPatch": "Auto"}),
        {**SPEC, "roles": SPEC["roles"][::-1]},
    ],
    ids=[
        "replicas",
        "rollout",
        "budget",
        "router's replicas",
        "mode",
        "interval",
        "defaults written out",
        "order",
    ],
)
def test_what_pods_are_not_told_of_replaces_none(spec: Object) -> None:
    """And is left out of the digest only because it makes no other template."""
    assert templates(workloads(deployment(spec), OLD)) == templates(workloads(deployment(), OLD))
    first, _ = applied(deployment(), OLD, {})
    second, old = applied(deployment(spec), NEW, first)
    assert old == {"shop-prefill", "shop-decode"}
    assert templates(second) == templates(first)
    assert second["shop-decode"]["spec"]["replicas"] == spec["roles"][1]["replicas"]


def test_another_router_replaces_no_engine() -> None:
    spec = changed("router", "image", value="stanch.test/router:2")
    first, _ = applied(deployment(), OLD, {})
    second, old = applied(deployment(spec), NEW, first)
    assert old == {"shop-prefill", "shop-decode"}
    assert {name for name in first if templates(first)[name] != templates(second)[name]} == {"shop-router"}


@pytest.mark.parametrize(
    "spec",
    [
        changed("roles", 1, "engine", "image", value="stanch.test/vllm:2"),
        changed("roles", 1, "template", value={"metadata": {"labels": {"a": "b"}}}),
        changed("watch", "remediation", value={"drainSeconds": 120}),
        changed("kvTransfer", value={"mode": "Push"}),
        changed("model", "name", value="other"),
    ],
    ids=["image", "template", "drain", "transfer", "model"],
)
def test_what_pods_are_told_of_replaces_them_by_new_ones(spec: Object) -> None:
    first, _ = applied(deployment(), OLD, {})
    second, old = applied(deployment(spec), NEW, first)
    assert old == set()
    assert templates(second) == templates(workloads(deployment(spec), NEW))


def test_a_person_lets_them_be_replaced() -> None:
    first, _ = applied(deployment(), OLD, {})
    second, old = applied(deployment(update="1"), NEW, first)
    assert old == set()
    assert templates(second) == templates(workloads(deployment(), NEW))
    third, old = applied(deployment(update="1"), OLD, second)
    assert old == {"shop-prefill", "shop-decode"}
    assert third == second


@pytest.mark.parametrize("text", [None, "", "{", "[]", "7", '{"said": 1}', '{"template": {}}', "[" * 9999])
def test_without_what_was_kept_nothing_is_held(text: str | None) -> None:
    first, _ = applied(deployment(), OLD, {})
    for one in first.values():
        one["metadata"]["annotations"] = None if text is None else {ANNOTATION_RENDERED: text}
    second, old = applied(deployment(), NEW, first)
    assert old == set()
    assert templates(second) == templates(workloads(deployment(), NEW))


def test_a_template_too_long_to_be_kept_is_not_held() -> None:
    long = [{"name": "LONG", "value": "x" * 30000 + str(number)} for number in range(5)]
    for one in long:
        one["name"] += one["value"][30000:]
    spec = changed("roles", 1, "engine", "env", value=long)
    first, _ = applied(deployment(spec), OLD, {})
    assert "annotations" not in first["shop-decode"]["metadata"]
    assert json.loads(first["shop-prefill"]["metadata"]["annotations"][ANNOTATION_RENDERED])
    _, old = applied(deployment(spec), NEW, first)
    assert old == {"shop-prefill"}
