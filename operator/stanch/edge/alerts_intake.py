"""From alerts to incidents: taken at once into a bounded queue, and worked off one after another.

An alert only says that somebody should look: it becomes a LeakIncident, which obeys the mode, the limits and
the proof of the watch that selects the pod, as every other. The incident's name is made from the alert's
fingerprint, its start and the pod's UID, so neither a repeat nor another replica makes a second one. That an
alert was resolved is written down, and nothing more.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from hashlib import blake2s
from typing import Any

from pydantic import ValidationError

from stanch.api.common import moment
from stanch.api.incident import AlertRef, LeakIncident, TriggerSpec
from stanch.api.names import API_VERSION, LABEL_ALERT, LEAK_INCIDENT
from stanch.core.history import Trigger
from stanch.edge.alerts_payload import MOST_ALERTS, Alert, Payload
from stanch.edge.alerts_table import Place, Table, place_of
from stanch.edge.cluster import AlreadyExists, Cluster, ClusterError, Conflict, NotFound, Unreachable
from stanch.edge.metrics import Families
from stanch.edge.recording import written
from stanch.edge.text import one_line

# In alerts; the whole of the largest payload has room.
_MOST_WAITING = 2 * MOST_ALERTS
# The same alert again within so long is not looked at again: two Alertmanagers of one cluster both send it.
_REMEMBERED_SECONDS, _MOST_REMEMBERED = 60.0, 10_000
# What the API server did not answer is tried again after these pauses; then it is given up, and a repeat of
# the alert begins anew.
_PAUSES = (1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 30.0, 30.0)
# Against the watchdog's own writes of the same status.
_RESOLVED_TRIES = 5
_MOST_REASONS = 20

Note = Callable[..., None]


@dataclass(frozen=True, slots=True)
class Taken:
    """What became of a payload's alerts in the moment in which it came; the rest is done later."""

    accepted: int = 0
    duplicate: int = 0
    resolved: int = 0
    unmapped: int = 0
    truncated: int = 0
    reasons: tuple[tuple[str, str], ...] = ()

    def as_data(self) -> dict[str, object]:
        """The body of the answer (docs/alerts.md)."""
        return {
            "schema": "stanch.alerts/1",
            "accepted": self.accepted,
            "duplicate": self.duplicate,
            "resolved": self.resolved,
            "unmapped": self.unmapped,
            "truncated": self.truncated,
            "reasons": [{"fingerprint": which, "reason": why} for which, why in self.reasons],
        }


@dataclass(frozen=True, slots=True)
class _Work:
    alert: Alert
    place: Place
    receiver: str

    @property
    def key(self) -> tuple[str, str, datetime]:
        return (self.alert.status, *self.alert.key)


