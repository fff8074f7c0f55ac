"""What rendering is told of the place, what it gives back, and the names that all its objects share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from stanch.api.deployment import DisaggDeployment
from stanch.api.names import GROUP

Object = dict[str, Any]

LABEL_MANAGED: Final = "app.kubernetes.io/managed-by"
MANAGED: Final = "stanch"
LABEL_DEPLOYMENT: Final = f"{GROUP}/deployment"
LABEL_ROLE: Final = f"{GROUP}/role"
ENGINE: Final = "vllm"
ROUTER: Final = "router"
HTTP: Final = "http"


@dataclass(frozen=True, slots=True)
class Place:
    """kit_image: of the kit's init container or image volume. pod_monitors: the cluster knows PodMonitors.
    image_volumes: it can mount an image as a volume."""

    kit_image: str
    kit_pull_policy: str = "IfNotPresent"
    pod_monitors: bool = False
    image_volumes: bool = False


@dataclass(frozen=True, slots=True)
class Problem:
    """path: the field of the DisaggDeployment, or of a list's entry by its name or index. message: what is
    wrong and what to do."""

    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}"


@dataclass(frozen=True, slots=True)
class Rendered:
    """objects: in the order in which to apply them, what others need first; none where there are problems."""

    objects: tuple[Object, ...] = ()
    problems: tuple[Problem, ...] = ()


def labels(deployment: DisaggDeployment, role: str | None = None) -> dict[str, str]:
    """Ours alone: what the parent is labelled with may select other things than its children."""
    found = {LABEL_MANAGED: MANAGED, LABEL_DEPLOYMENT: deployment.metadata.name}
    return found if role is None else {**found, LABEL_ROLE: role}


def selector(deployment: DisaggDeployment, role: str) -> dict[str, str]:
    """The labels by which pods of a role are found. A Deployment's selector cannot be changed: nothing is
    ever added here."""
    return {LABEL_DEPLOYMENT: deployment.metadata.name, LABEL_ROLE: role}


def metadata(deployment: DisaggDeployment, name: str, role: str | None = None) -> Object:
    return {
        "name": name,
        "namespace": deployment.metadata.namespace,
        "labels": labels(deployment, role),
    }


def workload_name(deployment: DisaggDeployment, role: str) -> str:
    """Of the Deployment of a role, and of the Service before it."""
    return f"{deployment.metadata.name}-{role}"


def account_name(deployment: DisaggDeployment) -> str:
    """Not the deployment's own name: one that is called default would change what others use."""
    return f"{deployment.metadata.name}-pods"


def headless_name(deployment: DisaggDeployment, role: str) -> str:
    return f"{workload_name(deployment, role)}-headless"
