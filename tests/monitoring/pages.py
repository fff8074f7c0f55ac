"""Recordings of /metrics pages as Prometheus would have scraped them, once an interval."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from stanch.edge.families import FAMILIES, PROCESS_START
from tests.monitoring.promtool import STALE, Labels, Series, Value, second

RECORDINGS = Path(__file__).parents[1] / "data" / "recordings"
_LINE = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)$")
_LABEL = re.compile(r'(\w+)="([^"]*)"')
_NAMES = {name for family in FAMILIES for name in family.names} | {PROCESS_START}


@cache
def pages(name: str) -> tuple[tuple[float, str | None], ...]:
    """(seconds since the first line, page) of each line."""
    with gzip.open(RECORDINGS / f"{name}.jsonl.gz", "rt", encoding="utf-8") as file:
        lines = [json.loads(line) for line in file]
    return tuple((line["t"] - lines[0]["t"], line["body"]) for line in lines)


def scraped(name: str, target: Labels) -> list[Series]:
    """One point a second; what is not on a page any more ends, as Prometheus marks it."""
    at: dict[int, str | None] = {second(t): body for t, body in pages(name)}
    end = max(at) + 1
    found: dict[tuple[str, tuple[tuple[str, str], ...]], list[Value]] = {}
    up: list[Value] = []
    before: set[tuple[str, tuple[tuple[str, str], ...]]] = set()
    for place in range(end):
        if place not in at:
            up.append(None)
            continue
        body = at[place]
        up.append(0.0 if body is None else 1.0)
        now = dict(_samples(body or ""))
        for key, value in now.items():
            values = found.setdefault(key, [])
            values += [None] * (place - len(values))
            values.append(value)
        for key in before - now.keys():
            found[key] += [None] * (place - len(found[key]))
            found[key].append(STALE)
        before = set(now)
    series = [
        Series(family, {**target, **dict(labels)}, values) for (family, labels), values in found.items()
    ]
    return [Series("up", target, up), *series]


def _samples(body: str) -> Iterator[tuple[tuple[str, tuple[tuple[str, str], ...]], float]]:
    for line in body.splitlines():
        if line.startswith("#") or line.partition("{")[0].partition(" ")[0] not in _NAMES:
            continue
        match = _LINE.match(line)
        assert match is not None, line
        yield (match[1], tuple(_LABEL.findall(match[2] or ""))), float(match[3])
