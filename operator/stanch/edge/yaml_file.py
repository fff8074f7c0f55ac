"""YAML files of people: checked against a pydantic model, refused with the line and what is allowed."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import TypeVar

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from stanch.edge.errors import FileError

Model = TypeVar("Model", bound=BaseModel)


def load(path: Path, model: type[Model]) -> Model:
    """The file as a model. Raises FileError for anything that is wrong with it, all of it at once."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise FileError(f"{path}: cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise FileError(f"{path}: is not UTF-8 text") from None
    try:
        # Only plain YAML values are made: the safe loader never builds objects.
        data = yaml.safe_load(text)
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f":{mark.line + 1}" if mark is not None else ""
        raise FileError(f"{path}{line}: is not YAML: {error.problem or error.context}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise FileError(f"{path}: is not YAML: {error}") from None
    double = _duplicate(root)
    if double is not None:
        raise FileError(f"{path}:{double.start_mark.line + 1}: {double.value} is given twice")
    if data is None:
        data = {}
    if not isinstance(data, dict):
        raise FileError(f"{path}:1: must be a mapping of names to values, not {_kind(data)}")
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise FileError(
            "\n".join(
                f"{path}:{_line(root, problem['loc'])}: {explain(problem, model)}"
                for problem in error.errors(include_url=False)
            )
        ) from None


def explain(problem: ErrorDetails, model: type[BaseModel]) -> str:
    """One pydantic error as a sentence: the place, what it was, what is allowed."""
    where = ".".join(str(part) for part in problem["loc"]) or "the file"
    if problem["type"] == "extra_forbidden":
        near = difflib.get_close_matches(str(problem["loc"][-1]), sorted(_names(model)), n=1)
        hint = f"; did you mean {near[0]}?" if near else f"; known are {', '.join(sorted(_names(model)))}"
        return f"{where} is not a known key{hint}"
    if problem["type"] == "missing":
        return f"{where} is missing"
    text = problem["msg"].removeprefix("Value error, ").replace("Input should be", "must be")
    allowed = _allowed(problem["loc"], model)
    value = problem["input"]
    shown = "a mapping" if isinstance(value, dict) else repr(value)
    return f"{where} {text}, not {shown}{f' ({allowed})' if allowed else ''}"


def _kind(data: object) -> str:
    return {"list": "a list", "str": "text", "int": "a number", "float": "a number"}.get(
        type(data).__name__, "a value"
    )


def _names(model: type[BaseModel]) -> set[str]:
    """Every key that the model or a model inside it knows, as people write it."""
    found = set()
    for name, info in model.model_fields.items():
        found.add(info.alias or name)
        for inner in _models(info.annotation):
            found |= _names(inner)
    return found


def _models(annotation: object) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [m for inner in getattr(annotation, "__args__", ()) for m in _models(inner)]


def _allowed(place: tuple[int | str, ...], model: type[BaseModel]) -> str | None:
    """What the model's field says of its range, where it says it."""
    names = {str(part) for part in place}
    for name, info in model.model_fields.items():
        if (info.alias or name) in names:
            extra = info.json_schema_extra
            if isinstance(extra, dict) and "allowed" in extra:
                return str(extra["allowed"])
            for inner in _models(info.annotation):
                return _allowed(place, inner)
    return None


def _line(node: yaml.Node | None, place: tuple[int | str, ...]) -> int:
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
