"""LeakWatch: which engines are watched, and what may be done about a leak."""

from __future__ import annotations

import re
from enum import Enum
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field, StringConstraints, create_model

from stanch.api.base import SET, Model, Rule, list_map
from stanch.api.common import Label, Metadata, Name, Operator, Requirement, Selector
from stanch.api.presets import PRESETS, Preset
from stanch.api.thresholds import threshold_fields
from stanch.api.watch_status import LeakWatchStatus, RoleName
from stanch.core.plan_limits import Approval, Mode, Rung


class Source(str, Enum):
    SCRAPE = "Scrape"
    PROMETHEUS = "Prometheus"


class WorkloadRef(Model):
    """A workload whose pods are the engines, in the watch's namespace."""

    api_version: Annotated[str, StringConstraints(min_length=1, max_length=128)] = "apps/v1"
    """Group and version, such as apps/v1 or leaderworkerset.x-k8s.io/v1."""
    kind: Annotated[str, StringConstraints(min_length=1, max_length=63)]
    """Deployment, StatefulSet, LeaderWorkerSet and others that have a selector or own pods."""
    name: Name
    """Name of the workload."""


class WatchedRole(Model):
    """The engines of one role: pods by labels, or by the workload that makes them."""

    rules: ClassVar = (
        Rule(
            "has(self.selector) != has(self.workloadRef)",
            "exactly one of selector and workloadRef must be set",
            lambda role: (role.selector is None) != (role.workload_ref is None),
        ),
        Rule(
            "!has(self.selector) || "
            "(has(self.selector.matchLabels) && size(self.selector.matchLabels) > 0) || "
            "(has(self.selector.matchExpressions) && size(self.selector.matchExpressions) > 0)",
            "an empty selector would select every pod of the namespace: name at least one label",
            lambda role: (
                role.selector is None or bool(role.selector.match_labels or role.selector.match_expressions)
            ),
            ".selector",
        ),
    )

    name: RoleName
    """What these engines do: decode, prefill, or both. auto: each by what tells it, see docs/adoption.md."""
    selector: Selector | None = None
    """Their pods, by labels, in the watch's namespace."""
    workload_ref: WorkloadRef | None = None
    """Their pods, by the workload that makes them."""
    container_name: Label | None = None
    """The container that runs the engine. Left out: the only one, or the one whose arguments say so."""
    ports: (
        Annotated[
            list[Annotated[int, Field(ge=1, le=65535)]],
            Field(min_length=1, max_length=64, json_schema_extra=SET),
        ]
        | None
    ) = None
    """The engines' own HTTP ports, one per data-parallel rank that has its own; never a side-car's. Left out:
    what the engine's argument --port says, else 8000."""


if TYPE_CHECKING:

    class Thresholds(Model):
        """Has a field for every threshold of core.policy.Policy that a watch may set; None: the default."""

else:
    Thresholds = create_model(
        "Thresholds",
        __base__=Model,
        __doc__="Thresholds that differ from the defaults. Seconds, unless the name says otherwise.",
        **threshold_fields(),
    )


class Canary(Model):
    """The request of one token that confirms a fault where the kit is not there to be asked."""

    enabled: bool = True
    """Whether one may be sent. Without it engines that have no kit are never repaired."""
    timeout_seconds: Annotated[int, Field(ge=1, le=600)] = 30
    """How long its answer may take."""
    idle_every_seconds: Annotated[int, Field(ge=60, le=86400)] | None = None
    """An engine that hangs while it is idle shows nothing: a decode that has been idle for so long gets a
    canary, and again so often. One that does not answer is taken for a fault. Left out: none is sent."""


class Breaker(Model):
    """Stops all disruptive repairs of this watch where they do not help, until the watch's annotation
    stanch.dev/reset-breaker has a new value."""

    failures: Annotated[int, Field(ge=1, le=100)] = 3
    """So many repairs that failed, or leaks that came back, open it."""
    window_seconds: Annotated[int, Field(ge=60, le=86400)] = 3600
    """Within this time."""


