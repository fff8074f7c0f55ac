"""The kit goes into a pod template, and out of it again as if it had never been there."""

from __future__ import annotations

import json
import subprocess
from copy import deepcopy
from typing import Any

import pytest

from stanch.api.names import ANNOTATION_KIT
from stanch.core.fleet import Capability
from stanch.edge.render.kit import Injected, KitOptions, inject, remove
from stanch.edge.units_pod import capability
from stanch_connector.contract import DEFAULT_ANNOTATIONS, ROUTE_READY
from stanch_connector.install.names import MIDDLEWARE
from tests.edge.pod_templates import CONFIG, TRANSFER, Object, engine, template

pytestmark = pytest.mark.unit

OPTIONS = KitOptions("example.test/stanch:1")
FLAGS = ["--middleware", MIDDLEWARE]


def put(into: Object, **options: Any) -> Injected:
    before = deepcopy(into)
    done = inject(into, KitOptions("example.test/stanch:1", **options))
    assert into == before
    if done.changed:
        again = inject(done.template, KitOptions("example.test/stanch:1", **options))
        assert (again.changed, again.template, again.problems) == (False, done.template, done.problems)
        assert remove(done.template) == Injected(into, True, (), done.container)
    else:
        assert done.template == into
    return done


def container(done: Injected) -> Object:
    spec = done.template["spec"]
    every = [*spec["containers"], *spec.get("initContainers", [])]
    found: Object = next(one for one in every if one["name"] == done.container)
    return found


@pytest.mark.parametrize(
    "start",
    [
        {"command": ["vllm", "serve", "m"], "args": ["--port", 8000, "--x", None]},
        {"command": ["sh", "-c", "vllm serve m", 8000]},
    ],
)
def test_what_is_no_text_among_the_arguments_stays(start: Object) -> None:
    """The API server refuses it, and says where; an empty text in its place would pass."""
    assert put(template(engine(**{"args": ..., **start}))).changed


