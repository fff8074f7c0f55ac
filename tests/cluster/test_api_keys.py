"""Engines that want vLLM's --api-key: what is done without it, and with the one of their namespace."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.bed.cluster import Namespace, wait_for
from tests.cluster.installed import Installed
from tests.cluster.operators import operating
from tests.cluster.scenes import PATIENCE_S, RESTART, Scene, outcome
from tests.cluster.test_cli import Cli

pytestmark = pytest.mark.cluster
KEY = "sk-of-the-shop"


def test_nothing_without_it_and_a_restart_that_is_verified_with_it(
    namespace: Namespace, stanch: Installed, tmp_path: Path
) -> None:
    keys = tmp_path / "keys"
    keys.mkdir()
    (keys / "another-namespace").write_text(KEY)
    with operating(stanch, tmp_path, STANCH_API_KEYS_DIR=str(keys)) as operator:
        scene = Scene(namespace, operator)
        scene.api_key = KEY
        scene.engines(arguments=("--api-key", KEY)).watch(remediation=RESTART).until_watching()
        scene.leak()
        wait_for("the reason", lambda: scene.reason("d0") == "Inconclusive", PATIENCE_S)
        assert scene.incidents() == []
        assert scene.marks("d0") == {}
        said = Cli(namespace)("doctor", "--output", "json")
        marks = [(one["state"], one["about"]) for one in lines(said.out) if one["check"] == "API key"]
        assert sorted(marks) == [("fail", f"{namespace.name}/{pod}") for pod in ("d0", "p0")]

        file = tmp_path / "key"
        file.write_text(KEY)
        said = Cli(namespace)("doctor", "--output", "json", "--api-key-file", str(file))
        assert [one["state"] for one in lines(said.out) if one["check"] == "API key"] == ["ok", "ok"]

        (keys / namespace.name).write_text(f"{KEY}\n")
        found = scene.ended()
        assert outcome(found) == ("Resolved", "Restarted"), found["status"]
        verify = next(one for one in found["status"]["steps"] if one["name"] == "Verify")
        assert "a transfer worked with" in verify["detail"]
        assert KEY not in operator.log.read_text()


def lines(out: str) -> list[dict[str, str]]:
    return [json.loads(line) for line in out.splitlines()]
