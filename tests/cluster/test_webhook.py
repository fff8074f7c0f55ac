"""The kit into pods that others create, by the real API server: with the operator up, down, twice, and
while its certificate changes."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from stanch.api.names import ANNOTATION_KIT, ANNOTATION_NOT_INJECTED
from stanch.core.fleet import Capability
from stanch.edge.render.kit import KitOptions, inject
from stanch.edge.units_pod import capability
from stanch.edge.yaml_values import block
from tests.bed import image, manifests, pki
from tests.bed.cluster import Cluster, Namespace, Object, is_ready, wait_for
from tests.bed.place import NODE_IP
from tests.cluster.installed import NAMESPACE, Installed, watch
from tests.cluster.webhooks import PORTS, Webhook, configuration, configuring, routed, serving

pytestmark = pytest.mark.cluster

CONFIGURATION = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/stanch"
PATIENCE_S = 150.0
LABEL = {"stanch.dev/inject": "enabled"}


@pytest.fixture(scope="module")
def configured(stanch: Installed) -> Iterator[Cluster]:
    """The webhook's Service and configuration."""
    cluster = stanch.cluster
    if cluster.bed is None:
        pytest.skip("the API server must reach this machine's processes: only the bed's does")
    with configuring(cluster):
        yield cluster


@pytest.fixture(scope="class")
def webhook(
    configured: Cluster, stanch: Installed, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Webhook]:
    with serving(stanch, tmp_path_factory.mktemp("webhook")) as found:
        yield found


def pod(name: str = "a", **container: Any) -> Object:
    """An engine as people start it, without anything of Stanch but the label."""
    transfer = json.dumps({"kv_connector": "NixlConnector", "kv_role": "kv_consumer"})
    vllm: Object = {
        "name": "vllm",
        "image": image.engine_name(),
        "imagePullPolicy": "Never",
        "command": ["vllm", "serve", "org/model"],
        "args": ["--port=8000", "--kv-transfer-config", transfer],
        "ports": [{"name": "http", "containerPort": 8000}],
        "startupProbe": {
            "httpGet": {"path": "/health", "port": "http"},
            "periodSeconds": 1,
            "failureThreshold": 120,
        },
        "readinessProbe": {
            "httpGet": {"path": "/health", "port": "http"},
            "periodSeconds": 1,
            "failureThreshold": 1,
        },
        "resources": {"requests": {"cpu": "10m", "memory": "32Mi"}},
        **container,
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": manifests.APP, **LABEL}},
        "spec": {"containers": [vllm], "terminationGracePeriodSeconds": 2, "enableServiceLinks": False},
    }


def deployment(name: str, replicas: int) -> Object:
    made = pod()
    labels = {**made["metadata"]["labels"], "deployment": name, "role": "decode"}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"deployment": name}},
            "template": {"metadata": {"labels": labels}, "spec": made["spec"]},
        },
    }


def tried(namespace: Namespace, body: Object | None = None) -> Object:
    """The pod as the API server would make it now: a dry run asks the webhook as well."""
    path = f"/api/v1/namespaces/{namespace.name}/pods?dryRun=All"
    return namespace.cluster.api(path, "POST", body or pod())


def has_kit(made: Object) -> bool:
    return ANNOTATION_KIT in made["metadata"].get("annotations", {})


def until_served(namespace: Namespace) -> None:
    """The Service leads to it after a moment, and the API server knows its authority after another."""
    wait_for("a pod with the kit", lambda: has_kit(tried(namespace)), PATIENCE_S)


def pods_of(namespace: Namespace, name: str, how_many: int) -> list[Object]:
    """The ready pods of the Deployment, once there are so many."""
    path = f"/api/v1/namespaces/{namespace.name}/pods?labelSelector=deployment%3D{name}"

    def look() -> list[Object] | None:
        found: list[Object] = [one for one in namespace.cluster.api(path)["items"] if is_ready(one)]
        return found if len(found) == how_many else None

    return wait_for(f"{how_many} ready pods of {name}", look, PATIENCE_S)


