"""Names shared by the kit inside an engine and by the operator. Standard library only; additive only."""

from __future__ import annotations

from typing import Final

# What a change to these names is counted by; a skew of one version must work.
CONTRACT_VERSION: Final = 1

# The kit's HTTP routes on the engine's own port.
ROUTE_REQUESTS: Final = "/stanch/v1/requests"
ROUTE_STATE: Final = "/stanch/v1/state"
ROUTE_READY: Final = "/stanch/v1/ready"

# Annotations on the engine's pod, the only way to command an engine on Kubernetes.
ANNOTATION_COMMAND: Final = "stanch.dev/command"
ANNOTATION_CORDON: Final = "stanch.dev/cordon"
