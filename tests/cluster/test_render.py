"""What is made of a DisaggDeployment, on real API servers and as real pods of simulated engines."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from stanch.api.v1alpha1 import DisaggDeployment
from stanch.edge.render import Place, render
from stanch_connector.contract import ROUTE_READY, ROUTE_STATE
from tests.api.kinds_files import EXAMPLES, TOP, read
from tests.bed import image, manifests
from tests.bed.cluster import KubectlError, Namespace, Object, is_ready, wait_for
from tests.bed.oldest import OldestApi
from tests.cluster.installed import Installed
from tests.edge.render_world import deployment, one, rendered

pytestmark = pytest.mark.cluster

OURS = [path for path in EXAMPLES if read(path)["kind"] == "DisaggDeployment"]
# kubectl apply of these in this namespace, with more arguments; what it said, and whether it went well.
Apply = Callable[..., tuple[bool, str]]


def listed(objects: tuple[Object, ...]) -> str:
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)})


@pytest.fixture(scope="module", params=["bed", "oldest"])
def apply(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Apply]:
    """In namespace default, without keeping anything, as strictly as the server can."""
    arguments = (
        "apply",
        "--server-side",
        "--dry-run=server",
        "--validate=strict",
        "-n",
        "default",
        "-f",
        "-",
    )
    if request.param == "bed":
        installed: Installed = request.getfixturevalue("stanch")

        def on_bed(objects: tuple[Object, ...]) -> tuple[bool, str]:
            try:
                return True, installed.cluster.kubectl(*arguments, stdin=listed(objects))
            except KubectlError as error:
                return False, str(error)

        yield on_bed
        return
    with OldestApi(tmp_path_factory.mktemp("oldest")) as api:
        crds = api.kubectl("apply", "--server-side", "-f", str(TOP / "crds"))
        assert crds.returncode == 0, crds.stderr
        wait_for("the kinds", lambda: api.kubectl("get", "leakwatches").returncode == 0)

        def on_oldest(objects: tuple[Object, ...]) -> tuple[bool, str]:
            done = api.kubectl(*arguments, stdin=listed(objects))
            return done.returncode == 0, done.stdout + done.stderr

        yield on_oldest


def example(path: Path, namespace: str) -> DisaggDeployment:
    found = read(path)
    found["metadata"]["namespace"] = namespace
    return DisaggDeployment.model_validate(found)


@pytest.mark.parametrize("path", OURS, ids=lambda path: path.stem)
def test_the_server_takes_every_object_of_an_example(apply: Apply, path: Path) -> None:
    objects = rendered(example(path, "default")).objects
    good, said = apply(objects)
    assert good, said
    assert said.count("serverside-applied") == len(objects)


def everything() -> DisaggDeployment:
    return deployment(
        namespace="default",
        decode={
            "replicas": 2,
            "parallelism": {"tensor": 2, "data": 2},
            "disruptionBudget": {"maxUnavailable": 0},
            "rollout": {"maxSurge": 1, "maxUnavailable": 0},
            "engine": {"env": [{"name": "A", "value": "b"}], "shutdownTimeoutSeconds": 60},
            "template": {
                "spec": {
                    "containers": [
                        {"name": "vllm", "livenessProbe": {"tcpSocket": {"port": 8000}}, "lifecycle": None},
                        {"name": "proxy", "image": "proxy:1", "ports": [{"containerPort": 9000}]},
                    ],
                    "initContainers": [{"name": "fetch", "image": "fetch:1", "restartPolicy": "Always"}],
                    "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}}],
                }
            },
        },
        router={"image": "router:1", "template": {"spec": {"priorityClassName": ""}}},
        watch={"mode": "Enforce", "remediation": {"maxUnavailable": "50%"}},
    )


def test_the_server_takes_all_that_can_be_asked_for(apply: Apply) -> None:
    good, said = apply(rendered(everything()).objects)
    assert good, said


def test_the_server_takes_an_image_volume_where_it_knows_them(
    stanch: Installed, namespace: Namespace
) -> None:
    of = example(OURS[0], namespace.name)
    objects = rendered(of, Place("kit:1", image_volumes=True)).objects
    namespace.kubectl("apply", "--server-side", "--dry-run=server", "-f", "-", stdin=listed(objects))
    made = next(
        it for it in objects if it["kind"] == "Deployment" and it["metadata"]["name"].endswith("-decode")
    )
    sent = json.dumps(made)
    kept = namespace.kubectl("create", "--dry-run=server", "-o", "json", "-f", "-", stdin=sent)
    volumes = json.loads(kept)["spec"]["template"]["spec"]["volumes"]
    assert {"reference": "kit:1", "pullPolicy": "IfNotPresent"} in [one.get("image") for one in volumes]


@pytest.mark.parametrize(
    ("field", "words"),
    [
        ({"nodeselector": {"a": "b"}}, 'unknown field "nodeselector"'),
        ({"hostNetwork": "yes"}, "hostNetwork"),
        ({"containers": [{"name": "vllm", "imagePullPolicy": "Sometimes"}]}, "Unsupported value"),
    ],
    ids=["unknown", "kind", "value"],
)
def test_the_server_says_what_we_cannot_know(apply: Apply, field: Object, words: str) -> None:
    """What a template holds beyond names is its business: a try on the server tells it."""
    good, said = apply(
        rendered(deployment(namespace="default", decode={"template": {"spec": field}})).objects
    )
    assert not good
    assert words in said, said


def test_a_template_makes_it_fit_a_restricted_namespace(stanch: Installed, namespace: Namespace) -> None:
    """The kit fits as it is; what an engine's image needs, only its user knows."""
    profile = "pod-security.kubernetes.io/enforce=restricted"
    namespace.cluster.kubectl("label", "namespace", namespace.name, profile)
    kept = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    own = {
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": 2000,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [{"name": "vllm", "securityContext": kept}],
    }

    def tried(spec: Object) -> str:
        made = deployment(namespace=namespace.name, decode={"template": {"spec": spec}})
        template = one(rendered(made), "Deployment", "shop-decode")["spec"]["template"]
        pod = {"apiVersion": "v1", "kind": "Pod", **template}
        pod["metadata"] = {**template["metadata"], "name": "tried"}
        # Its own account is not there.
        pod["spec"] = {**template["spec"], "serviceAccountName": "default"}
        return namespace.kubectl("create", "--dry-run=server", "-f", "-", stdin=json.dumps(pod))

    assert "created" in tried(own)
    with pytest.raises(KubectlError, match="violates PodSecurity") as error:
        tried({})
    assert "stanch-kit" not in str(error.value)