def test_everything_that_the_kit_is() -> None:
    done = put(template())
    spec, vllm = done.template["spec"], container(done)
    assert done.problems == ()
    installer = spec["initContainers"][0]
    assert installer["command"] == ["python", "-m", "stanch_connector.install", "/opt/stanch"]
    assert installer["image"] == "example.test/stanch:1"
    assert installer["securityContext"] == {
        "runAsUser": 65532,
        "runAsNonRoot": True,
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    assert {one["name"] for one in spec["volumes"]} == {"stanch-kit", "stanch-podinfo"}
    mounts = {one["mountPath"]: one for one in vllm["volumeMounts"]}
    assert set(mounts) == {"/opt/stanch", DEFAULT_ANNOTATIONS.rpartition("/")[0]}
    assert all(one["readOnly"] for one in mounts.values())
    assert vllm["env"] == [{"name": "PYTHONPATH", "value": "/opt/stanch"}]
    assert vllm["args"][-2:] == FLAGS
    assert vllm["readinessProbe"] == {"httpGet": {"path": ROUTE_READY, "port": "http"}, "periodSeconds": 5}
    assert vllm["livenessProbe"]["httpGet"]["path"] == "/health"
    assert json.loads(vllm["args"][3]) == TRANSFER
    # The operator then counts on it.
    assert capability(done.template, (8000,)) is Capability.READINESS


def test_its_requests_are_its_limits_so_that_a_guaranteed_pod_stays_one() -> None:
    resources = put(template()).template["spec"]["initContainers"][0]["resources"]
    assert resources["requests"] == resources["limits"]
    assert set(resources["limits"]) == {"cpu", "memory"}


def test_the_init_container_goes_before_all_others() -> None:
    car = {**engine(), "restartPolicy": "Always"}
    done = put(template({"name": "proxy", "image": "p"}, initContainers=[car]))
    assert [one["name"] for one in done.template["spec"]["initContainers"]] == ["stanch-kit", "vllm"]


def test_an_image_volume_in_place_of_the_init_container() -> None:
    done = put(template(), image_volume=True, pull_policy="Always")
    spec = done.template["spec"]
    assert "initContainers" not in spec
    image = {"reference": "example.test/stanch:1", "pullPolicy": "Always"}
    assert spec["volumes"][0] == {"name": "stanch-kit", "image": image}
    mount = {"name": "stanch-kit", "mountPath": "/opt/stanch", "readOnly": True, "subPath": "opt/stanch"}
    assert container(done)["volumeMounts"][0] == mount


@pytest.mark.parametrize("volume", [False, True], ids=["to-init-container", "to-image-volume"])
def test_another_image_takes_the_place_of_the_old(volume: bool) -> None:
    first = inject(template(), KitOptions("example.test/stanch:1", image_volume=not volume))
    options = KitOptions("example.test/stanch:2", image_volume=volume)
    second = inject(first.template, options)
    assert second.changed
    assert second.template == inject(template(), options).template
    assert remove(second.template).template == template()


@pytest.mark.parametrize(
    ("env", "wanted"),
    [
        (..., {"PYTHONPATH": "/opt/stanch"}),
        ([], {"PYTHONPATH": "/opt/stanch"}),
        (None, {"PYTHONPATH": "/opt/stanch"}),
        ([{"name": "PYTHONPATH", "value": "/a:/b"}], {"PYTHONPATH": "/opt/stanch:/a:/b"}),
        ([{"name": "PYTHONPATH", "value": "/a:/opt/stanch"}], {"PYTHONPATH": "/opt/stanch:/a"}),
        ([{"name": "PYTHONPATH", "value": ""}], {"PYTHONPATH": "/opt/stanch"}),
        ([{"name": "PYTHONPATH"}], {"PYTHONPATH": "/opt/stanch"}),
        (
            [{"name": "VLLM_PLUGINS", "value": "lora"}],
            {"VLLM_PLUGINS": "lora,stanch", "PYTHONPATH": "/opt/stanch"},
        ),
        (
            [{"name": "VLLM_PLUGINS", "value": ""}],
            {"VLLM_PLUGINS": "stanch", "PYTHONPATH": "/opt/stanch"},
        ),
        (
            [{"name": "VLLM_PLUGINS", "value": "stanch,lora"}],
            {"VLLM_PLUGINS": "lora,stanch", "PYTHONPATH": "/opt/stanch"},
        ),
    ],
)
def test_environment(env: Any, wanted: dict[str, str]) -> None:
    done = put(template(engine(env=env)))
    assert {one["name"]: one["value"] for one in container(done)["env"]} == wanted


@pytest.mark.parametrize(
    ("command", "args", "key"),
    [
        (["vllm", "serve", "m"], ["--port=8000"], "args"),
        (["vllm"], ["serve", "m"], "args"),
        (["vllm", "serve", "m"], ..., "command"),
        (["vllm", "serve", "m"], [], "command"),
        (["/usr/bin/tini", "--", "vllm", "serve", "m"], ..., "command"),
        (["python3", "-m", "vllm.entrypoints.openai.api_server", "--model", "m"], ..., "command"),
        (["python3", "-m", "vllm.entrypoints.cli.main", "serve"], ["m"], "args"),
        (..., ["--model=m", "--kv-transfer-config", CONFIG], "args"),
        (..., ["m", "--max-model-len", "4096"], "args"),
    ],
)
def test_the_middleware_goes_where_the_arguments_are(command: Any, args: Any, key: str) -> None:
    done = put(template(engine(command=command, args=args)))
    words = [] if {"command": command, "args": args}[key] is ... else {"command": command, "args": args}[key]
    assert container(done)[key] == [*words, *FLAGS]


INSERTED = f" --middleware {MIDDLEWARE}"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("exec vllm serve org/model", " --port 8000 || exit 1"),
        ('sleep 1; vllm serve "$MODEL"', " $MORE & wait"),
        ("vllm serve ${MODEL:-org/model}", " \\\n  --port 8000 \\\n  --config c.yaml # vllm serves\n"),
        ("vllm serve $(cat /model; echo 'x y')", " --port 8000"),
        ("vllm serve", " --model org/model > /log 2>&1"),
        ("vllm serve", " 2>&1 | tee log"),
        ("python3 -m vllm.entrypoints.openai.api_server", " --model m"),
        ("set -e\n# it's here\nLD=x /opt/venv/bin/vllm serve m", "\n"),
        ('echo "it\'s" a; if true; then vllm serve m', "; fi"),
        ("source /env.sh && vllm \\\n serve \\\n  m", " --kv-transfer-config '{}'"),
    ],
)
@pytest.mark.parametrize(
    "shell", [["sh", "-c"], ["/bin/bash", "-euo", "pipefail", "-c"], ["bash", "-lc", "--"]]
)
def test_a_script(before: str, after: str, shell: list[str]) -> None:
    if shell[-1] == "--":
        shell = shell[:-1]
    wanted = f"{before}{INSERTED}{after}"
    done = put(template(engine(command=[*shell, before + after], args=...)))
    assert container(done)["command"] == [*shell, wanted]
    done = put(template(engine(command=shell, args=[before + after, "zero", "one"])))
    assert container(done)["args"] == [wanted, "zero", "one"]


