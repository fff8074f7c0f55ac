"""The shape of a Prometheus rule file, and how it is written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from math import ceil
from typing import Any

import yaml

from stanch.edge.monitoring.words import WORDS

# Where a person finds what an alert means and what to do.
RUNBOOK = "docs/monitoring.md"


class Severity(str, Enum):
    CRITICAL = "critical"  # capacity is lost, and nothing gives it back by itself
    WARNING = "warning"  # somebody should look today
    INFO = "info"


@dataclass(frozen=True, slots=True)
class Record:
    name: str
    expr: str


@dataclass(frozen=True, slots=True)
class Alert:
    """hold: seconds for which the expression must have a result. signature: as the operator calls it, "" for
    what is no signature of an engine. case: tells the rules of one alert apart, "" for the common one."""

    name: str
    expr: str
    hold: float
    severity: Severity
    signature: str = ""
    case: str = ""

    @property
    def runbook(self) -> str:
        """The heading of the alert's section in the runbook."""
        return f"{RUNBOOK}#{self.name.lower()}"


@dataclass(frozen=True, slots=True)
class Group:
    """Rules that are evaluated one after the other: one sees what those before it have recorded."""

    name: str
    interval_seconds: int
    rules: Sequence[Record | Alert]

    @property
    def alerts(self) -> tuple[Alert, ...]:
        return tuple(rule for rule in self.rules if isinstance(rule, Alert))

    @property
    def records(self) -> tuple[Record, ...]:
        return tuple(rule for rule in self.rules if isinstance(rule, Record))


def span(seconds: float) -> str:
    """A duration of PromQL, in whole seconds (rounded up)."""
    left, text = ceil(seconds), ""
    for unit, length in (("h", 3600), ("m", 60), ("s", 1)):
        if left >= length:
            text += f"{left // length}{unit}"
            left %= length
    return text or "0s"


def rule_file(groups: Sequence[Group], heading: Sequence[str]) -> str:
    """The groups as a rule file of Prometheus, which is the spec of a PrometheusRule as well."""
    document = {"groups": [_group(group) for group in groups]}
    body = yaml.dump(document, Dumper=_Dumper, sort_keys=False, width=10_000, allow_unicode=True)
    return "".join(f"# {line}\n" for line in heading) + body


def _group(group: Group) -> dict[str, Any]:
    return {
        "name": group.name,
        "interval": span(group.interval_seconds),
        "rules": [_rule(rule) for rule in group.rules],
    }


def _rule(rule: Record | Alert) -> dict[str, Any]:
    if isinstance(rule, Record):
        return {"record": rule.name, "expr": rule.expr}
    return {
        "alert": rule.name,
        "expr": rule.expr,
        "for": span(rule.hold),
        "labels": {
            "severity": rule.severity.value,
            **({"signature": rule.signature} if rule.signature else {}),
            **({"case": rule.case} if rule.case else {}),
        },
        "annotations": {
            "summary": WORDS[rule.name].summary,
            "description": WORDS[rule.name].description,
            "runbook": rule.runbook,
        },
    }


class _Dumper(yaml.SafeDumper):
    """Texts of several lines are written as they are, not folded, and nothing refers to something else."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)