class TestServed:
    """By one operator, which ends with these."""

    def test_a_deployment_s_pods_get_the_kit_and_become_ready_and_can_be_cordoned(
        self, webhook: Webhook, namespace: Namespace
    ) -> None:
        until_served(namespace)
        namespace.apply(deployment("decode", 2))
        for made in pods_of(namespace, "decode", 2):
            name = made["metadata"]["name"]
            assert capability(made, (8000,)) is Capability.READINESS
            said = namespace.kubectl("logs", name, "-c", "stanch-kit")
            assert "installed in /opt/stanch" in said
            # The kit lies where the engine's Python looks, as the engine sees it.
            code = "import stanch_connector; print(stanch_connector.__file__)"
            found = namespace.kubectl("exec", name, "-c", "vllm", "--", "python3", "-c", code)
            assert found.startswith("/opt/stanch/")
        name = made["metadata"]["name"]
        beats = count(1)

        def cordoned() -> bool:
            mark = {"incident": "by-hand", "beat": next(beats), "leaseSeconds": 3}
            namespace.annotate(name, cordon=json.dumps(mark))
            return not is_ready(namespace.pod(name) or {})

        wait_for("the cordon's effect", cordoned, PATIENCE_S)
        # Nobody renews it any more.
        wait_for("its end", lambda: is_ready(namespace.pod(name) or {}), PATIENCE_S)
        # The Deployment itself is as it was written: whoever keeps it in Git sees no difference.
        stored = namespace.cluster.api(f"/apis/apps/v1/namespaces/{namespace.name}/deployments/decode")
        assert "initContainers" not in stored["spec"]["template"]["spec"]

    def test_the_server_stores_what_the_one_function_makes(
        self, webhook: Webhook, namespace: Namespace
    ) -> None:
        """Also where the API server has filled in its defaults before it asks."""
        until_served(namespace)
        made = tried(namespace)
        again = inject(made, KitOptions(image.engine_name(), "Never"))
        assert (again.changed, again.problems) == (False, ())

    def test_who_does_not_ask_and_the_operator_s_own_namespace_are_left_alone(
        self, webhook: Webhook, namespace: Namespace
    ) -> None:
        until_served(namespace)
        silent = pod()
        del silent["metadata"]["labels"]["stanch.dev/inject"]
        assert not has_kit(tried(namespace, silent))
        own = Namespace(namespace.cluster, NAMESPACE)
        assert not has_kit(tried(own))
        assert has_kit(tried(namespace))

    def test_a_pod_that_cannot_have_it_starts_and_says_why(
        self, webhook: Webhook, namespace: Namespace
    ) -> None:
        until_served(namespace)
        odd = pod("odd", command=["python3", "-m", "http.server", "8000"], args=["--directory", "/tmp"])
        odd["spec"]["containers"][0]["readinessProbe"]["httpGet"]["path"] = "/"
        odd["spec"]["containers"][0]["startupProbe"]["httpGet"]["path"] = "/"
        namespace.apply(odd)
        namespace.wait_ready("odd")
        found = namespace.pod("odd")
        assert found is not None
        assert "says that it starts vLLM" in found["metadata"]["annotations"][ANNOTATION_NOT_INJECTED]
        assert not has_kit(found)
        assert any("says that it starts vLLM" in line for line in webhook.said("webhook-review"))


def not_injected(namespace: Namespace, status: str) -> Object | None:
    """The watch's condition, once it has that status."""
    path = f"/apis/stanch.dev/v1alpha1/namespaces/{namespace.name}/leakwatches/shop"
    found = namespace.cluster.api(path).get("status", {}).get("conditions", [])
    return next((one for one in found if one["type"] == "NotInjected" and one["status"] == status), None)


def test_without_the_operator_pods_start_without_the_kit(
    configured: Cluster, stanch: Installed, namespace: Namespace, tmp_path: Path
) -> None:
    with serving(stanch, tmp_path / "a") as webhook:
        until_served(namespace)
        webhook.operator.kill()
        namespace.apply(deployment("decode", 1))
        [made] = pods_of(namespace, "decode", 1)
        assert not has_kit(made)
        assert made["spec"]["containers"][0]["readinessProbe"]["httpGet"]["path"] == "/health"
        webhook.operator.start()
        until_served(namespace)
        # It names whom it missed; made anew, the pod gets the kit.
        namespace.apply(watch("shop"))
        said = wait_for("NotInjected", lambda: not_injected(namespace, "True"), PATIENCE_S)
        assert said["reason"] == "KitMissing"
        assert said["message"].startswith(f"{made['metadata']['name']}: no webhook of Stanch was asked")
        namespace.kubectl("delete", "pod", made["metadata"]["name"])
        wait_for("all with the kit", lambda: not_injected(namespace, "False"), PATIENCE_S)
        [made] = pods_of(namespace, "decode", 1)
        assert has_kit(made)


