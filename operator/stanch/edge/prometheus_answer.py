"""From the series of one answer of Prometheus to what they say of each target, as a page would. Pure.

A target may be there more than once: two jobs may scrape it, and each replica of a highly available pair
gives series of its own. Each such group of series has the same labels but for vLLM's own; one group is chosen
and stays chosen, because counters of two scrapers are of two moments.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

from stanch.edge.exposition import EngineReading, Labels, Page, engine_of
from stanch.edge.families import PROCESS_START
from stanch.edge.prometheus_query import MARK, UP, Place, Way, rows_of

# Of vLLM's series, whoever scraped them. Prometheus calls a label exported_X where its own is called X.
# pid: with several API servers in old versions; they contradict one another, and that is to be seen.
_OWN = frozenset(("__name__", MARK, "engine", "exported_engine", "model_name", "exported_model_name", "pid"))
# Times of one scrape are the same but for rounding.
_SAME_SECONDS = 0.0005
_MISSING = "missing in Prometheus: maybe a relabelling drops it, or this is not the /metrics of vLLM"
_UNSCRAPED = "Prometheus cannot scrape it (up is 0): see its page /targets"
_NO_ENGINE = "Prometheus scrapes it and has no metric of an engine: is that the engine's own port and path?"

_Key = tuple[str, str]
# Its name, its labels, its value.
_Series = tuple[str, dict[str, str], float]


class MalformedError(ValueError):
    """What came is no answer to an instant query."""


@dataclass(frozen=True, slots=True)
class Found:
    """page: what was scraped, or why that could not be. t: when, by the clock of who scraped; None where it
    could not be. group: the labels by which its series were chosen."""

    page: Page
    t: float | None = None
    group: Labels = ()


def read(
    result: Sequence[Any],
    way: Way,
    asked: Mapping[str, Place],
    before: Mapping[str, Labels],
    behind: Mapping[str, float],
    engine_label: str = "",
) -> tuple[dict[str, Found], float | None]:
    """What it says of each place, by name, of those that it has anything of; and when it was evaluated, by
    its own clock (None: it is empty).

    before: the groups that were chosen last. behind: by how many seconds a group may be behind the newest and
    still be kept. Raises MalformedError.
    """
    rows = rows_of(way, asked)
    buckets: dict[str, list[_Series]] = {}
    times: dict[str, dict[Labels, dict[_Key, float]]] = {}
    evaluated = None
    key_of = way.key
    own = _OWN | {engine_label}
    for one in result:
        try:
            labels, (when, text) = one["metric"], one["value"]
            evaluated, value = float(when), float(text)
            key = labels.get(key_of)
            if key not in rows:
                continue
            if MARK in labels:
                if not isfinite(value):
                    raise ValueError("a scrape has no time")
                group = tuple(sorted((k, v) for k, v in labels.items() if k not in own))
                times.setdefault(key, {}).setdefault(group, {})[_engine(labels, engine_label)] = value
            else:
                if not isinstance(name := labels["__name__"], str):
                    raise TypeError("a name is no text")
                buckets.setdefault(key, []).append((name, labels, value))
        except (TypeError, ValueError, KeyError, AttributeError):
            raise MalformedError("a series of the answer is not one of an instant vector") from None
    if evaluated is not None and not isfinite(evaluated):
        raise MalformedError("the answer has no time of evaluation")
    found = {}
    for key in buckets.keys() | times.keys():
        for place in rows[key]:
            of = times.get(key, {}), buckets.get(key, [])
            try:
                said = _of(place, *of, before.get(place.name), behind[place.name], engine_label)
            except TypeError:
                raise MalformedError("a series of the answer has a label that is no text") from None
            if said is not None:
                found[place.name] = said
    return found, evaluated


def _engine(labels: Mapping[str, str], engine_label: str) -> _Key:
    model = labels.get("exported_model_name") or labels.get("model_name", "")
    if engine_label:
        return model, labels.get(engine_label, "")
    return model, labels.get("exported_engine") or labels.get("engine", "")


def _of(
    place: Place,
    times: Mapping[Labels, Mapping[_Key, float]],
    bucket: Sequence[_Series],
    before: Labels | None,
    behind_seconds: float,
    engine_label: str,
) -> Found | None:
    newest = {group: max(each.values()) for group, each in times.items()}
    group = _chosen(newest, place, before, behind_seconds)
    if group is None:
        ups = [value for name, labels, value in bucket if name == UP and _fit(labels, place) < _NOT]
        if not ups:
            return None
        return Found(Page(problem=_NO_ENGINE if any(ups) else _UNSCRAPED))
    t = newest[group]
    shared = frozenset(group)
    engines: dict[_Key, dict[bytes, dict[Labels, float]]] = {}
    start = None
    for name, labels, value in bucket:
        if not shared <= labels.items():
            continue
        if name == PROCESS_START:
            start = value if isfinite(value) and value > 0 else None
        elif name != UP:
            rest = tuple(sorted(labels.items() - shared))
            of = engines.setdefault(_engine(labels, engine_label), {})
            of.setdefault(name.encode(), {})[rest] = value
    # Of an engine that is not on the newest page the older values are not believed.
    late = {key for key, at in times[group].items() if t - at > _SAME_SECONDS}
    read_ = [_reading(key, series) for key, series in engines.items() if key not in late]
    ray = any(name.startswith(b"ray_") for series in engines.values() for name in series)
    # On a page of Ray it is the start of Ray's agent (exposition.read).
    return Found(Page(tuple(read_), None if ray else start), t, group)


def _reading(key: _Key, series: Mapping[bytes, Mapping[Labels, float]]) -> EngineReading:
    return engine_of(*key, series, missing=_MISSING)


# How well a group of series fits a place; from _NOT on it is another's.
_NOT = 4


def _fit(labels: Mapping[str, str], place: Place) -> int:
    """By the address that was scraped: the very one, the same port, unknown, or another port of a pod that
    has one engine server only (a proxy before it)."""
    instance = labels.get("instance", "")
    if instance == place.address:
        return 0
    port = instance.rpartition(":")[2]
    if port == place.port:
        return 1
    if place.alone:
        return 3 if port.isdigit() and ":" in instance else 2
    return _NOT


def _chosen(
    newest: Mapping[Labels, float], place: Place, before: Labels | None, behind_seconds: float
) -> Labels | None:
    """The best fitting group; of several the one of last time, while it is not behind; else the first by its
    labels that is not."""
    fits = {group: _fit(dict(group), place) for group in newest}
    best = min(fits.values(), default=_NOT)
    if best >= _NOT:
        return None
    good = [group for group in newest if fits[group] == best]
    enough = max(newest[group] for group in good) - behind_seconds
    fresh = [group for group in good if newest[group] >= enough]
    return before if before in fresh else min(fresh)
