"""Alerts are taken at once, into a bounded queue, and worked off one after another. Success is answered when
all of a payload's are: the queue is in memory, and Alertmanager sends again what was not answered so.

An alert only says that somebody should look: it becomes a LeakIncident, which obeys the mode, the limits and
the proof of the watch that selects the pod, as every other. That it was resolved is written down, and nothing
more.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime

from stanch.edge.alerts_incidents import Incidents, Work
from stanch.edge.alerts_payload import MOST_ALERTS, Alert, Payload
from stanch.edge.alerts_table import Place, Table, place_of
from stanch.edge.cluster import Cluster, ClusterError, Unreachable
from stanch.edge.executor import Note
from stanch.edge.metrics import Families
from stanch.edge.text import one_line

# In alerts; the whole of the largest payload has room.
_MOST_WAITING = 2 * MOST_ALERTS
# The same alert again within so long is not looked at again: two Alertmanagers of one cluster both send it.
_REMEMBERED_SECONDS, _MOST_REMEMBERED = 60.0, 10_000
# What the API server did not answer is tried again after these pauses; then it is given up, and a repeat of
# the alert begins anew.
_PAUSES = (1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 30.0, 30.0)
_MOST_REASONS = 20


@dataclass(frozen=True, slots=True)
class Taken:
    """What became of a payload's alerts in the moment in which it came. working: of each that is being worked
    off, what comes of it (one of metrics.ALERT_RESULTS); of one that had come before, too."""

    accepted: int = 0
    duplicate: int = 0
    resolved: int = 0
    unmapped: int = 0
    truncated: int = 0
    reasons: tuple[tuple[str, str], ...] = ()
    working: tuple[asyncio.Future[str], ...] = ()

    async def left(self, seconds: float) -> str:
        """Wait for so long at most. Why it must be sent again; "" where nothing is left to be done."""
        if not self.working:
            return ""
        done, waiting = await asyncio.wait(self.working, timeout=seconds)
        failed = sum(one.result() == "failed" for one in done)
        said = f"{failed} alerts could not be written to the API server" * bool(failed)
        late = f"{len(waiting)} alerts are not written to the API server yet" * bool(waiting)
        return "; ".join(one for one in (said, late) if one)

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
        self._incidents = Incidents(cluster, note, namespaces, clock)
        self._families = families
        self._note = note
        self._table = table
        self._namespaces = namespaces
        self._monotonic = monotonic
        self._queue: deque[Work] = deque()
        self._news = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        # When what was done may be done again; None while it waits.
        self._known: OrderedDict[tuple[str, str, datetime], float | None] = OrderedDict()
        self._working: dict[tuple[str, str, datetime], asyncio.Future[str]] = {}
        self._told: OrderedDict[str, None] = OrderedDict()

    def take(self, payload: Payload) -> Taken | None:
        """None where there is no room for all of it: nothing of it was taken then."""
        self._forget()
        new: dict[tuple[str, str, datetime], Work] = {}
        working: list[asyncio.Future[str]] = []
        counts: Counter[str] = Counter()
        unmapped: list[tuple[Alert, str]] = []
        for alert in payload.alerts:
            place = self._place(alert)
            if isinstance(place, str):
                counts["unmapped"] += 1
                unmapped.append((alert, place))
                continue
            work = Work(alert, place, payload.receiver)
            if work.key in self._known or work.key in new:
                counts["duplicate"] += 1
                if (before := self._working.get(work.key)) is not None:
                    working.append(before)
                continue
            counts["resolved" if alert.status == "resolved" else "accepted"] += 1
            new[work.key] = work
        if len(self._queue) + len(new) > _MOST_WAITING:
            return None
        self._known.update(dict.fromkeys(new))
        loop = asyncio.get_running_loop()
        futures = {key: loop.create_future() for key in new}
        self._working |= futures
        self._queue.extend(new.values())
        self._wake()
        self._tell(payload, counts, unmapped)
        return Taken(
            counts["accepted"],
            counts["duplicate"],
            counts["resolved"],
            counts["unmapped"],
            payload.truncated_alerts,
            tuple((alert.fingerprint, why) for alert, why in unmapped[:_MOST_REASONS]),
            (*working, *futures.values()),
        )

    def _place(self, alert: Alert) -> Place | str:
        place = place_of(self._table, alert.labels)
        if isinstance(place, str) or place.namespace is None or not self._namespaces:
            return place
        if place.namespace not in self._namespaces:
            return f"namespace {place.namespace} is none of those that are watched here"
        return place

    def _tell(self, payload: Payload, counts: Counter[str], unmapped: list[tuple[Alert, str]]) -> None:
        for result in ("duplicate", "unmapped"):
            self._families.alerts.labels(result).inc(counts[result])
        for alert, why in unmapped:
            self._once(alert, "alert-unmapped", why)
        if payload.truncated_alerts:
            self._families.alerts_truncated.inc(payload.truncated_alerts)
            self._note(
                "warning",
                "alerts-truncated",
                f"Alertmanager left out {payload.truncated_alerts} alerts of a group of receiver "
                f"{one_line(payload.receiver, 100)}: raise max_alerts, or group by fewer labels",
            )

    def _once(self, alert: Alert, event: str, why: str) -> None:
        """A log line, once for each fingerprint."""
        if alert.fingerprint in self._told:
            return
        self._told[alert.fingerprint] = None
        if len(self._told) > _MOST_REMEMBERED:
            self._told.popitem(last=False)
        self._note("warning", event, why, alert=one_line(alert.name, 100), fingerprint=alert.fingerprint)

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
            self._working.pop(one.key).set_result(result)

    async def _done(self, work: Work) -> str:
        """What came of it, as one of metrics.ALERT_RESULTS. Never raises: no alert ends the operator."""
        for pause in (*_PAUSES, None):
            try:
                if work.alert.status == "resolved":
                    return await self._incidents.resolve(work)
                result, why_not = await self._incidents.create(work)
                if why_not:
                    self._once(work.alert, "alert-without-pod", why_not)
                return result
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
