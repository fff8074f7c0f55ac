"""The examples that must apply, and the wrong ones with the words that their refusal must have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from stanch.api.base import Model
from stanch.api.generate import KINDS

TOP = Path(__file__).parents[2]
EXAMPLES = sorted((TOP / "docs" / "examples").glob("*.yaml"))
WRONG = sorted((TOP / "tests" / "api" / "wrong").glob("*.yaml"))
_EXPECT = "# expect: "


def read(path: Path) -> dict[str, Any]:
    found = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert isinstance(found, dict)
    return found


def expected(path: Path) -> str:
    """The words that a wrong file's first line asks for."""
    first = path.read_text(encoding="utf-8").splitlines()[0]
    assert first.startswith(_EXPECT), f"{path} must begin with {_EXPECT}"
    return first.removeprefix(_EXPECT)


def model_of(found: dict[str, Any]) -> type[Model]:
    return next(model for kind, model in KINDS if kind.kind == found["kind"])
