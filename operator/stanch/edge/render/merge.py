"""A pod template laid over another: the upper one wins where it says something, and nothing else is lost.
Pure.

Objects are merged key by key, and a null takes a key away. The lists below are merged by a key of their
entries; every other list of the upper one takes the lower one's place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from stanch.edge.render.place import Object, Problem

# No pod template comes near it; recursion ends in good order.
_DEEPEST = 32
_HANDLERS = frozenset({"exec", "grpc", "httpGet", "tcpSocket"})


@dataclass(frozen=True, slots=True)
class _Shape:
    """How the keys of an object are merged. lists: by what tells their entries apart. probes: whose handler
    is one of several. whole: never half of one and half of another. inner: objects that have such keys
    themselves."""

    lists: Mapping[str, _List] = field(default_factory=dict)
    probes: frozenset[str] = frozenset()
    whole: frozenset[str] = frozenset()
    inner: Mapping[str, _Shape] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _List:
    """field: tells the entries apart. key: what it is of an entry; None: it has none. entry: of an entry that
    both have, to be merged in turn; None: the upper one stands."""

    field: str
    key: Callable[[Object], str | None]
    entry: _Shape | None = None


def _named(entry: Object) -> str | None:
    return _text(entry.get("name"))


def _mounted(entry: Object) -> str | None:
    return _text(entry.get("mountPath"))


def _port(entry: Object) -> str | None:
    """Its name, or what else tells it: a pod's only port needs no name."""
    if "name" in entry:
        return _named(entry)
    number = entry.get("containerPort")
    return f"{number}/{entry.get('protocol', 'TCP')}" if isinstance(number, int) else None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


_PLAIN = _Shape()
_CONTAINER = _Shape(
    lists={
        "env": _List("name", _named),
        "volumeMounts": _List("mountPath", _mounted),
        "ports": _List("name", _port),
    },
    probes=frozenset({"livenessProbe", "readinessProbe", "startupProbe"}),
    inner={"lifecycle": _Shape(whole=frozenset({"postStart", "preStop"}))},
)
_SPEC = _Shape(
    lists={
        "containers": _List("name", _named, _CONTAINER),
        "initContainers": _List("name", _named, _CONTAINER),
        "volumes": _List("name", _named),
    }
)
_TEMPLATE = _Shape(inner={"spec": _SPEC})


def merged(lower: Object, upper: Object, path: str) -> tuple[Object, tuple[Problem, ...]]:
    """Neither is changed. path: of the upper one, for problems. With a problem the result is of no use."""
    problems: list[Problem] = []
    if deeper_than(_DEEPEST, upper):
        return lower, (Problem(path, f"is nested deeper than {_DEEPEST} levels"),)
    return _objects(lower, upper, _TEMPLATE, path, problems), tuple(problems)


def deeper_than(levels: int, value: object) -> bool:
    """Whether lists and objects lie so deep within each other; found out without recursion."""
    level = [value]
    for _ in range(levels):
        level = [
            inner
            for one in level
            for inner in (one.values() if isinstance(one, dict) else one if isinstance(one, list) else ())
        ]
        if not level:
            return False
    return True


def _objects(lower: Object, upper: Object, shape: _Shape, path: str, problems: list[Problem]) -> Object:
    found = dict(lower)
    for key, value in upper.items():
        here = f"{path}.{key}"
        below = found.get(key)
        if value is None:
            found.pop(key, None)
        elif key in shape.lists:
            found[key] = _lists(shape.lists[key], below or [], value, here, problems)
        elif isinstance(value, dict) and (below is None or isinstance(below, dict)):
            under = {} if below is None or key in shape.whole else below
            if key in shape.probes:
                under = _without_handler(under, value)
            found[key] = _objects(under, value, shape.inner.get(key, _PLAIN), here, problems)
        elif isinstance(value, dict) or isinstance(below, dict):
            problems.append(Problem(here, f"is {_kind(value)}, and must be {_kind(below)}"))
        else:
            found[key] = _copied(value)
    return found


def _without_handler(lower: Object, upper: Object) -> Object:
    """A probe without the handler that another takes the place of."""
    gone = _HANDLERS - set(upper) if _HANDLERS & set(upper) else ()
    return {key: value for key, value in lower.items() if key not in gone}


def _lists(rule: _List, lower: list[Any], upper: object, path: str, problems: list[Problem]) -> list[Any]:
    if not isinstance(upper, list):
        problems.append(Problem(path, f"is {_kind(upper)}, and must be a list of objects"))
        return lower
    found = {str(rule.key(entry)): entry for entry in lower}
    seen: set[str] = set()
    for index, entry in enumerate(upper):
        here = f"{path}[{index}]"
        if not isinstance(entry, dict):
            problems.append(Problem(here, f"is {_kind(entry)}, and must be an object"))
            continue
        key = rule.key(entry)
        if key is None:
            problems.append(Problem(f"{here}.{rule.field}", "is missing: entries are merged by it"))
            continue
        if key in seen:
            problems.append(Problem(f"{here}.{rule.field}", f"is {key!r}, as that of an entry before it"))
            continue
        seen.add(key)
        below = {} if rule.entry is None else found.get(key, {})
        found[key] = _objects(below, entry, rule.entry or _PLAIN, here, problems)
    return list(found.values())


def _copied(value: Any) -> Any:
    """As it is, but for nulls within, which say nothing."""
    if isinstance(value, dict):
        return {key: _copied(inner) for key, inner in value.items() if inner is not None}
    if isinstance(value, list):
        return [_copied(inner) for inner in value]
    return value


def _kind(value: object) -> str:
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "a list"
    return "a text" if isinstance(value, str) else f"{value!r}"[:40]
