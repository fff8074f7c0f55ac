"""A role's template over what is made of it: what it may say, what is told by its place, and no surprise."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stanch.edge.render import Place, render
from stanch.edge.render.kit_start import Start, start_of
from tests.edge.render_world import PLACE, container, deployment, one, pod, problems, rendered

pytestmark = pytest.mark.unit

ROUTER = {"image": "router:1"}


def vllm(**fields: Any) -> dict[str, Any]:
    return {"template": {"spec": {"containers": [{"name": "vllm", **fields}]}}}


def cpu(value: object) -> dict[str, Any]:
    return {"resources": {"limits": {"cpu": value}}}


def test_a_script_may_start_the_engine_where_it_hands_on_what_it_is_told() -> None:
    command = ["bash", "-c", 'ulimit -l unlimited; exec vllm serve "$@"', "vllm"]
    found = container(rendered(deployment(decode=vllm(command=command))))
    assert found["command"] == command
    assert found["args"][0] == "some/model"
    assert "--middleware" in found["args"]
    assert json.loads(found["args"][3])["kv_connector"] == "StanchNixlConnector"


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ('exec vllm serve "$@"', Start("args")),
        ('vllm serve m "${@}" --x', Start("args")),
        ('echo "$@"; vllm serve m', Start("command", 2)),
        ('vllm serve m $1; vllm serve "$@"', Start("command", 2)),
        ("vllm serve m '$@'", Start("command", 2)),
    ],
    ids=["all", "in braces", "another command's", "not every server", "not read by the shell"],
)
def test_flags_go_to_the_arguments_that_a_script_hands_on(script: str, expected: Start) -> None:
    assert start_of({"command": ["bash", "-c", script, "vllm"], "args": ["m"]}) == expected
    assert start_of({"command": ["bash", "-c", script, "vllm"]}) == Start("command", 2)


def test_an_injector_of_ones_own_and_the_servers_module() -> None:
    """As the end-to-end test has it: another connector by its module, none of ours."""
    role = {
        "engine": {
            "args": ["--kv-transfer-config.kv_connector_module_path", "tests.engine.injector"],
            "env": [{"name": "PYTHONPATH", "value": "/src"}],
        },
        **vllm(command=["python", "-m", "vllm.entrypoints.cli.main", "serve"]),
    }
    kv = {"connector": "StanchInjector", "connectorPatch": "Never"}
    found = container(rendered(deployment(role, role, kvTransfer=kv)))
    transfer = json.loads(found["args"][found["args"].index("--kv-transfer-config") + 1])
    assert transfer == {
        "kv_connector": "StanchInjector",
        "kv_connector_module_path": "tests.engine.injector",
        "kv_role": "kv_consumer",
    }
    assert {"name": "PYTHONPATH", "value": "/opt/stanch:/src"} in found["env"]


def test_a_template_is_laid_over_what_is_made() -> None:
    over = {
        "metadata": {"labels": {"team": "search"}, "annotations": {"note": "x"}},
        "spec": {
            "nodeSelector": {"gpu": "large"},
            "topologySpreadConstraints": [],
            "containers": [
                {
                    "name": "vllm",
                    "command": ["/run.sh", "vllm", "serve"],
                    "resources": {"limits": {"gpu": 1}},
                },
                {"name": "proxy", "image": "proxy:1"},
            ],
            "initContainers": [{"name": "fetch", "image": "fetch:1"}],
            "volumes": [{"name": "models", "emptyDir": {}}],
        },
    }
    found = rendered(deployment(decode={"template": over}))
    template = one(found, "Deployment", "shop-decode")["spec"]["template"]
    assert template["metadata"]["labels"]["team"] == "search"
    assert template["metadata"]["annotations"]["note"] == "x"
    spec = template["spec"]
    assert [it["name"] for it in spec["containers"]] == ["vllm", "proxy"]
    assert spec["containers"][0]["command"] == ["/run.sh", "vllm", "serve"]
    assert spec["containers"][0]["args"][0] == "some/model"
    assert {it["name"] for it in spec["initContainers"]} == {"fetch", "stanch-kit"}
    assert spec["topologySpreadConstraints"] == []
    assert "nodeSelector" not in pod(found, "prefill")


@pytest.mark.parametrize(
    ("decode", "path", "words"),
    [
        (
            {"template": {"spec": {"containers": [{"image": "a"}]}}},
            "template.spec.containers[0].name",
            "missing",
        ),
        (vllm(args=["x"]), "template.spec.containers[0].args", "set engine.args of the role"),
        (
            vllm(ports=[{"name": "http", "containerPort": 1}]),
            "template.spec.containers[0].ports[0]",
            "port 8000",
        ),
        (
            {"template": {"spec": {"containers": [{"name": "engine"}]}}},
            "template.spec.containers[0].image",
            "only container vllm gets one",
        ),
        (
            {"template": {"metadata": {"labels": {"stanch.dev/role": "x"}}}},
            "template.metadata.labels[stanch.dev/role]",
            "is Stanch's own",
        ),
        (
            {"template": {"metadata": {"annotations": {"stanch.dev/command": "x"}}}},
            "template.metadata.annotations[stanch.dev/command]",
            "is Stanch's own",
        ),
        (
            {"template": {"metadata": {"labels": {"a": 1}}}},
            "template.metadata.labels[a]",
            "must be a text: put it in quotes",
        ),
        ({"template": {"metadata": {"name": "x"}}}, "template.metadata.name", "labels and annotations"),
        ({"template": {"metadata": None}}, "template.metadata", "nothing would be left"),
        ({"template": {"metadata": {"labels": None}}}, "template.metadata.labels", "nothing would be left"),
        ({"template": {"spec": {"containers": None}}}, "template.spec.containers", "nothing would be left"),
        (vllm(ports=None), "template.spec.containers[0].ports", "where the Services send"),
        ({"template": {"metadata": []}}, "template.metadata", "must be an object"),
        ({"template": {"containers": []}}, "template.containers", "a template has metadata and spec"),
        (vllm(readinessProbe={"httpGet": {"path": "/own"}}), "template", "a cordon has no effect"),
        (vllm(readinessProbe=None), "template", "a cordon has no effect"),
        (vllm(command=["python", "serve.py"]), "template", "not `vllm serve`"),
        (
            vllm(command=["sh", "-c", "vllm serve some/model"]),
            "template.spec.containers[0].command[2]",
            "does not hand on its arguments",
        ),
        (vllm(volumeMounts=[{"name": "x", "mountPath": "/opt/stanch"}]), "template", "/opt/stanch"),
        (
            vllm(resources={"requests": {"cpu": "lots", "memory": "1Gi"}}),
            "template.spec.containers[0].resources.requests[cpu]",
            "is 'lots', which is no quantity",
        ),
        (
            {"template": {"spec": {"initContainers": [{"name": "a", "image": "a", **cpu("1GiB")}]}}},
            "template.spec.initContainers[0].resources.limits[cpu]",
            "is '1GiB'",
        ),
        (
            {"template": {"spec": {"volumes": [{"name": "a", "emptyDir": {"sizeLimit": "huge"}}]}}},
            "template.spec.volumes[0].emptyDir.sizeLimit",
            "is 'huge'",
        ),
        ({"template": {"spec": cpu("x")}}, "template.spec.resources.limits[cpu]", "is 'x'"),
        ({"template": {"spec": {"overhead": {"cpu": "x"}}}}, "template.spec.overhead[cpu]", "is 'x'"),
        ({"engine": {"args": ["--headless"]}}, "engine.args[0]", "engines of several pods"),
        ({"engine": {"port": 5601}, "parallelism": {"data": 2}}, "engine.port", "one of 5600 to 5601"),
    ],
    ids=lambda value: value[-40:] if isinstance(value, str) else "",
)
def test_what_cannot_be_is_told_by_its_place(decode: dict[str, Any], path: str, words: str) -> None:
    (said,) = problems(deployment(decode=decode))
    assert said.startswith(f"spec.roles[decode].{path}")
    assert words in said


# As the API server of Kubernetes 1.35.4 takes them, but for the last of those that are none: over that one it
# thinks until its time is over.
QUANTITIES: list[object] = [1, 0, 1.5, 1e22, "1", "500m", "16Gi", ".5Gi", "5.Gi", "1e3", "1E5", "1e-3", "1E"]
QUANTITIES += ["1k", "1n", " 1", "1 ", "+1", "-1"]
NONE: list[object] = [
    "",
    "lots",
    "1.5x",
    "1.5.5Gi",
    "1GiB",
    "1K",
    "1e3.5",
    "1e3Gi",
    ".",
    "1 Gi",
    "\u0661",
    True,
]
NONE += [[1], {}, "x" * 10_000, "1e99999999999"]


@pytest.mark.parametrize("value", QUANTITIES)
def test_what_is_a_quantity(value: object) -> None:
    assert container(rendered(deployment(decode=vllm(**cpu(value)))))["resources"] == cpu(value)["resources"]


@pytest.mark.parametrize("value", NONE, ids=lambda value: repr(value)[:20])
def test_what_is_none(value: object) -> None:
    (said,) = problems(deployment(decode=vllm(**cpu(value))))
    assert said.startswith("spec.roles[decode].template.spec.containers[0].resources.limits[cpu]: is ")
    assert len(said) < 250


def test_the_problems_of_all_parts_are_told_at_once() -> None:
    bad = {"template": {"spec": {"containers": [{"image": "a"}]}}}
    said = problems(deployment(decode=bad, prefill=bad, router={**ROUTER, **bad}))
    assert [it.partition(".template")[0] for it in said] == [
        "spec.roles[prefill]",
        "spec.roles[decode]",
        "spec.router",
    ]


def test_without_an_image_for_the_kit_nothing_is_made() -> None:
    (said,) = problems(deployment(), Place(""))
    assert "set STANCH_KIT_IMAGE" in said


def test_nothing_given_is_changed() -> None:
    of = deployment(decode=vllm(env=[{"name": "A", "value": "1"}]), router=ROUTER)
    before = of.model_dump_json()
    render(of, PLACE)
    assert of.model_dump_json() == before


EVERYWHERE: dict[str, Any] = {
    "metadata": {"labels": {"a": "b"}, "annotations": {"a": "b"}},
    "spec": {
        "containers": [
            {
                "name": "vllm",
                "command": ["vllm", "serve"],
                "env": [{"name": "A", "value": "b"}, {"name": "PYTHONPATH", "value": "/x"}],
                "ports": [{"name": "http", "containerPort": 8000}, {"containerPort": 9}],
                "volumeMounts": [{"name": "m", "mountPath": "/m"}],
                "readinessProbe": {"httpGet": {"path": "/health", "port": "http"}},
                "livenessProbe": {"exec": {"command": ["x"]}},
                "lifecycle": {"preStop": {"exec": {"command": ["x"]}}},
                "resources": {"limits": {"gpu": 1}, "requests": {"cpu": "500m"}},
            },
            {"name": "proxy", "image": "p", "env": [{"name": "A"}]},
        ],
        "initContainers": [{"name": "i", "image": "i", "restartPolicy": "Always"}],
        "volumes": [{"name": "m", "emptyDir": {"sizeLimit": "1Gi"}}],
        "overhead": {"cpu": 1},
        "nodeSelector": {"a": "b"},
        "tolerations": [{"key": "a"}],
    },
}


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(found for key, below in inner for found in places(below, (*path, key)))]


def put(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    if not path:
        return new
    changed = copy.copy(value)
    changed[path[0]] = put(value[path[0]], path[1:], new)
    return changed


JUNK = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(-1, 70_000), st.floats(allow_nan=False), st.text(max_size=4)
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(["name", "value", "image", "http", "httpGet", "path", "spec", "x"]),
            inner,
            max_size=3,
        ),
    ),
    max_leaves=6,
)


@settings(max_examples=400, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(places(EVERYWHERE)), JUNK), min_size=1, max_size=2))
def test_whatever_a_template_holds_is_rendered_or_told(changes: list[tuple[tuple[Any, ...], Any]]) -> None:
    template: Any = EVERYWHERE
    for path, new in changes:
        try:
            template = put(template, path, new)
        except (KeyError, IndexError, TypeError):
            continue
    if not isinstance(template, dict):
        return
    found = render(deployment(decode={"template": template}), PLACE)
    assert bool(found.objects) != bool(found.problems)
    json.dumps(found.objects)
    for problem in found.problems:
        assert problem.path.startswith("spec.roles[decode].template")
        assert problem.message
