"""What the operator's account must be allowed to do, and what it must not. Pure.

The ClusterRole and the Role in charts/stanch/templates grant exactly this (a test compares them).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from stanch.api.names import GROUP, LEAK_INCIDENT, LEAK_WATCH


@dataclass(frozen=True, slots=True)
class Permission:
    """own: in the operator's own namespace only. resource: with its subresource, as pods/log."""

    verb: str
    group: str
    resource: str
    own: bool = False

    def __str__(self) -> str:
        return f"{self.verb} {self.resource}{f'.{self.group}' if self.group else ''}"


def _each(verbs: str, group: str, resource: str, own: bool = False) -> tuple[Permission, ...]:
    return tuple(Permission(verb, group, resource, own) for verb in verbs.split())


NEEDED: Final = (
    *_each("get list watch patch", "", "pods"),
    *_each("get", "", "pods/log"),
    *_each("create", "", "pods/eviction"),
    *_each("get", "", "nodes"),
    *_each("list", "discovery.k8s.io", "endpointslices"),
    *_each("list", "policy", "poddisruptionbudgets"),
    *_each("get", "apps", "replicasets"),
    *_each("get", "apps", "deployments"),
    *_each("get", "apps", "statefulsets"),
    *_each("get list watch", GROUP, LEAK_WATCH.plural),
    *_each("update", GROUP, f"{LEAK_WATCH.plural}/status"),
    *_each("get list watch create delete", GROUP, LEAK_INCIDENT.plural),
    *_each("update", GROUP, f"{LEAK_INCIDENT.plural}/status"),
    *_each("create patch", "events.k8s.io", "events"),
    *_each("get", "", "configmaps", own=True),
    *_each("get create update", "coordination.k8s.io", "leases", own=True),
)
# Whoever may do this owns more than Stanch ever needs (design, law 10).
UNWANTED: Final = (
    *_each("create", "", "pods/exec"),
    *_each("get", "", "secrets"),
    *_each("patch", "", "pods/status"),
)
