"""Manifests as people write them: several YAML documents in one text, changed in place. Pure.

The documents that nothing is done to stay byte for byte. In those that change, only what changes is written
(yaml_splice.py); where their text does not allow that, the document is written anew, without its comments,
and that is said.

Not by ruamel.yaml: it keeps comments too, but writes the indentation and the quotes of whole documents
anew, and would be one more library. PyYAML says where each value stands, which is enough.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import yaml

from stanch.edge.json_patch import same
from stanch.edge.pod_places import name_at, places
from stanch.edge.render.kit import Injected
from stanch.edge.yaml_splice import SpliceError, spliced
from stanch.edge.yaml_values import Loader, block

_BOUNDARY = re.compile(r"(?m)^---(?=\s|$)")
# JSON can write it, UTF-8 cannot, and neither can an API server.
_HALF = re.compile("[\ud800-\udfff]")
# Aliases may stand for so many values in all.
_MOST_VALUES = 200_000
_MOST_PROBLEM = 300

Doing = Callable[[dict[str, Any]], Injected]


class ManifestError(ValueError):
    """A document cannot be read or changed; the text says which, in what line, and why."""


@dataclass(frozen=True, slots=True)
class Done:
    """text: all of it. changed: what has been changed, by kind and name. notes: sentences for people.
    engines: how many templates have an engine."""

    text: str
    changed: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    engines: int = 0


def changed(text: str, doing: Doing) -> Done:
    """Do it to every pod template of the text. Raises ManifestError, naming every template that it cannot be
    done to; nothing is half done then."""
    parts: list[str] = []
    names: list[str] = []
    notes: list[str] = []
    wrong: list[str] = []
    line, engines = 1, 0
    for number, part in enumerate(_documents(text), 1):
        where = f"document {number}, line {line}"
        try:
            one = _document(part, doing, where)
        except ManifestError as error:
            wrong.append(str(error))
            one = Done(part)
        parts.append(one.text)
        names += one.changed
        notes += one.notes
        engines += one.engines
        line += part.count("\n")
    if wrong:
        raise ManifestError("\n".join(wrong))
    return Done("".join(parts), tuple(names), tuple(notes), engines)


def _documents(text: str) -> list[str]:
    """The text cut before each `---`; nothing is lost."""
    starts = [match.start() for match in _BOUNDARY.finditer(text)]
    cuts = [0, *(start for start in starts if start), len(text)]
    return [text[a:b] for a, b in pairwise(cuts)]


def _document(part: str, doing: Doing, where: str) -> Done:
    whole = _value(part, where)
    made, engines = whole, 0
    names: list[str] = []
    notes: list[str] = []
    wrong: list[str] = []
    for place in places(whole):
        name = name_at(whole, place)
        done = doing(place.template(made))
        if done.changed:
            made = place.put(made, done.template)
            names.append(f"{name}, container {done.container}")
        engines += bool(done.container)
        # One without an engine is somebody else's: a router, a database.
        head = f"{where}: {name}" if done.container or done.failed else f"{where}: {name} is left as it is"
        (wrong if done.failed else notes).extend(f"{head}: {one}" for one in done.problems)
    if wrong:
        raise ManifestError("\n".join(wrong))
    if same(made, whole):
        return Done(part, (), tuple(notes), engines)
    text, kept = rewritten(part, whole, made)
    if _HALF.search(text):
        raise ManifestError(f"{where}: a text in it has half a character (\\ud800 or the like): no UTF-8")
    if not kept:
        notes.append(
            f"{where}: its text does not allow a change in place: written anew, without its comments"
        )
    return Done(text, tuple(names), tuple(notes), engines)


def _value(part: str, where: str) -> Any:
    try:
        root = yaml.compose(part, Loader=Loader)
        if root is None:
            return None
        if _values(root, {}) > _MOST_VALUES:
            raise ManifestError(f"{where}: its aliases stand for more than {_MOST_VALUES} values")
        return yaml.load(part, Loader=Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = int(where.rpartition(" ")[2]) + (0 if mark is None else mark.line)
        what = " ".join(one for one in (error.context, error.problem) if one)
        raise ManifestError(
            f"{where.rpartition(' ')[0]} {line}: is not YAML: {what[:_MOST_PROBLEM]}"
        ) from None
    except (yaml.YAMLError, ValueError, LookupError, AttributeError) as error:
        # Control characters, and what the loader raises for a value that is not what its tag says.
        said = " ".join(str(error).split())[:_MOST_PROBLEM]
        raise ManifestError(f"{where}: is not YAML: {said}") from None
    except RecursionError:
        raise ManifestError(f"{where}: is nested too deeply, or contains itself") from None


def _values(node: yaml.Node, known: dict[int, int]) -> int:
    """How many values it stands for, its aliases written out. Raises RecursionError for a cycle."""
    if id(node) not in known:
        inside: list[yaml.Node] = []
        if isinstance(node, yaml.MappingNode):
            inside = [one for pair in node.value for one in pair]
        elif isinstance(node, yaml.SequenceNode):
            inside = node.value
        known[id(node)] = 1 + sum(_values(one, known) for one in inside)
    return known[id(node)]


def rewritten(part: str, old: Any, new: Any) -> tuple[str, bool]:
    """The document with another value, and whether in its own text."""
    stripped = part.lstrip()
    if stripped.startswith("{"):
        lines = stripped.splitlines()
        indent = len(lines[1]) - len(lines[1].lstrip()) if len(lines) > 1 else None
        head = part[: len(part) - len(stripped)]
        return head + json.dumps(new, indent=indent or None, ensure_ascii=False) + "\n", True
    try:
        text = spliced(part, old, new)
        if same(yaml.load(text, Loader=Loader), new):
            return text, True
    except (SpliceError, yaml.YAMLError):
        pass
    head = "---\n" if part.startswith("---") else ""
    return head + block(new), False
