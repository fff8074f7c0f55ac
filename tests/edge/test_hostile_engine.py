"""An engine that lies, beside one that leaks: whatever its kit and its metrics say, the other one is healed,
and what is written down of it is bounded."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stanch.api.incident import LeakIncident
from tests.edge.fake_kit import FakeKit, entry, says
from tests.edge.fake_vllm import FakeVllm, Rank, until
from tests.edge.small_cluster import SmallCluster
from tests.edge.test_watchdog import Scene

pytestmark = pytest.mark.unit
row = pytest.param

ODD = "\n\r\x00\x1b[31m\u2028\ud800"


def lists(**differs: Any) -> Callable[[FakeVllm], None]:
    def lie(engine: FakeVllm) -> None:
        assert engine.kit is not None
        engine.kit.ranks = {"0": {"requests": [entry(**differs)]}}

    return lie


def boots(boot_id: str) -> Callable[[FakeVllm], None]:
    def lie(engine: FakeVllm) -> None:
        assert engine.kit is not None
        engine.kit.boot_id = boot_id

    return lie


def states(**facts: Any) -> Callable[[FakeVllm], None]:
    def lie(engine: FakeVllm) -> None:
        assert engine.kit is not None
        engine.kit.facts |= facts

    return lie


def answers(text: str) -> Callable[[FakeVllm], None]:
    def lie(engine: FakeVllm) -> None:
        assert engine.kit is not None
        engine.kit.answers |= {what: says(200, text=text) for what in ("state", "requests")}

    return lie


def has_ranks(engine: FakeVllm) -> None:
    assert engine.kit is not None
    engine.kit.ranks = {f"{number}" * 50: {"requests": []} for number in range(5000)} | engine.kit.ranks


def is_called(label: str) -> Callable[[FakeVllm], None]:
    def lie(engine: FakeVllm) -> None:
        engine.rank.label = label
        engine.kit = None

    return lie


def has_ranks_called(engine: FakeVllm) -> None:
    engine.ranks = [Rank(label=digit * 400, usage=0.3) for digit in "89"]
    engine.kit = FakeKit()
    engine.kit.ranks = {rank.label[:64]: {"requests": [entry()]} for rank in engine.ranks}


@pytest.mark.parametrize(
    "lie",
    [
        row(boots("b" * 200), id="boot-id-long"),
        row(boots("b" * 1_000_000), id="boot-id-endless"),
        row(boots(f"b{ODD}"), id="boot-id-odd"),
        row(lists(ageSeconds=1e300), id="age"),
        row(lists(blocks=1e300), id="blocks"),
        row(lists(blocks=10**400), id="blocks-that-no-float-holds"),
        row(lists(id=ODD * 100, schedulerId=ODD * 100, status=ODD * 10_000), id="texts-odd"),
        row(lists(id="x" * 400, remoteEngine="r" * 100_000, refusal="n" * 100_000), id="texts-long"),
        row(
            states(kit=ODD * 9999, fixReason=ODD, leaseSeconds=1e300, engineIds={"r" * 9999: "e"}), id="state"
        ),
        row(states(outcomes=[{"id": ODD, "state": ODD * 100}] * 1000), id="outcomes"),
        row(answers("[" * 1_000_000), id="nested"),
        row(answers("9" * 1_000_000), id="a-number"),
        row(has_ranks, id="ranks"),
        row(is_called("9" * 5000), id="rank-in-metrics"),
        row(has_ranks_called, id="ranks-in-metrics"),
    ],
)
def test_the_other_one_is_healed(tmp_path: Path, lie: Callable[[FakeVllm], None]) -> None:
    async def script() -> None:
        async with SmallCluster(tmp_path) as cluster, FakeVllm() as liar:
            port = int(liar.url.rpartition(":")[2])
            async with FakeVllm(host="127.0.0.2", port=port) as honest:
                for name, engine in (("liar", liar), ("honest", honest)):
                    engine.rank.usage = 0.3
                    engine.kit = FakeKit(entry(cacheShare=0.3))
                    cluster.pod(name, engine)
                lie(liar)
                cluster.watch(remediation={"maxUnavailable": 2})
                scene = Scene(cluster, honest)

                def ended() -> bool:
                    return any(
                        one["spec"]["podRef"]["name"] == "honest" and "ending" in one.get("status", {})
                        for one in cluster.incidents
                    )

                async with scene.watchdog():
                    await until(ended, 60)
                bounded(cluster, scene)

    asyncio.run(asyncio.wait_for(script(), 90))


def bounded(cluster: SmallCluster, scene: Scene) -> None:
    """Incidents fit their schema, log lines are one line of JSON each, of plain ASCII and not endless."""
    for one in cluster.incidents:
        LeakIncident.model_validate(one)
    for line in scene.log.getvalue().splitlines():
        assert len(line) < 20_000
        assert line.isascii()
        said = json.loads(line)
        assert said["event"] != "turn-failed", said
