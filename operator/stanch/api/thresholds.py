"""The detector's thresholds as fields of a watch's spec, made from core.policy.Policy and nothing else.

They have no default in the schema: a default would be stored with every watch, and a better one in a later
version would reach none of them.
"""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any

from pydantic import Field

from stanch.core.policy import Policy

# The watch says these elsewhere.
_ELSEWHERE = ("interval_seconds", "canary_seconds")


def thresholds() -> list[dataclasses.Field[Any]]:
    return [f for f in dataclasses.fields(Policy) if "why" in f.metadata and f.name not in _ELSEWHERE]


def threshold_fields() -> dict[str, Any]:
    return {setting.name: _field(setting) for setting in thresholds()}


def _field(setting: dataclasses.Field[Any]) -> Any:
    meta = setting.metadata
    whole = setting.type == "int"
    default = "" if setting.default is None else f" Default: {setting.default:g}."
    kind: Any = int if whole else float
    bounds = Field(
        ge=None if meta["above"] else meta["least"],
        gt=meta["least"] if meta["above"] else None,
        le=meta["most"],
    )
    return (
        Annotated[kind, bounds] | None,
        Field(default=None, description=_as_spec(meta["why"]) + default),
    )


def _as_spec(why: str) -> str:
    """The reason as the policy file has it; there, `null` is what leaving the key out is here."""
    return why.replace("null: ", "Left out: ")
