"""The oldest supported API server takes CRDs with rules, and refuses what they forbid, in their own words."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.bed.cluster import wait_for
from tests.bed.oldest import OldestApi

pytestmark = pytest.mark.cluster

RULE = {"rule": "self.size == oldSelf.size", "message": "size cannot change: make another one"}
SCHEMA = {
    "type": "object",
    "properties": {
        "spec": {
            "type": "object",
            "properties": {"size": {"type": "integer", "minimum": 1}},
            "x-kubernetes-validations": [RULE],
        }
    },
}
KIND: dict[str, Any] = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "cups.bed.stanch.dev"},
    "spec": {
        "group": "bed.stanch.dev",
        "names": {"kind": "Cup", "plural": "cups", "singular": "cup"},
        "scope": "Namespaced",
        "versions": [{"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": SCHEMA}}],
    },
}


@pytest.fixture(scope="module")
def oldest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OldestApi]:
    directory: Path = tmp_path_factory.mktemp("oldest")
    with OldestApi(directory) as api:
        yield api


def cup(size: int) -> str:
    return json.dumps(
        {"apiVersion": "bed.stanch.dev/v1", "kind": "Cup", "metadata": {"name": "c"}, "spec": {"size": size}}
    )


def test_it_is_the_oldest(oldest: OldestApi) -> None:
    said = json.loads(oldest.kubectl("get", "--raw", "/version").stdout)
    assert said["gitVersion"] == f"v{oldest.version}"
    assert oldest.version.startswith("1.30.")


def test_a_rule_of_a_crd_is_kept(oldest: OldestApi) -> None:
    made = oldest.kubectl("apply", "-f", "-", stdin=json.dumps(KIND))
    assert made.returncode == 0, made.stderr
    wait_for("the kind", lambda: oldest.kubectl("get", "cups").returncode == 0)
    assert oldest.kubectl("apply", "-f", "-", stdin=cup(1)).returncode == 0
    assert RULE["message"] in oldest.kubectl("apply", "-f", "-", stdin=cup(2)).stderr
    assert "greater than or equal to 1" in oldest.kubectl("apply", "-f", "-", stdin=cup(0)).stderr