@pytest.mark.parametrize(
    "script",
    [
        'exec vllm serve "a model" --port 1',
        'A=\'vllm serve\'; vllm serve m --x "$(echo "a b")" # vllm serve n',
        "vllm serve m --port 1 & vllm serve n --port 2 & wait",
        'vllm serve "$MODEL" --x',
    ],
)
def test_what_a_real_shell_makes_of_the_script(script: str) -> None:
    """Its words as the program gets them: those from before, and the flag once in each call."""

    def calls(text: str) -> list[list[str]]:
        # One printf is one write, so that two at once do not mix.
        program = 'vllm() { printf \'%s\\0\' "$@" END; }\nexec() { "$@"; }\n'
        words = ["bash", "-c", program + text]
        done = subprocess.run(words, capture_output=True, text=True, env={"MODEL": "my model"}, check=True)
        return sorted(call.split("\0")[:-1] for call in done.stdout.split("END\0")[:-1])

    done = put(template(engine(command=["bash", "-c", script], args=...)))
    with_flag = calls(container(done)["command"][2])
    assert all(words[2:4] == FLAGS for words in with_flag)
    assert [words[:2] + words[4:] for words in with_flag] == calls(script)


@pytest.mark.parametrize(
    ("container_", "why"),
    [
        (engine(command=["sh", "-c", "cat > x <<EOF\nvllm serve m\nEOF\nsh x"], args=...), "here-document"),
        (
            engine(command=["sh", "-c", "RUN='vllm serve m --kv-transfer-config {}'; $RUN"], args=...),
            "outside of",
        ),
        (engine(command=["sh", "-c", "vllm serve 'm"], args=...), "' in it is not closed"),
        (engine(command=["sh", "-c", "vllm serve m " + "x" * 70_000], args=...), "longer than 65536"),
        (engine(command=["python3", "-m", "dynamo.vllm"]), "not `vllm serve`"),
        (engine(command=["vllm", "serve", "m", "--", "x"]), "`--`"),
        (
            engine(env=[{"name": "PYTHONPATH", "valueFrom": {"fieldRef": {"fieldPath": "x"}}}]),
            "its PYTHONPATH",
        ),
        (engine(env=[{"name": "VLLM_PLUGINS", "valueFrom": {}}]), "its VLLM_PLUGINS"),
        (engine(env=[{"name": "PYTHONPATH", "value": "a"}, {"name": "PYTHONPATH"}]), "2 times"),
        (engine(volumeMounts=[{"name": "mine", "mountPath": "/opt/stanch/"}]), "mounts mine at /opt/stanch"),
        (engine(volumeMounts=[{"name": "mine", "mountPath": "/opt"}]), "mounts mine at /opt"),
        (engine(volumeMounts="none"), "volumeMounts is no list"),
    ],
)
def test_where_it_cannot_go_in_nothing_is_changed(container_: Object, why: str) -> None:
    done = put(template(container_))
    assert not done.changed
    assert done.container == "vllm"
    assert len(done.problems) == 1
    assert done.problems[0].startswith("container vllm: ")
    assert why in done.problems[0]


