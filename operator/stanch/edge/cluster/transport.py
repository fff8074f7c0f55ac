"""The one door to the API server: a request, its time-out, its errors."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Call:
    """One request that ended, for metrics. verb, resource: as RBAC has them ("create", "pods/eviction").
    code: HTTP's; 0 where no answer came. A watch is one call, told of when it starts."""

    verb: str
    resource: str
    code: int
    seconds: float
