"""The dashboard as a document: what Grafana would trip over."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from stanch.edge.monitoring.files import files
from tests.monitoring.test_files import KNOWN, metric_names

pytestmark = pytest.mark.unit

MODEL: dict[str, Any] = json.loads(files()["charts/stanch/files/dashboard.json"])
PANELS: list[dict[str, Any]] = MODEL["panels"]
SHOWN = [panel for panel in PANELS if panel["type"] != "row"]
VARIABLES = {variable["name"]: variable for variable in MODEL["templating"]["list"]}
# Grafana's own, of the panel that asks.
BUILT_IN = {"__rate_interval"}


def expressions() -> Iterator[tuple[str, str]]:
    """(title, expression) of every query."""
    for panel in SHOWN:
        for target in panel["targets"]:
            yield panel["title"], target["expr"]


def test_its_identity_is_fixed() -> None:
    assert (MODEL["uid"], MODEL["title"]) == ("stanch", "Stanch")
    assert MODEL["schemaVersion"] >= 38
    assert "id" not in MODEL, "an id is of one Grafana only"


def test_panels_have_ids_of_their_own_and_do_not_overlap() -> None:
    assert max(Counter(panel["id"] for panel in PANELS).values()) == 1
    taken: dict[tuple[int, int], str] = {}
    for panel in PANELS:
        place = panel["gridPos"]
        assert place["x"] >= 0
        assert place["x"] + place["w"] <= 24
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                assert (x, y) not in taken, f"{panel['title']} lies on {taken[x, y]}"
                taken[x, y] = panel["title"]


def test_everything_asks_the_chosen_data_source() -> None:
    assert VARIABLES["datasource"]["query"] == "prometheus"
    asked = [panel["datasource"] for panel in SHOWN]
    asked += [target["datasource"] for panel in SHOWN for target in panel["targets"]]
    asked += [variable["datasource"] for name, variable in VARIABLES.items() if name != "datasource"]
    assert all(source == {"type": "prometheus", "uid": "${datasource}"} for source in asked)


def test_every_variable_is_known_and_used() -> None:
    text = json.dumps(MODEL)
    used = set(re.findall(r"\$\{?(\w+)", text)) - BUILT_IN - {"labels", "value", "__all"}
    assert used == set(VARIABLES)
    for name, variable in VARIABLES.items():
        if name != "datasource":
            assert variable["allValue"] == ".*", "a label that is absent is matched too"


def test_every_query_has_a_letter_and_every_panel_a_query() -> None:
    for panel in SHOWN:
        letters = [target["refId"] for target in panel["targets"]]
        assert letters
        assert len(set(letters)) == len(letters)


def test_every_name_in_it_exists() -> None:
    for title, expr in expressions():
        assert metric_names(expr) - KNOWN - {"ALERTS"} == set(), title
    for name, variable in VARIABLES.items():
        assert metric_names(str(variable["query"])) - KNOWN <= {"prometheus"}, name


def test_matchers_are_where_their_labels_are() -> None:
    """What is not an engine's has no pod of an engine, and no family of the operator without a watch one."""
    for title, expr in expressions():
        for name, matchers in re.findall(r"([\w:]+)\{([^}]*)\}", expr):
            if "$watch" in matchers:
                assert name.startswith("stanch_"), title
            if "$engine" in matchers:
                assert not name.startswith("stanch_incidents"), title