@pytest.mark.parametrize(
    ("into", "options", "why"),
    [
        (template({"name": "web", "image": "nginx"}), {}, "none of its containers (web) says"),
        (
            template({"name": "w", "image": "ray", "command": ["ray", "start"]}),
            {},
            "none of its containers (w)",
        ),
        (template(engine(name="a"), engine(name="b")), {}, "several of its containers start vLLM (a, b)"),
        (template(engine(), engine()), {}, "several of its containers have one name"),
        (template(), {"container": "x"}, "it has no container x (it has vllm)"),
        ({}, {}, "none of its containers (none)"),
        ({"spec": {"containers": ["x", {"name": 1}]}}, {}, "none of its containers (none)"),
        (template(volumes=[{"name": "stanch-kit"}]), {}, "its pod has a stanch-kit already"),
    ],
)
def test_no_engine_or_no_place(into: Object, options: dict[str, Any], why: str) -> None:
    done = put(into, **options)
    assert not done.changed
    assert why in done.problems[0]


def test_the_engine_is_found_beside_side_cars_or_by_its_name() -> None:
    proxy = {"name": "proxy", "image": "sidecar", "args": ["--vllm-port=8200"]}
    assert put(template(proxy, engine())).container == "vllm"
    own = engine(name="own", command=..., args=["m"])
    assert put(template(proxy, own), container="own").changed


@pytest.mark.parametrize(
    ("probe", "why"),
    [
        (..., "has no readinessProbe"),
        ({"tcpSocket": {"port": 8000}}, "its own (no httpGet)"),
        ({"httpGet": {"path": "/custom", "port": 8000}}, "its own (/custom)"),
        ({"httpGet": {"path": "/health", "port": 9000}}, "port 9000, not the engine's 8000"),
    ],
)
def test_a_readiness_of_its_own_stays_and_that_is_said(probe: Any, why: str) -> None:
    done = put(template(engine(readinessProbe=probe)))
    assert done.changed
    assert container(done).get("readinessProbe", ...) == probe
    assert why in done.problems[0]
    assert "cordon has no effect" in done.problems[0]


@pytest.mark.parametrize("path", ["/health", "/health/", "/health?x=1", "/v1/models", ROUTE_READY])
def test_a_readiness_that_says_what_the_kit_says_too(path: str) -> None:
    done = put(template(engine(readinessProbe={"httpGet": {"path": path, "port": 8000}})))
    assert container(done)["readinessProbe"]["httpGet"] == {"path": ROUTE_READY, "port": 8000}
    assert done.problems == ()


def test_a_worker_without_a_server_gets_the_kit_without_the_server_s_part() -> None:
    done = put(template(engine(args=["--headless"], readinessProbe=...)))
    assert done.problems == ()
    assert container(done)["args"] == ["--headless"]
    assert [one["name"] for one in container(done)["volumeMounts"]] == ["stanch-kit"]


def test_a_script_that_starts_leader_and_worker() -> None:
    script = 'if [ "$LWS_WORKER_INDEX" = 0 ]; then vllm serve m; else vllm serve m --headless; fi'
    done = put(template(engine(command=["sh", "-c", script], args=...)))
    assert container(done)["command"][2].count("StanchMiddleware") == 2
    assert container(done)["readinessProbe"]["httpGet"]["path"] == ROUTE_READY


def test_annotations_that_are_shown_already_are_not_shown_twice() -> None:
    mount = {"name": "podinfo", "mountPath": "/etc/stanch/podinfo"}
    done = put(template(engine(volumeMounts=[mount]), volumes=[{"name": "podinfo"}]))
    assert [one["name"] for one in container(done)["volumeMounts"]] == ["podinfo", "stanch-kit"]
    done = put(template(engine(env=[{"name": "STANCH_ANNOTATIONS", "value": "/x"}])))
    assert [one["name"] for one in container(done)["volumeMounts"]] == ["stanch-kit"]


def test_a_middleware_that_is_there_by_hand_is_left_there() -> None:
    done = put(template(engine(args=["--middleware", MIDDLEWARE, "--port=8000"])))
    assert container(done)["args"] == ["--middleware", MIDDLEWARE, "--port=8000"]


