"""The image's locks are parts of the one lock: the same versions with the same hashes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.unit
TOP = Path(__file__).parents[2]


def _locked(name: str) -> dict[str, set[str]]:
    """Hashes by `package==version`."""
    found: dict[str, set[str]] = {}
    package = ""
    for line in (TOP / name).read_text().splitlines():
        if start := re.match(r"[a-z0-9-]+==\S+", line):
            package = start[0]
            found[package] = set()
        elif hashed := re.search(r"--hash=(\S+)", line):
            found[package].add(hashed[1])
    return found


@pytest.mark.parametrize("part", ["requirements-operator.lock", "requirements-build.lock"])
def test_a_part_has_what_the_whole_has(part: str) -> None:
    whole, some = _locked("requirements.lock"), _locked(part)
    assert some
    assert all(hashes and whole.get(package) == hashes for package, hashes in some.items()), (
        f"{part} is not a part of requirements.lock: make it anew as `make lock` does"
    )


def test_no_tool_of_the_developers_is_in_the_image() -> None:
    names = {package.partition("==")[0] for package in _locked("requirements-operator.lock")}
    assert {"kopf", "kubernetes", "cryptography", "prometheus-api-client"} <= names
    assert not names & {"pip", "uv", "ruff", "mypy", "pytest", "hatchling", "pandas", "numpy", "matplotlib"}


def test_the_label_says_the_projects_version() -> None:
    project = re.search(r'^version = "(.+)"$', (TOP / "pyproject.toml").read_text(), re.MULTILINE)
    label = re.search(r"^ARG VERSION=(.+)$", (TOP / "Dockerfile").read_text(), re.MULTILINE)
    assert project is not None
    assert label is not None
    assert project[1] == label[1]
