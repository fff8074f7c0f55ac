"""What an alert does on the API server: it makes an incident, or it is written down on one that it had made.

The incident's name is made from the alert's fingerprint, its start and the pod's UID, so neither a repeat nor
another replica makes a second one.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from hashlib import blake2s
from typing import Any

from pydantic import ValidationError

from stanch.api.common import moment
from stanch.api.incident import AlertRef, LeakIncident, TriggerSpec
from stanch.api.names import API_VERSION, LABEL_ALERT, LEAK_INCIDENT
from stanch.core.history import Trigger
from stanch.edge.alerts_payload import Alert
from stanch.edge.alerts_table import Place
from stanch.edge.cluster import AlreadyExists, Cluster, ClusterError, Conflict, NotFound
from stanch.edge.executor import Note
from stanch.edge.recording import written
from stanch.edge.text import one_line

# Against the watchdog's own writes of the same status.
_RESOLVED_TRIES = 5


@dataclass(frozen=True, slots=True)
class Work:
    """One alert, where its engine is, and Alertmanager's receiver that it came through."""

    alert: Alert
    place: Place
    receiver: str

    @property
    def key(self) -> tuple[str, str, datetime]:
        return (self.alert.status, *self.alert.key)


class Incidents:
    """namespaces: those whose pods may be meant; empty for all. clock: Unix seconds."""

    def __init__(
        self,
        cluster: Cluster,
        note: Note,
        namespaces: tuple[str, ...] = (),
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._cluster = cluster
        self._note = note
        self._namespaces = namespaces
        self._clock = clock

    async def create(self, work: Work) -> tuple[str, str]:
        """What came of it, as one of metrics.ALERT_RESULTS, and why where there is no incident. Raises
        ClusterError."""
        pod = await self._pod(work.place)
        if isinstance(pod, str):
            return "gone", pod
        meta = pod["metadata"]
        body = body_of(work.alert, work.place.engine, work.receiver, meta)
        name = f"{meta['namespace']}/{body['metadata']['name']}"
        try:
            await self._cluster.create_incident(meta["namespace"], body)
        except AlreadyExists:
            return "exists", ""
        self._note(
            "info",
            "alert-incident",
            f"made for alert {one_line(work.alert.name, 100)}",
            incident=name,
            pod=meta["name"],
            fingerprint=work.alert.fingerprint,
        )
        return "created", ""

    async def _pod(self, place: Place) -> dict[str, Any] | str:
        """The pod as it is now; a sentence that says why there is none."""
        if place.pod is not None:
            assert place.namespace is not None
            try:
                return await self._cluster.pod(place.namespace, place.pod)
            except NotFound:
                return f"there is no pod {place}"
        assert place.address is not None
        found = []
        for namespace in self._where(place):
            listing = await self._cluster.pods_at(namespace, place.address)
            found += [pod for pod in listing.items if pod.get("status", {}).get("phase") == "Running"]
        if len(found) != 1:
            return f"{len(found) or 'no'} running pods have the address {place.address}"
        return found[0]

    def _where(self, place: Place) -> tuple[str | None, ...]:
        """The namespaces in which to look; None for all."""
        known = place.namespace is not None or not self._namespaces
        return (place.namespace,) if known else self._namespaces

    async def resolve(self, work: Work) -> str:
        """Write it down on the incidents that were made for this alert. Raises ClusterError."""
        selector = f"{LABEL_ALERT}={work.alert.fingerprint}"
        result = "unknown"
        for namespace in self._where(work.place):
            for raw in (await self._cluster.incidents(namespace, selector)).items:
                if await self._resolved(work, raw):
                    result = "resolved"
        return result

    async def _resolved(self, work: Work, raw: dict[str, Any]) -> bool:
        """Whether the incident is one of this alert's."""
        for number in range(_RESOLVED_TRIES):
            try:
                one = LeakIncident.model_validate(raw)
            except ValidationError:
                return False
            made_for, meta = one.spec.trigger.alert, one.metadata
            if made_for is None or (made_for.fingerprint, made_for.starts_at) != work.alert.key:
                return False
            if one.status.alert_resolved is not None:
                return True
            ended = work.alert.ended or moment(self._clock())
            status = one.status.model_copy(update={"alert_resolved": ended})
            try:
                await self._cluster.write_incident_status(
                    meta.namespace, meta.name, written(status), meta.resource_version
                )
            except Conflict:
                if number == _RESOLVED_TRIES - 1:
                    raise
                raw = await self._cluster.incident(meta.namespace, meta.name)
                continue
            except NotFound:
                return True
            await self._say_resolved(one)
            return True
        return True

    async def _say_resolved(self, one: LeakIncident) -> None:
        alert, meta = one.spec.trigger.alert, one.metadata
        assert alert is not None
        said = f"alert {one_line(alert.name, 100)} is resolved; nothing begins or ends by it"
        about = {
            "apiVersion": API_VERSION,
            "kind": LEAK_INCIDENT.kind,
            "name": meta.name,
            "namespace": meta.namespace,
            "uid": meta.uid,
        }
        self._note("info", "alert-resolved", said, incident=f"{meta.namespace}/{meta.name}")
        try:
            await self._cluster.event(about, "AlertResolved", "Record", said)
        except ClusterError as error:
            self._note("warning", "event-not-written", str(error), reason="AlertResolved")


def incident_name(pod: str, uid: str, alert: Alert) -> str:
    """The same in every process for one alert of one pod; a name of an object."""
    fingerprint, starts = alert.key
    said = f"{uid}/{fingerprint}/{starts.isoformat()}"
    return f"{pod[:40].rstrip('-.')}-alert-{blake2s(said.encode(), digest_size=6).hexdigest()}"


def body_of(alert: Alert, engine: str, receiver: str, pod: dict[str, Any]) -> dict[str, Any]:
    """The LeakIncident for an alert. pod: metadata of the pod that it is about."""
    said = alert.annotations.get("summary") or alert.annotations.get("description") or ""
    trigger = TriggerSpec(
        type=Trigger.ALERT,
        by=one_line(receiver, 253),
        reason=one_line(said, 1024),
        alert=AlertRef(
            name=one_line(alert.name, 253),
            fingerprint=alert.fingerprint,
            starts_at=alert.starts_at,
            engine=engine,
        ),
    )
    return {
        "apiVersion": API_VERSION,
        "kind": LEAK_INCIDENT.kind,
        "metadata": {
            "name": incident_name(pod["name"], pod["uid"], alert),
            "namespace": pod["namespace"],
            "labels": {LABEL_ALERT: alert.fingerprint},
        },
        "spec": {
            "podRef": {"name": pod["name"], "uid": pod["uid"]},
            "trigger": written(trigger),
        },
    }
