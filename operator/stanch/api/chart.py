"""What of the Helm chart is made from code: its values, their schema and table, and the kinds."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator
from typing import Any

import yaml
from pydantic import BaseModel

from stanch.api.generate import KINDS, crd_yaml
from stanch.api.values import Values

CHART = "charts/stanch"
_WIDTH = 108
_HEAD = "# Made from operator/stanch/api/values.py by `make fmt`; not edited by hand. See docs/install.md.\n"


def files() -> dict[str, str]:
    """By the file's place in the repository."""
    return {
        f"{CHART}/values.yaml": _HEAD + "\n".join(_lines(Values(), "")) + "\n",
        f"{CHART}/values.schema.json": json.dumps(schema(), indent=2) + "\n",
        **{f"{CHART}/files/crds/{kind.crd}.yaml": crd_yaml(kind, model) for kind, model in KINDS},
    }


def schema() -> dict[str, Any]:
    """JSON schema 2020-12. Every key is asked for: what has a default is in values.yaml."""
    found = Values.model_json_schema(by_alias=True, mode="serialization")
    made: dict[str, Any] = {"$schema": "https://json-schema.org/draft/2020-12/schema", **found}
    # Helm puts it there where the chart is one of another's.
    made["properties"] = {**found["properties"], "global": {"type": "object"}}
    return made


def table() -> str:
    """A row for each value, as Markdown."""
    rows = [f"| `{path}` | {_shown(value)} | {_cell(text)} |" for path, value, text in _leaves(Values(), "")]
    return "\n".join(["| value | default | what |", "| --- | --- | --- |", *rows])


def with_table(page: str) -> str:
    """The page with the table between its two marks. Raises ValueError where they are missing."""
    before, after = "<!-- values: made by `make fmt` -->\n", "<!-- end of values -->\n"
    head, found, rest = page.partition(before)
    _, ends, tail = rest.partition(after)
    if not found or not ends:
        raise ValueError(f"the page lacks the line {before.strip()} or {after.strip()}")
    return f"{head}{before}{table()}\n{after}{tail}"


def _fields(part: BaseModel) -> Iterator[tuple[str, Any, str]]:
    """Key, value and text of each field."""
    for name, info in type(part).model_fields.items():
        text = " ".join((info.description or "").split())
        yield info.alias or name, getattr(part, name), text


def _lines(part: BaseModel, indent: str) -> Iterator[str]:
    """As YAML, with each field's text before it."""
    for key, value, text in _fields(part):
        yield from textwrap.wrap(text, _WIDTH, initial_indent=f"{indent}# ", subsequent_indent=f"{indent}# ")
        if isinstance(value, BaseModel):
            yield f"{indent}{key}:"
            yield from _lines(value, indent + "  ")
        elif isinstance(value, dict) and value:
            yield f"{indent}{key}:"
            yield textwrap.indent(yaml.safe_dump(value, sort_keys=False).rstrip(), indent + "  ")
        else:
            yield f"{indent}{key}: {json.dumps(value)}"


def _leaves(part: BaseModel, prefix: str) -> Iterator[tuple[str, Any, str]]:
    for key, value, text in _fields(part):
        path = prefix + key
        if isinstance(value, BaseModel):
            if text:
                yield path, None, text
            yield from _leaves(value, f"{path}.")
        else:
            yield path, value, text


def _shown(value: Any) -> str:
    return "" if value is None else f"`{json.dumps(value)}`"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
