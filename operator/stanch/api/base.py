"""What all models of the kinds share: camelCase, docstrings as descriptions, rules told once.

A rule is a CEL expression for the API server and the same thing in Python for whoever validates without one
(the command line, tests), with one sentence for both. A rule over a transition has no Python side: only the
server knows the old object.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, model_validator
from pydantic.alias_generators import to_camel


@dataclass(frozen=True, slots=True)
class Rule:
    """cel: over `self`. holds: the same over the model. path: the field that it complains about."""

    cel: str
    message: str
    holds: Callable[[Any], bool] | None = None
    path: str | None = None


class Model(BaseModel):
    """Unknown keys are ignored on reading: a newer version may have added them. kubectl and the API server
    refuse those that nobody knows."""

    model_config = ConfigDict(
        alias_generator=to_camel, validate_by_name=True, use_attribute_docstrings=True, frozen=True
    )
    rules: ClassVar[tuple[Rule, ...]] = ()

    @model_validator(mode="after")
    def _keep_rules(self) -> Any:
        for rule in self.rules:
            if rule.holds is not None and not rule.holds(self):
                raise ValueError(rule.message)
        return self


def list_map(*keys: str) -> dict[str, Any]:
    """A list whose entries are told apart by these keys: two field managers may each own some of them."""
    return {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": list(keys)}


ATOMIC: dict[str, Any] = {"x-kubernetes-list-type": "atomic"}
SET: dict[str, Any] = {"x-kubernetes-list-type": "set"}
