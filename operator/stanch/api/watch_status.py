"""What a LeakWatch says of itself, and the ledger by which budgets are judged."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

from pydantic import Field

from stanch.api.base import ATOMIC, Model, list_map
from stanch.api.common import Condition, Count, Id, Text, Time, Word


class RoleName(str, Enum):
    DECODE = "decode"
    PREFILL = "prefill"
    BOTH = "both"
    AUTO = "auto"


class RoleStatus(Model):
    """What was found of one role."""

    name: RoleName
    """The role."""
    units: Count
    """Repair units: pods, or groups of pods that die together."""
    available: Count
    """Units that are ready."""
    engines: Count
    """Engines, that is data-parallel ranks."""
    blind: Count = 0
    """Engines that cannot be read."""
    suspects: Count = 0
    """Engines that show a pattern."""
    faults: Count = 0
    """Engines whose pattern has held long enough."""
    with_kit: Count = 0
    """Units whose kit answers."""


class SuspectStatus(Model):
    """A unit that shows something, and why nothing is done to it now."""

    unit: Id
    """The repair unit: a pod or a group."""
    signature: Word = ""
    """What it shows."""
    incident: Id = ""
    """Its open LeakIncident."""
    reason: Word = ""
    """Why nothing is done now, as one word; empty while a step is under way."""
    message: Text = ""
    """Why, as a sentence."""


class ClaimStatus(Model):
    """A unit that an incident may make unavailable. Written before anything is done to it."""

    incident: Id
    """The incident."""
    unit: Id
    """The repair unit."""
    expires: Time
    """From then on it counts no more, whatever became of it."""


class RepairStatus(Model):
    """A disruptive repair that was begun; counts for maxPerHour and the cooldown."""

    incident: Id
    """The incident."""
    unit: Id
    """The repair unit."""
    began: Time
    """When its claim was taken."""
    ended: Time | None = None
    """When it ended, however that was."""


class FailureStatus(Model):
    """A repair that failed, or a leak that came back; what the breaker counts."""

    incident: Id
    """The incident."""
    time: Time
    """When it was counted."""
    why: Text
    """What it was."""


class BreakerStatus(Model):
    """The breaker."""

    tripped: Time | None = None
    """Since when it is open; absent while it is closed."""
    why: Text = ""
    """What opened it."""
    reset_seen: Text | None = None
    """The value of stanch.dev/reset-breaker that last closed it."""
    reset_at: Time | None = None
    """When that was. What had been repaired before does not count as a recurrence any more."""


class LeakWatchStatus(Model):
    """What is found and done. Claims, repairs and failures are the ledger that budgets are judged by."""

    observed_generation: Annotated[int, Field(ge=0)] = 0
    """The generation of the spec that this is about."""
    conditions: Annotated[list[Condition], Field(max_length=16, json_schema_extra=list_map("type"))] = []
    """Ready first: watching works. A leak does not clear it; that is Leaking."""
    roles: Annotated[list[RoleStatus], Field(max_length=3, json_schema_extra=list_map("name"))] = []
    """What was found, by role."""
    suspects: Annotated[list[SuspectStatus], Field(max_length=50, json_schema_extra=list_map("unit"))] = []
    """The worst units that show something, at most 50."""
    suspect_count: Count = 0
    """How many there are."""
    claims: Annotated[list[ClaimStatus], Field(max_length=1000, json_schema_extra=list_map("incident"))] = []
    """Units under repair."""
    repairs: Annotated[
        list[RepairStatus], Field(max_length=2000, json_schema_extra=list_map("incident"))
    ] = []
    """Disruptive repairs of the last hour, or as far back as the cooldown reaches."""
    failures: Annotated[list[FailureStatus], Field(max_length=100, json_schema_extra=ATOMIC)] = []
    """What the breaker counts."""
    breaker: BreakerStatus = BreakerStatus()
    """The breaker."""
