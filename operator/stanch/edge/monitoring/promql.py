"""Expressions of PromQL over vLLM's families, by the names of every version (edge/families.py is the table).

A value that is NaN or negative has no result: what cannot be trusted is absent, and nothing fires from it.
"""

from __future__ import annotations

from collections.abc import Iterable

from stanch.edge.families import BY_FIELD, Family, spellings

# By Prometheus 3 a bound is always "1.0", before it is what the page says.
_ONE = r"1|1\\.0"

# Labels beside those of the engine, by field; what is counted under several of them is added up.
_MORE_LABELS = {
    "finished": "finished_reason",
    "consumer": "stage",
}


def names(field: str) -> tuple[str, ...]:
    """Every name of this value."""
    return spellings(BY_FIELD[field])


def selectors(field: str, more: str = "") -> tuple[str, ...]:
    """A selector for each name; more: matchers to be added."""
    family = BY_FIELD[field]
    matchers = ",".join(one for one in (_only(family), more) if one)
    return tuple(f"{name}{{{matchers}}}" if matchers else name for name in spellings(family))


def _only(family: Family) -> str:
    if family.only is None:
        return ""
    label, value = family.only
    return f'{label}=~"{_ONE}"' if label == "le" else f'{label}="{value}"'


def either(expressions: Iterable[str]) -> str:
    """The first of them that has a result, for each engine by itself."""
    return "\nor ".join(expressions)


def value(field: str) -> str:
    """The value of a gauge or a counter, one series of each engine."""
    family = BY_FIELD[field]
    found = f"({either(selectors(field))})"
    if family.only is not None:
        found = f"max without ({family.only[0]}) {found}"
    if field in _MORE_LABELS:
        found = f"sum without ({_MORE_LABELS[field]}) {found}"
    return f"{found} >= 0"


def fresh(field: str, seconds: float, most: float) -> str:
    """A gauge from 0 to `most` whose reading is not older than so many seconds."""
    return either(
        f"({name} >= 0 and {name} <= {most:g} and timestamp({name}) > time() - {seconds:g})"
        for name in selectors(field)
    )
