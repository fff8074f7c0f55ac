"""Names of things in the API server: kinds, objects, requests, and their paths. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote

from stanch.api.names import DISAGG_DEPLOYMENT, GROUP, LEAK_INCIDENT, LEAK_WATCH, VERSION


@dataclass(frozen=True, slots=True)
class Resource:
    """A kind as paths have it. group: "" for the core."""

    group: str
    version: str
    plural: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str | None = None, name: str | None = None, sub: str = "") -> str:
        """The path of the collection, of one object, or of its subresource.

        namespace: None for every namespace (a collection only), and for kinds without one.
        """
        parts = ["apis", self.group, self.version] if self.group else ["api", self.version]
        if namespace is not None and self.namespaced:
            parts += ["namespaces", namespace]
        parts += [self.plural, name or "", sub]
        return "/" + "/".join(quote(part, safe="") for part in parts if part)


@dataclass(frozen=True, slots=True)
class ObjectRef:
    """One object, as an owner reference and a workloadRef have it. namespace: None for a Node."""

    api_version: str
    kind: str
    name: str
    namespace: str | None = None


_METHODS = {
    "get": "GET",
    "list": "GET",
    "create": "POST",
    "update": "PUT",
    "patch": "PATCH",
    "delete": "DELETE",
}


@dataclass(frozen=True, slots=True)
class Request:
    """One call. verb: as RBAC has it. sub: a subresource. namespace: None for all, or for a kind without.
    media: of the body. raw: a path that is no object's, as that of the server's version."""

    verb: str
    resource: Resource | None = None
    namespace: str | None = None
    name: str | None = None
    sub: str = ""
    query: Mapping[str, str] = field(default_factory=dict)
    body: Mapping[str, Any] | None = None
    media: str = "application/json"
    raw: str = ""

    @property
    def method(self) -> str:
        return _METHODS[self.verb]

    @property
    def path(self) -> str:
        return self.raw if self.resource is None else self.resource.path(self.namespace, self.name, self.sub)

    @property
    def kind(self) -> str:
        """The resource as RBAC has it, as "pods/eviction"; empty for a path of no object."""
        if self.resource is None:
            return ""
        return f"{self.resource.plural}/{self.sub}" if self.sub else self.resource.plural

    @property
    def what(self) -> str:
        """The call in words, as "patch pods decode-0 in shop"."""
        words = [self.verb, self.kind or self.path, self.name, self.namespace and f"in {self.namespace}"]
        return " ".join(word for word in words if word)


PODS: Final = Resource("", "v1", "pods")
NODES: Final = Resource("", "v1", "nodes", namespaced=False)
CONFIG_MAPS: Final = Resource("", "v1", "configmaps")
ENDPOINT_SLICES: Final = Resource("discovery.k8s.io", "v1", "endpointslices")
DISRUPTION_BUDGETS: Final = Resource("policy", "v1", "poddisruptionbudgets")
EVENTS: Final = Resource("events.k8s.io", "v1", "events")
LEASES: Final = Resource("coordination.k8s.io", "v1", "leases")
ACCESS_REVIEWS: Final = Resource("authorization.k8s.io", "v1", "selfsubjectaccessreviews", namespaced=False)
OTHERS_ACCESS_REVIEWS: Final = Resource(
    "authorization.k8s.io", "v1", "subjectaccessreviews", namespaced=False
)
SELF_REVIEWS: Final = Resource("authentication.k8s.io", "v1", "selfsubjectreviews", namespaced=False)
WATCHES: Final = Resource(GROUP, VERSION, LEAK_WATCH.plural)
INCIDENTS: Final = Resource(GROUP, VERSION, LEAK_INCIDENT.plural)
DISAGG_DEPLOYMENTS: Final = Resource(GROUP, VERSION, DISAGG_DEPLOYMENT.plural)

# Kinds that own engine pods, and what else is got by a reference; others are looked up by discovery.
KNOWN: Final = {
    ("v1", "Node"): NODES,
    ("v1", "Pod"): PODS,
    ("apps/v1", "ReplicaSet"): Resource("apps", "v1", "replicasets"),
    ("apps/v1", "Deployment"): Resource("apps", "v1", "deployments"),
    ("apps/v1", "StatefulSet"): Resource("apps", "v1", "statefulsets"),
    ("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet"): Resource(
        "leaderworkerset.x-k8s.io", "v1", "leaderworkersets"
    ),
}
