"""Manifests that people wrote: changed where the kit goes in, and nowhere else."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stanch.edge.json_patch import same
from stanch.edge.manifests import Done, ManifestError, changed, rewritten
from stanch.edge.pod_places import places
from stanch.edge.render.kit import Injected, KitOptions, inject, remove
from stanch.edge.yaml_values import Loader, block
from stanch_connector.install.names import MIDDLEWARE
from tests.edge.pod_templates import Object, engine, template

pytestmark = pytest.mark.unit


def put(text: str, **options: Any) -> Done:
    def doing(one: Object) -> Injected:
        return inject(one, KitOptions("example.test/stanch:1", **options))

    done = changed(text, doing)
    assert changed(done.text, doing).text == done.text
    return done


def values(text: str) -> list[Any]:
    return list(yaml.load_all(text, Loader=Loader))


def added_lines(before: str, after: str) -> list[str]:
    """What a reader of the difference sees as new; whatever was there must still be there, in its order."""
    left = iter(before.splitlines())
    want, found = next(left, None), []
    for line in after.splitlines():
        if line == want:
            want = next(left, None)
        else:
            found.append(line)
    assert want is None, f"gone: {want}"
    return found


DEPLOYMENT = """\
# Decode engines of the shop.
apiVersion: apps/v1
kind: Deployment
metadata:
  name: decode   # and not prefill
spec:
  replicas: 2
  template:
    metadata:
      labels: {app: vllm}
    spec:
      containers:
        # The engine.
        - name: vllm
          image: "vllm/vllm-openai:v0.29.0"
          args:
            - --model=org/model   # quantized
            - --port=8000
            - --max-model-len=4096
          env:
            # Where others look.
            - {name: HF_HOME, value: /models}
          readinessProbe:
            httpGet:
              path: /v1/own
              port: 8000
      # Last of all.
      volumes: []
"""
SERVICE = """\
apiVersion: v1
kind: Service
metadata: {name:   decode}
spec: {ports: [{port: 0o17}]}
"""


def test_only_what_the_kit_is_is_new_and_every_comment_stays() -> None:
    before = DEPLOYMENT.replace("      volumes: []\n", "")
    done = put(before)
    new = added_lines(before, done.text)
    assert [line.strip() for line in new if "--middleware" in line] == ["- --middleware"]
    assert len(new) == 53
    assert done.changed == ("Deployment decode, container vllm",)
    assert len(done.notes) == 1
    assert (
        "document 1, line 1: Deployment decode: container vllm: its readinessProbe is its own (/v1/own)"
        in done.notes[0]
    )


def test_documents_that_nothing_is_done_to_stay_byte_for_byte() -> None:
    text = f"# head\n---\n{SERVICE}---\n{DEPLOYMENT}...\n---\n# nothing\n---\n{SERVICE}\n\n--- # tail\n"
    done = put(text)
    head, tail = text.split(DEPLOYMENT)
    assert done.text.startswith(head)
    assert done.text.endswith(tail)
    assert len(done.changed) == 1


def test_nothing_to_do_changes_no_byte() -> None:
    for text in ("", "\n", "# only a comment", SERVICE, "[1, 2]\n", "text\n", "---\n---\n"):
        assert put(text) == Done(text)
    done = put(DEPLOYMENT)
    assert put(done.text).text == done.text
    assert put(done.text).changed == ()


def test_out_again_it_is_what_it_was() -> None:
    for text in (DEPLOYMENT, DEPLOYMENT.replace("\n", "\r\n"), DEPLOYMENT.replace("      volumes: []\n", "")):
        back = changed(put(text).text, remove)
        assert same(values(back.text), values(text))
    assert back.text == text


def test_line_breaks_of_another_world_stay() -> None:
    done = put(DEPLOYMENT.replace("\n", "\r\n"))
    assert "\n" not in done.text.replace("\r\n", "")
    assert done.text.count("#") == DEPLOYMENT.count("#")


def test_a_text_without_a_last_line_break() -> None:
    text = DEPLOYMENT.replace("      volumes: []\n", "").rstrip("\n")
    done = put(text)
    assert same(values(done.text)[0]["spec"]["template"], inject_value(values(text)[0]["spec"]["template"]))


def inject_value(one: Object) -> Object:
    return inject(one, KitOptions("example.test/stanch:1")).template


@pytest.mark.parametrize("header", ["|", "|-", "|+", ">", ">-", "| # start it"])
def test_a_script_stays_a_block(header: str) -> None:
    script = "set -e\n\n# it's here\nexec vllm serve m \\\n  --port 8000\n"
    if header.startswith(">"):
        script = "exec vllm serve m\n--port 8000\n"
    lines = "".join(f"              {line}\n" if line else "\n" for line in script.splitlines())
    command = f"          command:\n            - sh\n            - -c\n            - {header}\n{lines}"
    text = DEPLOYMENT.replace("          args:\n", f"{command}          args:\n")
    done = put(text)
    script_after = values(done.text)[0]["spec"]["template"]["spec"]["containers"][0]["command"][2]
    assert "vllm serve m --middleware stanch" in script_after
    assert done.text.count("#") == text.count("#")


@pytest.mark.parametrize(
    "script",
    [
        """"cd /app;\n                 vllm serve org/model\n                 --port 8000\"""",
        """'cd /app;\n                 vllm serve ''org/model''\n                 --port 8000'""",
        """cd /app;\n                 vllm serve org/model\n                 --port 8000""",
        """"vllm serve \\"$MODEL\\" --port 8000\"""",
    ],
    ids=["double", "single", "plain", "escaped"],
)
def test_a_script_over_lines_keeps_them(script: str) -> None:
    text = DEPLOYMENT.replace("      volumes: []\n", "")
    before, after = text.split("          args:\n")
    text = f"{before}          command: [sh, -c]\n          args:\n            - {script}\n"
    text += after[after.index("          env:") :]
    done = put(text)
    flag = f" --middleware {MIDDLEWARE}"
    assert added_lines(text, done.text.replace(flag, ""))
    assert done.text.count(flag) == 1
    assert changed(done.text, remove).text == text


