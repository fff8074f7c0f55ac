"""A template over another: what wins, what stays, and what cannot be merged."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stanch.edge.render.merge import merged

pytestmark = pytest.mark.unit

Object = dict[str, Any]
PATH = "spec.roles[decode].template"


def container(**fields: Any) -> Object:
    return {"spec": {"containers": [{"name": "vllm", **fields}]}}


def laid(lower: Object, upper: Object) -> Object:
    """Over one another, without a problem and with neither changed."""
    before = deepcopy((lower, upper))
    found, problems = merged(lower, upper, PATH)
    assert problems == ()
    assert (lower, upper) == before
    return found


def only(template: Object) -> Object:
    (found,) = template["spec"]["containers"]
    assert isinstance(found, dict)
    return found


BASE = container(
    image="a",
    args=["serve"],
    env=[
        {"name": "A", "value": "1"},
        {"name": "B", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
    ],
    ports=[{"name": "http", "containerPort": 8000}],
    volumeMounts=[{"name": "shm", "mountPath": "/dev/shm"}],
    livenessProbe={"httpGet": {"path": "/health", "port": "http"}, "periodSeconds": 10},
    lifecycle={"preStop": {"sleep": {"seconds": 10}}},
)


@pytest.mark.parametrize(
    ("upper", "key", "expected"),
    [
        ({"image": "b"}, "image", "b"),
        ({"args": ["x"]}, "args", ["x"]),
        ({"resources": {"limits": {"gpu": 1}}}, "resources", {"limits": {"gpu": 1}}),
        (
            {"env": [{"name": "C", "value": "3"}, {"name": "B", "value": "2"}]},
            "env",
            [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}, {"name": "C", "value": "3"}],
        ),
        (
            {"ports": [{"containerPort": 9000}, {"name": "http", "containerPort": 8001}]},
            "ports",
            [{"name": "http", "containerPort": 8001}, {"containerPort": 9000}],
        ),
        (
            {"volumeMounts": [{"name": "f", "mountPath": "/dev/shm"}, {"name": "f", "mountPath": "/m"}]},
            "volumeMounts",
            [{"name": "f", "mountPath": "/dev/shm"}, {"name": "f", "mountPath": "/m"}],
        ),
        (
            {"livenessProbe": {"periodSeconds": 30}},
            "livenessProbe",
            {"httpGet": {"path": "/health", "port": "http"}, "periodSeconds": 30},
        ),
        (
            {"livenessProbe": {"exec": {"command": ["true"]}}},
            "livenessProbe",
            {"exec": {"command": ["true"]}, "periodSeconds": 10},
        ),
        ({"livenessProbe": {"httpGet": {"path": "/x"}}}, "livenessProbe", {
            "httpGet": {"path": "/x", "port": "http"}, "periodSeconds": 10,
        }),
        (
            {"lifecycle": {"preStop": {"exec": {"command": ["x"]}}}},
            "lifecycle",
            {"preStop": {"exec": {"command": ["x"]}}},
        ),
    ],
    ids=[
        "a text", "a list without names", "a new object", "variables", "ports", "mounts", "times of a probe",
        "another handler", "the same handler", "a hook",
    ],
)  # fmt: skip
def test_the_upper_one_wins_where_it_says_something(upper: Object, key: str, expected: object) -> None:
    found = only(laid(BASE, container(**upper)))
    assert found[key] == expected
    others = {name: value for name, value in only(BASE).items() if name != key}
    assert {name: value for name, value in found.items() if name != key} == others


def test_a_null_takes_away() -> None:
    found = only(laid(BASE, container(livenessProbe=None, lifecycle={"preStop": None}, x={"y": None})))
    assert "livenessProbe" not in found
    assert (found["lifecycle"], found["x"]) == ({}, {})


def test_others_come_behind_ours_and_whole_volumes_are_replaced() -> None:
    lower = {"spec": {**BASE["spec"], "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory"}}]}}
    upper = {
        "metadata": {"labels": {"env": "prod", "ports": "many"}},
        "spec": {
            "containers": [{"name": "side", "image": "s"}],
            "initContainers": [{"name": "first", "image": "f"}],
            "volumes": [{"name": "shm", "hostPath": {"path": "/dev/shm"}}, {"name": "m", "emptyDir": {}}],
        },
    }
    found = laid(lower, upper)
    assert [one["name"] for one in found["spec"]["containers"]] == ["vllm", "side"]
    assert found["spec"]["volumes"] == upper["spec"]["volumes"]  # type: ignore[index]
    assert found["metadata"] == upper["metadata"]


@pytest.mark.parametrize(
    ("upper", "path", "words"),
    [
        ({"spec": []}, ".spec", "is a list, and must be an object"),
        ({"spec": {"containers": {}}}, ".spec.containers", "is an object, and must be a list of objects"),
        ({"spec": {"containers": ["x"]}}, ".spec.containers[0]", "is a text, and must be an object"),
        (
            {"spec": {"containers": [{"name": "a"}, {"image": "b"}]}},
            ".spec.containers[1].name",
            "is missing: entries are merged by it",
        ),
        ({"spec": {"containers": [{"name": 7}]}}, ".spec.containers[0].name", "is missing"),
        (
            {"spec": {"volumes": [{"name": "a"}, {"name": "a"}]}},
            ".spec.volumes[1].name",
            "is 'a', as that of an entry before it",
        ),
        (
            container(volumeMounts=[{"name": "a"}]),
            ".spec.containers[0].volumeMounts[0].mountPath",
            "is missing",
        ),
        (
            {"spec": {"containers": [{"name": "new", "env": [{"value": "1"}]}]}},
            ".spec.containers[0].env[0].name",
            "is missing",
        ),
        (container(livenessProbe="/health"), ".spec.containers[0].livenessProbe", "must be an object"),
        (container(image={"name": "b"}), ".spec.containers[0].image", "is an object, and must be a text"),
    ],
    ids=lambda value: value if isinstance(value, str) and value.startswith(".") else "",
)
def test_what_cannot_be_merged_is_told_by_its_place(upper: Object, path: str, words: str) -> None:
    _, problems = merged(BASE, upper, PATH)
    (problem,) = problems
    assert problem.path == PATH + path
    assert words in problem.message


def test_a_template_without_end_is_refused() -> None:
    deep: Object = {}
    for _ in range(5000):
        deep = {"x": deep}
    _, problems = merged(BASE, {"spec": deep}, PATH)
    assert [str(one) for one in problems] == [f"{PATH}: is nested deeper than 32 levels"]


NAMES = st.sampled_from(["vllm", "a", "b", "c"])


def entries(key: str, **more: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Object]]:
    """Each key once."""
    one = st.fixed_dictionaries({key: NAMES}, optional=more)
    return st.lists(one, max_size=3, unique_by=lambda entry: str(entry[key]))


CONTAINERS = entries(
    "name",
    image=st.text(max_size=2),
    args=st.lists(st.text(max_size=2), max_size=2),
    env=entries("name", value=st.text(max_size=2)),
    volumeMounts=entries("mountPath", name=NAMES),
    resources=st.fixed_dictionaries(
        {}, optional={"limits": st.dictionaries(NAMES, st.integers(0, 3), max_size=2)}
    ),
    readinessProbe=st.fixed_dictionaries(
        {},
        optional={
            "httpGet": st.just({"path": "/"}),
            "exec": st.just({"command": []}),
            "periodSeconds": st.integers(1, 3),
        },
    ),
)
TEMPLATES = st.fixed_dictionaries(
    {},
    optional={
        "metadata": st.fixed_dictionaries(
            {}, optional={"labels": st.dictionaries(NAMES, st.text(max_size=2), max_size=3)}
        ),
        "spec": st.fixed_dictionaries(
            {},
            optional={
                "containers": CONTAINERS,
                "initContainers": CONTAINERS,
                "volumes": entries("name", emptyDir=st.just({})),
                "nodeSelector": st.dictionaries(NAMES, st.text(max_size=2), max_size=2),
            },
        ),
    },
)


@settings(max_examples=300, deadline=None)
@given(TEMPLATES, TEMPLATES)
def test_laws_of_merging(lower: Object, upper: Object) -> None:
    once = laid(lower, upper)
    assert laid(once, upper) == once, "a second time changes nothing"
    assert laid(lower, {}) == lower
    assert laid({}, upper) == upper
    assert list(lost(upper, once)) == [], "everything that the upper one says is there"
    assert list(missing(lower, once)) == [], "nothing of the lower one is gone"


def keyed(value: list[Any]) -> Object | None:
    """A list of named things as a table."""
    if not all(isinstance(one, dict) and ("name" in one or "mountPath" in one) for one in value):
        return None
    return {str(one.get("mountPath") or one["name"]): one for one in value}


def lost(upper: Any, found: Any, path: str = "") -> Any:
    if isinstance(upper, list) and (table := keyed(upper)) is not None:
        upper, found = table, keyed(found)
    if isinstance(upper, dict):
        for key, value in upper.items():
            if key not in found:
                yield f"{path}.{key}"
            else:
                yield from lost(value, found[key], f"{path}.{key}")
    elif upper != found:
        yield path


def missing(lower: Any, found: Any, path: str = "") -> Any:
    """Names and keys, but for those of an entry that another stands for as a whole."""
    if isinstance(lower, list) and (table := keyed(lower)) is not None:
        lower, found = table, keyed(found) or {}
    if not isinstance(lower, dict) or not isinstance(found, dict):
        return
    whole = path.endswith((".env", ".volumeMounts", ".volumes"))
    handlers = {"exec", "httpGet"} if path.endswith("Probe") else set()
    for key, value in lower.items():
        if key not in found:
            if not (key in handlers and handlers & set(found)):
                yield f"{path}.{key}"
        elif not whole:
            yield from missing(value, found[key], f"{path}.{key}")
