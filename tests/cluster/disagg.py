"""What the tests of DisaggDeployments play with: one, and how its objects are looked at."""

from __future__ import annotations

import io
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from stanch.edge.cluster import Cluster as Ours
from stanch.edge.cluster import ClusterError
from stanch.edge.deployments import Deployments, Kit
from stanch.edge.deployments_one import NotLeadingError
from stanch.edge.journal import Journal
from stanch.edge.telemetry import Telemetry
from tests.bed import image
from tests.bed.cluster import Namespace, Object, wait_for

DD = "/apis/stanch.dev/v1alpha1"
PATHS = {
    "Deployment": "/apis/apps/v1",
    "Service": "/api/v1",
    "ServiceAccount": "/api/v1",
    "PodDisruptionBudget": "/apis/policy/v1",
    "LeakWatch": DD,
    "DisaggDeployment": DD,
}
PATIENCE_S = 150.0


def disagg(name: str = "shop", prefill: int | None = 0, decode: int | None = 0, **spec: Any) -> Object:
    """replicas: None leaves them out. spec: more of it."""
    roles = [role("prefill", prefill), role("decode", decode)]
    return {
        "apiVersion": "stanch.dev/v1alpha1",
        "kind": "DisaggDeployment",
        "metadata": {"name": name},
        "spec": {"model": {"uri": "tiny"}, "roles": roles, "watch": {"intervalSeconds": 1}, **spec},
    }


def role(name: str, replicas: int | None) -> Object:
    # A termination that waits for nothing: an engine in a test has nobody to say goodbye to.
    engine = {"name": "vllm", "lifecycle": {"preStop": {"sleep": {"seconds": 1}}}}
    found: Object = {
        "name": name,
        "engine": {"image": image.engine_name()},
        "template": {"spec": {"terminationGracePeriodSeconds": 2, "containers": [engine]}},
        "disruptionBudget": {},
    }
    return found if replicas is None else {**found, "replicas": replicas}


class Shop:
    """A namespace with a DisaggDeployment `shop`, and its objects."""

    def __init__(self, namespace: Namespace) -> None:
        self.namespace = namespace

    def apply(self, *objects: Object) -> Shop:
        self.namespace.apply(*objects)
        return self

    def path(self, kind: str, name: str = "") -> str:
        plural = f"{kind.lower()}{'es' if kind == 'LeakWatch' else 's'}"
        return f"{PATHS[kind]}/namespaces/{self.namespace.name}/{plural}/{name}".rstrip("/")

    def get(self, kind: str, name: str = "shop") -> Object | None:
        return self.namespace.cluster.get(self.path(kind, name))

    def must(self, kind: str, name: str = "shop") -> Object:
        found = self.get(kind, name)
        assert found is not None, f"no {kind} {name}"
        return found

    def patch(self, kind: str, name: str, body: Object) -> Object:
        """As somebody does by kubectl patch."""
        return self.namespace.cluster.api(
            f"{self.path(kind, name)}?fieldManager=somebody", "PATCH", body, "application/merge-patch+json"
        )

    def edit(self, change: Callable[[Object], None]) -> None:
        """Of the DisaggDeployment, whatever its version is by now."""
        found = self.must("DisaggDeployment")
        change(found["spec"])
        self.namespace.cluster.api(self.path("DisaggDeployment", "shop"), "PUT", found)

    def objects(self) -> dict[str, Object]:
        """All that is there of the kinds that are made, as "Kind name"."""
        found = {}
        for kind in PATHS:
            if kind == "DisaggDeployment":
                continue
            for one in self.namespace.cluster.api(self.path(kind))["items"]:
                found[f"{kind} {one['metadata']['name']}"] = one
        return {key: one for key, one in found.items() if key != "ServiceAccount default"}

    def condition(self, kind: str) -> str | None:
        """ "True Reason", of the spec as it is now; None where that is not said yet."""
        found = self.must("DisaggDeployment")
        for one in found.get("status", {}).get("conditions", []):
            if one["type"] == kind and one["observedGeneration"] == found["metadata"]["generation"]:
                return f"{one['status']} {one['reason']}"
        return None

    def message(self, kind: str) -> str:
        conditions = self.must("DisaggDeployment")["status"]["conditions"]
        return str(next(one["message"] for one in conditions if one["type"] == kind))

    def until(self, kind: str, said: str) -> Shop:
        wait_for(f"{kind} {said}", lambda: self.condition(kind) == said, PATIENCE_S)
        return self

    def until_ready(self) -> Shop:
        self.namespace.kubectl(
            "wait", "--for=condition=Ready", "disaggdeployment/shop", f"--timeout={PATIENCE_S:g}s"
        )
        return self


def same(one: Object) -> tuple[str, str]:
    """What changes with every write of an object but for its status, and with a new one of that name."""
    meta = one["metadata"]
    version = meta.get("generation") or meta["resourceVersion"]
    return meta["uid"], str(version)


def settled(one: Object) -> bool:
    """Whether Kubernetes' own controller has said all that it will of this Deployment without pods."""
    status = one.get("status", {})
    reasons = {said["type"]: said["reason"] for said in status.get("conditions", [])}
    seen = status.get("observedGeneration") == one["metadata"]["generation"]
    return seen and reasons.get("Progressing") == "NewReplicaSetAvailable"


class Rounds:
    """The controller's rounds in this process, one by one, in one namespace. leads: whether it may write."""

    def __init__(self, cluster: Ours, namespace: str, image_name: str = "stanch.test/kit:1") -> None:
        self.log = io.StringIO()
        self.leads = True
        telemetry = Telemetry(Journal(self.log), time.time)
        self.deployments = Deployments(
            cluster, telemetry, time.time, lambda: self.leads, Kit(image_name, "Never"), (namespace,)
        )

    async def __call__(self, times: int = 1) -> None:
        for _ in range(times):
            await self.deployments.round()

    async def whatever_comes(self) -> None:
        """A round as `run` makes it, which goes on after an error of the API server."""
        with suppress(ClusterError, NotLeadingError):
            await self()