def of_simulated(namespace: Namespace, **spec: Any) -> tuple[Object, ...]:
    found = manifests.disagg_deployment("shop", decode=2, **spec)
    found["metadata"]["namespace"] = namespace.name
    place = Place(image.engine_name(), "Never")
    made = render(DisaggDeployment.model_validate(found), place)
    assert [str(one) for one in made.problems] == []
    return made.objects


def pods(namespace: Namespace, role: str) -> list[Object]:
    query = f"labelSelector=stanch.dev%2Fdeployment%3Dshop,stanch.dev%2Frole%3D{role}"
    found: list[Object] = namespace.cluster.api(f"/api/v1/namespaces/{namespace.name}/pods?{query}")["items"]
    return found


def ready(namespace: Namespace, role: str, count: int) -> list[Object]:
    def look() -> list[Object] | None:
        found = [one for one in pods(namespace, role) if is_ready(one)]
        return found if len(found) == count else None

    return wait_for(f"{count} pods of {role} Ready", look, 180)


def ask(address: str, path: str, body: object = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"http://{address}{path}", data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


def through(namespace: Namespace, service: str, body: object) -> Any:
    """The answer of one of its pods, from when the Service knows them."""
    spec = namespace.cluster.api(f"/api/v1/namespaces/{namespace.name}/services/{service}")["spec"]
    address = f"{spec['clusterIP']}:{spec['ports'][0]['port']}"

    def answer() -> Any:
        try:
            return ask(address, "/v1/completions", body)
        except urllib.error.HTTPError:
            raise
        except OSError:
            return None

    return wait_for(f"an answer through {service}", answer)


def test_pods_become_ready_with_the_kit_in_them_and_serve(stanch: Installed, namespace: Namespace) -> None:
    router = {
        "image": image.engine_name(),
        "template": {
            "spec": {
                "terminationGracePeriodSeconds": 1,
                "containers": [
                    {
                        "name": "router",
                        "imagePullPolicy": "Never",
                        "command": ["python3", "-m", "stanch.edge.demo.router", "--host=0.0.0.0"],
                        # The bed has no names of Services, only their variables.
                        "args": [
                            "--port=$(STANCH_ROUTER_PORT)",
                            "--prefill=p=http://$(SHOP_PREFILL_SERVICE_HOST):$(STANCH_PREFILL_PORT)",
                            "--decode=d=http://$(SHOP_DECODE_SERVICE_HOST):$(STANCH_DECODE_PORT)",
                        ],
                    }
                ],
            }
        },
    }
    namespace.kubectl(
        "apply", "--server-side", "-f", "-", stdin=listed(of_simulated(namespace, router=router))
    )
    made = {role: ready(namespace, role, count) for role, count in (("prefill", 1), ("decode", 2))}
    ready(namespace, "router", 1)
    for role, kv_role in (("prefill", "kv_producer"), ("decode", "kv_consumer")):
        for pod in made[role]:
            engine = f"{pod['status']['podIP']}:8000"
            state = ask(engine, ROUTE_STATE)
            assert (state["role"], state["ready"], state["draining"]) == (kv_role, True, False)
            (installer,) = pod["status"]["initContainerStatuses"]
            assert installer["state"]["terminated"]["exitCode"] == 0
            assert pod["spec"]["containers"][0]["readinessProbe"]["httpGet"]["path"] == ROUTE_READY
    # Through the Services, as a router does; the prefill tells the decode its pod's own address.
    prompt = {"prompt": "word " * 300, "max_tokens": 1}
    asked = {**prompt, "kv_transfer_params": {"do_remote_decode": True}}
    transfer = through(namespace, "shop-prefill", asked)["kv_transfer_params"]
    assert transfer["remote_host"] == made["prefill"][0]["status"]["podIP"]
    second = through(namespace, "shop-decode", {**prompt, "kv_transfer_params": transfer})
    assert second["usage"]["completion_tokens"] == 1
    # Applied anew it is the same to the byte: no pod is replaced.
    again = listed(of_simulated(namespace, router=router))
    namespace.kubectl("apply", "--server-side", "-f", "-", stdin=again)
    for role, found in made.items():
        version = namespace.cluster.api(f"/apis/apps/v1/namespaces/{namespace.name}/deployments/shop-{role}")[
            "metadata"
        ]["generation"]
        assert version == 1
        assert {one["metadata"]["uid"] for one in pods(namespace, role)} == {
            one["metadata"]["uid"] for one in found
        }


def test_a_cordon_takes_a_rendered_pod_out_of_its_service(stanch: Installed, namespace: Namespace) -> None:
    """The annotations' volume, the readiness and the Service belong together."""
    namespace.kubectl("apply", "--server-side", "-f", "-", stdin=listed(of_simulated(namespace)))
    pod = ready(namespace, "decode", 2)[0]
    name = pod["metadata"]["name"]

    def cordoned(beat: int) -> bool:
        cordon = {"incident": "test", "beat": beat, "leaseSeconds": 60}
        namespace.annotate(name, cordon=json.dumps(cordon))
        state: Object = ask(f"{pod['status']['podIP']}:8000", ROUTE_STATE)
        return state["cordoned"] is True

    beats = iter(range(10_000))
    wait_for("the cordon", lambda: cordoned(next(beats)), 240)

    def left() -> bool:
        now = namespace.pod(name)
        assert now is not None
        cordoned(next(beats))
        return not is_ready(now)

    wait_for("the pod to be unready", left, 60)

    def endpoints() -> set[str]:
        found = namespace.cluster.api(f"/api/v1/namespaces/{namespace.name}/endpoints/shop-decode")
        return {one["ip"] for part in found.get("subsets", []) for one in part.get("addresses", [])}

    wait_for("the Service to leave it out", lambda: pod["status"]["podIP"] not in endpoints(), 60)
    status = namespace.pod(name)
    assert status is not None
    assert status["status"]["containerStatuses"][0]["restartCount"] == 0, "its liveness does not kill it"
