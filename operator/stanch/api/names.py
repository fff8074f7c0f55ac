"""Names of the group, its kinds, and the annotations that people and the operator use on them and on pods."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

GROUP: Final = "stanch.dev"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"
CATEGORY: Final = "stanch"


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind as the API server knows it."""

    kind: str
    plural: str
    short: str

    @property
    def singular(self) -> str:
        return self.kind.lower()

    @property
    def crd(self) -> str:
        """The name of its CustomResourceDefinition."""
        return f"{self.plural}.{GROUP}"


LEAK_WATCH: Final = Kind("LeakWatch", "leakwatches", "lw")
LEAK_INCIDENT: Final = Kind("LeakIncident", "leakincidents", "li")
DISAGG_DEPLOYMENT: Final = Kind("DisaggDeployment", "disaggdeployments", "dd")

# On a pod, beside those of the kit's contract: the incident that works on it.
ANNOTATION_INCIDENT: Final = f"{GROUP}/incident"
# On a LeakIncident: a person lets it act, where the watch's approval is Manual.
ANNOTATION_APPROVE: Final = f"{GROUP}/approve"
# On a LeakIncident, a label: the fingerprint of the alert that it was made for.
LABEL_ALERT: Final = f"{GROUP}/alert"
# On a DisaggDeployment: with any new value its pods are replaced by those that this version of Stanch makes.
ANNOTATION_UPDATE: Final = f"{GROUP}/update"
# On a LeakWatch: any new value closes its breaker.
ANNOTATION_RESET_BREAKER: Final = f"{GROUP}/reset-breaker"

# In the operator's namespace: data.stop "true" stops all action.
STOP_CONFIG_MAP: Final = "stanch-stop"
STOP_KEY: Final = "stop"

# On a pod (so on a workload's pod template): the kit is to be put into it when it is made.
LABEL_INJECT: Final = f"{GROUP}/inject"
INJECT_ENABLED: Final = "enabled"
# Which container is the engine, where that cannot be told; mode of the fixed connector, where that is wanted.
ANNOTATION_INJECT_CONTAINER: Final = f"{GROUP}/inject-container"
ANNOTATION_INJECT_PATCH: Final = f"{GROUP}/inject-connector-patch"
# What the webhook leaves on a pod: how to take the kit out again; or why it is not in.
ANNOTATION_KIT: Final = f"{GROUP}/kit"
ANNOTATION_NOT_INJECTED: Final = f"{GROUP}/not-injected"
