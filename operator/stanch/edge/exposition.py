"""Reads what Stanch needs off a Prometheus text page, and nothing else: bytes in, readings per engine out.

A page of vLLM is 55 kB of which some twenty lines matter. One compiled expression walks over the line starts;
only needed lines are looked into. What is read is what the page says, or there is a problem: a needed line
that is malformed, a line that starts with anything but a name, a cut end or bytes that are no UTF-8 make the
whole page unreadable, because nobody knows what else of it is wrong.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import isfinite

from stanch.edge.families import (
    BY_FIELD,
    FAMILIES,
    PROCESS_START,
    REQUIRED_GAUGES,
    TOKEN_COUNTERS,
    Family,
    Kind,
    spellings,
)


@dataclass(frozen=True, slots=True)
class EngineReading:
    """The values of one engine on one page, raw: NaN and negative ones are handed on as they are.

    model, engine: the labels model_name and engine ("" where the series have none). Fields: see families.py;
    None where the page has no such series, or (of the optional ones) contradicts itself.
    problem: why this engine cannot be read although the page can; None where it can.
    """

    model: str
    engine: str
    usage: float | None = None
    running: float | None = None
    waiting: float | None = None
    waiting_deferred: float | None = None
    generation_tokens: float | None = None
    prompt_tokens: float | None = None
    iterations: float | None = None
    finished: float | None = None
    failed_transfers: float | None = None
    failed_notifications: float | None = None
    awake: float | None = None
    offloaded: float | None = None
    discarded: float | None = None
    external_hits: float | None = None
    transferred_tokens: float | None = None
    asked: float | None = None
    asked_one_token: float | None = None
    consumer: float | None = None
    since_032: float | None = None
    expired_leases: float | None = None
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class Page:
    """What one page says. Either there is a problem and no engine, or at least one engine.

    process_start: Unix time at which the process that serves the page started; None where it does not say.
    """

    engines: tuple[EngineReading, ...] = ()
    process_start: float | None = None
    problem: str | None = None


# Ranks of one server: the largest deployments have a few hundred, with some twenty needed series each. More
# is a page gone wrong, and reading on would keep all other targets waiting.
MAX_ENGINES = 1024
MAX_SERIES = 32 * MAX_ENGINES
NOT_VLLM = "this may not be the /metrics of vLLM"

_SPELLINGS: dict[str, tuple[bytes, ...]] = {
    family.field: tuple(name.encode() for name in spellings(family)) for family in FAMILIES
}
_PROCESS_START = PROCESS_START.encode()


def _line_expression() -> re.Pattern[bytes]:
    """A needed line: (name, labels, value), or (.., .., .., name) where the rest of the line is malformed.

    Every part starts with a character that its neighbours exclude, so matching is linear in the page.
    """
    groups = []
    for prefix in (b"vllm:", b"ray_vllm_", b"ray_vllm:"):
        rest = {
            n.removeprefix(prefix) for names in _SPELLINGS.values() for n in names if n.startswith(prefix)
        }
        longest_first = sorted(rest, key=lambda name: (-len(name), name))
        groups.append(re.escape(prefix) + b"(?:" + b"|".join(map(re.escape, longest_first)) + b")")
    name = b"(?:" + b"|".join([*groups, re.escape(_PROCESS_START)]) + b")"
    labels = rb'\{([^\n"{}]*(?:"[^"\\\n]*(?:\\.[^"\\\n]*)*"[^\n"{}]*)*)\}'
    value = rb"([-+0-9.a-zA-Z]+)"
    timestamp = rb"(?:[ \t]+-?[0-9.]+)?"
    good = (
        b"(" + name + rb")(?:[ \t]*" + labels + rb"[ \t]*|[ \t]+)" + value + timestamp + rb"[ \t]*\r?(?=\n)"
    )
    return re.compile(rb"\n(?:" + good + b"|(" + name + rb")(?![a-zA-Z0-9_:]))")


_LINE = _line_expression()
_LABEL = re.compile(rb'[ \t]*([a-zA-Z_][a-zA-Z0-9_]*)[ \t]*=[ \t]*"((?:[^"\\]|\\.)*)"[ \t]*(,|\Z)')
_ESCAPE = re.compile(r'\\([\\n"])')
# A line that is neither empty nor a comment nor starts with a name: something happened to this page.
_GARBAGE = re.compile(rb"\n(?!\r?\n|[a-zA-Z_:#]|\Z)")

Labels = tuple[tuple[str, str], ...]


# Those of vLLM have a few hundred bytes, its configuration as labels about a thousand.
_MOST_LABELS = 8192
_KEPT_LABELS = 512


def _labels(raw: bytes) -> tuple[str, str, Labels] | None:
    """(model_name, engine, all labels sorted) of what stands between the braces; None where it is malformed,
    or far longer than any of an engine.

    Short ones are kept for the label sets seen last: they are the same at every scrape.
    """
    if len(raw) > _MOST_LABELS:
        return None
    return _kept(raw) if len(raw) <= _KEPT_LABELS else _parsed(raw)


def _parsed(raw: bytes) -> tuple[str, str, Labels] | None:
    found: dict[str, str] = {}
    position = 0
    while position < len(raw):
        match = _LABEL.match(raw, position)
        if match is None:
            return None if raw[position:].strip() else _of(found)
        name = match[1].decode()
        if name in found or name.startswith("__"):
            return None
        found[name] = _ESCAPE.sub(lambda m: "\n" if m[1] == "n" else m[1], match[2].decode())
        position = match.end()
    return _of(found)


_kept = lru_cache(maxsize=8192)(_parsed)


def _of(found: dict[str, str]) -> tuple[str, str, Labels]:
    return found.get("model_name", ""), found.get("engine", ""), tuple(sorted(found.items()))


class _ContradictionError(ValueError):
    """A page says two different things of the same series."""


def read(body: bytes) -> Page:
    """What the page says of each engine, in the order in which the page names them first. Never raises."""
    problem = _unreadable(body)
    if problem is not None:
        return Page(problem=problem)
    # (model, engine) -> name -> what the page says of it, the series told apart by their labels
    engines: dict[tuple[str, str], dict[bytes, dict[Labels, float]]] = {}
    start: set[float] = set()
    twice: set[tuple[str, str, bytes]] = set()
    for count, match in enumerate(_LINE.finditer(b"\n" + body)):
        name, raw, value, bad = match.groups()
        if count >= MAX_SERIES or len(engines) > MAX_ENGINES:
            return Page(
                problem=f"the page has more than {MAX_ENGINES} engines or {MAX_SERIES} series of them"
            )
        if bad:
            return Page(problem=f"the line of {bad.decode()} is malformed")
        labels = _labels(raw or b"")
        number = _number(value)
        if labels is None or number is None:
            return Page(problem=f"the line of {name.decode()} is malformed")
        if name == _PROCESS_START:
            # One that is no time at all is as good as none: a NaN would differ at every look.
            if isfinite(number) and number > 0:
                start.add(number)
            continue
        model, engine, series = labels
        values = engines.setdefault((model, engine), {}).setdefault(name, {})
        first = values.setdefault(series, number)
        if first is not number and first != number:  # a NaN differs from itself
            twice.add((model, engine, name))
    if not engines:
        return Page(problem=f"the page has no metric of an engine: {NOT_VLLM}, or its statistics are off")
    if len({engine == "" for _, engine in engines}) > 1:
        return Page(problem="some of its series name an engine and others do not")
    ray = any(name.startswith(b"ray_") for values in engines.values() for name in values)
    return Page(
        tuple(
            engine_of(model, engine, values, {name for m, e, name in twice if (m, e) == (model, engine)})
            for (model, engine), values in engines.items()
        ),
        # On a page of Ray it is the start of Ray's agent, which says nothing of the engine.
        process_start=start.pop() if len(start) == 1 and not ray else None,
    )


def _unreadable(body: bytes) -> str | None:
    """Why nothing of the page can be used, as far as it shows without looking into its lines."""
    if not body.strip():
        return "the page is empty"
    if not body.endswith((b"\n", b"# EOF")):
        return "the page is cut off inside a line"
    try:
        body.decode()
    except UnicodeDecodeError:
        return "the page has bytes that are not UTF-8"
    if _GARBAGE.search(b"\n" + body):
        return f"the page has a line that does not start with the name of a metric: {NOT_VLLM}"
    return None


def _number(text: bytes) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def engine_of(
    model: str,
    engine: str,
    values: Mapping[bytes, Mapping[Labels, float]],
    twice: Collection[bytes] = (),
    missing: str = f"missing from the page: {NOT_VLLM}",
) -> EngineReading:
    """One engine by its series: the name of each, the labels that tell it from others of its name, its value.

    twice: names of which one series is there twice, with two values. missing: what to say of a family that is
    needed and not there.
    """
    fields: dict[str, float] = {}
    problem: str | None = None
    for family in FAMILIES:
        try:
            value = _value(family, values, twice)
        except _ContradictionError as contradiction:
            if family.field in REQUIRED_GAUGES or family.field in TOKEN_COUNTERS:
                problem = problem or str(contradiction)
            continue
        if value is not None:
            fields[family.field] = value
    return EngineReading(model, engine, **fields, problem=problem or _missing(fields, missing))


def _value(
    family: Family, values: Mapping[bytes, Mapping[Labels, float]], twice: Collection[bytes]
) -> float | None:
    """The family's value by the first of its names that the page has. Raises _ContradictionError."""
    for spelling in _SPELLINGS[family.field]:
        if spelling not in values:
            continue
        series = values[spelling]
        if family.only is not None:
            series = {labels: value for labels, value in series.items() if family.only in labels}
        if not series or family.kind is Kind.PRESENCE:
            return 1.0 if series else None
        if spelling in twice:
            raise _ContradictionError(
                f"the page has one series of {spelling.decode()} twice, and they differ"
            )
        if family.kind is Kind.COUNTER:
            return sum(series.values())
        distinct = set(series.values())
        if len(distinct) > 1:
            numbers = " and ".join(f"{number:g}" for number in sorted(distinct))
            raise _ContradictionError(f"the page gives {spelling.decode()} of one engine twice ({numbers})")
        return distinct.pop()
    return None


def _missing(fields: dict[str, float], missing: str) -> str | None:
    """Which required family the engine lacks, as a sentence."""
    absent = [field for field in REQUIRED_GAUGES if field not in fields]
    if not any(field in fields for field in TOKEN_COUNTERS):
        absent.append(TOKEN_COUNTERS[0])
    if not absent:
        return None
    names = ", ".join(BY_FIELD[field].names[0] for field in absent)
    return f"{names} {'is' if len(absent) == 1 else 'are'} {missing}"
