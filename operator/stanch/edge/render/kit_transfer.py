"""The fixed connector in the value of --kv-transfer-config. Pure.

A child of a MultiConnector stands in `kv_connector_extra_config.connectors`, with the same keys as the whole
(vllm/distributed/kv_transfer/kv_connector/v1/multi_connector.py, 0.29.0).
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from stanch.edge.render.kit_shell import ShellError, literal, words_of
from stanch.edge.render.kit_start import Object, Start, words_in
from stanch_connector.contract import EXTRA_PATCH
from stanch_connector.install.names import CONNECTOR, CONNECTOR_MODULE

# Ours stands on the pull connector, which both of these are (the second by name from 0.24 on).
_STOCK = ("NixlConnector", "NixlPullConnector")
_EXTRA = "kv_connector_extra_config"
_DEEPEST = 8
_FLAG = "--kv-transfer-config"


@dataclass(frozen=True, slots=True)
class Place:
    """One value of the flag. word: index in the container's command and args, one list. start, end: of the
    value in that word. raw: the value as it stands there; quoted: with a shell's quotes, in a script."""

    word: int
    start: int
    end: int
    raw: str
    quoted: bool

    @property
    def value(self) -> str | None:
        """None where the shell puts something into it."""
        return literal(self.raw) if self.quoted else self.raw


def places(container: Object, start: Start) -> list[Place]:
    """Every value of the flag; one that is given part by part (--kv-transfer-config.key) is a place of the
    part, whose value is no whole."""
    found: list[Place] = []
    command, args = words_in(container, "command"), words_in(container, "args")
    words = [*command, *args]
    if start.script is None:
        _of_list(words, found)
    else:
        index = start.script + (len(command) if start.key == "args" else 0)
        _of_script(words[index], index, found)
    return found


def _of_list(words: list[str], found: list[Place]) -> None:
    for at, word in enumerate(words):
        name, equals, value = word.partition("=")
        if not _is_flag(name):
            continue
        if equals:
            found.append(Place(at, len(name) + 1, len(word), value, False))
        elif at + 1 < len(words):
            found.append(Place(at + 1, 0, len(words[at + 1]), words[at + 1], False))


def _of_script(script: str, index: int, found: list[Place]) -> None:
    try:
        words = words_of(script)
    except ShellError:
        return
    for at, word in enumerate(words):
        raw = script[word.start : word.end]
        name, equals, value = raw.partition("=")
        if not _is_flag(name):
            continue
        if equals:
            found.append(Place(index, word.end - len(value), word.end, value, True))
        elif at + 1 < len(words):
            behind = words[at + 1]
            found.append(Place(index, behind.start, behind.end, script[behind.start : behind.end], True))


def _is_flag(name: str) -> bool:
    return name.partition(".")[0].replace("_", "-") == _FLAG


def change(container: Object, start: Start, to: Callable[[Place], str]) -> None:
    """Put, for each place, another text in its place."""
    command = words_in(container, "command")
    for place in reversed(places(container, start)):
        new = to(place)
        if new == place.raw:
            continue
        inside = place.word - len(command)
        key, at = ("args", inside) if inside >= 0 else ("command", place.word)
        words = list(container[key])
        words[at] = words[at][: place.start] + new + words[at][place.end :]
        container[key] = words


def patched_at(place: Place, mode: str) -> str | None:
    """As it stands there afterwards; None as `patched` says it."""
    new = None if place.value is None else patched(place.value, mode)
    return None if new is None else shlex.quote(new) if place.quoted else new


def stock_at(place: Place) -> str:
    if place.value is None or not has_ours(place.value):
        return place.raw
    new = stock(place.value)
    return shlex.quote(new) if place.quoted else new


def patched(value: str, mode: str) -> str | None:
    """The value with Stanch's connector in place of the stock NIXL one; None where it is not understood, or
    there is no such connector in it."""
    whole = _parsed(value)
    found = False
    for one in _connectors(whole):
        if one.get("kv_connector") in _STOCK and "kv_connector_module_path" not in one:
            extra = one.get(_EXTRA)
            if extra is not None and not isinstance(extra, dict):
                return None
            one["kv_connector"] = CONNECTOR
            one["kv_connector_module_path"] = CONNECTOR_MODULE
            one[_EXTRA] = {**(extra or {}), EXTRA_PATCH: mode}
            found = True
    return _written(whole) if found else None


def has_ours(value: str) -> bool:
    return any(one.get("kv_connector") == CONNECTOR for one in _connectors(_parsed(value)))


def stock(value: str) -> str:
    """The value with the stock connector in place of Stanch's; as it was where it is not understood."""
    whole = _parsed(value)
    if not has_ours(value):
        return value
    for one in _connectors(whole):
        if one.get("kv_connector") == CONNECTOR:
            one["kv_connector"] = _STOCK[0]
            one.pop("kv_connector_module_path", None)
            extra = one.get(_EXTRA)
            if isinstance(extra, dict):
                extra.pop(EXTRA_PATCH, None)
                if not extra:
                    del one[_EXTRA]
    return _written(whole)


def _parsed(value: str) -> Any:
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return None


def _written(whole: Any) -> str:
    return json.dumps(whole, ensure_ascii=False)


def _connectors(whole: object, depth: int = 0) -> Iterator[dict[str, Any]]:
    if not isinstance(whole, dict) or depth > _DEEPEST:
        return
    yield whole
    extra = whole.get(_EXTRA)
    children = extra.get("connectors") if isinstance(extra, dict) else None
    for child in children if isinstance(children, list) else ():
        yield from _connectors(child, depth + 1)
