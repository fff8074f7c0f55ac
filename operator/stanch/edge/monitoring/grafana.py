"""A dashboard of Grafana 10 or later, as data: rows of panels are laid out, and all ask one data source.

The JSON model: grafana.com/docs/grafana/v10.0 (dashboards, view-dashboard-json-model). schemaVersion 38 is
that of Grafana 10.0; later ones migrate it as they load it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from string import ascii_uppercase
from typing import Any

# Everything asks the data source that the person has chosen.
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_WIDTH = 24
_SCHEMA = 38

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Query:
    expr: str
    legend: str = ""


@dataclass(frozen=True, slots=True)
class Panel:
    """kind: of Grafana's panels. unit: one of Grafana's units. width: of 24."""

    title: str
    queries: tuple[Query, ...]
    kind: str = "timeseries"
    unit: str = "short"
    width: int = 8
    height: int = 7
    about: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True, slots=True)
class Variable:
    """Its values are those of the label `of`, on the series that the selector finds. With all of them chosen
    the label may also be absent."""

    name: str
    label: str
    selector: str
    of: str


def dashboard(uid: str, title: str, about: str, variables: Sequence[Variable], rows: Sequence[Row]) -> str:
    model: Json = {
        "uid": uid,
        "title": title,
        "description": about,
        "tags": ["stanch", "vllm"],
        "schemaVersion": _SCHEMA,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "timezone": "",
        "annotations": {"list": []},
        "links": [],
        "templating": {"list": [_data_source(), *map(_variable, variables)]},
        "panels": list(_laid_out(rows)),
    }
    return json.dumps(model, indent=2, ensure_ascii=False) + "\n"


def _data_source() -> Json:
    return {
        "name": "datasource",
        "label": "Data source",
        "type": "datasource",
        "query": "prometheus",
        "current": {},
        "hide": 0,
        "includeAll": False,
        "multi": False,
        "refresh": 1,
    }


def _variable(variable: Variable) -> Json:
    query = f"label_values({variable.selector}, {variable.of})"
    return {
        "name": variable.name,
        "label": variable.label,
        "type": "query",
        "datasource": SOURCE,
        "definition": query,
        "query": {"query": query, "refId": f"variable-{variable.name}"},
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
        "hide": 0,
        "includeAll": True,
        # Matches also where the label is absent.
        "allValue": ".*",
        "multi": True,
        "refresh": 2,
        "sort": 1,
    }


def _laid_out(rows: Sequence[Row]) -> Iterator[Json]:
    """Panels from left to right, a new line where one does not fit; ids from 1 on."""
    number, top = 1, 0
    for row in rows:
        yield {
            "id": number,
            "type": "row",
            "title": row.title,
            "collapsed": False,
            "gridPos": {"h": 1, "w": _WIDTH, "x": 0, "y": top},
            "panels": [],
        }
        number, top, left, tallest = number + 1, top + 1, 0, 0
        for panel in row.panels:
            if left + panel.width > _WIDTH:
                top, left, tallest = top + tallest, 0, 0
            place = {"h": panel.height, "w": panel.width, "x": left, "y": top}
            yield _panel(panel, number, place)
            number, left, tallest = number + 1, left + panel.width, max(tallest, panel.height)
        top += tallest


def _panel(panel: Panel, number: int, place: Json) -> Json:
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.about,
        "datasource": SOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "options": _OPTIONS[panel.kind],
        "targets": [
            {
                "refId": ascii_uppercase[i],
                "datasource": SOURCE,
                "editorMode": "code",
                "expr": query.expr,
                "legendFormat": query.legend or "__auto",
                "range": panel.kind != "stat",
                "instant": panel.kind == "stat",
            }
            for i, query in enumerate(panel.queries)
        ],
    }


_OPTIONS: dict[str, Json] = {
    "timeseries": {
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
        "tooltip": {"mode": "multi", "sort": "desc"},
    },
    "stat": {
        "colorMode": "none",
        "graphMode": "none",
        "justifyMode": "auto",
        "orientation": "auto",
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        "textMode": "auto",
    },
}
