"""What a DisaggDeployment asks for, as objects; what is wrong with one, by its place."""

from __future__ import annotations

import json
import random
import re
from typing import Any

import pytest
import yaml

from stanch.api.v1alpha1 import DisaggDeployment, LeakWatch
from stanch.edge.render import Object, Place
from stanch.edge.render.kit import remove
from stanch.edge.units_args import arguments_of
from tests.api.kinds_files import EXAMPLES, TOP, read
from tests.edge.render_world import PLACE, container, deployment, one, pod, problems, rendered

pytestmark = pytest.mark.unit

OURS = [path for path in EXAMPLES if read(path)["kind"] == "DisaggDeployment"]
ROUTER = {"image": "router:1"}


def example(path: Any) -> DisaggDeployment:
    found = read(path)
    found["metadata"]["namespace"] = "web"
    return DisaggDeployment.model_validate(found)


def names(objects: tuple[Object, ...]) -> list[str]:
    return [f"{it['kind']}/{it['metadata']['name']}" for it in objects]


def test_what_is_made_in_the_order_in_which_it_is_needed() -> None:
    assert names(rendered(deployment()).objects) == [
        "ServiceAccount/shop-pods",
        "Service/shop-prefill",
        "Service/shop-prefill-headless",
        "Service/shop-decode",
        "Service/shop-decode-headless",
        "Deployment/shop-prefill",
        "Deployment/shop-decode",
        "LeakWatch/shop",
    ]


def test_what_is_made_where_it_is_asked_for() -> None:
    of = deployment(decode={"disruptionBudget": {"maxUnavailable": 2}}, router=ROUTER)
    more = names(rendered(of, Place("kit:1", pod_monitors=True)).objects)
    assert set(more) - set(names(rendered(deployment()).objects)) == {
        "PodDisruptionBudget/shop-decode",
        "PodMonitor/shop",
        "Service/shop-router",
        "Deployment/shop-router",
    }


@pytest.mark.parametrize("path", OURS, ids=lambda path: path.stem)
def test_the_same_input_gives_the_same_bytes(path: Any) -> None:
    found = read(path)
    of = example(path)
    once = json.dumps(rendered(of).objects)
    assert once == json.dumps(rendered(example(path)).objects)
    random.Random(1).shuffle(found["spec"]["roles"])
    found["spec"]["roles"].reverse()
    found["metadata"]["namespace"] = "web"
    assert json.dumps(rendered(DisaggDeployment.model_validate(found)).objects) == once


@pytest.mark.parametrize("path", OURS, ids=lambda path: path.stem)
def test_every_object_is_labelled_by_us_and_by_nobody_else(path: Any) -> None:
    of = example(path).model_copy(deep=True)
    of.metadata.labels["team"] = "a"
    of.metadata.annotations["kubectl.kubernetes.io/last-applied-configuration"] = "{}"
    for it in rendered(of, Place("kit:1", pod_monitors=True)).objects:
        meta = it["metadata"]
        assert meta["namespace"] == "web"
        assert meta["labels"]["app.kubernetes.io/managed-by"] == "stanch"
        assert meta["labels"]["stanch.dev/deployment"] == of.metadata.name
        assert set(meta) == {"name", "namespace", "labels"}
        assert set(meta["labels"]) <= {
            "app.kubernetes.io/managed-by",
            "stanch.dev/deployment",
            "stanch.dev/role",
        }


def test_a_role_replaces_its_pods_one_by_one_and_its_number_is_left_alone_where_it_is_not_said() -> None:
    spec = one(rendered(deployment()), "Deployment", "shop-decode")["spec"]
    assert "replicas" not in spec
    assert spec["strategy"] == {
        "type": "RollingUpdate",
        "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1},
    }
    labels = spec["template"]["metadata"]["labels"]
    assert spec["selector"]["matchLabels"].items() <= labels.items()
    of = deployment(decode={"replicas": 0, "rollout": {"maxSurge": 2, "maxUnavailable": 0}})
    spec = one(rendered(of), "Deployment", "shop-decode")["spec"]
    assert (spec["replicas"], spec["strategy"]["rollingUpdate"]["maxSurge"]) == (0, 2)


def test_services_by_name_and_by_pod_and_only_of_what_is_ready() -> None:
    found = rendered(deployment(decode={"engine": {"port": 9000}}))
    serving, headless = (one(found, "Service", f"shop-decode{end}")["spec"] for end in ("", "-headless"))
    assert serving["ports"] == headless["ports"] == [{"name": "http", "port": 9000, "targetPort": "http"}]
    assert "clusterIP" not in serving
    assert headless["clusterIP"] == "None"
    assert "publishNotReadyAddresses" not in headless
    assert serving["selector"] == {"stanch.dev/deployment": "shop", "stanch.dev/role": "decode"}


def test_nobody_gets_a_token() -> None:
    found = rendered(deployment(router=ROUTER))
    assert one(found, "ServiceAccount", "shop-pods")["automountServiceAccountToken"] is False
    for role in ("prefill", "decode", "router"):
        assert pod(found, role)["automountServiceAccountToken"] is False
        assert pod(found, role)["serviceAccountName"] == "shop-pods"


