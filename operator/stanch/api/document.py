"""docs/kinds.md: every field of the kinds, from the same schemas as the definitions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from stanch.api.generate import KINDS, Schema, crd
from stanch.api.names import (
    ANNOTATION_APPROVE,
    ANNOTATION_INCIDENT,
    ANNOTATION_RESET_BREAKER,
    CATEGORY,
    STOP_CONFIG_MAP,
    STOP_KEY,
)

_INTRODUCTION = f"""# Kinds

Made from operator/stanch/api by `make fmt`. A cluster tells the same: `kubectl explain leakwatch.spec`.
Definitions: [crds/](../crds). Examples: [docs/examples](examples). All objects: `kubectl get {CATEGORY}`.

Annotations of people and of the operator:

| on | annotation | what for |
| --- | --- | --- |
| LeakIncident | `{ANNOTATION_APPROVE}: "true"` | lets it act, where the watch's approval is Manual |
| LeakWatch | `{ANNOTATION_RESET_BREAKER}: ANY-NEW-VALUE` | closes its breaker, for what is open too |
| Pod | `{ANNOTATION_INCIDENT}` | the incident that works on it; the operator's |

ConfigMap `{STOP_CONFIG_MAP}` in the operator's namespace with `data.{STOP_KEY}: "true"` stops all action in
the whole cluster.
"""


def kinds_md() -> str:
    parts = [_INTRODUCTION]
    for kind, model in KINDS:
        version = crd(kind, model)["spec"]["versions"][0]
        schema = version["schema"]["openAPIV3Schema"]
        parts.append(f"## {kind.kind} ({kind.short})\n\n{schema['description']}\n")
        for part in ("spec", "status"):
            rows = list(_rows(schema["properties"][part], part))
            parts.append(f"### {kind.kind}.{part}\n\n| field | what | allowed |\n| --- | --- | --- |")
            parts[-1] += (
                "".join(f"\n| `{path}` | {what} | {allowed} |" for path, what, allowed in rows) + "\n"
            )
        rules = list(_rules(schema, kind.kind))
        if rules:
            parts.append("Rules:\n\n" + "\n".join(f"- `{path}`: {message}" for path, message in rules) + "\n")
    return "\n".join(parts)


def _rows(node: Schema, path: str) -> Iterator[tuple[str, str, str]]:
    for name, inner in node.get("properties", {}).items():
        here = f"{path}.{name}"
        listed = inner.get("items", {})
        shown = f"{here}[]" if listed else here
        required = name in node.get("required", ())
        what = inner.get("description", "").replace("|", "\\|")
        yield shown.split(".", 1)[1], what, _allowed(inner, required)
        yield from _rows(listed or inner, shown)


def _allowed(node: Schema, required: bool) -> str:
    said: list[str] = ["required"] if required else []
    if "default" in node and node["default"] != {}:
        said.append(f"default {_plain(node['default'])}")
    inner = node.get("items", {})
    for one in (node, inner):
        if "enum" in one:
            said.append(", ".join(map(str, one["enum"])))
        if "minimum" in one or "maximum" in one:
            said.append(_range(one))
    if "maxItems" in node:
        said.append(f"at most {node['maxItems']}")
    if node.get("type") == "string" and "maxLength" in node and "enum" not in node:
        said.append(f"at most {node['maxLength']} characters")
    return "; ".join(said)


def _range(node: Schema) -> str:
    above = "above " if node.get("exclusiveMinimum") else ""
    least, most = node.get("minimum"), node.get("maximum")
    if most is None or most >= 2**31 - 1:
        return f"{above}{least:g} or more"
    return f"{above}{least:g} to {most:.10g}"


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _rules(node: Schema, path: str) -> Iterator[tuple[str, str]]:
    for rule in node.get("x-kubernetes-validations", ()):
        yield path + rule.get("fieldPath", ""), rule["message"]
    for name, inner in node.get("properties", {}).items():
        yield from _rules(inner.get("items", inner), f"{path}.{name}{'[]' if 'items' in inner else ''}")
