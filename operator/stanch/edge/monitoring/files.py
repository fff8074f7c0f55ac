"""The files of charts/stanch/files, by their place in the repository."""

from __future__ import annotations

from stanch.core.policy import Policy
from stanch.edge.monitoring import blind, dashboard, engines, itself, kit
from stanch.edge.monitoring.readings import Pace, records
from stanch.edge.monitoring.rules import Group, rule_file

_HEADING = (
    "Rules of Prometheus for vLLM engines and for Stanch itself: docs/monitoring.md.",
    "Made from operator/stanch/edge/monitoring by `make fmt`. As it is, or as the spec of a PrometheusRule.",
)


def groups(policy: Policy, pace: Pace) -> tuple[Group, ...]:
    """The engines' readings and what is said of them; Stanch itself. Each may be loaded alone."""
    interval = pace.interval_seconds
    return (
        Group(
            "stanch-engines",
            interval,
            (
                *records(policy, pace),
                *engines.alerts(policy, pace),
                *blind.alerts(pace),
                *kit.alerts(policy),
            ),
        ),
        Group("stanch-operator", interval, itself.alerts()),
    )


def rules() -> str:
    return rule_file(groups(Policy(), Pace()), _HEADING)


def files() -> dict[str, str]:
    folder = "charts/stanch/files"
    return {f"{folder}/rules.yaml": rules(), f"{folder}/dashboard.json": dashboard.text()}
