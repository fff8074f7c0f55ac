"""The webhook for tests: its configuration on the cluster, and operators on the node that serve it."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

from tests.bed import image
from tests.bed.cluster import Cluster, Object
from tests.bed.helm import template
from tests.bed.place import NODE_IP
from tests.cluster.installed import NAMESPACE, Installed
from tests.cluster.operators import Operator, operating

PORTS = count(19443)
# The chart's has a selector; the operators here are processes on the node, and no pods.
SERVICE: Object = {
    "apiVersion": "v1",
    "kind": "Service",
    "metadata": {"name": "stanch-webhook", "namespace": NAMESPACE},
    "spec": {"ports": [{"name": "webhook", "port": 443, "targetPort": 9443}]},
}


def configuration() -> Object:
    """The chart's own, with time for an answer of a machine that is busy; a new one each time."""
    [found] = template(only=["webhook.yaml"], namespace=NAMESPACE)
    for one in found["webhooks"]:
        one["timeoutSeconds"] = 30
    return found


@contextmanager
def configuring(cluster: Cluster) -> Iterator[None]:
    """The webhook's Service and configuration."""
    cluster.apply(SERVICE, configuration())
    try:
        yield
    finally:
        cluster.kubectl("delete", "mutatingwebhookconfigurations", "stanch")
        cluster.kubectl("delete", "services", "stanch-webhook", f"--namespace={NAMESPACE}")


class Webhook:
    """An operator that serves the webhook, and its endpoint."""

    def __init__(self, operator: Operator, cluster: Cluster, port: int) -> None:
        self.operator = operator
        self.cluster = cluster
        self.port = port

    def reviews(self) -> float:
        """How many pods it has given the kit to."""
        port = next(line["port"] for line in self.operator.lines() if line["event"] == "started")
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as page:
            lines = page.read().decode().splitlines()
        head = 'stanch_webhook_reviews_total{outcome="injected"} '
        return next((float(line.removeprefix(head)) for line in lines if line.startswith(head)), 0.0)

    def said(self, event: str) -> list[str]:
        return [line["message"] for line in self.operator.lines() if line["event"] == event]


@contextmanager
def routed(cluster: Cluster, name: str, port: int) -> Iterator[None]:
    """The Service leads to that port of the node, too."""
    cluster.apply(
        {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {
                "name": name,
                "namespace": NAMESPACE,
                "labels": {"kubernetes.io/service-name": "stanch-webhook"},
            },
            "addressType": "IPv4",
            "ports": [{"name": "webhook", "port": port}],
            "endpoints": [{"addresses": [NODE_IP], "conditions": {"ready": True}}],
        }
    )
    try:
        yield
    finally:
        cluster.kubectl("delete", "endpointslice", name, f"--namespace={NAMESPACE}")


@contextmanager
def serving(stanch: Installed, directory: Path, **environment: str) -> Iterator[Webhook]:
    """An operator that acts, and to which the Service leads. environment: more of its variables."""
    port = next(PORTS)
    directory.mkdir(exist_ok=True)
    settings = {
        "STANCH_WEBHOOK_PORT": str(port),
        "STANCH_KIT_IMAGE": image.engine_name(),
        "STANCH_KIT_PULL_POLICY": "Never",
        **environment,
    }
    with (
        operating(stanch, directory, **settings) as operator,
        routed(stanch.cluster, f"webhook-{port}", port),
    ):
        yield Webhook(operator, stanch.cluster, port)
