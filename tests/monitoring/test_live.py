"""Rules and dashboard in Debian's own Prometheus, over simulated engines of which one leaks."""

from __future__ import annotations

import asyncio
import json
import math
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stanch.core.policy import Policy
from stanch.edge.demo.fleet import Fleet
from stanch.edge.monitoring.files import groups
from stanch.edge.monitoring.readings import Pace
from stanch.edge.monitoring.rules import rule_file
from tests.monitoring.busy import kit_page, operator_page
from tests.monitoring.test_dashboard import VARIABLES, expressions
from tests.prometheus import prometheus, static

pytestmark = pytest.mark.unit

# A page a second, so that a leak is seen in seconds.
PACE = Pace(interval_seconds=1)
HOLD = Policy().with_hold(5)
PATIENCE = 120.0
CHOSEN = {"$namespace": ".*", "$watch": ".*", "$engine": ".*", "$__rate_interval": "10s"}


def asked(url: str, path: str, **parameters: str) -> Any:
    """The data of an answer. Raises where Prometheus says that it is an error."""
    query = urllib.parse.urlencode(parameters)
    with urllib.request.urlopen(f"{url}/api/v1/{path}?{query}", timeout=10) as answer:
        body = json.load(answer)
    assert body["status"] == "success", body
    return body["data"]


def numbers(url: str, expr: str) -> list[float]:
    """What a query gives now, without what is no number."""
    values = [float(one["value"][1]) for one in asked(url, "query", query=expr)["result"]]
    return [value for value in values if not math.isnan(value)]


def chosen(text: str) -> str:
    for variable, value in CHOSEN.items():
        text = text.replace(variable, value)
    return text


async def shows(url: str, *expressions: str) -> list[str]:
    """Those of the expressions that have no data within the time."""
    missing, deadline = list(expressions), time.monotonic() + PATIENCE
    while missing and time.monotonic() < deadline:
        missing = [expr for expr in missing if not await asyncio.to_thread(numbers, url, expr)]
        if missing:
            await asyncio.sleep(0.5)
    return missing


async def scene(folder: Path, pages: dict[str, dict[str, str]]) -> None:
    """pages: address -> labels of what is scraped beside the engines."""
    rules = folder / "rules.yaml"
    rules.write_text(rule_file(groups(HOLD, PACE), ()), encoding="utf-8")
    async with Fleet(1) as fleet:
        engines = {
            one.url.removeprefix("http://"): {"namespace": "serving", "pod": one.name, "role": one.role}
            for one in fleet.engines
        }
        with prometheus(folder / "prometheus", static(engines | pages), rules=[rules]) as url:
            await fleet.plant("decode-0", 3, 60.0)
            leak = 'ALERTS{alertname=~"StanchHeld.*|StanchDeferredStall",alertstate="firing",pod="decode-0"}'
            assert await shows(url, leak) == []
            queries = {chosen(expr): title for title, expr in expressions()}
            missing = await shows(url, *queries)
            assert {queries[expr]: expr for expr in missing} == {}
            assert numbers(url, 'ALERTS{alertstate="firing",severity="critical",role="prefill"}') == []
            for rule in _rules(url):
                assert rule["health"] == "ok", rule
            for name, variable in VARIABLES.items():
                if name != "datasource":
                    assert _values(url, chosen(variable["definition"])), name


def _rules(url: str) -> Iterator[dict[str, Any]]:
    for group in asked(url, "rules")["groups"]:
        yield from group["rules"]


def _values(url: str, definition: str) -> list[str]:
    """What label_values(selector, label) gives in Grafana."""
    selector, _, label = definition.removeprefix("label_values(").removesuffix(")").rpartition(", ")
    values: list[str] = asked(url, f"label/{label}/values", **{"match[]": selector})
    return values


def test_the_rules_fire_and_every_query_of_the_dashboard_has_data(tmp_path: Path) -> None:
    with operator_page() as own, kit_page() as kit:
        pages = {own: {"pod": "stanch-0"}, kit: {"namespace": "serving", "pod": "decode-9"}}
        asyncio.run(scene(tmp_path, pages))