class Intake:
    """namespaces: those whose pods may be meant; empty for all."""

    def __init__(
        self,
        cluster: Cluster,
        families: Families,
        note: Note,
        table: Table,
        namespaces: tuple[str, ...] = (),
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster = cluster
        self._families = families
        self._note = note
        self._table = table
        self._namespaces = namespaces
        self._clock = clock
        self._monotonic = monotonic
        self._queue: deque[_Work] = deque()
        self._news = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        # When what was done may be done again; None while it waits.
        self._known: OrderedDict[tuple[str, str, datetime], float | None] = OrderedDict()
        self._told: OrderedDict[str, None] = OrderedDict()

    def take(self, payload: Payload) -> Taken | None:
        """None where there is no room for all of it: nothing of it was taken then."""
        self._forget()
        new: dict[tuple[str, str, datetime], _Work] = {}
        counts: Counter[str] = Counter()
        reasons = []
        for alert in payload.alerts:
            place = self._place(alert)
            if isinstance(place, str):
                counts["unmapped"] += 1
                reasons.append((alert.fingerprint, place))
                continue
            work = _Work(alert, place, payload.receiver)
            if work.key in self._known or work.key in new:
                counts["duplicate"] += 1
                continue
            counts["resolved" if alert.status == "resolved" else "accepted"] += 1
            new[work.key] = work
        if len(self._queue) + len(new) > _MOST_WAITING:
            return None
        self._known.update(dict.fromkeys(new))
        self._queue.extend(new.values())
        self._wake()
        self._tell(payload, counts, reasons)
        return Taken(
            counts["accepted"],
            counts["duplicate"],
            counts["resolved"],
            counts["unmapped"],
            payload.truncated_alerts,
            tuple(reasons[:_MOST_REASONS]),
        )

    def _place(self, alert: Alert) -> Place | str:
        place = place_of(self._table, alert.labels)
        if isinstance(place, str) or place.namespace is None or not self._namespaces:
            return place
        if place.namespace not in self._namespaces:
            return f"namespace {place.namespace} is none of those that are watched here"
        return place

    def _tell(self, payload: Payload, counts: Counter[str], reasons: list[tuple[str, str]]) -> None:
        for result in ("duplicate", "unmapped"):
            self._families.alerts.labels(result).inc(counts[result])
        for fingerprint, why in reasons:
            self._once(fingerprint, "alert-unmapped", why)
        if payload.truncated_alerts:
            self._families.alerts_truncated.inc(payload.truncated_alerts)
            self._note(
                "warning",
                "alerts-truncated",
                f"Alertmanager left out {payload.truncated_alerts} alerts of a group of receiver "
                f"{one_line(payload.receiver, 100)}: raise max_alerts, or group by fewer labels",
            )

    def _once(self, fingerprint: str, event: str, why: str) -> None:
        """A log line, once for each alert."""
        if fingerprint in self._told:
            return
        self._told[fingerprint] = None
        if len(self._told) > _MOST_REMEMBERED:
            self._told.popitem(last=False)
        self._note("warning", event, why, fingerprint=fingerprint)

    def _forget(self) -> None:
        now = self._monotonic()
        # In the order in which they came: what is done later may stand behind what is not done yet.
        for key, until in list(self._known.items()):
            if until is not None and (until <= now or len(self._known) > _MOST_REMEMBERED):
                del self._known[key]

    def _wake(self) -> None:
        self._families.alerts_waiting.set(len(self._queue))
        if self._queue:
            self._news.set()
            self._idle.clear()

    async def emptied(self, seconds: float) -> int:
        """Wait for so long at most until nothing waits any more; how many still do."""
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._idle.wait(), seconds)
        return len(self._queue)

    async def work(self) -> None:
        """Until cancelled."""
        while True:
            if not self._queue:
                self._idle.set()
                self._news.clear()
                await self._news.wait()
            one = self._queue[0]
            result = await self._done(one)
            self._queue.popleft()
            self._families.alerts.labels(result).inc()
            self._families.alerts_waiting.set(len(self._queue))
            if result in ("failed", "gone"):
                self._known.pop(one.key, None)
            else:
                self._known[one.key] = self._monotonic() + _REMEMBERED_SECONDS

    async def _done(self, work: _Work) -> str:
        """What came of it, as one of metrics.ALERT_RESULTS. Never raises: no alert ends the operator."""
        for pause in (*_PAUSES, None):
            try:
                if work.alert.status == "resolved":
                    return await self._resolve(work)
                return await self._create(work)
            except Unreachable as error:
                why = str(error)
                if pause is None:
                    break
                await asyncio.sleep(pause)
            except ClusterError as error:
                why = str(error)
                break
            except Exception as error:  # an object of a shape that no API server sends
                why = repr(error)
                break
        self._note("error", "alert-failed", why, fingerprint=work.alert.fingerprint)
        return "failed"

    async def _create(self, work: _Work) -> str:
        pod = await self._pod(work.place)
        if isinstance(pod, str):
            self._once(work.alert.fingerprint, "alert-without-pod", pod)
            return "gone"
        meta = pod["metadata"]
        body = body_of(work.alert, work.place.engine, work.receiver, meta)
        name = f"{meta['namespace']}/{body['metadata']['name']}"
        try:
            await self._cluster.create_incident(meta["namespace"], body)
        except AlreadyExists:
            return "exists"
        self._note(
            "info",
            "alert-incident",
            f"made for alert {one_line(work.alert.name, 100)}",
            incident=name,
            pod=meta["name"],
            fingerprint=work.alert.fingerprint,
        )
        return "created"

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
        where = self._namespaces if place.namespace is None and self._namespaces else (place.namespace,)
        for namespace in where:
            listing = await self._cluster.pods_at(namespace, place.address)
            found += [pod for pod in listing.items if pod.get("status", {}).get("phase") == "Running"]
        if len(found) != 1:
            return f"{len(found) or 'no'} running pods have the address {place.address}"
        return found[0]

    async def _resolve(self, work: _Work) -> str:
        """Write it down on the incidents that were made for this alert."""
        selector = f"{LABEL_ALERT}={work.alert.fingerprint}"
        result = "unknown"
        where = (
            self._namespaces if work.place.namespace is None and self._namespaces else (work.place.namespace,)
        )
        for namespace in where:
            for raw in (await self._cluster.incidents(namespace, selector)).items:
                if await self._resolved(work, raw):
                    result = "resolved"
        return result

    async def _resolved(self, work: _Work, raw: dict[str, Any]) -> bool:
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
