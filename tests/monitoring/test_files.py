"""The generated files: every name in them exists, and every alert is explained."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
import yaml

from stanch.core.policy import Policy
from stanch.edge.families import FAMILIES, spellings
from stanch.edge.health import Health
from stanch.edge.metrics import Families
from stanch.edge.monitoring.files import files, groups
from stanch.edge.monitoring.readings import Pace
from stanch.edge.monitoring.rules import Alert, Group, span
from stanch.edge.monitoring.words import WORDS
from stanch_connector.apiserver import metrics as kit_metrics
from tests.generated import TOP

pytestmark = pytest.mark.unit

RULES = "charts/stanch/files/rules.yaml"
GROUPS = groups(Policy(), Pace())
ALERTS = [alert for group in GROUPS for alert in group.alerts]

_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_MATCHERS = re.compile(r"\{[^}]*\}")
_METRIC = re.compile(
    r"(?<![\w:])(?:ray_)?(?:vllm:|vllm_|stanch_|stanch:)[\w:]+|(?<![\w:])(?:process_\w+|up|ALERTS)(?!\w)"
)


def metric_names(expr: str) -> set[str]:
    """Every name of ours, of vLLM or of Prometheus itself in an expression."""
    return set(_METRIC.findall(_MATCHERS.sub("", _STRING.sub("", expr))))


def operator_names() -> Iterator[str]:
    """The samples of the operator's page."""
    for family in Families(Health()).registry.collect():
        suffixes = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}.get(
            family.type, ("",)
        )
        yield from (family.name + suffix for suffix in suffixes)


def kit_names() -> Iterator[str]:
    """The samples that the kit adds to an engine's page."""
    yield from map(kit_metrics.full_name, (*kit_metrics.GAUGES, *kit_metrics.MAPS))
    yield from ("stanch_kit_server_errors", "stanch_fix")


KNOWN = {
    *(name for family in FAMILIES for name in spellings(family)),
    *operator_names(),
    *kit_names(),
    *(record.name for group in GROUPS for record in group.records),
    "up",
}


def test_every_name_in_the_rules_exists() -> None:
    used = {name for group in GROUPS for rule in group.rules for name in metric_names(rule.expr)}
    assert used - KNOWN == set()
    assert {"vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc", "stanch_active", "stanch_fix"} <= used


def test_what_is_recorded_is_used_and_recorded_before() -> None:
    for group in GROUPS:
        recorded: set[str] = set()
        for rule in group.rules:
            needed = {name for name in metric_names(rule.expr) if name.startswith("stanch:")}
            assert needed <= recorded, f"{rule.name} needs what no rule before it records"
            if not isinstance(rule, Alert):
                recorded.add(rule.name)
        used = {name for rule in group.rules for name in metric_names(rule.expr)}
        assert recorded <= used


def test_nothing_but_a_fault_of_the_detector_is_critical_about_an_engine() -> None:
    (engines,) = [group for group in GROUPS if group.name == "stanch-engines"]
    critical = {alert.signature for alert in engines.alerts if alert.severity.value == "critical"}
    assert critical == {
        "HeldIdle",
        "HeldFloor",
        "DeferredStall",
        "QueueDeadlock",
        "NoProgress",
        "ParkedRemoteKV",
    }


def test_every_alert_has_its_words_and_every_word_its_alert() -> None:
    assert {alert.name for alert in ALERTS} == set(WORDS)


def test_the_holds_are_the_policys() -> None:
    policy = Policy(
        held_idle_seconds=77, queue_deadlock_seconds=99, no_progress_seconds=555, floor_ratio=0.07
    )
    found: dict[tuple[str, str], Alert] = {
        (alert.name, alert.case): alert for group in groups(policy, Pace()) for alert in group.alerts
    }
    assert found["StanchHeldIdle", ""].hold == 77
    assert found["StanchQueueDeadlock", ""].hold == 99
    assert found["StanchNoProgress", ""].hold == 555
    held = next(r for g in groups(policy, Pace()) for r in g.records if r.name == "stanch:engine_held:ratio")
    assert ">= 0.07" in held.expr


def test_the_runbook_explains_every_alert_with_its_severity_and_hold() -> None:
    text = (TOP / "docs/monitoring.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r'^\| <a id="(\w+)"></a>(.*)$', text, re.MULTILINE))
    assert set(rows) == {alert.runbook.partition("#")[2] for alert in ALERTS}
    for alert in ALERTS:
        row = rows[alert.name.lower()]
        assert alert.name in row
        assert alert.severity.value in row
        assert not alert.hold or span(alert.hold) in row, (
            f"{alert.name}: {span(alert.hold)} is not in its row"
        )


def test_the_file_is_one_of_prometheus_and_of_a_prometheusrule() -> None:
    document = yaml.safe_load(files()[RULES])
    assert set(document) == {"groups"}
    for group in document["groups"]:
        assert set(group) == {"name", "interval", "rules"}
        for rule in group["rules"]:
            assert all(isinstance(text, str) for text in rule.get("annotations", {}).values())


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (60, "1m"), (90, "1m30s"), (3600, "1h"), (510.2, "8m31s"), (5400, "1h30m")],
)
def test_durations(seconds: float, text: str) -> None:
    assert span(seconds) == text


def test_groups_can_be_loaded_alone() -> None:
    assert [group.name for group in GROUPS] == ["stanch-engines", "stanch-operator"]
    assert all(isinstance(group, Group) for group in GROUPS)
