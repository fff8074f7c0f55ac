"""Whatever the template: the kit goes in the same way twice, and comes out without a trace."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stanch.edge.render.kit import KitOptions, inject, remove
from stanch_connector.install.names import MIDDLEWARE
from tests.edge.pod_templates import CONFIG, Object, template

pytestmark = pytest.mark.unit

FLAGS = ["--middleware", MIDDLEWARE]
_PIECES = [
    *("vllm", "vllm", "serve", "serve", "m", "vllm serve m", "--p", "1", "-", "if", "!"),
    *("'a b'", '"x $M"', '"y', "'", '"', "$M", "${M}", "`", "$(", "$((", ")", "(", "{ ", " }"),
    *(";", "&&", "|", "#", "\n", "\\\n", "\\ "),
]
SCRIPT = st.lists(
    st.sampled_from(_PIECES),
    max_size=12,
).flatmap(
    lambda words: st.lists(
        st.sampled_from([" ", "", " ", "  "]), min_size=len(words), max_size=len(words)
    ).map(lambda gaps: "".join(a + b for a, b in zip(words, gaps, strict=True)))
)
NOTHING: Any = st.sampled_from([..., None])
_WORDS = [
    *("vllm", "serve", "m", "--port", "8000", "--kv-transfer-config", CONFIG, "--", "--headless", "sh", "-c"),
    *(
        "-m",
        "vllm.entrypoints.openai.api_server",
        *FLAGS,
        f"--kv-transfer-config={CONFIG}",
        "vllm serve m",
        "",
    ),
]
WORDS = st.lists(
    st.sampled_from(_WORDS),
    max_size=9,
)
COMMANDS = st.one_of(
    NOTHING,
    WORDS,
    WORDS.map(lambda words: ["vllm", "serve", *words]),
    st.builds(lambda script: ["sh", "-c", script], SCRIPT),
    st.builds(
        lambda a, b: ["sh", "-c", f"{a}vllm serve m --kv-transfer-config '{CONFIG}' {b}"], SCRIPT, SCRIPT
    ),
)
VARIABLES = st.sampled_from(
    [
        {"name": "PYTHONPATH", "value": "/a:/opt/stanch"},
        {"name": "PYTHONPATH", "value": ""},
        {"name": "PYTHONPATH"},
        {"name": "VLLM_PLUGINS", "value": "a,,stanch"},
        {"name": "OTHER", "valueFrom": {}},
        {"name": "STANCH_ANNOTATIONS", "value": "/x"},
    ]
)
MOUNTS = st.sampled_from(
    [{"name": "p", "mountPath": "/etc/stanch/podinfo"}, {"name": "m", "mountPath": "/models"}, "odd", {}]
)
PROBES = st.one_of(
    NOTHING,
    st.sampled_from(["/health", "/health/", "/own", "/stanch/v1/ready"]).map(
        lambda path: {"httpGet": {"path": path, "port": 8000}}
    ),
)


def lists(of: Any) -> Any:
    return st.one_of(NOTHING, st.lists(of, max_size=3))


CONTAINERS: Any = st.fixed_dictionaries(
    {
        "name": st.sampled_from(["a", "b"]),
        "image": st.sampled_from(["x", "vllm/vllm-openai:v0.29.0"]),
        "command": COMMANDS,
        "args": st.one_of(NOTHING, WORDS),
        "env": lists(VARIABLES),
        "volumeMounts": lists(MOUNTS),
        "readinessProbe": PROBES,
    }
)
TEMPLATES: Any = st.fixed_dictionaries(
    {
        "metadata": st.one_of(
            NOTHING,
            st.just({}),
            st.sampled_from([{"annotations": None}, {"annotations": {}}, {"annotations": {"a": "b"}}]),
        ),
        "spec": st.fixed_dictionaries(
            {
                "containers": st.lists(CONTAINERS, min_size=1, max_size=2),
                "volumes": lists(st.just({"name": "p"})),
                "initContainers": lists(
                    CONTAINERS.map(lambda one: {**one, "name": "c", "restartPolicy": "Always"})
                ),
            }
        ),
    }
)
OPTIONS = st.builds(
    KitOptions,
    st.just("i"),
    container=st.sampled_from([None, "a"]),
    connector_patch=st.sampled_from([None, "Auto", "Always", "Never"]),
    image_volume=st.booleans(),
)


def without(value: Any) -> Any:
    """Keys that a strategy left out."""
    if isinstance(value, dict):
        return {key: without(one) for key, one in value.items() if one is not ...}
    return [without(one) for one in value] if isinstance(value, list) else value


@given(TEMPLATES, OPTIONS, OPTIONS)
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_in_and_out_again(raw: Object, options: KitOptions, others: KitOptions) -> None:
    into = without(raw)
    done = inject(into, options)
    if not done.changed:
        assert done.template == into
        assert done.problems
        return
    assert inject(done.template, options) == type(done)(done.template, False, done.problems, done.container)
    assert remove(done.template).template == into
    # Put in another way, it is as if it had never been there the first way.
    again, fresh = inject(done.template, others), inject(into, others)
    if fresh.changed:
        assert again.template == fresh.template


@given(
    st.recursive(
        st.none() | st.integers() | st.text(max_size=4),
        lambda one: (
            st.lists(one, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    [
                        "metadata",
                        "annotations",
                        "stanch.dev/kit",
                        "spec",
                        "containers",
                        "initContainers",
                        "volumes",
                        "name",
                        "command",
                        "args",
                        "env",
                        "value",
                        "readinessProbe",
                        "httpGet",
                        "path",
                        "restartPolicy",
                    ]
                ),
                one,
                max_size=5,
            )
        ),
        max_leaves=30,
    )
)
@settings(max_examples=200, deadline=None)
def test_a_template_of_any_shape(value: Any) -> None:
    """An answer, never an exception."""
    into = value if isinstance(value, dict) else {"spec": value}
    for named in (None, "a"):
        assert inject(into, KitOptions("i", container=named)).template is not None
    assert remove(into).template is not None


PROGRAM = "vllm() { printf '%s\\0' \"$@\"; printf '\\n'; }\n"


def calls(script: str) -> list[list[str]] | None:
    """With what the script calls vllm, without our flag; None where bash does not take it."""
    environment = {"M": "my model", "PATH": "/nowhere"}
    done = subprocess.run(
        ["/bin/bash", "-c", PROGRAM + script], capture_output=True, env=environment, check=False
    )
    if b"syntax error" in done.stderr or b"unexpected" in done.stderr:
        return None
    found = []
    for line in done.stdout.decode().splitlines():
        words = line.split("\0")[:-1]
        while MIDDLEWARE in words:
            at = words.index(MIDDLEWARE)
            assert words[at - 1] == FLAGS[0]
            del words[at - 1 : at + 1]
        found.append(words)
    return sorted(found)


@given(SCRIPT)
@settings(max_examples=150, deadline=None)
def test_a_script_does_what_it_did(script: str) -> None:
    """By a real shell: its calls have the words that they had, and the flag besides."""
    before = calls(script)
    done = inject(template({"name": "a", "command": ["bash", "-c", script]}), KitOptions("i", container="a"))
    if before is not None and done.changed:
        assert calls(done.template["spec"]["containers"][0]["command"][2]) == before
