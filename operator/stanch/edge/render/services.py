"""What stands around the workloads: account, Services, disruption budget, monitor, watch. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from stanch.api.deployment import DeployedRole, DisaggDeployment, DisruptionBudget, EngineRole
from stanch.api.names import API_VERSION, LEAK_WATCH
from stanch.edge.render.place import (
    ENGINE,
    HTTP,
    LABEL_DEPLOYMENT,
    LABEL_ROLE,
    Object,
    account_name,
    headless_name,
    metadata,
    selector,
    workload_name,
)


def account(deployment: DisaggDeployment) -> Object:
    """No pod of it talks to the API server: it gets no token."""
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": metadata(deployment, account_name(deployment)),
        "automountServiceAccountToken": False,
    }


def services(deployment: DisaggDeployment, role: str, port: int, headless: bool = True) -> list[Object]:
    """One address for all that are ready, and, where wanted, the addresses of each (both by readiness, so
    that a cordoned engine is in neither)."""
    ports = [{"name": HTTP, "port": port, "targetPort": HTTP}]
    found = {workload_name(deployment, role): {"selector": selector(deployment, role), "ports": ports}}
    if headless:
        found[headless_name(deployment, role)] = {
            **found[workload_name(deployment, role)],
            "clusterIP": "None",
        }
    return [
        {"apiVersion": "v1", "kind": "Service", "metadata": metadata(deployment, name, role), "spec": spec}
        for name, spec in found.items()
    ]


def disruption_budget(deployment: DisaggDeployment, role: str, budget: DisruptionBudget) -> Object:
    """An engine that is not ready may always be evicted: else a cordoned one, which counts as unavailable
    already, could not be (Kubernetes 1.31, beta from 1.27)."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": metadata(deployment, workload_name(deployment, role), role),
        "spec": {
            "maxUnavailable": budget.max_unavailable,
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
            "selector": {"matchLabels": selector(deployment, role)},
        },
    }


def pod_monitor(deployment: DisaggDeployment) -> Object:
    """Of the engines of both roles; their role comes along as a label of the series."""
    roles = [role.value for role in EngineRole]
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PodMonitor",
        "metadata": metadata(deployment, deployment.metadata.name),
        "spec": {
            "selector": {
                "matchLabels": {LABEL_DEPLOYMENT: deployment.metadata.name},
                "matchExpressions": [{"key": LABEL_ROLE, "operator": "In", "values": sorted(roles)}],
            },
            "podTargetLabels": [LABEL_DEPLOYMENT, LABEL_ROLE],
            "podMetricsEndpoints": [{"port": HTTP, "path": "/metrics"}],
        },
    }


def leak_watch(deployment: DisaggDeployment, roles: Sequence[DeployedRole]) -> Object:
    """spec.watch as it was given, defaults and all, and the roles. All ranks of a pod are behind one port."""
    watch = deployment.spec.watch.model_dump(mode="json", by_alias=True, exclude_none=True)
    return {
        "apiVersion": API_VERSION,
        "kind": LEAK_WATCH.kind,
        "metadata": metadata(deployment, deployment.metadata.name),
        "spec": {"roles": [_watched(deployment, role) for role in roles], **watch},
    }


def _watched(deployment: DisaggDeployment, role: DeployedRole) -> Object:
    return {
        "name": role.name.value,
        "selector": {"matchLabels": selector(deployment, role.name.value)},
        "containerName": ENGINE,
        "ports": [role.engine.port],
    }
