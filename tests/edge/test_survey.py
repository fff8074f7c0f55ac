"""What a turn reads of incidents that ended long ago."""

from __future__ import annotations

import asyncio
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from stanch.core.policy import Policy
from stanch.edge import client
from stanch.edge.cluster import Cluster
from stanch.edge.survey import Surveyor, ended_before
from stanch.edge.watching import watching
from tests.edge.fake_vllm import FakeVllm
from tests.edge.small_cluster import NAMESPACE, SmallCluster

pytestmark = pytest.mark.unit
HOUR = 3600.0


def at(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def of(pod: str, uid: str, ended: float | None) -> dict[str, Any]:
    status: dict[str, Any] = {"watch": "shop"}
    if ended is not None:
        status |= {"ending": "Resolved", "ended": at(ended)}
    return {"spec": {"podRef": {"name": pod, "uid": uid}}, "status": status}


def test_of_pods_that_have_gone_they_are_forgotten_and_of_those_that_are_there_kept(tmp_path: Path) -> None:
    now = time.time()
    kept = {
        "there": of("d0", "uid-d0", now - 100 * HOUR),
        "open": of("d9", "uid-d9", None),
        "fresh": of("d9", "uid-d9", now - HOUR),
    }
    forgotten = {"gone": of("d9", "uid-d9", now - 3 * HOUR)}

    async def whole() -> set[str]:
        async with SmallCluster(tmp_path) as small, FakeVllm() as engine:
            small.pod("d0", engine)
            small.watch()
            for name, raw in {**kept, **forgotten}.items():
                small.put("leakincidents", name, raw)
            async with (
                Cluster(small.config, own_namespace="stanch-system") as cluster,
                watching([], Policy()) as live,
                client.session() as session,
            ):
                return set((await Surveyor(cluster, live, session, NAMESPACE, "shop").read()).found)

    assert asyncio.run(whole()) == set(kept)


@pytest.mark.parametrize("ended", [None, "", "yesterday", 5, "2026-13-01T00:00:00Z", "2026-01-01T00:00:00"])
def test_what_cannot_be_told_is_kept(ended: object) -> None:
    assert not ended_before({"status": {"ended": ended}}, time.time())
