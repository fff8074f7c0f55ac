"""Alerts about Stanch itself, from the operator's own metrics (docs/telemetry.md).

The operator's page must be scraped with honorLabels: its families have a label `namespace` of their own, that
of the watch. A family without series makes no alert, so they may be loaded before there is an operator.
"""

from __future__ import annotations

from stanch.core.history import Ending
from stanch.core.plan_types import Reason
from stanch.core.verdict import State
from stanch.edge.monitoring.rules import Alert, Severity

# One operator among several clusters or installations.
_INSTALLATION = "cluster, namespace, job"
# Repairs take turns, and each takes minutes.
_STARVED_SECONDS = 1800
_WAITING_SECONDS = 900
_SOON_SECONDS = 120
_LASTING_SECONDS = 600


def alerts() -> tuple[Alert, ...]:
    starved = _any(Reason.BUDGET, Reason.DISRUPTION_BUDGET, Reason.PER_HOUR)
    return (
        Alert(
            "StanchNoActiveOperator",
            f"sum by ({_INSTALLATION}) (stanch_active) != 1\n"
            f"or (0 * sum by ({_INSTALLATION}) (max_over_time(stanch_active[1d]))\n"
            f"  unless sum by ({_INSTALLATION}) (stanch_active))",
            300,
            Severity.CRITICAL,
        ),
        Alert(
            "StanchLoopStalled",
            "stanch_sign_age_seconds > stanch_sign_limit_seconds",
            _SOON_SECONDS,
            Severity.CRITICAL,
        ),
        Alert(
            "StanchTurnsFailing",
            "increase(stanch_turns_failed_total[5m]) > 0",
            _LASTING_SECONDS,
            Severity.WARNING,
        ),
        Alert(
            "StanchFleetBlind",
            f'sum without (state) (stanch_engines{{state="{State.BLIND.value}"}})\n'
            "> 0.5 * sum without (state) (stanch_engines)",
            300,
            Severity.CRITICAL,
        ),
        Alert(
            "StanchBreakerOpen",
            "stanch_breaker_open == 1",
            0,
            Severity.CRITICAL,
        ),
        Alert(
            "StanchBudgetStarved",
            f'stanch_deferred_units{{reason=~"{starved}"}} > 0',
            _STARVED_SECONDS,
            Severity.WARNING,
        ),
        Alert(
            "StanchApprovalNeeded",
            f'stanch_deferred_units{{reason="{Reason.APPROVAL.value}"}} > 0',
            _WAITING_SECONDS,
            Severity.WARNING,
        ),
        Alert(
            "StanchConflict",
            f'stanch_deferred_units{{reason="{Reason.CONFLICT.value}"}} > 0',
            300,
            Severity.WARNING,
        ),
        Alert(
            "StanchIncidentFailed",
            _happened(
                f'stanch_incidents_ended_total{{ending=~"{_any(Ending.FAILED, Ending.ESCALATED)}"}}', "1h"
            ),
            0,
            Severity.CRITICAL,
        ),
        Alert(
            "StanchAlertsTruncated",
            "increase(stanch_alerts_truncated_total[15m]) > 0",
            0,
            Severity.WARNING,
        ),
        Alert(
            "StanchAlertsNotTaken",
            'increase(stanch_alerts_received_total{result=~"unmapped|failed"}[15m]) > 0',
            0,
            Severity.WARNING,
        ),
        Alert(
            "StanchLogLinesLost",
            "increase(stanch_log_lines_lost_total[15m]) > 0",
            0,
            Severity.WARNING,
        ),
    )


def _any(*names: Reason | Ending) -> str:
    return "|".join(name.value for name in names)


def _happened(counter: str, window: str) -> str:
    """A counter that rose within the window, or came with its first count: its series are made by it."""
    return f"increase({counter}[{window}]) > 0\nor ({counter} > 0 unless {counter} offset {window})"
