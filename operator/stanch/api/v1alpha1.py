"""Version v1alpha1 of the group. Only ever added to: nothing here is removed or changes its meaning."""

from __future__ import annotations

from stanch.api.deployment import DisaggDeployment, DisaggDeploymentSpec, DisaggDeploymentStatus
from stanch.api.incident import LeakIncident, LeakIncidentSpec, LeakIncidentStatus
from stanch.api.watch import LeakWatch, LeakWatchSpec
from stanch.api.watch_status import LeakWatchStatus

__all__ = [
    "DisaggDeployment",
    "DisaggDeploymentSpec",
    "DisaggDeploymentStatus",
    "LeakIncident",
    "LeakIncidentSpec",
    "LeakIncidentStatus",
    "LeakWatch",
    "LeakWatchSpec",
    "LeakWatchStatus",
]
