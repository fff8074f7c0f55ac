"""YAML files of people: checked against a pydantic model, refused with the line and what is allowed."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import yaml
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from stanch.edge.errors import FileError

Model = TypeVar("Model", bound=BaseModel)
Place = tuple[int | str, ...]

# The largest list of targets is a few megabytes; a device or a wrong file may have no end.
_MOST_BYTES = 16 << 20
# Values with every alias written out: a few lines of nested aliases can stand for more than any memory.
_MOST_VALUES = 1_000_000
_MOST_ERRORS = 20


def load(
    path: Path,
    model: type[Model],
    check: Callable[[Model], Iterator[tuple[Place, str]]] | None = None,
    list_in: str | None = None,
) -> Model:
    """The file as a model. Raises FileError for anything that is wrong with it, all of it at once.

    check: yields what the model itself cannot see, as (place, sentence). list_in: the file is a list, which
    is this field of the model.
    """
    root, data = _parsed(path, list_in)
    try:
        found = model.model_validate(data)
    except ValidationError as error:
        problems = [(p["loc"], explain(p, model)) for p in error.errors(include_url=False)]
    else:
        problems = list(check(found)) if check is not None else []
        if not problems:
            return found
    if list_in is not None:
        problems = [(place[1:], text.removeprefix(f"{list_in}.")) for place, text in problems]
    lines = [f"{path}:{_line(root, place)}: {text}" for place, text in problems[:_MOST_ERRORS]]
    if len(problems) > _MOST_ERRORS:
        lines.append(f"{path}: and {len(problems) - _MOST_ERRORS} more")
    raise FileError("\n".join(lines))


def _parsed(path: Path, list_in: str | None) -> tuple[yaml.Node | None, dict[object, object]]:
    """The file's nodes, which know their lines, and its values; a list under the name list_in. Raises
    FileError."""
    text = _text(path)
    # Only plain YAML values are made: the safe loader never builds objects.
    loader = yaml.SafeLoader(text)
    try:
        root = loader.get_single_node()
        if root is not None and _values(root, {}) > _MOST_VALUES:
            raise FileError(f"{path}: its aliases stand for more than {_MOST_VALUES} values")
        double = _duplicate(root)
        if double is not None:
            raise FileError(f"{path}:{double.start_mark.line + 1}: {double.value} is given twice")
        data = None if root is None else loader.construct_document(root)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f":{mark.line + 1}" if mark is not None else ""
        what = " ".join(part for part in (error.context, error.problem) if part)
        raise FileError(f"{path}{line}: is not YAML: {what}") from None
    except RecursionError:
        raise FileError(f"{path}: is nested too deeply, or contains itself") from None
    except (yaml.YAMLError, ValueError) as error:
        raise FileError(f"{path}: is not YAML: {error}") from None
    except (LookupError, AttributeError):
        # What the loader raises for `!!bool nonsense` and `!!timestamp nonsense`.
        raise FileError(f"{path}: is not YAML: a value is not what its tag says") from None
    finally:
        loader.dispose()
    if list_in is not None:
        if not isinstance(data, (list, type(None))):
            raise FileError(f"{path}:1: must be a list, not {_shown(data)}")
        return root, {list_in: data or []}
    if data is None:
        data = {}
    if not isinstance(data, dict):
        raise FileError(f"{path}:1: must be a mapping of names to values, not {_shown(data)}")
    return root, data


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            raw = file.read(_MOST_BYTES + 1)
        text = raw.decode("utf-8")
    except OSError as error:
        raise FileError(f"{path}: cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise FileError(f"{path}:{raw.count(10, 0, error.start) + 1}: is not UTF-8 text") from None
    if len(raw) > _MOST_BYTES:
        raise FileError(f"{path}: is larger than {_MOST_BYTES >> 20} MB")
    odd = yaml.reader.Reader.NON_PRINTABLE.search(text)
    if odd is not None:
        line = text.count("\n", 0, odd.start()) + 1
        raise FileError(f"{path}:{line}: has a control character in it (U+{ord(odd[0]):04X})")
    return text


def explain(problem: ErrorDetails, model: type[BaseModel]) -> str:
    """One pydantic error as a sentence: the place, what it was, what is allowed."""
    place = problem["loc"]
    where = ".".join(str(part) for part in place) or "the file"
    if problem["type"] in ("extra_forbidden", "invalid_key"):
        known = sorted(info.alias or name for name, info in _model_at(place[:-1], model).model_fields.items())
        near = difflib.get_close_matches(str(place[-1]), known, n=1)
        hint = f"; did you mean {near[0]}?" if near else f"; known are {', '.join(known)}"
        return f"{where} is not a known key{hint}"
    if problem["type"] == "missing":
        return f"{where} is missing"
    if problem["type"] == "too_short":
        return f"{where} must not be empty"
    if problem["type"] == "value_error":
        return f"{where}: {problem['msg'].removeprefix('Value error, ')}"
    text = "must be a mapping" if problem["type"] == "model_type" else problem["msg"]
    for theirs, ours in _WORDS.items():
        text = text.replace(theirs, ours)
    if isinstance(problem["input"], str):
        text = text.replace("number", "number without a unit")
    allowed = _allowed(place, model)
    return f"{where} {text}, not {_shown(problem['input'])}{f' ({allowed})' if allowed else ''}"


_WORDS = {
    "Input should be": "must be",
    "String should": "must",
    "valid integer": "whole number",
    "valid ": "",
    "greater than or equal to": "at least",
    "less than or equal to": "at most",
    "greater than": "above",
}


def _shown(data: object) -> str:
    """A value of the file, in a few words at most."""
    if isinstance(data, (dict, list)):
        return "a mapping" if isinstance(data, dict) else "a list"
    if data is None or isinstance(data, bool):
        return {None: "null", True: "true", False: "false"}[data]
    text = repr(data) if isinstance(data, str) else str(data)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _field(place: Place, model: type[BaseModel]) -> FieldInfo | None:
    """The last field on the way to that place; None where there is none."""
    found = None
    for part in place:
        if isinstance(part, str):
            found = next((i for name, i in model.model_fields.items() if (i.alias or name) == part), None)
            inner = [] if found is None else _models(found.annotation)
            model = inner[0] if inner else model
    return found


def _model_at(place: Place, model: type[BaseModel]) -> type[BaseModel]:
    info = _field(place, model)
    return model if info is None else next(iter(_models(info.annotation)), model)


def _models(annotation: object) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [m for inner in getattr(annotation, "__args__", ()) for m in _models(inner)]


def _allowed(place: Place, model: type[BaseModel]) -> str | None:
    """What the model's field says of its range, where it says it."""
    info = _field(place, model)
    extra = None if info is None else info.json_schema_extra
    return str(extra["allowed"]) if isinstance(extra, dict) and "allowed" in extra else None


