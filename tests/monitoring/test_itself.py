"""The alerts about Stanch itself, over its own families."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.monitoring.promtool import STALE, Check, Series, Value, World, needs_promtool, tried
from tests.monitoring.synthetic import fires, points, steps

pytestmark = [pytest.mark.unit, needs_promtool]

POD = {"job": "stanch", "instance": "10.0.0.5:8080", "pod": "stanch-a"}
OTHER_POD = {**POD, "instance": "10.0.0.6:8080", "pod": "stanch-b"}
WATCH = {**POD, "namespace": "serving", "watch": "llama"}


def series(name: str, values: Sequence[Value], labels: dict[str, str] = WATCH, **more: str) -> Series:
    return Series(name, {**labels, **more}, values)


def engines(blind: int, healthy: int, minutes: float = 10) -> list[Series]:
    count = points(minutes)
    return [
        series("stanch_engines", [float(number)] * count, state=state)
        for state, number in (("blind", blind), ("healthy", healthy), ("suspect", 0), ("fault", 0))
    ]


def deferred(reason: str, minutes: float) -> Series:
    return series("stanch_deferred_units", [2.0] * points(minutes), reason=reason)


def active(*values: Sequence[Value]) -> list[Series]:
    return [series("stanch_active", of, labels) for of, labels in zip(values, (POD, OTHER_POD), strict=False)]


def sign(age: Sequence[Value], limit: float) -> list[Series]:
    return [
        series("stanch_sign_age_seconds", age, POD, part="watch serving/llama"),
        series("stanch_sign_limit_seconds", [limit] * len(age), POD, part="watch serving/llama"),
    ]


CASES = [
    pytest.param(engines(3, 2), [fires(4), fires(6, "StanchFleetBlind")], id="three of five are blind"),
    pytest.param(engines(2, 2), [fires(9)], id="half of them are blind"),
    pytest.param(engines(0, 0), [fires(9)], id="no engines"),
    pytest.param(
        [series("stanch_breaker_open", steps((2, 0), (3, 1), (2, 0)))],
        [fires(1.75), fires(2.25, "StanchBreakerOpen"), fires(6)],
        id="the breaker opens and is reset",
    ),
    pytest.param(
        [deferred("BudgetStarved", 40)], [fires(25), fires(35, "StanchBudgetStarved")], id="budget starved"
    ),
    pytest.param(
        [deferred("MaxPerHour", 40)], [fires(25), fires(35, "StanchBudgetStarved")], id="no more this hour"
    ),
    pytest.param([deferred("UnderWay", 40)], [fires(35)], id="a step is under way"),
    pytest.param([deferred("NotHeld", 40)], [fires(35)], id="a pattern that has not held"),
    pytest.param(
        [deferred("ApprovalNeeded", 20)], [fires(10), fires(18, "StanchApprovalNeeded")], id="approval needed"
    ),
    pytest.param([deferred("Conflict", 10)], [fires(3), fires(8, "StanchConflict")], id="conflict"),
    pytest.param(
        sign([15.0 * (i % 4) for i in range(points(10))], 60), [fires(9)], id="every part gives its signs"
    ),
    pytest.param(
        sign([15.0 * i for i in range(points(10))], 60),
        [fires(2.5), fires(4, "StanchLoopStalled")],
        id="a part stalls",
    ),
    pytest.param(
        sign([15.0 * (i % 40) for i in range(points(10))], 1800), [fires(9)], id="a slow watch is not late"
    ),
    pytest.param(active([1.0] * points(10), [0.0] * points(10)), [fires(9)], id="one of two repairs"),
    pytest.param(
        active([0.0] * points(10), [0.0] * points(10)),
        [fires(4), fires(6, "StanchNoActiveOperator")],
        id="none repairs",
    ),
    pytest.param(
        active([1.0] * points(10), [1.0] * points(10)), [fires(6, "StanchNoActiveOperator")], id="two repair"
    ),
    pytest.param(
        active(steps((5, 1), (2, 0), (5, 1)), steps((5, 0), (7, 0))),
        [fires(8), fires(11)],
        id="a change of leader",
    ),
    pytest.param(
        active(steps((5, 1), (20, STALE))), [fires(7), fires(20, "StanchNoActiveOperator")], id="it has gone"
    ),
    pytest.param(
        [series("stanch_turns_failed_total", [float(i) for i in range(points(20))], reason="Unreachable")],
        [fires(8), fires(15, "StanchTurnsFailing")],
        id="turns fail and fail",
    ),
    pytest.param(
        [series("stanch_turns_failed_total", steps((5, 3), (25, 4)), reason="Unreachable")],
        [fires(m) for m in (6, 12, 20)],
        id="one turn failed",
    ),
    pytest.param(
        [series("stanch_incidents_ended_total", steps((5, None), (80, 1)), ending="Escalated")],
        [fires(4), fires(6, "StanchIncidentFailed"), fires(60, "StanchIncidentFailed"), fires(70)],
        id="the first one that escalates",
    ),
    pytest.param(
        [series("stanch_incidents_ended_total", steps((70, 1), (80, 2)), ending="Failed")],
        [fires(65), fires(72, "StanchIncidentFailed"), fires(145)],
        id="one more that failed",
    ),
    pytest.param(
        [series("stanch_incidents_ended_total", steps((5, None), (80, 1)), ending="Resolved")],
        [fires(6)],
        id="a repair that went well",
    ),
    pytest.param(
        [series("stanch_alerts_truncated_total", steps((5, 0), (25, 7)), POD)],
        [fires(4), fires(7, "StanchAlertsTruncated"), fires(25)],
        id="alerts are left out",
    ),
    pytest.param(
        [
            series("stanch_alerts_received_total", steps((5, 0), (25, 7)), POD, result="unmapped"),
            series("stanch_alerts_received_total", steps((5, 0), (25, 7)), POD, result="created"),
        ],
        [fires(4), fires(7, "StanchAlertsNotTaken"), fires(25)],
        id="alerts that name no pod",
    ),
    pytest.param(
        [series("stanch_alerts_received_total", steps((5, 0), (25, 7)), POD, result="duplicate")],
        [fires(7)],
        id="alerts that come again",
    ),
    pytest.param(
        [series("stanch_log_lines_lost_total", steps((5, 0), (25, 7)), POD)],
        [fires(4), fires(7, "StanchLogLinesLost"), fires(25)],
        id="log lines are lost",
    ),
]


@pytest.mark.parametrize(("given", "checks"), CASES)
def test_itself(given: list[Series], checks: list[Check], tmp_path: Path) -> None:
    assert tried(World(given, checks, group="stanch-operator"), tmp_path) == ""
