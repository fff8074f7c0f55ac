"""Reading raw Kubernetes objects (JSON as dicts) without trusting their shape. Pure.

What is missing, or is of another type than it should be, is None or empty, never an exception: whoever asks
decides what it means that something is not said.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

Object = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Ref:
    """One object by group and version ("v1", "apps/v1"), kind and name; of the watch's namespace, but for a
    Node, which has none."""

    api_version: str
    kind: str
    name: str


# What was read, by its Ref. None: it was asked for and does not exist, or may not be read.
Objects = Mapping[Ref, Object | None]


def dig(obj: object, *path: str) -> object:
    """The value at that path; None where there is none."""
    for key in path:
        # Nearly always a dict, and asking that first is much faster: for 500 pods it is some 100,000 a turn.
        if type(obj) is not dict and not isinstance(obj, Mapping):
            return None
        obj = obj.get(key)
    return obj


def table(obj: object, *path: str) -> Object:
    found = dig(obj, *path)
    return found if isinstance(found, (dict, Mapping)) else {}


def rows(obj: object, *path: str) -> list[Object]:
    """The objects of a list; what is no object is passed over."""
    return [one for one in _list(dig(obj, *path)) if isinstance(one, (dict, Mapping))]


def texts(obj: object, *path: str) -> list[str]:
    return [one for one in _list(dig(obj, *path)) if isinstance(one, str)]


def _list(value: object) -> Sequence[object]:
    return value if isinstance(value, (list, tuple)) else ()


def text(obj: object, *path: str) -> str:
    """ "" where there is none."""
    found = dig(obj, *path)
    return found if isinstance(found, str) else ""


def whole(obj: object, *path: str) -> int | None:
    """A whole number; a truth value is none."""
    found = dig(obj, *path)
    return found if isinstance(found, int) and not isinstance(found, bool) else None


def unix(value: object) -> float | None:
    """An RFC 3339 time in Unix seconds."""
    if not isinstance(value, str):
        return None
    try:
        moment = datetime.fromisoformat(value.replace("Z", "+00:00").replace("z", "+00:00"))
        # A time without a zone is not one that the API writes.
        return moment.astimezone(timezone.utc).timestamp() if moment.tzinfo is not None else None
    except (ValueError, OverflowError):
        return None


def name_of(obj: object) -> str:
    return text(obj, "metadata", "name")


def label(obj: object, key: str) -> str:
    return text(obj, "metadata", "labels", key)


def annotation(obj: object, key: str) -> str | None:
    found = dig(obj, "metadata", "annotations", key)
    return found if isinstance(found, str) else None


def condition(obj: object, kind: str) -> Object:
    """The condition of that type; empty where there is none."""
    return next((one for one in rows(obj, "status", "conditions") if one.get("type") == kind), {})


def controller(obj: object) -> Ref | None:
    """The owner that manages the object (ownerReferences with controller: true)."""
    for owner in rows(obj, "metadata", "ownerReferences"):
        if (
            owner.get("controller") is True
            and (kind := text(owner, "kind"))
            and (name := text(owner, "name"))
        ):
            return Ref(text(owner, "apiVersion"), kind, name)
    return None


def group_of(api_version: str) -> str:
    """The group without its version; "" for the core's."""
    return api_version.rpartition("/")[0]
