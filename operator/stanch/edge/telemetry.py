"""What the operator tells of itself: metrics, signs of life, the log, and the texts of Events.

The watchdog calls this, in the process's event loop, and gets Events back to be posted:

    telemetry = Telemetry(Journal(sys.stdout), time.time)
    with serving(telemetry, host, port):              # edge/telemetry_server.py: /metrics, /healthz, /readyz
        asyncio.create_task(telemetry.pulse())         # signs of the event loop itself
    telemetry.active(True)                             # the Lease was won or lost
    Cluster(..., on_call=telemetry.call)               # every request to the API server
    telemetry.sign("news of pods", 60.0, needs_api=True)  # a list or a watch event arrived
    texts = telemetry.incident(watch, before, after)   # once an incident has been written
    texts = telemetry.turn(watch, Turned(...))         # at the end of every turn
    telemetry.turn_failed(watch, 5, "Unreachable", "...") # of one that could not be made
    telemetry.forget(watch)                            # the watch is gone, or another process has it

Nothing here decides anything, and nothing here fails for want of a reader.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stanch.core.history import Incident
from stanch.core.plan_conditions import Said
from stanch.core.plan_types import Deferral
from stanch.core.verdict import State, Verdict
from stanch.edge.changes import Change, Kind, changes
from stanch.edge.cordon_times import CordonTimes
from stanch.edge.events_text import EventText, of_change, of_conditions
from stanch.edge.health import API_SERVER, EVENT_LOOP, Health
from stanch.edge.journal import Journal, Record, note, record
from stanch.edge.metrics import Families

if TYPE_CHECKING:
    from stanch.edge.cluster import Call

Clock = Callable[[], float]

_PULSE_SECONDS = 1.0
_PULSE_LIMIT_SECONDS = 10.0
# Longer than a quiet cluster leaves the API server alone: every turn lists pods.
_API_LIMIT_SECONDS = 60.0
# A turn waits for a few requests of 10 s; fewer intervals than this may pass without one.
_TURN_LIMIT_INTERVALS = 3.0
_TURN_LIMIT_SECONDS = 60.0
# An engine is read within the first interval; its answer, or a Prometheus's, comes within so long.
_FIRST_READING_SECONDS = 15.0


@dataclass(frozen=True, slots=True)
class Watch:
    """The LeakWatch that a turn is about. uid: for its Events."""

    namespace: str
    name: str
    uid: str = ""

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def labels(self) -> tuple[str, str]:
        return self.namespace, self.name


@dataclass(frozen=True, slots=True)
class Turned:
    """One whole turn. due, began, ended: on the monotonic clock. incidents: as the turn left them. said: the
    watch's conditions (core.plan_conditions.of_watch). tripped: whether its breaker is open."""

    due: float
    began: float
    ended: float
    interval_seconds: float
    verdicts: Sequence[Verdict] = ()
    deferred: Sequence[Deferral] = ()
    incidents: Sequence[Incident] = ()
    said: Sequence[Said] = ()
    tripped: bool = False