def _values(node: yaml.Node, known: dict[int, int]) -> int:
    """How many values the node stands for, its aliases written out. Raises RecursionError for a cycle."""
    if id(node) not in known:
        inside: list[yaml.Node] = []
        if isinstance(node, yaml.MappingNode):
            inside = [one for pair in node.value for one in pair]
        elif isinstance(node, yaml.SequenceNode):
            inside = node.value
        known[id(node)] = 1 + sum(_values(one, known) for one in inside)
    return known[id(node)]


def _line(node: yaml.Node | None, place: Place) -> int:
    """The line of the value at that place, or of the nearest thing around it."""
    line = node.start_mark.line + 1 if node is not None else 1
    for part in place:
        if isinstance(node, yaml.MappingNode):
            pair = next((p for p in node.value if p[0].value == str(part)), None)
            if pair is None:
                return line
            line, node = pair[0].start_mark.line + 1, pair[1]
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
            node = node.value[part]
            line = node.start_mark.line + 1
        else:
            return line
    return line


def _duplicate(node: yaml.Node | None) -> yaml.Node | None:
    """The first key that its mapping has twice: YAML would silently take the last."""
    if isinstance(node, yaml.MappingNode):
        seen: set[object] = set()
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    return key
                seen.add(key.value)
            if (found := _duplicate(value)) is not None:
                return found
    elif isinstance(node, yaml.SequenceNode):
        for value in node.value:
            if (found := _duplicate(value)) is not None:
                return found
    return None