ARGS = """\
          args:
            - --model=org/model   # quantized
            - --port=8000
            - --max-model-len=4096
"""
PROBE = """\
            httpGet:
              path: /v1/own
              port: 8000
"""
VARIABLE = "- {name: HF_HOME, value: /models}\n"
ODD = {
    "an alias": (VARIABLE, f"- &one {VARIABLE[2:]}            - *one\n"),
    "an anchored list": ("          env:\n", "          env: &env\n"),
    "a merged key": ("        - name: vllm\n", "        - <<: {tty: false}\n          name: vllm\n"),
    "a list over lines": (
        ARGS,
        "          args: ['--max-model-len=1',\n            # here\n            '-x']\n",
    ),
    "no indentation": (ARGS, "          args:\n          - m\n          - --max-model-len=4096\n"),
    "flow style": (ARGS, "          args: [--model=org/model, --max-model-len=4096, ]\n"),
    "single quotes": ("--max-model-len=4096", "'--max-model-len=4096'"),
    "an empty volume list over lines": ("volumes: []", "volumes: [\n      ]"),
    "null volumes": ("volumes: []", "volumes:"),
    "null volumes with a comment": ("volumes: []", "volumes: ~ # none"),
    "a dash of its own": ("        - name: vllm\n", "        -\n          name: vllm\n"),
    "a date and a time": ("replicas: 2", "replicas: 2\n  when: 2026-11-30\n  at: 12:30"),
    "tags": ("path: /v1/own", "path: !!str /health"),
    "a quoted probe": ("path: /v1/own", 'path: "/health"'),
    "a probe in single quotes": ("path: /v1/own", "path: '/health'"),
    "a probe in flow": (PROBE, "            httpGet: {port: 8000, path: /health}\n"),
}


@pytest.mark.parametrize("name", ODD)
def test_however_it_is_written_its_value_is_right(name: str) -> None:
    text = DEPLOYMENT.replace(*ODD[name])
    assert text != DEPLOYMENT
    done = put(text)
    wanted = values(text)[0]
    wanted["spec"]["template"] = inject_value(wanted["spec"]["template"])
    assert same(values(done.text)[0], wanted)
    back = changed(done.text, remove)
    assert same(values(back.text), values(text))


def test_what_cannot_be_changed_in_place_is_written_anew_and_that_is_said() -> None:
    shared = (
        "          env: &env\n            - name: PYTHONPATH\n              value: /a\n          xenv: *env\n"
    )
    before, after = DEPLOYMENT.split("          env:\n")
    done = put(before + shared + after[after.index("          readinessProbe") :])
    assert "written anew, without its comments" in done.notes[-1]
    assert "#" not in done.text


def test_json_stays_json() -> None:
    for indent in (None, 2, 4):
        text = json.dumps({"kind": "Pod", "metadata": {"name": "p"}, **template()}, indent=indent)
        done = put(text)
        assert json.loads(done.text)["spec"] == inject_value(json.loads(text))["spec"]
        assert (done.text.count("\n") > 20) == (indent is not None)


POD = template(engine(args=["--headless"], readinessProbe=...))
LEADER = template()


def lws() -> Object:
    return {"leaderWorkerTemplate": {"leaderTemplate": LEADER, "size": 2, "workerTemplate": POD}}