OURS = {
    "kv_connector": "StanchNixlConnector",
    "kv_role": "kv_both",
    "kv_buffer_device": "cpu",
    "kv_connector_module_path": "stanch_connector.connector",
}


def with_mode(mode: str, **extra: Any) -> Object:
    return {**OURS, "kv_connector_extra_config": {**extra, "stanch_connector_patch": mode}}


MULTI = {
    "kv_connector": "MultiConnector",
    "kv_connector_extra_config": {"connectors": [{"kv_connector": "OffloadingConnector"}, TRANSFER]},
}


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (TRANSFER, with_mode("Auto")),
        ({**TRANSFER, "kv_connector": "NixlPullConnector"}, with_mode("Auto")),
        ({**TRANSFER, "kv_connector_extra_config": {"x": 1}}, with_mode("Auto", x=1)),
        (
            MULTI,
            {
                "kv_connector": "MultiConnector",
                "kv_connector_extra_config": {
                    "connectors": [{"kv_connector": "OffloadingConnector"}, with_mode("Auto")]
                },
            },
        ),
    ],
)
def test_the_fixed_connector(given: Object, wanted: Object) -> None:
    raw = json.dumps(given, indent=1)
    done = put(template(engine(args=["--kv_transfer_config", raw])), connector_patch="Auto")
    assert json.loads(container(done)["args"][1]) == wanted
    done = put(template(engine(args=[f"--kv-transfer-config={raw}"])), connector_patch="Auto")
    assert json.loads(container(done)["args"][0].partition("=")[2]) == wanted
    for quoted in (f"'{raw}'", '"' + raw.replace('"', '\\"') + '"'):
        script = f"vllm serve m --kv-transfer-config {quoted} --port 8000"
        done = put(template(engine(command=["bash", "-c", script], args=...)), connector_patch="Auto")
        said = subprocess.run(
            ["bash", "-c", 'vllm() { printf %s "$6"; }\n' + container(done)["command"][2]],
            capture_output=True,
            text=True,
            check=True,
        )
        assert json.loads(said.stdout) == wanted


def test_the_configuration_may_stand_in_the_command() -> None:
    command = ["vllm", "serve", "m", "--kv-transfer-config", CONFIG]
    done = put(template(engine(command=command, args=["--port=8000"])), connector_patch="Always")
    assert json.loads(container(done)["command"][4]) == with_mode("Always")
    assert container(done)["args"] == ["--port=8000", *FLAGS]


@pytest.mark.parametrize("mode", [None, "Never"])
def test_the_connector_is_left_alone_unless_it_is_asked_for(mode: Any) -> None:
    done = put(template(), connector_patch=mode)
    assert container(done)["args"][3] == CONFIG
    assert done.problems == ()


@pytest.mark.parametrize(
    ("args", "why"),
    [
        (["--port=8000"], "no --kv-transfer-config"),
        (["--kv-transfer-config", "$(CONFIG)"], "($(CONFIG)) names no NixlConnector"),
        (["--kv-transfer-config", '{"kv_connector": "LMCacheConnectorV1"}'], "names no NixlConnector"),
        (["--kv-transfer-config.kv_connector", "NixlConnector"], "names no NixlConnector as plain JSON"),
        (
            ["--kv-transfer-config", json.dumps({**TRANSFER, "kv_connector_extra_config": "x"})],
            "as plain JSON",
        ),
    ],
)
def test_a_connector_that_is_not_understood_stays_and_that_is_said(args: list[str], why: str) -> None:
    done = put(template(engine(args=args)), connector_patch="Auto")
    assert done.changed
    assert container(done)["args"] == [*args, *FLAGS]
    assert why in done.problems[0]