def test_certificates_change_while_pods_are_made(
    configured: Cluster, stanch: Installed, namespace: Namespace, tmp_path: Path
) -> None:
    """Every one of them gets the kit, over two changes of the authority; and a foreign one stays trusted."""
    pki.write(tmp_path / "pki")
    foreign = (tmp_path / "pki/ca.crt").read_bytes()
    bundle = {"caBundle": base64.b64encode(foreign).decode()}
    patch = [{"op": "add", "path": "/webhooks/0/clientConfig/caBundle", "value": bundle["caBundle"]}]
    configured.api(CONFIGURATION, "PATCH", patch, "application/json-patch+json")
    with serving(stanch, tmp_path / "a", STANCH_WEBHOOK_CERT_SECONDS="60") as webhook:
        until_served(namespace)
        made = []

        def twice() -> bool:
            made.append(has_kit(tried(namespace)))
            return webhook.said("webhook-certificate").count("a new one is served") >= 2

        wait_for("two changes of the certificate", twice, PATIENCE_S)
        assert all(made), f"{made.count(False)} of {len(made)} without the kit"
        assert len(made) > 20
    found = configured.api(CONFIGURATION)["webhooks"][0]["clientConfig"]["caBundle"]
    assert foreign.strip() in base64.b64decode(found)


def test_two_replicas_serve_and_one_of_them_may_go(
    configured: Cluster, stanch: Installed, namespace: Namespace, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        first = stack.enter_context(serving(stanch, tmp_path / "a"))
        port = next(PORTS)
        with first.operator.twin(STANCH_WEBHOOK_PORT=str(port)) as twin:
            twin.start()
            second = Webhook(twin, configured, port)
            wait_for("the second one's authority", lambda: bool(second.said("webhook-authority")), PATIENCE_S)
            until_served(namespace)
            with routed(configured, f"webhook-{port}", port):
                # The one that does not lead serves as well.
                def both() -> bool:
                    assert has_kit(tried(namespace))
                    return first.reviews() > 1 and second.reviews() > 1

                wait_for("pods given the kit by both", both, PATIENCE_S)
                assert not twin.elected()
            wait_for("the endpoint's end", lambda: gone(namespace, second), PATIENCE_S)
            assert twin.stop() == 0
            assert all(has_kit(tried(namespace)) for _ in range(20))


def gone(namespace: Namespace, webhook: Webhook) -> bool:
    """Whether nothing comes to it any more."""
    before = webhook.reviews()
    for _ in range(20):
        assert has_kit(tried(namespace))
    return webhook.reviews() == before


def test_certificates_of_files(
    configured: Cluster, stanch: Installed, namespace: Namespace, tmp_path: Path
) -> None:
    """As cert-manager mounts them, whose own injector writes the bundle."""
    pki.write(tmp_path / "pki")
    pki.server(tmp_path / "pki", "tls", (NODE_IP,))
    with serving(stanch, tmp_path / "a", STANCH_WEBHOOK_CERT_DIR=str(tmp_path / "pki")) as webhook:
        by_address = configuration()
        by_address["webhooks"][0]["clientConfig"] = {
            "url": f"https://{NODE_IP}:{webhook.port}/inject/v1",
            "caBundle": base64.b64encode((tmp_path / "pki/ca.crt").read_bytes()).decode(),
        }
        configured.kubectl("replace", "-f", "-", stdin=json.dumps(by_address))
        try:
            until_served(namespace)
            assert webhook.said("webhook-authority") == []
        finally:
            configured.kubectl("replace", "-f", "-", stdin=json.dumps(configuration()))


def test_an_image_volume_is_taken_by_the_server(namespace: Namespace) -> None:
    done = inject(pod(), KitOptions(image.engine_name(), "Never", image_volume=True))
    assert done.problems == ()
    made = tried(namespace, done.template)
    volume = next(one for one in made["spec"]["volumes"] if one["name"] == "stanch-kit")
    assert volume["image"] == {"reference": image.engine_name(), "pullPolicy": "Never"}


def test_what_stanch_inject_prints_is_taken_by_the_server(namespace: Namespace, tmp_path: Path) -> None:
    """Strictly: no field that it does not know; and applied as it is, its pods become ready."""
    file = tmp_path / "decode.yaml"
    file.write_text(f"# Ours.\n{block(deployment('decode', 1))}---\n{block(pod('single'))}")
    command = [sys.executable, "-m", "stanch", "inject", "-f", str(file), "--image", image.engine_name()]
    done = subprocess.run([*command, "--connector-patch", "Auto"], capture_output=True, text=True, check=True)
    # The bed's images come from nowhere.
    text = done.stdout.replace("imagePullPolicy: IfNotPresent", "imagePullPolicy: Never")
    namespace.kubectl("apply", "--validate=strict", "-f", "-", stdin=text)
    [made] = pods_of(namespace, "decode", 1)
    assert capability(made, (8000,)) is Capability.READINESS
    assert "StanchNixlConnector" in made["spec"]["containers"][0]["args"][2]
    namespace.wait_ready("single")
