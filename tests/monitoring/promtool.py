"""Rules tried by Prometheus's own tool: series in, which alerts fire out."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

import pytest
import yaml

from stanch.core.policy import Policy
from stanch.edge.monitoring.files import groups
from stanch.edge.monitoring.readings import Pace
from stanch.edge.monitoring.rules import rule_file

PROMTOOL = shutil.which("promtool")
needs_promtool = pytest.mark.skipif(PROMTOOL is None, reason="there is no promtool (Debian: prometheus)")

# The series ends here: its target, or this one of its series, has gone.
STALE = "stale"
Value = float | str | None
Labels = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Series:
    """values: one for each evaluation; None: nothing was scraped."""

    name: str
    labels: Labels
    values: Sequence[Value]


@dataclass(frozen=True, slots=True)
class Check:
    """At a time (seconds), what an expression must give: series of value 1 with these labels, or nothing."""

    at: float
    expr: str
    labels: Sequence[Labels] = ()


@dataclass(frozen=True, slots=True)
class World:
    """series are one point per interval apart. group: of whose rules is asked."""

    series: Sequence[Series]
    checks: Sequence[Check]
    policy: Policy = field(default_factory=Policy)
    pace: Pace = field(default_factory=Pace)
    group: str = "stanch-engines"


def second(t: float) -> int:
    """The nearest second, a half always up: two readings a second apart never meet."""
    return int(t + 0.5)


def selector(name: str, labels: Labels) -> str:
    return f"{name}{{{','.join(f'{key}={quoted(text)}' for key, text in sorted(labels.items()))}}}"


def quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def notation(values: Iterable[Value]) -> str:
    """Promtool's own: a+0xN is a, and a N times more."""
    parts = []
    for value, same in groupby(map(_written, values)):
        count = len(list(same))
        if value == "_":
            parts.append(f"_x{count}")
        elif value == STALE:
            parts += [STALE] * count
        else:
            parts.append(f"{value}+0x{count - 1}")
    return " ".join(parts)


def _written(value: Value) -> str:
    if value is None:
        return "_"
    return value if isinstance(value, str) else ("NaN" if value != value else repr(float(value)))


def tried(world: World, folder: Path) -> str:
    """What promtool says of it; "" where everything is as it should be."""
    rules = folder / "rules.yaml"
    asked = [group for group in groups(world.policy, world.pace) if group.name == world.group]
    rules.write_text(rule_file(asked, ()), encoding="utf-8")
    step = world.pace.interval_seconds
    test = {
        "rule_files": [str(rules)],
        "evaluation_interval": f"{step}s",
        "tests": [
            {
                "interval": f"{step}s",
                "input_series": [
                    {"series": selector(one.name, one.labels), "values": notation(one.values)}
                    for one in world.series
                ],
                "promql_expr_test": [
                    {
                        "expr": check.expr,
                        "eval_time": f"{second(check.at)}s",
                        "exp_samples": [{"labels": selector("", one), "value": 1} for one in check.labels],
                    }
                    for check in world.checks
                ],
            }
        ],
    }
    path = folder / "test.yaml"
    path.write_text(yaml.safe_dump(test, sort_keys=False, width=10_000), encoding="utf-8")
    assert PROMTOOL is not None
    done = subprocess.run(
        [PROMTOOL, "test", "rules", str(path)], capture_output=True, text=True, timeout=600, check=False
    )
    return "" if done.returncode == 0 else done.stdout + done.stderr