@pytest.mark.parametrize(
    "script",
    [
        "bash serving.sh leader --ray_cluster_size=2; vllm serve m",
        "ray start --head; vllm serve m",
        "vllm serve m --distributed-executor-backend ray",
        "vllm serve m --distributed-executor-backend=ray",
    ],
)
def test_where_ray_starts_the_ranks_the_connector_stays(script: str) -> None:
    command = ["bash", "-c", f"{script} --kv-transfer-config '{CONFIG}'"]
    done = put(template(engine(command=command, args=...)), connector_patch="Always")
    assert "StanchNixlConnector" not in container(done)["command"][2]
    assert "where Ray starts them" in done.problems[0]
    fine = engine(command=["bash", "-c", f"vllm serve org/x-ray --kv-transfer-config '{CONFIG}'"], args=...)
    assert put(template(fine), connector_patch="Always").problems == ()


def test_a_variable_in_a_script_s_configuration_is_not_guessed() -> None:
    script = 'vllm serve m --kv-transfer-config "{\\"kv_connector\\": \\"$C\\"}"'
    done = put(template(engine(command=["sh", "-c", script], args=...)), connector_patch="Auto")
    assert "names no NixlConnector" in done.problems[0]


def test_what_was_changed_since_stays_changed() -> None:
    done = inject(
        template(engine(env=[{"name": "PYTHONPATH", "value": "/a"}])), KitOptions("i", connector_patch="Auto")
    )
    vllm = container(done)
    vllm["env"][0]["value"] = "/mine"
    vllm["readinessProbe"]["httpGet"]["path"] = "/mine"
    vllm["args"][3] = json.dumps({**with_mode("Auto"), "kv_role": "kv_consumer"})
    vllm["args"].append("--enforce-eager")
    back = container(remove(done.template))
    assert back["env"] == [{"name": "PYTHONPATH", "value": "/mine"}]
    assert back["readinessProbe"]["httpGet"]["path"] == "/mine"
    assert back["args"][:2] == ["--port", "8000"]
    assert json.loads(back["args"][3]) == {**TRANSFER, "kv_role": "kv_consumer"}
    assert back["args"][4:] == ["--enforce-eager"]


def test_what_others_put_around_it_since_is_no_reason_to_move_it() -> None:
    done = inject(template(), OPTIONS)
    done.template["spec"]["volumes"].append({"name": "mesh", "emptyDir": {}})
    done.template["spec"]["initContainers"].insert(0, {"name": "mesh-init", "image": "m"})
    container(done)["env"].insert(0, {"name": "MESH", "value": "1"})
    again = inject(done.template, OPTIONS)
    assert (again.changed, again.template) == (False, done.template)


def test_what_an_api_server_fills_in_is_no_reason_to_put_it_in_anew() -> None:
    done = inject(template(), OPTIONS)
    spec = done.template["spec"]
    spec["initContainers"][0]["terminationMessagePath"] = "/dev/termination-log"
    spec["initContainers"][0]["volumeMounts"].append({"name": "kube-api-access", "mountPath": "/var/run/x"})
    spec["volumes"][1]["downwardAPI"]["defaultMode"] = 420
    spec["volumes"][1]["downwardAPI"]["items"][0]["fieldRef"]["apiVersion"] = "v1"
    again = inject(done.template, OPTIONS)
    assert (again.changed, again.template) == (False, done.template)
    assert inject(done.template, KitOptions("example.test/stanch:1", "Always")).changed
    spec["initContainers"][0]["image"] = "example.test/another"
    assert inject(done.template, OPTIONS).changed


@pytest.mark.parametrize(
    "raw", ["", "x", "[]", "{}", '{"container": 1, "image": "x"}', '{"container": "c", "image": "i", "x": 1}']
)
def test_a_mark_that_is_not_ours(raw: str) -> None:
    into = template()
    into["metadata"]["annotations"] = {ANNOTATION_KIT: raw}
    for done in (inject(into, OPTIONS), remove(into)):
        assert (done.changed, done.template) == (False, into)
        assert "by hand" in done.problems[0]


def test_without_a_mark_there_is_nothing_to_take_out() -> None:
    assert remove(template()) == Injected(template(), False)


def test_the_engine_is_gone_from_a_marked_template() -> None:
    done = inject(template(), OPTIONS).template
    done["spec"]["containers"][0]["name"] = "renamed"
    assert not remove(done).changed
    assert "no container vllm any more" in remove(done).problems[0]
