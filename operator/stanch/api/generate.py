"""From the models to CustomResourceDefinitions: structural schemas, as the API server wants them.

What pydantic's JSON schema lacks or has too much of: references are written out, titles dropped, null becomes
nullable, a constant an enum of one, integers get a format, exclusive bounds the boolean form of OpenAPI 3.0,
and a default of a status or of nothing is left out. Rules become x-kubernetes-validations.
"""

from __future__ import annotations

from typing import Any

import yaml

from stanch.api.base import Model
from stanch.api.names import CATEGORY, DISAGG_DEPLOYMENT, GROUP, LEAK_INCIDENT, LEAK_WATCH, VERSION, Kind
from stanch.api.v1alpha1 import DisaggDeployment, LeakIncident, LeakWatch

Schema = dict[str, Any]

KINDS: tuple[tuple[Kind, type[Model]], ...] = (
    (LEAK_WATCH, LeakWatch),
    (DISAGG_DEPLOYMENT, DisaggDeployment),
    (LEAK_INCIDENT, LeakIncident),
)

# name, type, path, priority (1: only with -o wide)
_COLUMNS: dict[str, tuple[tuple[str, str, str, int], ...]] = {
    LEAK_WATCH.kind: (
        ("Mode", "string", ".spec.mode", 0),
        ("Ready", "string", '.status.conditions[?(@.type=="Ready")].status', 0),
        ("Leaking", "string", '.status.conditions[?(@.type=="Leaking")].status', 0),
        ("Suspects", "integer", ".status.suspectCount", 0),
        ("Breaker", "date", ".status.breaker.tripped", 1),
        ("Reason", "string", '.status.conditions[?(@.type=="Ready")].reason', 1),
        ("Age", "date", ".metadata.creationTimestamp", 0),
    ),
    DISAGG_DEPLOYMENT.kind: (
        ("Model", "string", ".spec.model.uri", 0),
        ("Prefill", "integer", '.status.roles[?(@.name=="prefill")].ready', 0),
        ("Decode", "integer", '.status.roles[?(@.name=="decode")].ready', 0),
        ("Ready", "string", '.status.conditions[?(@.type=="Ready")].status', 0),
        ("Mode", "string", ".spec.watch.mode", 1),
        ("Reason", "string", '.status.conditions[?(@.type=="Ready")].reason', 1),
        ("Age", "date", ".metadata.creationTimestamp", 0),
    ),
    LEAK_INCIDENT.kind: (
        ("Pod", "string", ".spec.podRef.name", 0),
        ("Signature", "string", ".status.evidence.signature", 0),
        ("Phase", "string", ".status.phase", 0),
        ("Waits", "string", ".status.wait", 0),
        ("Stuck", "integer", ".status.stuckCount", 0),
        ("Trigger", "string", ".spec.trigger.type", 1),
        ("Watch", "string", ".status.watch", 1),
        ("Detail", "string", ".status.detail", 1),
        ("Age", "date", ".metadata.creationTimestamp", 0),
    ),
}

_KEPT = (
    "type", "description", "format", "enum", "pattern", "minimum", "maximum", "minLength", "maxLength",
    "minItems", "maxItems", "maxProperties", "required", "default", "x-kubernetes-int-or-string",
    "x-kubernetes-list-type", "x-kubernetes-list-map-keys", "x-kubernetes-preserve-unknown-fields",
)  # fmt: skip


def crd(kind: Kind, model: type[Model]) -> dict[str, Any]:
    """The whole definition of one kind, as data."""
    raw = model.model_json_schema(by_alias=True, mode="serialization")
    schema = _schema(raw, raw.get("$defs", {}), _classes(model))
    properties = schema["properties"]
    # The server has its own for these.
    for key in ("apiVersion", "kind"):
        properties[key] = {"type": "string"}
    properties["metadata"] = {"type": "object"}
    properties["status"] = _without_defaults(properties["status"])
    schema["required"] = ["spec"]
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": kind.crd},
        "spec": {
            "group": GROUP,
            "names": {
                "kind": kind.kind,
                "listKind": f"{kind.kind}List",
                "plural": kind.plural,
                "singular": kind.singular,
                "shortNames": [kind.short],
                "categories": [CATEGORY],
            },
            "scope": "Namespaced",
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "subresources": {"status": {}},
                    "additionalPrinterColumns": [
                        {"name": name, "type": of, "jsonPath": path, **({"priority": 1} if wide else {})}
                        for name, of, path, wide in _COLUMNS[kind.kind]
                    ],
                    "schema": {"openAPIV3Schema": schema},
                }
            ],
        },
    }


