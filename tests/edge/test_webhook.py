"""What the webhook answers; that it never stands in a pod's way."""

from __future__ import annotations

import base64
import json
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stanch.api.names import ANNOTATION_KIT
from stanch.edge.render.kit import KitOptions, inject
from stanch.edge.webhook import NoReviewError, answer
from tests.edge.json_patches import applied
from tests.edge.pod_templates import CONFIG, Object, engine, template

pytestmark = pytest.mark.unit

OPTIONS = KitOptions("example.test/stanch:1")
LABEL = {"stanch.dev/inject": "enabled"}


def pod(*containers: Object, labels: Object = LABEL, **annotations: str) -> Object:
    made = template(*containers)
    made |= {"apiVersion": "v1", "kind": "Pod"}
    made["metadata"] = {"generateName": "decode-", "labels": labels}
    if annotations:
        named = {f"stanch.dev/{key.replace('_', '-')}": value for key, value in annotations.items()}
        made["metadata"]["annotations"] = named
    return made


def review(of: Any, **more: Any) -> Object:
    request = {
        "uid": "u-1",
        "kind": {"group": "", "version": "v1", "kind": "Pod"},
        "resource": {"group": "", "version": "v1", "resource": "pods"},
        "operation": "CREATE",
        "namespace": "shop",
        "object": of,
        "oldObject": None,
        "dryRun": False,
    }
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {**request, **more}}


def asked(of: Any, options: KitOptions | None = OPTIONS, **more: Any) -> tuple[Any, Object]:
    """The pod as the API server would make it, and the response."""
    given_ = answer(json.dumps(review(of, **more)).encode(), options)
    found = json.loads(given_.body)
    assert (found["apiVersion"], found["kind"]) == ("admission.k8s.io/v1", "AdmissionReview")
    response = found["response"]
    assert (response["uid"], response["allowed"]) == ("u-1", True)
    assert len(response.get("warnings", [])) <= 8
    assert all(len(one) <= 256 for one in response.get("warnings", []))
    patch = json.loads(base64.b64decode(response["patch"])) if "patch" in response else []
    assert response.get("patchType") == ("JSONPatch" if patch else None)
    return applied(of, patch), response


def test_a_pod_that_asks_gets_the_kit() -> None:
    made, response = asked(pod(engine()))
    assert made == inject(pod(engine()), OPTIONS).template
    assert "warnings" not in response


def test_again_it_is_left_as_it_is() -> None:
    made, _ = asked(pod(engine()))
    again, response = asked(made)
    assert again == made
    assert "patch" not in response


def test_a_kit_that_the_template_has_already_is_left_as_it_is() -> None:
    chosen = KitOptions("example.test/another:2", connector_patch="Always")
    by_template = inject(pod(engine()), chosen).template
    made, response = asked(by_template)
    assert made == by_template
    assert "patch" not in response


def test_the_patch_touches_nothing_but_what_the_kit_is() -> None:
    body = json.dumps(review(pod(engine()))).encode()
    patch = json.loads(base64.b64decode(json.loads(answer(body, OPTIONS).body)["response"]["patch"]))
    assert {(one["op"], one["path"]) for one in patch} == {
        ("add", "/metadata/annotations"),
        ("add", "/spec/initContainers"),
        ("add", "/spec/volumes"),
        ("add", "/spec/containers/0/volumeMounts"),
        ("add", "/spec/containers/0/env"),
        ("add", "/spec/containers/0/args/4"),
        ("add", "/spec/containers/0/args/5"),
        ("replace", "/spec/containers/0/readinessProbe/httpGet/path"),
    }


@pytest.mark.parametrize(
    ("of", "more"),
    [
        (pod(engine(), labels={}), {}),
        (pod(engine(), labels={"stanch.dev/inject": "disabled"}), {}),
        (pod(engine()), {"operation": "UPDATE"}),
        (pod(engine()), {"resource": {"group": "apps", "version": "v1", "resource": "deployments"}}),
        (None, {"operation": "DELETE"}),
        ("a pod", {}),
    ],
)
def test_who_has_not_asked_is_left_alone(of: Any, more: Object) -> None:
    made, response = asked(of, **more)
    assert made == of
    assert set(response) == {"uid", "allowed"}


