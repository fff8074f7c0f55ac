"""Stanch's kinds are deleted under a running operator, with all objects of them, and installed again."""

from __future__ import annotations

import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tests.bed.cluster import Namespace, wait_for
from tests.cluster.installed import CRDS, Installed, watch
from tests.cluster.operators import Operator, operating
from tests.cluster.scenes import PATIENCE_S, Scene
from tests.cluster.test_telemetry import series

pytestmark = pytest.mark.cluster


def ready(operator: Operator) -> tuple[int, str]:
    port = next(line["port"] for line in operator.lines() if "port" in line)
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def turns(operator: Operator) -> float:
    return series(operator).get(("stanch_turn_seconds_count",), 0.0)


def told(operator: Operator, event: str) -> list[str]:
    return [line["message"] for line in operator.lines() if line["event"] == event]


def test_kinds_away_and_back(stanch: Installed, namespace: Namespace, tmp_path: Path) -> None:
    """It says so, goes on without another start, and hears of a new watch: kopf is begun again."""
    with operating(stanch, tmp_path) as operator:
        scene = Scene(namespace, operator)
        namespace.apply(watch("first"))
        wait_for("its first turn", lambda: scene.condition("Ready", "first"), PATIENCE_S)
        wait_for("ready", lambda: ready(operator) == (200, "ok\n"), PATIENCE_S)
        try:
            stanch.cluster.kubectl("delete", "--timeout=60s", "-f", str(CRDS))
            wait_for("the log's word", lambda: told(operator, "kinds-missing"), PATIENCE_S)
            code, why = wait_for(
                "not ready", lambda: r if (r := ready(operator))[0] == 503 else None, PATIENCE_S
            )
            assert "a kind of Stanch is not installed" in why, code
            wait_for("kopf's end", lambda: told(operator, "hearing-ended"), PATIENCE_S)
        finally:
            stanch.cluster.kubectl("apply", "--server-side", "-f", str(CRDS))
            stanch.cluster.kubectl("wait", "--for=condition=Established", "--timeout=60s", "-f", str(CRDS))
        wait_for("the log's word", lambda: told(operator, "kinds-back"), PATIENCE_S)
        wait_for("ready again", lambda: ready(operator) == (200, "ok\n"), PATIENCE_S)
        # The next turn of its own would come in five minutes: what is heard of makes it come at once.
        slow = watch("second")
        slow["spec"]["intervalSeconds"] = 300
        namespace.apply(slow)
        wait_for("the new watch's first turn", lambda: scene.condition("Ready", "second"), PATIENCE_S)
        before = turns(operator)

        def heard() -> bool:
            namespace.kubectl("annotate", "leakwatch", "second", "--overwrite", f"at={time.monotonic()}")
            return turns(operator) > before

        wait_for("a turn for an annotation", heard, PATIENCE_S)
        assert operator.alive
        assert len(told(operator, "started")) == 1