def crd_yaml(kind: Kind, model: type[Model]) -> str:
    """The definition as a file."""
    head = "# Made from operator/stanch/api by `make fmt`; not edited by hand.\n"
    return head + yaml.dump(crd(kind, model), Dumper=_Plain, sort_keys=False, width=110, allow_unicode=True)


class _Plain(yaml.SafeDumper):
    """Without anchors: each part of a definition is read where it stands."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def files() -> dict[str, str]:
    """All definitions by the file's place in the repository."""
    return {f"crds/{kind.crd}.yaml": crd_yaml(kind, model) for kind, model in KINDS}


def _classes(model: type[Model]) -> dict[str, type[Model]]:
    """The models inside a model, by the name that pydantic's schema gives them; itself too."""
    found: dict[str, type[Model]] = {}

    def look(one: Any) -> None:
        if isinstance(one, type) and issubclass(one, Model) and one.__name__ not in found:
            found[one.__name__] = one
            for info in one.model_fields.values():
                look(info.annotation)
        for inner in getattr(one, "__args__", ()):
            look(inner)

    look(model)
    return found


def _schema(node: Schema, defs: dict[str, Schema], classes: dict[str, type[Model]]) -> Schema:
    """One node with everything below it."""
    node = _written_out(node, defs)
    kept: Schema = {key: node[key] for key in _KEPT if key in node}
    if node.get("nullable"):
        kept["nullable"] = True
    if "const" in node:
        kept["enum"] = [node["const"]]
    if node.get("type") == "integer":
        kept["format"] = "int64" if node.get("maximum", 2**63) > 2**31 - 1 else "int32"
    if node.get("type") == "number":
        kept["format"] = "double"
    for theirs, ours in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        if theirs in node:
            kept[ours], kept[theirs] = node[theirs], True
    if kept.get("x-kubernetes-int-or-string"):
        kept.pop("type", None)
        kept["anyOf"] = [{"type": "integer"}, {"type": "string"}]
    if "description" in kept:
        kept["description"] = " ".join(kept["description"].split())
    if "items" in node:
        kept["items"] = _schema(node["items"], defs, classes)
    if "properties" in node:
        kept["properties"] = {key: _schema(value, defs, classes) for key, value in node["properties"].items()}
        rules = _rules(classes.get(node.get("title", "")))
        if rules:
            kept["x-kubernetes-validations"] = rules
    elif isinstance(node.get("additionalProperties"), dict):
        kept["additionalProperties"] = _schema(node["additionalProperties"], defs, classes)
    _default(kept)
    return kept


def _written_out(node: Schema, defs: dict[str, Schema]) -> Schema:
    """The node without references and without null among its types. What stands beside a reference wins."""
    if "$ref" in node:
        target = defs[node["$ref"].rsplit("/", 1)[-1]]
        node = {**_written_out(target, defs), **{key: value for key, value in node.items() if key != "$ref"}}
    if "anyOf" in node and not node.get("x-kubernetes-int-or-string"):
        others = [one for one in node["anyOf"] if one.get("type") != "null"]
        assert len(others) == 1, f"a union has no structural schema: {node}"
        beside = {key: value for key, value in node.items() if key != "anyOf"}
        node = {**_written_out(others[0], defs), **beside}
        # An absent key says the same, and is what the server stores.
        node.pop("default", None)
    return node


def _rules(model: type[Model] | None) -> list[dict[str, str]]:
    if model is None:
        return []
    return [
        {
            "rule": rule.cel,
            "message": rule.message,
            **({} if rule.path is None else {"fieldPath": rule.path}),
        }
        for rule in model.rules
    ]


def _default(node: Schema) -> None:
    """An object's default is empty, so that those of its fields apply; a default of nothing says nothing."""
    if "default" not in node:
        return
    if node.get("type") == "object" and "properties" in node:
        node["default"] = {}
    elif node["default"] in (None, "", [], {}):
        del node["default"]


def _without_defaults(node: Schema) -> Schema:
    """Of a status: what was not written is not known."""
    found = {key: value for key, value in node.items() if key != "default"}
    if "items" in found:
        found["items"] = _without_defaults(found["items"])
    if "properties" in found:
        found["properties"] = {key: _without_defaults(value) for key, value in found["properties"].items()}
    return found