KINDS: dict[str, tuple[Object, int]] = {
    "Pod": (template(), 1),
    **{
        kind: ({"spec": {"template": template()}}, 1)
        for kind in ("Deployment", "StatefulSet", "DaemonSet", "Job")
    },
    "CronJob": ({"spec": {"jobTemplate": {"spec": {"template": template()}}}}, 1),
    "LeaderWorkerSet": ({"spec": lws()}, 2),
    "DisaggregatedSet": (
        {"spec": {"roles": [{"name": "prefill", "spec": lws()}, {"name": "decode", "spec": lws()}]}},
        4,
    ),
    "LLMInferenceService": (
        {
            "spec": {
                "template": template()["spec"],
                "prefill": {"template": template()["spec"], "annotations": {"a": "b"}},
            }
        },
        2,
    ),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("listed", [False, True], ids=["alone", "in-a-list"])
def test_every_kind(kind: str, listed: bool) -> None:
    body, count = KINDS[kind]
    one = {"apiVersion": "x/v1", "kind": kind, **body, "metadata": {"name": "decode"}}
    whole = {"kind": "List", "items": [{"kind": "Service"}, one]} if listed else one
    text = block(whole)
    done = put(text, connector_patch="Auto")
    assert len(done.changed) == count
    assert done.changed[0].startswith(f"{kind} decode")
    assert done.text.count("name: PYTHONPATH") == count
    assert same(values(changed(done.text, remove).text)[0], whole)


@pytest.mark.parametrize("kind", ["Rollout", "RayCluster", "DynamoGraphDeployment", "ConfigMap", None, 7])
def test_kinds_that_are_not_known_stay_as_they_are(kind: Any) -> None:
    text = block({"kind": kind, "spec": {"template": template()}})
    assert put(text) == Done(text)


def test_who_is_no_engine_is_left_alone_and_that_is_said() -> None:
    text = block(
        {
            "kind": "Deployment",
            "metadata": {"name": "router"},
            "spec": {"template": template({"name": "envoy", "image": "envoy"})},
        }
    )
    done = put(text)
    assert done.text == text
    assert "Deployment router is left as it is: none of its containers (envoy)" in done.notes[0]


BROKEN = block({"kind": "Pod", **template(engine(command=["sh", "-c", "vllm serve 'x"]))}).replace(
    "labels:", "name: odd\n  labels:"
)


HALF = json.dumps({"kind": "Pod", **template(engine(args=["--served-model-name", "\ud800"]))})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            f"{SERVICE}---\n{BROKEN}",
            ["document 2, line 5: Pod odd: container vllm: its script is not understood"],
        ),
        (
            f"{BROKEN}---\na: [\n---\n{BROKEN}",
            ["document 1, line 1", "document 2, line ", "document 3, line "],
        ),
        ("a: 1\n---\nb: 2\n c: 3\n", ["document 2, line 4: is not YAML: "]),
        ("\ta: 1\n", ["document 1, line 1: is not YAML"]),
        ("a: \x07\n", ["document 1, line 1: is not YAML: "]),
        ("a: !!python/object/apply:os.system [x]\n", ["is not YAML: could not determine a constructor"]),
        ("a: !!int x\n", ["is not YAML"]),
        ("a: &a [*a]\n", ["nested too deeply, or contains itself"]),
        ("[" * 3000, ["document 1, line 1"]),
        (HALF, ["document 1, line 1: a text in it has half a character"]),
        (
            "a: &a [" + "x," * 500 + "]\nb: &b [" + "*a," * 500 + "]\nc: [" + "*b," * 500 + "]\n",
            ["aliases stand for more than"],
        ),
    ],
)
def test_what_is_wrong_is_said_with_its_place_and_nothing_is_done(text: str, said: list[str]) -> None:
    with pytest.raises(ManifestError) as error:
        put(text)
    lines = str(error.value).splitlines()
    assert len(lines) == len(said)
    assert all(one in line for one, line in zip(said, lines, strict=True))


SCALARS: Any = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from(["a", "", "on", "12:30", "# x", "a\nb\n", "- x", "é", "1e3", "y"])
)
DATA: Any = st.recursive(
    SCALARS,
    lambda one: (
        st.lists(one, max_size=3) | st.dictionaries(st.sampled_from(["a", "b", "c", "d e"]), one, max_size=3)
    ),
    max_leaves=12,
)


def styled(value: Any, draw: Callable[[Any], Any]) -> str:
    flow = draw(st.sampled_from([False, None, True]))
    width = draw(st.sampled_from([20, 1000]))
    return str(
        yaml.safe_dump(value, default_flow_style=flow, width=width, sort_keys=False, allow_unicode=True)
    )


@given(st.data())
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_change_of_any_document(data: st.DataObject) -> None:
    """In place or anew, its value is the right one."""
    old, new = (
        data.draw(st.dictionaries(st.sampled_from("abc"), DATA)),
        data.draw(st.dictionaries(st.sampled_from("abc"), DATA)),
    )
    text = styled(old, data.draw)
    old = yaml.load(text, Loader=Loader)
    after, _ = rewritten(text, old, new)
    assert same(yaml.load(after, Loader=Loader), new)


@given(DATA)
def test_what_is_written_is_read_as_the_same(value: Any) -> None:
    assert same(yaml.load(block(value), Loader=Loader), value)


@given(st.text(max_size=60))
def test_any_text(text: str) -> None:
    with suppress(ManifestError):
        assert put(text).text == text


def test_places_of_what_is_no_object() -> None:
    odds: list[Any] = [None, [], "x", {"kind": "Deployment"}, {"kind": "List", "items": {}}]
    odds += [{"kind": "Deployment", "spec": {"template": []}}]
    for odd in odds:
        assert list(places(odd)) == []
