"""What a DisaggDeployment says of itself: counts and conditions, of what was done and what there is. Pure.

Ready is reached when every pod of every role is there, is ready and is as the spec has it, and the LeakWatch
works. It is kept while each role still serves as its Deployment's own condition Available has it, so that
neither a repair nor a lost node clears it; with the last ready pod of a role it goes. Another generation of
the spec has to reach it anew.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stanch.api.common import Condition, ConditionStatus
from stanch.api.deployment import Part, PartStatus
from stanch.api.names import ANNOTATION_UPDATE
from stanch.core.plan_conditions import NOT_READ_YET, Said
from stanch.edge.units_raw import dig, rows, text, whole

Object = Mapping[str, Any]

READY, PROGRESSING, DEGRADED, OUTDATED = "Ready", "Progressing", "Degraded", "Outdated"
_LEFT = "What runs is left as it is."


@dataclass(frozen=True, slots=True)
class Stopped:
    """Why the spec was not applied: nothing of it was. reason: one word; message: what is wrong, and where.
    Degraded says it too, but for what passes by itself."""

    reason: str
    message: str
    passing: bool = False


@dataclass(frozen=True, slots=True)
class Role:
    """One Deployment as it is. wanted: pods that it is to have. failure: what its controller says is wrong
    with it, empty where nothing is."""

    name: Part
    wanted: int
    replicas: int
    updated: int
    ready: int
    available: bool
    settled: bool
    failure: str

    @property
    def complete(self) -> bool:
        """Whether every pod is there, is ready, and is as the spec has it."""
        return self.settled and self.wanted == self.updated == self.replicas == self.ready

    @property
    def rolling(self) -> bool:
        """Whether pods are being made or replaced, not only not ready."""
        return not self.settled or not self.wanted == self.updated == self.replicas

    @property
    def serves(self) -> bool:
        return self.wanted == 0 or (self.available and self.ready > 0)

    @property
    def words(self) -> str:
        if self.complete:
            return f"{self.name.value}: {self.ready} ready"
        said = f"{self.name.value}: {self.ready} of {self.wanted} ready"
        if not self.settled or self.updated < self.wanted:
            said += f", {self.updated} as the spec has them"
        return said


def role_of(deployment: Object, name: Part) -> Role:
    """deployment: as the API server has it (apps/v1, 1.35). What its controller has not said yet is not so:
    there is no pod that it has not counted."""
    wanted = whole(deployment, "spec", "replicas")
    generation, seen = (
        whole(deployment, "metadata", "generation"),
        whole(deployment, "status", "observedGeneration"),
    )
    conditions = {text(one, "type"): one for one in rows(deployment, "status", "conditions")}
    return Role(
        name,
        wanted=1 if wanted is None else wanted,
        replicas=whole(deployment, "status", "replicas") or 0,
        updated=whole(deployment, "status", "updatedReplicas") or 0,
        ready=whole(deployment, "status", "readyReplicas") or 0,
        available=text(conditions.get("Available", {}), "status") == "True",
        settled=generation is not None and seen == generation,
        failure=_failure(conditions),
    )


def _failure(conditions: Mapping[str, Any]) -> str:
    refused = conditions.get("ReplicaFailure", {})
    if text(refused, "status") == "True":
        return text(refused, "message") or "its pods cannot be made"
    progress = conditions.get("Progressing", {})
    if text(progress, "status") == "False" and text(progress, "reason") == "ProgressDeadlineExceeded":
        return text(progress, "message") or "it does not get on"
    return ""


def counts(roles: Sequence[Role]) -> list[PartStatus]:
    return [
        PartStatus(name=one.name, replicas=one.replicas, ready=one.ready, updated=one.updated)
        for one in roles
    ]


def conditions(
    expected: Sequence[Part],
    roles: Sequence[Role],
    watch: Object | None,
    stopped: Stopped | None,
    was_ready: bool,
) -> tuple[Said, ...]:
    """expected: the roles that the spec has; roles: those that there are. watch: the LeakWatch. was_ready:
    whether this generation of the spec has been Ready before, and is so still."""
    if stopped is not None:
        message = f"{stopped.message}. {_LEFT}" if roles else stopped.message
        degraded = (
            Said(DEGRADED, False, "AsExpected")
            if stopped.passing
            else Said(DEGRADED, True, stopped.reason, message)
        )
        return (
            Said(READY, False, stopped.reason, message),
            Said(PROGRESSING, stopped.passing, stopped.reason, message),
            degraded,
        )
    return _ready(expected, roles, watch, was_ready), _progressing(expected, roles), _degraded(roles)


def _ready(expected: Sequence[Part], roles: Sequence[Role], watch: Object | None, was_ready: bool) -> Said:
    there = {one.name for one in roles}
    absent = [name.value for name in expected if name not in there]
    if absent:
        return Said(READY, False, "RolesNotReady", f"not there yet: {', '.join(absent)}")
    words = "; ".join(one.words for one in roles)
    enough = [one.serves if was_ready else one.complete for one in roles]
    if not all(enough):
        return Said(READY, False, "RolesNotReady", words)
    found = {text(one, "type"): one for one in rows(watch, "status", "conditions")} if watch else {}
    said = found.get(READY, {})
    # Who switches the watch off, or has no engine, wants it so.
    needed = dig(watch, "spec", "mode") != "Disabled" and any(
        one.wanted for one in roles if one.name is not Part.ROUTER
    )
    # An operator that has just begun says of every watch that it has not read it yet.
    begun = was_ready and text(said, "reason") == NOT_READ_YET
    if needed and text(said, "status") != "True" and not begun:
        why = f"{text(said, 'reason')}: {text(said, 'message')}" if said else "it has not begun yet"
        return Said(READY, False, "WatchNotReady", f"{words}; LeakWatch: {why}")
    return Said(READY, True, "Serving", words)


def _progressing(expected: Sequence[Part], roles: Sequence[Role]) -> Said:
    stuck = [f"{one.name.value}: {one.failure}" for one in roles if one.failure]
    if stuck:
        return Said(PROGRESSING, False, "Stuck", "; ".join(stuck))
    moving = [one.words for one in roles if not one.complete]
    if len(roles) < len(expected) or any(one.rolling for one in roles):
        return Said(PROGRESSING, True, "RollingOut", "; ".join(moving))
    if moving:
        return Said(PROGRESSING, True, "PodsNotReady", "; ".join(moving))
    return Said(PROGRESSING, False, "Complete")


def _degraded(roles: Sequence[Role]) -> Said:
    stuck = [f"{one.name.value}: {one.failure}" for one in roles if one.failure]
    if stuck:
        return Said(DEGRADED, True, "Stuck", "; ".join(stuck))
    return Said(DEGRADED, False, "AsExpected")


def outdated(held: Sequence[str]) -> Said:
    """held: Deployments whose pods are as an earlier version of Stanch has made them."""
    if not held:
        return Said(OUTDATED, False, "UpToDate")
    return Said(
        OUTDATED,
        True,
        "UpdateHeld",
        f"{', '.join(held)}: pods stay as an earlier version of Stanch, or another image of the kit, made "
        f"them, until the spec says something else of them or annotation {ANNOTATION_UPDATE} has a new value",
    )


def was_ready(before: Sequence[Condition], generation: int) -> bool:
    """Whether the conditions say Ready of this very generation."""
    return any(
        one.type == READY and one.status is ConditionStatus.TRUE and one.observed_generation == generation
        for one in before
    )
