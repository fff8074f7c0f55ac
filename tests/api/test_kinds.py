"""Models, definitions and examples agree; what the definitions must have to be usable and bounded."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from stanch.api.generate import KINDS, crd, files
from stanch.api.names import Kind
from stanch.core.policy import Policy
from tests.api.kinds_files import EXAMPLES, TOP, WRONG, expected, model_of, read

pytestmark = pytest.mark.unit

Schema = dict[str, Any]


def schema_of(kind: str) -> Schema:
    for one, model in KINDS:
        if one.kind == kind:
            found: Schema = crd(one, model)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
            return found
    raise KeyError(kind)


def nodes(node: Schema, path: str) -> Iterator[tuple[str, Schema]]:
    yield path, node
    for name, inner in node.get("properties", {}).items():
        if path or name != "metadata":
            yield from nodes(inner, f"{path}.{name}")
    for key in ("items", "additionalProperties"):
        if key in node:
            yield from nodes(node[key], f"{path}[]")


ALL = [(kind.kind + path, node) for kind, _ in KINDS for path, node in nodes(schema_of(kind.kind), "")]


def known(value: Any, node: Schema, path: str) -> Iterator[str]:
    """Keys of the value that the schema does not have."""
    if isinstance(value, dict) and "properties" in node:
        for key, inner in value.items():
            if key in node["properties"]:
                yield from known(inner, node["properties"][key], f"{path}.{key}")
            else:
                yield f"{path}.{key}"
    elif isinstance(value, list):
        for inner in value:
            yield from known(inner, node["items"], f"{path}[]")


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_what_the_models_take(path: Path) -> None:
    found = read(path)
    model_of(found).model_validate(found)
    schema = schema_of(found["kind"])
    assert list(known(found["spec"], schema["properties"]["spec"], "spec")) == []


@pytest.mark.parametrize("path", WRONG, ids=lambda path: path.stem)
def test_a_wrong_one_is_refused_by_the_models_or_has_an_unknown_key(path: Path) -> None:
    """Only the server sees a key that nobody knows, and an entry of a list map that is there twice."""
    found = read(path)
    model, words = model_of(found), expected(path)
    if "unknown field" in words:
        unknown = list(known(found["spec"], schema_of(found["kind"])["properties"]["spec"], "spec"))
        assert words == f'unknown field "{unknown[0]}"'
        return
    if path.stem.endswith("role-twice"):
        return
    with pytest.raises(ValidationError) as error:
        model.model_validate(found)
    places = [
        re.sub(r"\.(\d+)", r"[\1]", ".".join(str(part) for part in one["loc"]))
        for one in error.value.errors()
    ]
    assert words in str(error.value) or any(place == words for place in places), (words, places)


def test_every_rule_of_an_object_has_a_wrong_example() -> None:
    rules = {rule["message"] for _, node in ALL for rule in node.get("x-kubernetes-validations", ())}
    of_a_change = {m for m in rules if "cannot be changed" in m}
    assert rules - of_a_change <= {expected(path) for path in WRONG}
    assert len(of_a_change) == 1


@pytest.mark.parametrize(("path", "node"), ALL, ids=[path for path, _ in ALL])
def test_a_field_is_described_and_bounded(path: str, node: Schema) -> None:
    if path.endswith(("apiVersion", "kind", "metadata")) and path.count(".") == 1:
        return
    of_a_list = path.endswith("[]")
    assert of_a_list or node.get("description"), "no description"
    assert "$ref" not in node
    assert "title" not in node
    assert "null" not in str(node.get("type"))
    kind = node.get("type")
    if kind == "array":
        assert "maxItems" in node
        assert node.get("x-kubernetes-list-type") in ("map", "set", "atomic")
        for key in node.get("x-kubernetes-list-map-keys", ()):
            assert key in node["items"]["required"]
    elif kind == "string":
        assert "maxLength" in node or "enum" in node or node.get("format") == "date-time"
    elif kind == "integer":
        assert node["format"] in ("int32", "int64")
        assert "minimum" in node
    elif kind == "number":
        assert node["format"] == "double"
        assert {"minimum", "maximum"} <= set(node)
    elif kind == "object":
        assert "properties" in node or "maxProperties" in node
        assert not ("properties" in node and "additionalProperties" in node)
    else:
        assert kind == "boolean" or node.get("x-kubernetes-int-or-string")
    # YAML 1.1 reads these as booleans: nobody could write them without quotes.
    if not path.endswith("conditions[].status"):
        assert not {str(word).lower() for word in node.get("enum", ())} & {
            "on",
            "off",
            "yes",
            "no",
            "true",
            "false",
        }


@pytest.mark.parametrize("kind", [kind for kind, _ in KINDS], ids=lambda kind: kind.kind)
def test_a_definition_has_what_people_need(kind: Kind) -> None:
    made = yaml.safe_load(files()[f"crds/{kind.crd}.yaml"])
    names = made["spec"]["names"]
    assert (names["shortNames"], names["categories"]) == ([kind.short], ["stanch"])
    (version,) = made["spec"]["versions"]
    assert version["subresources"] == {"status": {}}
    assert {column["name"] for column in version["additionalPrinterColumns"]} >= {"Age"}
    status = version["schema"]["openAPIV3Schema"]["properties"]["status"]
    assert "default" not in str(status.get("properties"))
    assert status["properties"]["conditions"]["x-kubernetes-list-map-keys"] == ["type"]


def test_every_threshold_that_a_watch_may_set_is_there_with_its_bounds() -> None:
    spec = schema_of("LeakWatch")["properties"]["spec"]["properties"]
    thresholds = spec["signatures"]["properties"]
    assert len(thresholds) == sum("why" in f.metadata for f in Policy.__dataclass_fields__.values()) - 2
    assert thresholds["heldIdleSeconds"]["maximum"] == 86400
    assert "Default: 60." in thresholds["heldIdleSeconds"]["description"]
    assert "default" not in thresholds["heldIdleSeconds"]


def test_the_short_names_and_plurals_differ() -> None:
    words = [word for kind, _ in KINDS for word in (kind.plural, kind.singular, kind.short)]
    assert len(words) == len(set(words))


def test_examples_and_wrong_ones_are_there() -> None:
    assert len(EXAMPLES) >= 5
    assert len(WRONG) >= 20
    assert (TOP / "docs" / "kinds.md").exists()
