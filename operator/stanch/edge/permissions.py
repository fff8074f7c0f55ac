"""What the operator's account must be allowed to do, and what it must not. Pure.

charts/stanch/files/rights, of which the chart's roles are made, grant exactly this (a test compares them).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from stanch.api.names import DISAGG_DEPLOYMENT, GROUP, LEAK_INCIDENT, LEAK_WATCH, STOP_CONFIG_MAP

# The Lease by which several operators elect the active one.
LEASE: Final = "stanch"
# Begins the identity by which `stanch lift` holds that Lease.
LIFT: Final = "stanch-lift-"
_ACCOUNT: Final = "stanch"
# `kubectl apply -f crds` would stand in the way of a `helm install` that comes after it.
INSTALL_KINDS: Final = (
    "they come with the chart: helm install (docs/install.md); with crds.install false "
    "kubectl apply --server-side -f crds/"
)


class Guard(str, Enum):
    """The ValidatingAdmissionPolicies of the chart that keep the operator's account to what it needs."""

    PODS = "pods"
    WORKLOADS = "workloads"


def policy_name(account: str | None, guard: Guard) -> str:
    """Of such a policy, and its binding. account: the operator's as the API server names it; None where that
    is not known: the chart's default."""
    return f"{_ACCOUNT if account is None else account.rpartition(':')[2]}-{guard.value}"


@dataclass(frozen=True, slots=True)
class Permission:
    """resource: with its subresource, as pods/log. own: in the operator's own namespace only. name: of the
    only object that is needed, "" for any."""

    verb: str
    group: str
    resource: str
    own: bool = False
    name: str = ""

    @property
    def what(self) -> str:
        return (
            f"{self.resource}{f'.{self.group}' if self.group else ''}{f' {self.name}' if self.name else ''}"
        )


def _each(
    verbs: str, group: str, resources: str, *, own: bool = False, name: str = ""
) -> tuple[Permission, ...]:
    return tuple(
        Permission(verb, group, resource, own, name)
        for resource in resources.split()
        for verb in verbs.split()
    )


NEEDED: Final = (
    *_each("get list patch", "", "pods"),
    *_each("get", "", "pods/log nodes"),
    *_each("create", "", "pods/eviction"),
    *_each("list", "discovery.k8s.io", "endpointslices"),
    *_each("list", "policy", "poddisruptionbudgets"),
    *_each("get", "apps", "deployments replicasets statefulsets"),
    *_each("get", "leaderworkerset.x-k8s.io", "leaderworkersets"),
    *_each("get", "disaggregatedset.x-k8s.io", "disaggregatedsets"),
    *_each("get list watch", GROUP, LEAK_WATCH.plural),
    *_each("list watch", GROUP, DISAGG_DEPLOYMENT.plural),
    *_each("get list watch create delete", GROUP, LEAK_INCIDENT.plural),
    *_each(
        "update",
        GROUP,
        f"{LEAK_WATCH.plural}/status {LEAK_INCIDENT.plural}/status {DISAGG_DEPLOYMENT.plural}/status",
    ),
    *_each("create patch", "events.k8s.io", "events"),
    *_each("get", "", "configmaps", own=True, name=STOP_CONFIG_MAP),
    *_each("create", "coordination.k8s.io", "leases", own=True),
    *_each("get update", "coordination.k8s.io", "leases", own=True, name=LEASE),
)
# What it does where it watches. Nodes are in no namespace, and it works without them.
WORK: Final = frozenset(one for one in NEEDED if not one.own and one.resource != "nodes")
# What DisaggDeployments consist of: all of it, or (disaggDeployments.enabled false) none.
DEPLOYING: Final = (
    *_each("list create patch delete", "apps", "deployments"),
    *_each("get list create patch delete", "", "services serviceaccounts"),
    *_each("get create patch delete", "policy", "poddisruptionbudgets"),
    *_each("get list create patch delete", "monitoring.coreos.com", "podmonitors"),
    *_each("create patch delete", GROUP, LEAK_WATCH.plural),
)
# Whoever may do this owns more than Stanch ever needs (law 10).
UNWANTED: Final = (
    *_each("create", "", "pods/exec"),
    *_each("get", "", "secrets"),
    *_each("patch", "", "pods/status"),
    *_each("delete", "", "pods"),
)


def lacking(allowed: Mapping[Permission, bool]) -> list[Permission]:
    """What of NEEDED and DEPLOYING is not allowed. Of the second all or none is well: who may do none of it
    makes no DisaggDeployments; who may do some of it makes none either."""
    deploys = any(allowed[one] for one in DEPLOYING)
    return [one for one in (*NEEDED, *(DEPLOYING if deploys else ())) if not allowed[one]]


def guards(allowed: Mapping[Permission, bool] | None) -> tuple[Guard, ...]:
    """The policies that matter to an account that may do that; allowed: None where it is not known."""
    if allowed is None:
        return (*Guard,)
    needed, deploys = (any(allowed[one] for one in every) for every in (NEEDED, DEPLOYING))
    if not needed and not deploys:
        return ()
    # With rights in some namespaces only, nothing is allowed in all of them at once: then it is not known.
    works = any(allowed[one] for one in WORK)
    return (Guard.PODS,) if works and not deploys else (*Guard,)
