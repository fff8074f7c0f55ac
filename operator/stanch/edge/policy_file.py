"""The policy as people write it: YAML in camelCase, made from core.policy.Policy and nothing else."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, create_model

from stanch.core.policy import Policy
from stanch.edge.yaml_file import load


def camel(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join(word.capitalize() for word in rest)


def settings() -> list[dataclasses.Field[Any]]:
    """The fields that people may set."""
    return [f for f in dataclasses.fields(Policy) if "why" in f.metadata]


def allowed(metadata: Mapping[str, Any]) -> str:
    """A range as a sentence: "allowed: 1 to 86400"."""
    least = "above " if metadata["above"] else ""
    return f"allowed: {least}{metadata['least']:g} to {metadata['most']:,g}".replace(",", "")


def _field(setting: dataclasses.Field[Any]) -> tuple[Any, Any]:
    meta = setting.metadata
    whole = setting.type == "int"
    kind: Any = int if whole else float
    if setting.default is None:
        kind = kind | None
    return kind, Field(
        default=setting.default,
        alias=camel(setting.name),
        ge=None if meta["above"] else meta["least"],
        gt=meta["least"] if meta["above"] else None,
        le=meta["most"],
        allow_inf_nan=None if whole else False,
        # Text such as "60s" and YAML's booleans are no numbers here: units belong in the name of the key.
        strict=True,
        description=meta["why"],
        json_schema_extra={"allowed": allowed(meta)},
    )


_FIELDS: dict[str, Any] = {setting.name: _field(setting) for setting in settings()}

PolicyFile: type[BaseModel] = create_model("PolicyFile", __config__=ConfigDict(extra="forbid"), **_FIELDS)


def load_policy(path: Path) -> Policy:
    """The policy of a file; what it does not name has its default. Raises FileError."""
    return Policy(**load(path, PolicyFile).model_dump())


def as_yaml(policy: Policy) -> str:
    """The whole policy as a file, with every value explained."""
    lines = ["# Thresholds of the detector. Every key may be left out; these are the defaults."]
    for setting in settings():
        value = getattr(policy, setting.name)
        lines += [
            "",
            f"# {setting.metadata['why']}",
            f"# {allowed(setting.metadata)}",
            f"{camel(setting.name)}: {'null' if value is None else f'{value:g}'}",
        ]
    return "\n".join(lines) + "\n"