class Remediation(Model):
    """What may be done about a confirmed leak under mode Enforce, and how much of it at once."""

    steps: Annotated[list[Rung], Field(max_length=3, json_schema_extra=SET)] = [
        Rung.RELEASE,
        Rung.RESTART,
        Rung.EVICT,
    ]
    """The steps that are allowed. Cordon and drain come with Restart and Evict."""
    drain_seconds: Annotated[int, Field(ge=0, le=3600)] = 60
    """How long running requests may take to end before the process does."""
    max_unavailable: Annotated[
        int | str, Field(json_schema_extra={"x-kubernetes-int-or-string": True, "maxLength": 4})
    ] = 1
    """Units of one role that may be unavailable at once, whoever made them so. A percentage rounds down, and
    is at least 1."""
    max_per_hour: Annotated[int, Field(ge=1, le=1000)] = 6
    """Disruptive repairs that may begin within an hour."""
    cooldown_seconds: Annotated[int, Field(ge=0, le=86400)] = 600
    """After a disruptive repair the same unit is left alone for so long."""
    breaker: Breaker = Breaker()
    """Stops where repairs do not help."""
    approval: Approval = Approval.AUTO
    """Manual: nothing is done to an engine before its LeakIncident is annotated stanch.dev/approve=true."""
    paused: bool = False
    """Nothing new is done; cordons that are up run out within their lease."""

    rules: ClassVar = (
        Rule(
            # The server judges the default of the whole object, {}, before it fills in those of its fields.
            "!has(self.maxUnavailable) || "
            "(type(self.maxUnavailable) == int ? self.maxUnavailable >= 1 : "
            "self.maxUnavailable.matches('^(100|[1-9][0-9]?)%$'))",
            "maxUnavailable must be a number of at least 1, or a percentage from 1% to 100%",
            lambda it: _is_amount(it.max_unavailable),
            ".maxUnavailable",
        ),
    )


def _is_amount(value: int | str) -> bool:
    if isinstance(value, int):
        return value >= 1
    head = value.removesuffix("%")
    return value.endswith("%") and head.isascii() and head.isdigit() and head[0] != "0" and int(head) <= 100


SeriesLabel = Annotated[
    str, StringConstraints(min_length=1, max_length=128, pattern=r"^[a-zA-Z_][a-zA-Z0-9_]*$")
]
SeriesKey = Annotated[str, StringConstraints(min_length=1, max_length=128)]
SeriesValue = Annotated[str, StringConstraints(max_length=1024)]


class PrometheusLabels(Model):
    """Labels of the series, where they are not those of a common setup (docs/prometheus.md)."""

    namespace: SeriesLabel | None = None
    """Holds the pod's namespace."""
    pod: SeriesLabel | None = None
    """Holds the pod's name."""
    engine: SeriesLabel | None = None
    """Holds vLLM's own label engine, the data-parallel rank."""


class PrometheusSource(Model):
    """Where the readings come from under source Prometheus. Credentials are not given here but by the
    operator's own table, by URL (docs/prometheus.md)."""

    rules: ClassVar = (
        Rule(
            "!has(self.matchers) || self.matchers.all(name, name.matches('^[a-zA-Z_][a-zA-Z0-9_]*$'))",
            "matchers must be names of labels, such as cluster, with their values",
            lambda it: all(re.fullmatch("[a-zA-Z_][a-zA-Z0-9_]*", name) for name in it.matchers),
            ".matchers",
        ),
    )

    url: Annotated[
        str, StringConstraints(min_length=8, max_length=1024, pattern=r"^https?://[^@?#\\ \t\r\n]+$")
    ]
    """Address of its HTTP API without /api/v1, such as http://prometheus.monitoring:9090; for Mimir with
    /prometheus."""
    labels: PrometheusLabels = PrometheusLabels()
    """Which labels tell whose series is whose. Left out: those of the common setups, tried in order."""
    matchers: Annotated[dict[SeriesKey, SeriesValue], Field(max_length=16)] = {}
    """Labels that every series must have with these very values, such as cluster: eu-1 where several clusters
    write into one Prometheus."""
    timeout_seconds: Annotated[int, Field(ge=1, le=120)] = 10
    """How long an answer may take."""


