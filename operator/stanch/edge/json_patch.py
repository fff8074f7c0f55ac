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
    return [] if same(old, new) else [{"op": "replace", "path": path, "value": new}]


def same(old: Any, new: Any) -> bool:
    """As JSON has it, in which true is not 1."""
    if isinstance(old, dict) and isinstance(new, dict):
        return old.keys() == new.keys() and all(same(old[key], new[key]) for key in old)
    if isinstance(old, list) and isinstance(new, list):
        return len(old) == len(new) and all(map(same, old, new))
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
    head, both, tail = aligned(old, new)
    between = head + both
    found = []
    for at in range(head, between):
        found += difference(old[at], new[at], f"{path}/{at}")
    found += [{"op": "remove", "path": f"{path}/{at}"} for at in reversed(range(between, len(old) - tail))]
    found += [
        {"op": "add", "path": f"{path}/{at}", "value": new[at]} for at in range(between, len(new) - tail)
    ]
    return found


def aligned(old: list[Any], new: list[Any]) -> tuple[int, int, int]:
    """How many items are the same at the head of both, how many behind them are to be changed one by one, and
    how many are the same at the tail; what lies between goes (of the old) and comes (of the new)."""
    shorter = min(len(old), len(new))
    head = next((i for i in range(shorter) if not same(old[i], new[i])), shorter)
    rest = shorter - head
    tail = next((i for i in range(rest) if not same(old[-1 - i], new[-1 - i])), rest)
    return head, shorter - head - tail, tail


def _escaped(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")
