"""What differs between two JSON values, as a JSON Patch (RFC 6902). Pure.

Small rather than smallest: of a list, what begins and what ends alike is left alone, and what lies between is
changed item by item.
"""

from __future__ import annotations

from typing import Any

Operation = dict[str, Any]


def difference(old: Any, new: Any, path: str = "") -> list[Operation]:
    """The operations that make `new` of `old`, in order; none where they are equal."""
    if isinstance(old, dict) and isinstance(new, dict):
        return _of_tables(old, new, path)
    if isinstance(old, list) and isinstance(new, list):
        return _of_lists(old, new, path)
    return [] if _same(old, new) else [{"op": "replace", "path": path, "value": new}]


def _same(old: Any, new: Any) -> bool:
    """As JSON has it, in which true is not 1."""
    if isinstance(old, dict) and isinstance(new, dict):
        return old.keys() == new.keys() and all(_same(old[key], new[key]) for key in old)
    if isinstance(old, list) and isinstance(new, list):
        return len(old) == len(new) and all(map(_same, old, new))
    return type(old) is type(new) and bool(old == new)


def _of_tables(old: dict[str, Any], new: dict[str, Any], path: str) -> list[Operation]:
    found = [{"op": "remove", "path": f"{path}/{_escaped(key)}"} for key in old if key not in new]
    for key, value in new.items():
        at = f"{path}/{_escaped(key)}"
        found += (
            difference(old[key], value, at) if key in old else [{"op": "add", "path": at, "value": value}]
        )
    return found


def _of_lists(old: list[Any], new: list[Any], path: str) -> list[Operation]:
    shorter = min(len(old), len(new))
    head = next((i for i in range(shorter) if not _same(old[i], new[i])), shorter)
    rest = shorter - head
    tail = next((i for i in range(rest) if not _same(old[-1 - i], new[-1 - i])), rest)
    mine, its = old[head : len(old) - tail], new[head : len(new) - tail]
    both = min(len(mine), len(its))
    found = []
    for at in range(both):
        found += difference(mine[at], its[at], f"{path}/{head + at}")
    found += [{"op": "remove", "path": f"{path}/{head + at}"} for at in reversed(range(both, len(mine)))]
    found += [{"op": "add", "path": f"{path}/{head + at}", "value": its[at]} for at in range(both, len(its))]
    return found


def _escaped(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")
