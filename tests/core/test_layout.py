"""Things about the tree itself that are easily broken and hard to see."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.unit

TOP = Path(__file__).parents[2]


def test_operator_is_no_package() -> None:
    """It would shadow the standard library's operator."""
    assert not (TOP / "operator" / "__init__.py").exists()


@pytest.mark.parametrize("module", ["stanch.core.turn", "stanch.core.confirm", "stanch.core.report"])
def test_the_core_needs_nothing_but_the_standard_library(module: str) -> None:
    unwanted = ("asyncio", "socket", "aiohttp", "pydantic")
    code = f"import sys, {module}; print([m for m in {unwanted} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