class WatchedRoles(Model):
    """Which engines are watched."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "has(self.roles) != has(self.preset)",
            "exactly one of roles and preset must be set",
            lambda spec: (spec.roles is None) != (spec.preset is None),
        ),
        Rule(
            "!has(self.roles) || size(self.roles) == 1 || "
            "self.roles.all(r, r.name != 'both' && r.name != 'auto')",
            "roles both and auto stand alone: their engines are all that there are",
            lambda spec: (
                spec.roles is None
                or len(spec.roles) == 1
                or all(role.name not in (RoleName.BOTH, RoleName.AUTO) for role in spec.roles)
            ),
            ".roles",
        ),
        Rule(
            "!has(self.selector) || has(self.preset)",
            "selector goes with preset; a role has a selector of its own",
            lambda spec: spec.selector is None or spec.preset is not None,
            ".selector",
        ),
    )

    roles: (
        Annotated[list[WatchedRole], Field(min_length=1, max_length=3, json_schema_extra=list_map("name"))]
        | None
    ) = None
    """The engines by role. A prefill is best watched together with its decodes, for which it holds blocks."""
    preset: Preset | None = None
    """In place of roles: the engines of that project, by the labels that it puts on their pods
    (docs/adoption.md)."""
    selector: Selector | None = None
    """With preset: of its pods only those with these labels too. Left out: all of the namespace."""

    @property
    def watched(self) -> tuple[WatchedRole, ...]:
        """The roles, or what the preset stands for."""
        if self.preset is None:
            return tuple(self.roles or ())
        found = PRESETS[self.preset]
        own = self.selector or Selector()
        return tuple(
            WatchedRole(
                name=RoleName(role),
                selector=Selector(
                    match_labels=own.match_labels,
                    match_expressions=[
                        *own.match_expressions,
                        *(Requirement(key=key, operator=Operator.EXISTS) for key in found.beside),
                        Requirement(key=found.label, operator=Operator.IN, values=list(values)),
                    ],
                ),
                container_name=found.container,
                ports=None if found.port is None else [found.port],
            )
            for role, values in found.roles.items()
        )


class Watching(Model):
    """How engines are watched, and what may be done about a leak."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            # Of a DisaggDeployment the default of the whole object, {}, is judged before it is filled in.
            "has(self.source) && self.source == 'Prometheus' ? has(self.prometheus) : !has(self.prometheus)",
            "prometheus must be set with source Prometheus, and only with it",
            lambda spec: (spec.source is Source.PROMETHEUS) == (spec.prometheus is not None),
            ".prometheus",
        ),
    )

    mode: Mode = Mode.OBSERVE
    """Disabled: nothing. Observe: find, confirm, and say what would be done. Enforce: repair."""
    source: Source = Source.SCRAPE
    """Scrape: each engine's own /metrics. Prometheus: a few queries for the whole fleet; what is confirmed
    is still asked of the engine itself."""
    prometheus: PrometheusSource | None = None
    """With source Prometheus only."""
    interval_seconds: Annotated[int, Field(ge=1, le=600)] = 5
    """One reading of every engine so often."""
    signatures: Thresholds = Thresholds()
    """Thresholds that differ from the defaults."""
    canary: Canary = Canary()
    """The request that confirms a fault where there is no kit."""
    remediation: Remediation = Remediation()
    """What may be done, and how much of it."""


# The fields of the last base come first.
class LeakWatchSpec(Watching, WatchedRoles):
    """Which engines are watched, and what may be done about a leak."""

    rules: ClassVar[tuple[Rule, ...]] = (*Watching.rules, *WatchedRoles.rules)


class LeakWatch(Model):
    """Watches vLLM engines of a prefill/decode deployment for KV-cache leaks, and repairs them if it may."""

    api_version: Literal["stanch.dev/v1alpha1"] = "stanch.dev/v1alpha1"
    kind: Literal["LeakWatch"] = "LeakWatch"
    metadata: Metadata
    spec: LeakWatchSpec
    """Which engines are watched, and what may be done about a leak."""
    status: LeakWatchStatus = LeakWatchStatus()
    """What is found and done."""
