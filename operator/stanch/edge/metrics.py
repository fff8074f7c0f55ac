"""The families of /metrics. Labels are bounded: by watches, kinds, verbs and our own words, never by pods or
requests.

A watch that is gone takes its series along. docs/telemetry.md lists the families.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.registry import Collector

from stanch.edge.health import Health

_WATCH = ("namespace", "watch")
# From one API write to the start of a large model, which is the slowest step there is.
_STEP_SECONDS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600)
# created: an incident. exists: it had been made before. duplicate: the same alert came moments ago. resolved:
# recorded on its incident, unknown: there was none. unmapped: its labels name no pod. gone: there is no such
# pod. failed: the API server did not take it.
ALERT_RESULTS = ("created", "exists", "duplicate", "resolved", "unknown", "unmapped", "gone", "failed")
_TURN_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)


class Families:
    """All families, in a registry of their own: two operators in one process (tests) do not meet."""

    def __init__(self, health: Health, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.registry = made = CollectorRegistry()
        self.active = Gauge(
            "stanch_active", "1 in the process that repairs, 0 in one that stands by.", registry=made
        )
        self.engines = Gauge(
            "stanch_engines", "Engines by what the last turn said of them.", (*_WATCH, "state"), registry=made
        )
        self.open = Gauge("stanch_incidents_open", "Incidents that have not ended.", _WATCH, registry=made)
        self.opened = Counter(
            "stanch_incidents_opened",
            "Incidents by the pattern that opened them.",
            (*_WATCH, "signature"),
            registry=made,
        )
        self.ended = Counter(
            "stanch_incidents_ended", "Incidents by how they ended.", (*_WATCH, "ending"), registry=made
        )
        self.stuck = Counter(
            "stanch_stuck_requests_found", "Stuck requests that incidents listed.", _WATCH, registry=made
        )
        self.deferred = Gauge(
            "stanch_deferred_units",
            "Units that show something, and to which nothing is done now, by why.",
            (*_WATCH, "reason"),
            registry=made,
        )
        self.breaker = Gauge(
            "stanch_breaker_open", "1 while the watch's breaker is open.", _WATCH, registry=made
        )
        self.steps = Histogram(
            "stanch_step_seconds",
            "How long a step of a repair took, from before its first write to its seen effect.",
            ("step", "outcome"),
            buckets=_STEP_SECONDS,
            registry=made,
        )
        self.cordoned = Histogram(
            "stanch_detect_to_cordon_seconds",
            "From when a fault had held long enough to the seen effect of its cordon; waited: whether a "
            "limit or a person kept it back in between.",
            ("waited",),
            buckets=_STEP_SECONDS,
            registry=made,
        )
        self.turn = Histogram(
            "stanch_turn_seconds", "How long a turn of a watch took.", buckets=_TURN_SECONDS, registry=made
        )
        self.lag = Histogram(
            "stanch_turn_lag_seconds",
            "How late a turn of a watch began.",
            buckets=_TURN_SECONDS,
            registry=made,
        )
        self.failed = Counter(
            "stanch_turns_failed", "Turns that could not be made, by why.", (*_WATCH, "reason"), registry=made
        )
        self.loop_lag = Histogram(
            "stanch_event_loop_lag_seconds",
            "How late the event loop woke up.",
            buckets=_TURN_SECONDS,
            registry=made,
        )
        self.requests = Counter(
            "stanch_api_requests",
            "Requests to the API server; code: HTTP's, or none where no answer came.",
            ("verb", "resource", "code"),
            registry=made,
        )
        self.alerts = Counter(
            "stanch_alerts_received", "Alerts by what came of them.", ("result",), registry=made
        )
        for result in ALERT_RESULTS:
            self.alerts.labels(result)
        self.alerts_waiting = Gauge(
            "stanch_alerts_waiting", "Alerts that were taken and not looked at yet.", registry=made
        )
        self.alerts_truncated = Counter(
            "stanch_alerts_truncated", "Alerts that Alertmanager left out (max_alerts).", registry=made
        )
        self.alert_requests = Counter(
            "stanch_alert_requests", "Requests to the receiver of alerts by answer.", ("code",), registry=made
        )
        self.reviews = Counter(
            "stanch_webhook_reviews",
            "New pods that the webhook was asked about.",
            ("outcome",),
            registry=made,
        )
        self.lost = Counter("stanch_log_lines_lost", "Log lines that could not be written.", registry=made)
        made.register(_SignAges(health, monotonic))

    @property
    def of_watch(self) -> tuple[MetricWrapperBase, ...]:
        """Those that have a watch's labels."""
        return (
            self.engines,
            self.open,
            self.opened,
            self.ended,
            self.stuck,
            self.deferred,
            self.breaker,
            self.failed,
        )

    def forget(self, namespace: str, watch: str) -> None:
        for family in self.of_watch:
            family.remove_by_labels({"namespace": namespace, "watch": watch})


class _SignAges(Collector):
    """How old the last sign of life of each part is, counted when the page is read, and how old it may be."""

    def __init__(self, health: Health, monotonic: Callable[[], float]) -> None:
        self._health = health
        self._monotonic = monotonic

    def describe(self) -> Iterable[Metric]:
        return self._families()

    def collect(self) -> Iterator[Metric]:
        (age, limit), now = self._families(), self._monotonic()
        for part in self._health.parts:
            age.add_metric([part.name], now - part.at)
            limit.add_metric([part.name], part.limit_seconds)
        yield age
        yield limit

    def _families(self) -> tuple[GaugeMetricFamily, GaugeMetricFamily]:
        return (
            GaugeMetricFamily(
                "stanch_sign_age_seconds",
                "Since the last sign of life of a part of the operator.",
                labels=["part"],
            ),
            GaugeMetricFamily(
                "stanch_sign_limit_seconds",
                "Within how long a part of the operator gives its next sign of life.",
                labels=["part"],
            ),
        )