@pytest.mark.parametrize(
    ("of", "options", "why"),
    [
        (pod({"name": "web", "image": "nginx"}), OPTIONS, "says that it starts vLLM"),
        (pod(engine(command=["sh", "-c", "vllm serve 'x"])), OPTIONS, "its script is not understood"),
        (
            pod(engine(name="a"), engine(name="b")),
            OPTIONS,
            "several of its containers start vLLM (a, b): name",
        ),
        (pod(engine()), None, "STANCH_KIT_IMAGE"),
        (pod(engine(), inject_connector_patch="auto"), OPTIONS, "it may be Auto, Always, Never"),
        (pod(engine(), inject_container="x"), OPTIONS, "it has no container x"),
        (pod(engine(), kit="mine"), OPTIONS, "by hand"),
        (pod(engine(command=["x"] * 9 + ["y" * 70_000])), OPTIONS, "not `vllm serve`"),
    ],
)
def test_where_the_kit_cannot_go_in_the_pod_starts_and_says_why(of: Any, options: Any, why: str) -> None:
    made, response = asked(of, options)
    assert why in response["warnings"][0]
    assert why in made["metadata"]["annotations"].pop("stanch.dev/not-injected")
    if not made["metadata"]["annotations"]:
        del made["metadata"]["annotations"]
    assert made == of


def test_the_reason_goes_once_the_kit_is_in() -> None:
    """Another webhook may have put right what was in the way before we were asked again."""
    made, _ = asked(pod(engine(), not_injected="its script is not understood"))
    assert set(made["metadata"]["annotations"]) == {ANNOTATION_KIT}


def test_what_the_kit_cannot_do_there_is_a_warning() -> None:
    made, response = asked(pod(engine(readinessProbe=...)))
    assert "cordon has no effect" in response["warnings"][0]
    assert ANNOTATION_KIT in made["metadata"]["annotations"]


def test_annotations_name_the_container_and_the_connector() -> None:
    own = engine(name="own", command=..., args=["m", "--kv-transfer-config", CONFIG])
    made, response = asked(pod(engine(), own, inject_container="own", inject_connector_patch="Always"))
    assert "StanchNixlConnector" in made["spec"]["containers"][1]["args"][2]
    assert made["spec"]["containers"][0] == engine()
    assert "warnings" not in response


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"[]", "no AdmissionReview"),
        (b'{"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1beta1"}', "apiVersion"),
        (b'{"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1"}', "no request"),
        (json.dumps(review(pod(engine()), uid="")).encode(), "no request with a uid"),
        (json.dumps(review(pod(engine()), uid=7)).encode(), "no request with a uid"),
    ],
)
def test_what_is_no_review(body: bytes, why: str) -> None:
    with pytest.raises(NoReviewError, match=why):
        answer(body, OPTIONS)


def test_nested_without_end_it_still_answers() -> None:
    deep: Any = []
    for _ in range(400):
        deep = [deep, {"a": deep}] if len(json.dumps(deep)) < 5_000 else [deep]
    of = pod(engine(command=["sh", "-c", "vllm serve " + "$(" * 30_000], args=...))
    of["spec"]["odd"] = deep
    made, _ = asked(of)
    assert made["spec"] == of["spec"]


JSON: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda one: st.lists(one, max_size=3) | st.dictionaries(st.text(max_size=5), one, max_size=3),
    max_leaves=10,
)


def paths(value: Any, here: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [here, *(path for key, one in inner for path in paths(one, (*here, key)))]


@given(st.data())
@settings(max_examples=300, deadline=None)
def test_a_review_with_anything_anywhere(data: st.DataObject) -> None:
    """An answer that allows the pod, with a patch that fits it; or that it is no review."""
    own = engine(env=[{"name": "PYTHONPATH", "value": "/a"}])
    whole: Any = deepcopy(review(pod(own, inject_connector_patch="Auto")))
    for _ in range(data.draw(st.integers(1, 3))):
        *way, last = data.draw(st.sampled_from(paths(whole)[1:]))
        holder = whole
        for key in way:
            holder = holder[key]
        holder[last] = data.draw(JSON)
    body = json.dumps(whole).encode()
    try:
        given_ = answer(body, OPTIONS)
    except NoReviewError:
        return
    response = json.loads(given_.body)["response"]
    assert response["allowed"] is True
    assert response["uid"] == whole["request"]["uid"]
    assert given_.outcome != "failed", given_.said
    if "patch" in response:
        before = deepcopy(whole["request"]["object"])
        assert applied(before, json.loads(base64.b64decode(response["patch"]))) != before


@given(st.binary(max_size=200))
def test_any_bytes(body: bytes) -> None:
    with pytest.raises(NoReviewError):
        answer(body, OPTIONS)
