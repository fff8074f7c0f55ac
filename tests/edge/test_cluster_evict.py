"""What a refused eviction means, and which budgets select a pod."""

from __future__ import annotations

import json
from typing import Any

import pytest

from stanch.edge.cluster import evict, stop
from stanch.edge.cluster.errors import error_of

pytestmark = pytest.mark.unit

WHAT = "create pods/eviction d0 in shop"


def answered(code: int, message: str, causes: list[dict[str, str]] | None = None) -> Any:
    status = {"kind": "Status", "code": code, "message": message, "details": {"causes": causes}}
    return error_of(WHAT, code, json.dumps(status).encode(), {})


def test_a_budget_is_named_by_the_server() -> None:
    said = "The disruption budget keep needs 1 healthy pods and has 1 currently"
    error = answered(
        429,
        "Cannot evict pod as it would violate the pod's disruption budget.",
        [{"reason": "DisruptionBudget", "message": said}],
    )
    refused = evict.refusal(error)
    assert refused is not None
    assert str(refused).endswith(f": {said}")
    assert refused.code == 429


@pytest.mark.parametrize(
    ("code", "causes"),
    [
        (429, None),
        (429, []),
        (429, [{"reason": "Other", "message": "x"}]),
        (500, [{"reason": "DisruptionBudget"}]),
    ],
)
def test_what_is_no_refusal_of_a_budget(code: int, causes: list[dict[str, str]] | None) -> None:
    assert evict.refusal(answered(code, "too many requests", causes)) is None


def test_several_budgets() -> None:
    said = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."
    assert evict.by_several(answered(500, said))
    assert not evict.by_several(answered(500, "etcd is away"))
    assert not evict.by_several(answered(503, said))


def test_an_eviction_is_of_one_uid_and_a_trial_says_so_twice() -> None:
    request = evict.eviction("shop", "d0", "u", dry_run=True)
    assert request.body is not None
    assert request.body["deleteOptions"] == {"preconditions": {"uid": "u"}, "dryRun": ["All"]}
    assert request.query == {"dryRun": "All"}
    real = evict.eviction("shop", "d0", "u", dry_run=False)
    assert real.body is not None
    assert real.body["deleteOptions"] == {"preconditions": {"uid": "u"}}
    assert real.query == {}


LABELS = {"app": "vllm", "role": "decode"}


def requirement(key: str, operator: str, *values: str) -> dict[str, Any]:
    found: dict[str, Any] = {"key": key, "operator": operator}
    return found | ({"values": list(values)} if values else {})


@pytest.mark.parametrize(
    ("selector", "selects"),
    [
        (None, False),
        ({}, True),
        ({"matchLabels": {"app": "vllm"}}, True),
        ({"matchLabels": {"app": "vllm", "role": "prefill"}}, False),
        ({"matchLabels": {"tier": "vllm"}}, False),
        ({"matchLabels": None, "matchExpressions": None}, True),
        ({"matchExpressions": [requirement("role", "In", "decode", "both")]}, True),
        ({"matchExpressions": [requirement("role", "In", "prefill")]}, False),
        ({"matchExpressions": [requirement("none", "In", "decode")]}, False),
        ({"matchExpressions": [requirement("role", "NotIn", "prefill")]}, True),
        ({"matchExpressions": [requirement("role", "NotIn", "decode")]}, False),
        ({"matchExpressions": [requirement("none", "NotIn", "decode")]}, True),
        ({"matchExpressions": [requirement("role", "Exists")]}, True),
        ({"matchExpressions": [requirement("none", "Exists")]}, False),
        ({"matchExpressions": [requirement("none", "DoesNotExist")]}, True),
        ({"matchExpressions": [requirement("role", "DoesNotExist")]}, False),
        ({"matchLabels": {"app": "vllm"}, "matchExpressions": [requirement("none", "Exists")]}, False),
    ],
)
def test_selects(selector: dict[str, Any] | None, selects: bool) -> None:
    assert evict.selects(selector, LABELS) is selects


def test_budgets_of_a_pod() -> None:
    pdbs: list[dict[str, Any]] = [
        {"metadata": {"name": "b"}, "spec": {"selector": {"matchLabels": {"app": "vllm"}}}},
        {"metadata": {"name": "a"}, "spec": {"selector": {}}},
        {"metadata": {"name": "other"}, "spec": {"selector": {"matchLabels": {"app": "web"}}}},
        {"metadata": {"name": "none"}, "spec": {}},
    ]
    assert evict.budgets({"metadata": {"labels": LABELS}}, pdbs) == ["a", "b"]
    assert evict.budgets({"metadata": {}}, pdbs) == ["a"]


@pytest.mark.parametrize(
    ("found", "words"),
    [
        ({}, None),
        ({"data": None}, None),
        ({"data": {"other": "true"}}, None),
        ({"data": {"stop": ""}}, None),
        ({"data": {"stop": " False "}}, None),
        ({"data": {"stop": "true"}}, "ConfigMap ops/stanch-stop says stop"),
        ({"data": {"stop": "TRUE\n"}}, "ConfigMap ops/stanch-stop says stop"),
        ({"data": {"stop": "1"}}, "stop: '1', which is neither"),
        ({"data": {"stop": "yes"}}, "counts as stop"),
    ],
)
def test_stop(found: dict[str, Any], words: str | None) -> None:
    reason = stop.reason(found, "ops")
    assert (reason is None) == (words is None)
    assert words is None or words in (reason or "")