class Telemetry:
    """One per process. now: Unix seconds; monotonic: seconds of a clock that never jumps."""

    def __init__(self, journal: Journal, now: Clock = time.time, monotonic: Clock = time.monotonic) -> None:
        self.health = Health()
        self.families = Families(self.health, monotonic)
        self.journal = journal
        self._now = now
        self._monotonic = monotonic
        self._times: defaultdict[str, CordonTimes] = defaultdict(CordonTimes)
        self._said: dict[str, tuple[Said, ...]] = {}
        # When, on the monotonic clock, the first turn of a watch began.
        self._since: dict[str, float] = {}

    def active(self, active: bool) -> None:
        """Whether this process is the one that repairs."""
        self.families.active.set(active)

    def call(self, call: Call) -> None:
        """One request to the API server has ended: the `on_call` of Cluster."""
        self.families.requests.labels(call.verb, call.resource, str(call.code or "none")).inc()
        if call.code:
            self.sign(API_SERVER, _API_LIMIT_SECONDS)

    def sign(self, part: str, limit_seconds: float, *, needs_api: bool = False, wrong: str = "") -> None:
        """This part of the operator is alive, and will say so again within limit_seconds. wrong: why it does
        not work all the same, which no restart would mend."""
        self.health.sign(part, self._monotonic(), limit_seconds, needs_api=needs_api, wrong=wrong)

    async def pulse(self) -> None:
        """Signs of the event loop, until cancelled."""
        while True:
            self.sign(EVENT_LOOP, _PULSE_LIMIT_SECONDS)
            due = self._monotonic() + _PULSE_SECONDS
            await asyncio.sleep(_PULSE_SECONDS)
            self.families.loop_lag.observe(max(0.0, self._monotonic() - due))

    def incident(self, watch: Watch, before: Incident | None, after: Incident) -> tuple[EventText, ...]:
        """An incident was written. before: as it was read, None where it was made; the Events to post."""
        now = self._now()
        found = changes(before, after)
        for change in found:
            self._count(watch, change)
        self._log(*(record(change, watch.key, now) for change in found))
        return tuple(text for change in found for text in of_change(change, watch.name, watch.uid))

    def turn(self, watch: Watch, turned: Turned) -> tuple[EventText, ...]:
        """A turn has ended; the Events to post about the watch itself."""
        families, labels = self.families, watch.labels
        families.turn.observe(max(0.0, turned.ended - turned.began))
        families.lag.observe(max(0.0, turned.began - turned.due))
        states = Counter(verdict.state for verdict in turned.verdicts)
        for state in State:
            families.engines.labels(*labels, state.value).set(states[state])
        families.open.labels(*labels).set(sum(incident.open for incident in turned.incidents))
        families.breaker.labels(*labels).set(turned.tripped)
        reasons = Counter(one.reason for one in turned.deferred)
        families.deferred.remove_by_labels({"namespace": watch.namespace, "watch": watch.name})
        for reason, count in reasons.items():
            families.deferred.labels(*labels, reason.value).set(count)
        self._times[watch.key].judged(turned.verdicts)
        self._turned(watch, turned.interval_seconds)
        before = self._said.get(watch.key)
        since = self._since.setdefault(watch.key, turned.began)
        early = turned.began - since < turned.interval_seconds + _FIRST_READING_SECONDS
        if not turned.verdicts and before is None and early:
            # The first turns come before the first reading: that nothing was read yet is no news.
            return ()
        self._said[watch.key] = tuple(turned.said)
        texts = of_conditions(before, turned.said, watch.name, watch.uid)
        self._log(
            *(
                note(
                    "warning" if t.warning else "info",
                    "watch-condition",
                    self._now(),
                    t.note,
                    watch=watch.key,
                    reason=t.reason,
                )
                for t in texts
            )
        )
        return texts

    def turn_failed(self, watch: Watch, interval_seconds: float, reason: str, message: str) -> None:
        """A turn could not be made. reason: one word; the loop itself is alive."""
        self.families.failed.labels(*watch.labels, reason).inc()
        self._turned(watch, interval_seconds)
        self._log(note("warning", "turn-failed", self._now(), message, watch=watch.key, reason=reason))

    def forget(self, watch: Watch) -> None:
        """This process watches it no more."""
        self.families.forget(*watch.labels)
        self.health.forget(_part(watch))
        self._times.pop(watch.key, None)
        self._said.pop(watch.key, None)
        self._since.pop(watch.key, None)

    def note(self, level: str, event: str, message: str, **more: object) -> None:
        """A log line about something else."""
        self._log(note(level, event, self._now(), message, **more))

    def _turned(self, watch: Watch, interval_seconds: float) -> None:
        self.sign(_part(watch), max(_TURN_LIMIT_SECONDS, _TURN_LIMIT_INTERVALS * interval_seconds))

    def _count(self, watch: Watch, change: Change) -> None:
        families, labels, incident, step = self.families, watch.labels, change.incident, change.step
        if change.kind is Kind.OPENED:
            signature = incident.evidence.signature
            families.opened.labels(*labels, "none" if signature is None else signature.value).inc()
        elif change.kind is Kind.STUCK:
            families.stuck.labels(*labels).inc()
        elif change.kind is Kind.CLOSED and incident.ending is not None:
            families.ended.labels(*labels, incident.ending.value).inc()
        elif (
            change.kind is Kind.ENDED
            and step is not None
            and step.outcome is not None
            and step.end is not None
        ):
            families.steps.labels(step.name.value, step.outcome.value).observe(
                max(0.0, step.end - step.start)
            )
        cordoned = self._times[watch.key].changed(change)
        if cordoned is not None:
            families.cordoned.labels("yes" if cordoned.waited else "no").observe(cordoned.seconds)

    def _log(self, *records: Record) -> None:
        before = self.journal.lost
        self.journal.write(*records)
        self.families.lost.inc(self.journal.lost - before)


def _part(watch: Watch) -> str:
    return f"watch {watch.key}"