def test_the_budget_never_holds_up_a_pod_that_is_not_ready() -> None:
    found = rendered(deployment(decode={"disruptionBudget": {}}))
    spec = one(found, "PodDisruptionBudget", "shop-decode")["spec"]
    assert (spec["maxUnavailable"], spec["unhealthyPodEvictionPolicy"]) == (1, "AlwaysAllow")


def test_probes_that_do_not_kill_what_leaks() -> None:
    found = container(rendered(deployment()))
    asked = {name: found[name]["httpGet"]["path"] for name in found if name.endswith("Probe")}
    assert asked == {
        "startupProbe": "/health",
        "readinessProbe": "/stanch/v1/ready",
        "livenessProbe": "/health",
    }
    startup = found["startupProbe"]
    assert startup["periodSeconds"] * startup["failureThreshold"] >= 1800
    # A cordon must show within the time in which its effect is waited for (core/plan_limits.py, 30 s).
    ready = found["readinessProbe"]
    assert ready["periodSeconds"] * ready["failureThreshold"] + ready["timeoutSeconds"] <= 20
    assert one(rendered(deployment()), "Deployment", "shop-decode")["spec"]["progressDeadlineSeconds"] > 3600


@pytest.mark.parametrize(("shutdown", "drain", "least"), [(None, 60, 60), (0, 300, 300), (120, 60, 180)])
def test_the_end_waits_for_more_than_drain_and_shutdown(shutdown: int | None, drain: int, least: int) -> None:
    engine = {} if shutdown is None else {"shutdownTimeoutSeconds": shutdown}
    watch = {"remediation": {"drainSeconds": drain}}
    spec = pod(rendered(deployment(decode={"engine": engine}, watch=watch)))
    leave = spec["containers"][0]["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert spec["terminationGracePeriodSeconds"] > least + leave


def test_each_engine_tells_its_peers_its_own_address() -> None:
    env = {it["name"]: it for it in container(rendered(deployment()))["env"]}
    host = env["VLLM_NIXL_SIDE_CHANNEL_HOST"]["valueFrom"]["fieldRef"]["fieldPath"]
    assert (host, env["VLLM_NIXL_SIDE_CHANNEL_PORT"]["value"]) == ("status.podIP", "5600")
    own = [{"name": "VLLM_NIXL_SIDE_CHANNEL_HOST", "value": "10.0.0.1"}, {"name": "A", "value": "b"}]
    found = container(rendered(deployment(decode={"engine": {"env": own}})))["env"]
    assert found[0] == own[0]
    assert [it["name"] for it in found].count("VLLM_NIXL_SIDE_CHANNEL_HOST") == 1


def test_workers_have_memory_to_share() -> None:
    spec = pod(rendered(deployment()))
    (name,) = [it["name"] for it in spec["containers"][0]["volumeMounts"] if it["mountPath"] == "/dev/shm"]
    assert {it["name"]: it for it in spec["volumes"]}[name]["emptyDir"] == {"medium": "Memory"}


def test_what_the_operator_reads_of_the_arguments_is_what_they_say() -> None:
    """Not an engine with a fixed id, nor one of several pods: it can be restarted in place."""
    kv = {"mode": "Bidirectional", "leaseSeconds": 90}
    said = arguments_of(container(rendered(deployment(decode={"parallelism": {"data": 2}}, kvTransfer=kv))))
    assert (said.vllm, said.engine_id, said.ranks, said.spans_pods(1)) == (True, None, 2, False)
    assert (said.lease_seconds, said.pin_seconds) == (90, 480)


@pytest.mark.parametrize(
    ("kv", "connector", "patch"),
    [
        ({}, "StanchNixlConnector", "Auto"),
        ({"connectorPatch": "Always"}, "StanchNixlConnector", "Always"),
        ({"connectorPatch": "Never"}, "NixlConnector", None),
        ({"mode": "Push"}, "NixlPushConnector", None),
        ({"connector": "MooncakeConnector"}, "MooncakeConnector", None),
    ],
    ids=["auto", "always", "never", "push", "another"],
)
def test_the_fixed_connector_goes_where_there_is_one(kv: dict[str, str], connector: str, patch: Any) -> None:
    args = container(rendered(deployment(kvTransfer=kv)))["args"]
    transfer = json.loads(args[args.index("--kv-transfer-config") + 1])
    assert transfer["kv_connector"] == connector
    assert transfer.get("kv_connector_extra_config", {}).get("stanch_connector_patch") == patch


def test_an_own_connector_stays_and_always_says_that_it_cannot() -> None:
    role = {"engine": {"args": ["--kv-transfer-config.kv_connector_module_path=own"]}}
    args = container(rendered(deployment(role)))["args"]
    transfer = json.loads(args[args.index("--kv-transfer-config") + 1])
    assert (transfer["kv_connector"], transfer["kv_connector_module_path"]) == ("NixlConnector", "own")
    (said,) = problems(deployment(role, kvTransfer={"connectorPatch": "Always"}))
    assert said.startswith("spec.roles[decode].template: ")
    assert "its connector stays" in said


def test_the_fixed_connector_goes_into_a_multi_connector_too() -> None:
    children = '{"kv_connector_extra_config": {"connectors": [{"kv_connector": "NixlConnector"}]}}'
    role = {"engine": {"args": [f"--kv-transfer-config={children}"]}}
    args = container(rendered(deployment(role, role, kvTransfer={"connector": "MultiConnector"})))["args"]
    transfer = json.loads(args[args.index("--kv-transfer-config") + 1])
    assert transfer["kv_connector"] == "MultiConnector"
    (child,) = transfer["kv_connector_extra_config"]["connectors"]
    assert child["kv_connector"] == "StanchNixlConnector"


def test_the_kit_is_in_every_engine_and_in_no_router() -> None:
    found = rendered(deployment(router=ROUTER))
    for role in ("prefill", "decode"):
        (installer,) = [it for it in pod(found, role)["initContainers"] if it["image"] == PLACE.kit_image]
        assert installer["securityContext"]["runAsNonRoot"] is True
        assert "--middleware" in container(found, role)["args"]
        template = one(found, "Deployment", f"shop-{role}")["spec"]["template"]
        assert remove(template).problems == ()
    assert "initContainers" not in pod(found, "router")


def test_an_image_volume_in_place_of_the_init_container() -> None:
    spec = pod(rendered(deployment(), Place("kit:1", "Always", image_volumes=True)))
    assert "initContainers" not in spec
    (image,) = [it["image"] for it in spec["volumes"] if "image" in it]
    assert image == {"reference": "kit:1", "pullPolicy": "Always"}


def test_the_watch_is_the_given_one_with_both_roles() -> None:
    watch = {
        "mode": "Enforce",
        "signatures": {"heldIdleSeconds": 90},
        "remediation": {"maxUnavailable": "25%"},
    }
    of = deployment(decode={"engine": {"port": 9000}}, watch=watch)
    made = LeakWatch.model_validate(one(rendered(of), "LeakWatch", "shop"))
    assert {role.name.value: (role.container_name, role.ports) for role in made.spec.watched} == {
        "prefill": ("vllm", [8000]),
        "decode": ("vllm", [9000]),
    }
    for field in type(of.spec.watch).model_fields:
        assert getattr(made.spec, field) == getattr(of.spec.watch, field)
    for role in made.spec.watched:
        labels = one(rendered(of), "Deployment", f"shop-{role.name.value}")["spec"]["template"]["metadata"]
        assert role.selector is not None
        assert role.selector.match_labels.items() <= labels["labels"].items()


def test_the_monitor_is_of_engines_not_of_the_router() -> None:
    found = rendered(deployment(router=ROUTER), Place("kit:1", pod_monitors=True))
    spec = one(found, "PodMonitor", "shop")["spec"]
    (rule,) = spec["selector"]["matchExpressions"]
    assert (rule["key"], rule["values"]) == ("stanch.dev/role", ["decode", "prefill"])
    assert spec["podMetricsEndpoints"] == [{"port": "http", "path": "/metrics"}]


def test_a_router_is_told_where_both_roles_are() -> None:
    template = {"spec": {"containers": [{"name": "router", "args": ["--to=$(STANCH_DECODE_URL)"]}]}}
    found = rendered(
        deployment(
            decode={"engine": {"port": 9000}},
            router={**ROUTER, "port": 80, "replicas": 2, "template": template},
        )
    )
    router = container(found, "router", "router")
    env = {it["name"]: it["value"] for it in router["env"]}
    assert env["STANCH_PREFILL_URL"] == "http://shop-prefill.web.svc:8000"
    assert env["STANCH_DECODE_URL"] == "http://shop-decode.web.svc:9000"
    assert env["STANCH_DECODE_SERVICE"] == "shop-decode"
    assert env["STANCH_DECODE_PORT"] == "9000"
    assert env["STANCH_DECODE_HEADLESS"] == "shop-decode-headless.web.svc"
    assert env["STANCH_MODEL"] == "some/model"
    assert router["args"] == ["--to=$(STANCH_DECODE_URL)"]
    assert one(found, "Deployment", "shop-router")["spec"]["replicas"] == 2
    assert one(found, "Service", "shop-router")["spec"]["ports"][0]["port"] == 80


def test_the_example_in_the_docs_is_taken() -> None:
    words = (TOP / "docs" / "deployments.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```yaml\n(.*?)```", words, re.S)
    found = rendered(DisaggDeployment.model_validate(yaml.safe_load(block)))
    assert one(found, "Deployment", "shop-router")


def test_the_docs_name_every_variable_of_a_router() -> None:
    words = (TOP / "docs" / "deployments.md").read_text(encoding="utf-8")
    router = container(rendered(deployment(router=ROUTER)), "router", "router")
    assert set(re.findall(r"STANCH_(?:PREFILL|DECODE|MODEL|NAMESPACE|ROUTER)\w*", words)) == {
        it["name"] for it in router["env"]
    }
