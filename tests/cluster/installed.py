"""Stanch's kinds, account, rights and admission policy on the cluster, as people install them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import yaml

from stanch.edge.cluster import Cluster as Ours
from tests.bed.cluster import Cluster, Object
from tests.bed.config import kubeconfig

TOP = Path(__file__).parents[2]
CRDS = TOP / "crds"
MANIFESTS = TOP / "charts/stanch/templates"
T = TypeVar("T")
NAMESPACE = "stanch-system"
ACCOUNT = "stanch"


@dataclass(frozen=True)
class Installed:
    """Made by `installed`. address, authority: of the API server."""

    cluster: Cluster
    address: str
    authority: Path | None

    def token(self, account: str = ACCOUNT, namespace: str = NAMESPACE) -> str:
        """A token of the service account, good for an hour."""
        return self.cluster.kubectl("create", "token", account, f"--namespace={namespace}").strip()

    def kubeconfig(self, path: Path, url: str | None = None, token: str | None = None) -> str:
        """Write one: for the operator's account and the API server itself unless told otherwise."""
        authority = self.authority if url is None else None
        path.write_text(kubeconfig("operator", url or self.address, authority, token or self.token()))
        return str(path)


@contextmanager
def installed(cluster: Cluster, directory: Path) -> Iterator[Installed]:
    """All of it, taken away again at the end: from the bed, which goes as a whole, only the objects and the
    Lease, because the end of a namespace takes 5 s. directory: for the authority's certificate."""
    cluster.kubectl("apply", "--server-side", "-f", str(CRDS))
    cluster.kubectl("wait", "--for=condition=Established", "--timeout=60s", "-f", str(CRDS))
    cluster.kubectl("apply", "-f", str(MANIFESTS))
    try:
        address, authority = cluster.server()
        file = None
        if authority is not None:
            file = directory / "authority.crt"
            file.write_text(authority)
        yield Installed(cluster, address, file)
    finally:
        if cluster.bed is None:
            cluster.kubectl("delete", "--ignore-not-found", "-f", str(MANIFESTS), "-f", str(CRDS))
        else:
            cluster.kubectl("delete", "leakwatches,leakincidents", "--all", "--all-namespaces")
            cluster.kubectl("delete", "leases", "--all", f"--namespace={NAMESPACE}")


def rights_in(namespace: str) -> list[Object]:
    """What the operator may do in its own namespace, for one whose own namespace is that."""
    made = []
    for name in ("role", "rolebinding"):
        one: Object = yaml.safe_load((MANIFESTS / f"{name}.yaml").read_text())
        one["metadata"]["namespace"] = namespace
        made.append(one)
    return made


@dataclass(frozen=True)
class Speaker:
    """Plays scenes with a Cluster of ours."""

    kubeconfig: str

    def run(self, scene: Callable[[Ours], Awaitable[T]]) -> T:
        async def whole() -> T:
            async with Ours(self.kubeconfig, own_namespace=NAMESPACE) as cluster:
                return await scene(cluster)

        return asyncio.run(whole())


def idle_pod(name: str, labels: dict[str, str] | None = None) -> Object:
    """A pod that no node takes."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": labels or {}},
        "spec": {
            "containers": [{"name": "a", "image": "stanch.test/none"}],
            "nodeSelector": {"none": "such"},
        },
    }


def incident(name: str, pod: str = "p") -> Object:
    return {
        "apiVersion": "stanch.dev/v1alpha1",
        "kind": "LeakIncident",
        "metadata": {"name": name},
        "spec": {"podRef": {"name": pod}},
    }


def watch(name: str) -> Object:
    return {
        "apiVersion": "stanch.dev/v1alpha1",
        "kind": "LeakWatch",
        "metadata": {"name": name},
        "spec": {"roles": [{"name": "decode", "selector": {"matchLabels": {"role": "decode"}}}]},
    }
