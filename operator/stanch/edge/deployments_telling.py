"""Writes the status of a DisaggDeployment, and tells in the log and by Events what turned."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pydantic import ValidationError

from stanch.api.common import Condition, ConditionStatus
from stanch.api.conditions import merged
from stanch.api.deployment import DisaggDeploymentStatus, Part
from stanch.api.names import DISAGG_DEPLOYMENT, LEAK_WATCH
from stanch.core.plan_conditions import Said
from stanch.edge.cluster import Cluster, ClusterError, NotFound
from stanch.edge.deployments_objects import Object
from stanch.edge.deployments_one import Made
from stanch.edge.deployments_status import (
    DEGRADED,
    PROGRESSING,
    READY,
    Role,
    conditions,
    counts,
    outdated,
    role_of,
    was_ready,
)
from stanch.edge.events_text import NOTE_CHARS, EventText
from stanch.edge.recording import written
from stanch.edge.render.place import LABEL_ROLE
from stanch.edge.telemetry import Telemetry
from stanch.edge.text import one_line

_PARTS = {part.value: part for part in Part}


class Teller:
    def __init__(self, cluster: Cluster, telemetry: Telemetry, clock: Callable[[], float]) -> None:
        self._cluster = cluster
        self._telemetry = telemetry
        self._clock = clock

    async def tell(self, raw: Object, made: Made) -> bool:
        """raw: as it was listed. Whether nothing is on its way."""
        meta = raw["metadata"]
        name, generation = f"{meta['namespace']}/{meta['name']}", meta.get("generation", 0)
        before = status_in(raw)
        said = said_of(made, before, generation)
        after = before.model_copy(
            update={
                "observed_generation": generation,
                "conditions": merged(before.conditions, said, generation, self._clock()),
                "roles": counts(roles_of(made.live.values())),
            }
        )
        if after != before:
            try:
                await self._cluster.write_deployment_status(
                    meta["namespace"], meta["name"], written(after), meta["resourceVersion"]
                )
                for text in turned(before.conditions, said, meta["name"], meta["uid"]):
                    level = "warning" if text.warning else "info"
                    self._telemetry.note(
                        level, "deployment-condition", text.note, deployment=name, reason=text.reason
                    )
                    await self._cluster.event(
                        text.regarding(meta["namespace"]), text.reason, text.action, text.note, text.warning
                    )
            except NotFound:
                return True  # it was deleted meanwhile
            except ClusterError as error:
                if error.namespace_ends:
                    return True
                self._telemetry.note("warning", "deployment-not-told", str(error), deployment=name)
                return False
        return not any(one.type == PROGRESSING and one.true for one in said)


def said_of(made: Made, before: DisaggDeploymentStatus, generation: int) -> tuple[Said, ...]:
    roles = roles_of(made.live.values())
    watch = next((one for one in made.live.values() if one["kind"] == LEAK_WATCH.kind), None)
    ready, stopped = was_ready(before.conditions, generation), made.stopped
    if stopped is not None and stopped.passing and ready:
        # It was applied before: what is not done is to put something right again.
        stopped = None
    said = conditions(made.expected, roles, watch, stopped, ready)
    return said if made.held is None else (*said, outdated(made.held))


def roles_of(live: Iterable[Object]) -> list[Role]:
    """In the order prefill, decode, router."""
    found = {}
    for one in live:
        part = _PARTS.get((one["metadata"].get("labels") or {}).get(LABEL_ROLE, ""))
        if one["kind"] == "Deployment" and part is not None:
            found[part] = role_of(one, part)
    return [found[part] for part in Part if part in found]


def status_in(raw: Mapping[str, Any]) -> DisaggDeploymentStatus:
    """As it is written; an empty one where that cannot be understood."""
    try:
        return DisaggDeploymentStatus.model_validate(raw.get("status") or {})
    except ValidationError:
        return DisaggDeploymentStatus()


def turned(before: Iterable[Condition], said: Iterable[Said], name: str, uid: str) -> list[EventText]:
    """The Events of Ready and Degraded where they turned, and of Degraded with another reason than before.
    That a new one is not Ready yet is no news."""
    old = {one.type: (one.status is ConditionStatus.TRUE, one.reason) for one in before}
    now = {one.type: one for one in said}
    ready, degraded = now[READY], now[DEGRADED]
    was_ready, _ = old.get(READY, (False, ""))
    was_degraded, why = old.get(DEGRADED, (False, ""))

    def event(one: Said, warning: bool, reason: str) -> EventText:
        note = one_line(f"{one.type} is {one.true}: {one.message or one.reason}", NOTE_CHARS)
        return EventText(DISAGG_DEPLOYMENT.kind, name, uid, warning, reason, "Deploy", note)

    found = []
    if degraded.true and (not was_degraded or why != degraded.reason):
        found.append(event(degraded, True, degraded.reason))
    elif was_degraded and not degraded.true:
        found.append(event(degraded, False, "DegradedOver"))
    if ready.true and not was_ready:
        found.append(event(ready, False, ready.reason))
    elif was_ready and not ready.true and not degraded.true:
        found.append(event(ready, True, ready.reason))
    return found
