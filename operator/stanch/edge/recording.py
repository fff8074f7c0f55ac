"""Writing down what a plan decided, before anything of it is done: the ledger, then the incidents."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from stanch.api.conditions import merged
from stanch.api.convert import incident_of, status_of, status_with
from stanch.api.incident import LeakIncident
from stanch.api.names import API_VERSION, LEAK_INCIDENT
from stanch.api.watch_status import LeakWatchStatus, RoleName, RoleStatus, SuspectStatus
from stanch.core import plan_conditions
from stanch.core.history import Incident
from stanch.core.plan_conditions import Said
from stanch.core.plan_types import Plan, Reason
from stanch.core.sample import Role
from stanch.core.verdict import State
from stanch.edge.cluster import AlreadyExists, Cluster, ClusterError
from stanch.edge.executor import Note
from stanch.edge.survey import Survey

_MOST_SUSPECTS = 50
_NOT_WATCHABLE = "NotWatchable"
_PASSING = (Reason.UNDER_WAY, Reason.ASKED)


def watch_status(survey: Survey, made: Plan, said: Iterable[Said], now: float) -> LeakWatchStatus:
    """The watch's status with the plan's ledger, the conditions, and what was found."""
    watch = survey.watch
    generation = watch.metadata.generation
    ledger = made.ledger or survey.ledger
    suspects = _suspects(survey, made)
    return status_with(ledger, watch.status).model_copy(
        update={
            "observed_generation": generation,
            "conditions": merged(watch.status.conditions, said, generation, now),
            "roles": _roles(survey),
            "suspects": suspects[:_MOST_SUSPECTS],
            "suspect_count": len(suspects),
        }
    )


def shape(status: LeakWatchStatus) -> object:
    """What of a status is worth a write by itself: not the sentences, whose seconds change at every turn."""
    return (
        status.observed_generation,
        [(one.type, one.status, one.reason) for one in status.conditions],
        status.roles,
        [(one.unit, one.signature, one.incident, one.reason) for one in status.suspects],
        status.suspect_count,
    )


def _role_names(survey: Survey) -> list[RoleName]:
    """Those of the watch; for `auto` those that its engines have, and `auto` for what nothing tells."""
    names = [role.name for role in survey.watch.spec.watched]
    if RoleName.AUTO not in names:
        return names
    found = {unit.role.value for unit in survey.fleet.units}
    return [one for one in RoleName if one.value in found] + [RoleName.AUTO] * (Role.UNKNOWN.value in found)


def _roles(survey: Survey) -> list[RoleStatus]:
    found = []
    for name in _role_names(survey):
        told = Role.UNKNOWN.value if name is RoleName.AUTO else name.value
        units = [unit for unit in survey.fleet.units if unit.role.value == told]
        verdicts = [
            survey.judged[engine].verdict
            for unit in units
            for engine in unit.engines
            if engine in survey.judged
        ]
        states = [verdict.state for verdict in verdicts]
        found.append(
            RoleStatus(
                name=RoleName(name),
                units=len(units),
                available=sum(unit.available for unit in units),
                engines=len(verdicts),
                blind=states.count(State.BLIND),
                suspects=states.count(State.SUSPECT),
                faults=states.count(State.FAULT),
                with_kit=sum(all(pod.kit is not None for pod in unit.pods) for unit in units),
            )
        )
    return found


def _suspects(survey: Survey, made: Plan) -> list[SuspectStatus]:
    """Units of which something is deferred or open, the first thing that the plan says of each; then pods
    that are selected and cannot be watched."""
    found: dict[str, SuspectStatus] = {}
    open_ = {one.unit: one.name for one in survey.incidents if one.open}
    open_ |= {one.unit: one.name for one in made.incidents if one.open}
    for one in made.deferred:
        passing = one.reason in _PASSING
        if one.unit in found:
            continue
        unit = survey.fleet.unit(one.unit)
        shown = [survey.judged[e].verdict for e in unit.engines if e in survey.judged] if unit else []
        signatures = [v.signature.value for v in shown if v.signature is not None]
        found[one.unit] = SuspectStatus(
            unit=one.unit,
            signature=signatures[0] if signatures else "",
            incident=one.incident or open_.get(one.unit, ""),
            reason="" if passing else one.reason.value,
            message=one.message[:1024],
        )
    for refused in survey.selection.refused:
        unit_key = f"{survey.watch.metadata.namespace}/{refused.pod}"
        found.setdefault(
            unit_key, SuspectStatus(unit=unit_key, reason=_NOT_WATCHABLE, message=refused.why[:1024])
        )
    return list(found.values())


class Recorder:
    """Writes incidents of one watch."""

    def __init__(self, cluster: Cluster, note: Note) -> None:
        self._cluster = cluster
        self._note = note

    async def write(self, survey: Survey, incident: Incident, now: float) -> Incident | None:
        """The incident as it is written now, with its version; None where it could not be written."""
        namespace, watch = survey.watch.metadata.namespace, survey.watch.metadata.name
        before = survey.found.get(incident.name)
        try:
            if before is None:
                before = await self._made(namespace, watch, incident)
                if before is None:
                    return None
            said = plan_conditions.of_incident(incident)
            generation = before.metadata.generation
            status = status_of(incident, before.status).model_copy(
                update={
                    "watch": watch,
                    "observed_generation": generation,
                    "conditions": merged(before.status.conditions, said, generation, now),
                }
            )
            version = await self._cluster.write_incident_status(
                namespace, incident.name, written(status), before.metadata.resource_version
            )
        except ClusterError as error:
            self._note("warning", "incident-not-written", str(error), incident=f"{namespace}/{incident.name}")
            return None
        return replace(incident, version=version)

    async def _made(self, namespace: str, watch: str, incident: Incident) -> LeakIncident | None:
        """The new object, or one of that name whose making was not finished; None where it was finished."""
        try:
            raw = await self._cluster.create_incident(
                namespace, body_of(namespace, incident, self._cluster.instance)
            )
        except AlreadyExists:
            raw = await self._cluster.incident(namespace, incident.name)
            found = LeakIncident.model_validate(raw)
            if incident_of(found).steps or found.status.ending is not None:
                return None  # the next turn's list has it
            return found
        return LeakIncident.model_validate(raw)


def body_of(namespace: str, incident: Incident, by: str) -> dict[str, Any]:
    """by: who writes it."""
    return {
        "apiVersion": API_VERSION,
        "kind": LEAK_INCIDENT.kind,
        "metadata": {"name": incident.name, "namespace": namespace},
        "spec": {
            "podRef": {"name": incident.pod_name, "uid": incident.pod_uid},
            "trigger": {"type": incident.trigger.value, "by": by[:253]},
        },
    }


def written(model: Any) -> dict[str, Any]:
    """A status as the API server takes it."""
    found: dict[str, Any] = model.model_dump(mode="json", by_alias=True, exclude_none=True)
    return found


def by_name(incidents: Iterable[Incident]) -> Mapping[str, Incident]:
    return {incident.name: incident for incident in incidents}
