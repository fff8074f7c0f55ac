"""Stanch's kinds, account, rights and admission policy on the cluster, as the chart has them.

All but the operator itself, which runs beside the cluster here; test_helm.py installs the whole.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TypeVar

from stanch.edge.cluster import Cluster as Ours
from tests.bed.cluster import Cluster, Object
from tests.bed.config import kubeconfig
from tests.bed.helm import template

TOP = Path(__file__).parents[2]
CRDS = TOP / "crds"
T = TypeVar("T")
NAMESPACE = "stanch-system"
ACCOUNT = "stanch"
# Who the operator is and what it may do.
_POLICIES = ("validatingadmissionpolicy", "validatingadmissionpolicy-workloads")
_RIGHTS = ("serviceaccount", "clusterrole", "role", "people", *_POLICIES)


@cache
def account_and_rights() -> str:
    """The namespace, the account, its rights and the admission policy, as a List for `kubectl apply -f -`."""
    place: Object = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
    items = [place, *template(only=[f"{name}.yaml" for name in _RIGHTS], namespace=NAMESPACE)]
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": items})


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
    cluster.kubectl("apply", "-f", "-", stdin=account_and_rights())
    try:
        address, authority = cluster.server()
        file = None
        if authority is not None:
            file = directory / "authority.crt"
            file.write_text(authority)
        yield Installed(cluster, address, file)
    finally:
        if cluster.bed is None:
            cluster.kubectl("delete", "--ignore-not-found", "-f", "-", stdin=account_and_rights())
            cluster.kubectl("delete", "--ignore-not-found", "-f", str(CRDS))
        else:
            kinds = "disaggdeployments,leakwatches,leakincidents"
            cluster.kubectl("delete", kinds, "--all", "--all-namespaces")
            cluster.kubectl("delete", "leases", "--all", f"--namespace={NAMESPACE}")


def rights_in(namespace: str) -> list[Object]:
    """What the operator may do in its own namespace, for one whose own namespace is that."""
    made = template(only=["role.yaml"], namespace=namespace)
    for one in made:
        for subject in one.get("subjects", ()):
            subject["namespace"] = NAMESPACE
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
