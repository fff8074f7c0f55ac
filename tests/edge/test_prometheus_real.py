"""Debian's Prometheus scrapes engines; who reads those and who reads the Prometheus say the same of them."""

from __future__ import annotations

import asyncio
import json
import time
import urllib.parse
import urllib.request
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from stanch.core.policy import Policy
from stanch.core.sample import Role
from stanch.core.verdict import Signature, State, Verdict
from stanch.edge.live import Judged, Live
from stanch.edge.prometheus_query import WAYS, Wanted, places, query
from stanch.edge.target import Target
from stanch.edge.targets import Watched
from stanch.edge.waking import ended
from stanch.edge.watching import watching
from tests.edge.fake_vllm import FakeVllm, Rank, decode_evidence, prefill_evidence, until
from tests.edge.prometheus_server import allowing
from tests.prometheus import prometheus, static

pytestmark = pytest.mark.unit
row = pytest.param

# As kube-prometheus labels a pod, and as annotations do.
KUBE = {"namespace": "shop", "container": "vllm", "endpoint": "http"}
POLICY = replace(Policy(interval_seconds=1.0).with_hold(4.0), held_floor_window_seconds=600.0)
# Prometheus looks for its targets five seconds after its start.
PATIENCE = 90.0


def fleet() -> dict[str, FakeVllm]:
    """One engine for each thing that is to be told."""
    return {
        "healthy": FakeVllm(Rank(usage=0.0)),
        "idle": FakeVllm(Rank(usage=0.4)),
        "stall": FakeVllm(Rank(usage=0.4, waiting=3, deferred=3)),
        "queue": FakeVllm(Rank(usage=0.01, waiting=3, deferred=0)),
        "hangs": FakeVllm(Rank(usage=0.6, running=2)),
        "asleep": FakeVllm(Rank(usage=0.4, awake=0)),
        "broken": FakeVllm(Rank(usage="NaN")),
        "old": FakeVllm(Rank(usage=0.4, waiting=3, deferred=None)),
        "ranks": FakeVllm(Rank("0", usage=0.4), Rank("1")),
        "gone": FakeVllm(Rank(usage=0.4)),
    }


EXPECTED = {
    "healthy": (State.HEALTHY, None),
    "idle": (State.FAULT, Signature.HELD_IDLE),
    "stall": (State.FAULT, Signature.DEFERRED_STALL),
    "queue": (State.FAULT, Signature.QUEUE_DEADLOCK),
    "hangs": (State.FAULT, Signature.NO_PROGRESS),
    "asleep": (State.HEALTHY, None),
    "broken": (State.BLIND, Signature.BLIND),
    "old": (State.FAULT, Signature.DEFERRED_STALL),
    "ranks/0": (State.FAULT, Signature.HELD_IDLE),
    "ranks/1": (State.HEALTHY, None),
    "gone": (State.BLIND, Signature.BLIND),
}


@asynccontextmanager
async def up(engines: dict[str, FakeVllm]) -> AsyncIterator[list[Watched]]:
    async with AsyncExitStack() as stack:
        for engine in engines.values():
            await stack.enter_async_context(engine)
        yield [
            Watched(Target(name, engine.url), Role.DECODE, POLICY, "shop") for name, engine in engines.items()
        ]


@dataclass
class Reader:
    """One source, reading on; the verdicts of its last turn."""

    live: Live

    def verdicts(self) -> dict[str, Verdict]:
        judged: list[Judged] = self.live.turn()
        return {one.verdict.engine: one.verdict for one in judged}

    def said(self) -> dict[str, tuple[State, Signature | None]]:
        return {name: (one.state, one.signature) for name, one in self.verdicts().items()}


@asynccontextmanager
async def reading(watched: list[Watched], wanted: Wanted | None) -> AsyncIterator[Reader]:
    async with watching(watched, POLICY, wanted=wanted) as live:
        scraping = asyncio.create_task(live.scraping())
        try:
            yield Reader(live)
        finally:
            await ended(scraping)


def labels_of(way: str, name: str) -> dict[str, str]:
    return {
        "PodMonitor": {**KUBE, "pod": name},
        "annotations": {"kubernetes_namespace": "shop", "kubernetes_pod_name": name, "app": "x"},
        "instance": {},
    }[way]


async def true(holds: Callable[[], bool], seconds: float = PATIENCE) -> None:
    """Looked at twice a second, which is a turn each time."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it did not come true"
        await asyncio.sleep(0.5)


@pytest.mark.parametrize("way", ["PodMonitor", "annotations", "instance"])
def test_both_sources_say_the_same_of_the_same_engines(tmp_path: Path, way: str) -> None:
    async def script() -> None:
        engines = fleet()
        async with up(engines) as watched:
            targets = {engine.url[7:]: labels_of(way, name) for name, engine in engines.items()}
            with prometheus(tmp_path, static(targets)) as url:
                wanted = Wanted(url, "shop", table=allowing(tmp_path, url))
                async with reading(watched, None) as scrape, reading(watched, wanted) as by_prometheus:
                    before = {**EXPECTED, "gone": (State.FAULT, Signature.HELD_IDLE)}
                    await true(lambda: scrape.said() == before)
                    await true(lambda: by_prometheus.said() == before)
                    a, b = scrape.verdicts(), by_prometheus.verdicts()
                    for name, one in a.items():
                        other = b[name]
                        assert (one.usage, one.running, one.waiting, one.deferred) == (
                            other.usage,
                            other.running,
                            other.waiting,
                            other.deferred,
                        ), name
                        assert one.lifecycle is other.lifecycle, name
                    await engines["gone"].down()
                    await true(lambda: scrape.said() == EXPECTED)
                    await true(lambda: by_prometheus.said() == EXPECTED)
                    assert "up is 0" in (by_prometheus.verdicts()["gone"].cause or "")
                    # What heals, heals in both.
                    engines["idle"].rank.usage = 0.0
                    await true(lambda: scrape.said()["idle"][0] is State.HEALTHY)
                    await true(lambda: by_prometheus.said()["idle"][0] is State.HEALTHY)
                    readings = by_prometheus.live.readings
                    assert readings is not None
                    assert (readings.trouble, readings.notice) == (None, None)

    asyncio.run(script())


def test_the_process_start_and_a_restart_come_through(tmp_path: Path) -> None:
    async def script() -> None:
        engines = {"d0": FakeVllm(Rank(usage=0.4))}
        async with up(engines) as watched:
            targets = {engines["d0"].url[7:]: labels_of("PodMonitor", "d0")}
            with prometheus(tmp_path, static(targets)) as url:
                async with reading(
                    watched, Wanted(url, "shop", table=allowing(tmp_path, url))
                ) as by_prometheus:
                    await true(lambda: by_prometheus.said().get("d0", (None,))[0] is State.FAULT)
                    scrape = by_prometheus.live.newest("d0")
                    assert scrape is not None
                    assert scrape.page.process_start == engines["d0"].started
                    engines["d0"].restart()
                    await true(lambda: by_prometheus.said()["d0"][0] is State.HEALTHY)
                    state = by_prometheus.live.state_of("d0")
                    assert state is not None
                    assert state.restarted_t is not None

    asyncio.run(script())


def test_a_role_that_nobody_said_is_told_by_the_metrics(tmp_path: Path) -> None:
    async def script() -> None:
        engines = {"d": FakeVllm(extra=decode_evidence()), "p": FakeVllm(extra=prefill_evidence())}
        async with up(engines) as watched:
            watched = [
                replace(one, role=None, target=Target(one.target.name, one.target.url, evidence=True))
                for one in watched
            ]
            targets = {engine.url[7:]: labels_of("PodMonitor", name) for name, engine in engines.items()}
            with prometheus(tmp_path, static(targets)) as url:
                async with reading(
                    watched, Wanted(url, "shop", table=allowing(tmp_path, url))
                ) as by_prometheus:

                    def roles() -> dict[str, Role]:
                        return {name: one.role for name, one in by_prometheus.verdicts().items()}

                    await true(lambda: roles() == {"d": Role.DECODE, "p": Role.PREFILL})

    asyncio.run(script())


def test_a_relabelling_that_drops_a_needed_family_is_named(tmp_path: Path) -> None:
    drop = {"source_labels": ["__name__"], "regex": "vllm:kv_cache_usage_perc", "action": "drop"}

    async def script() -> None:
        engines = {"d0": FakeVllm(Rank(usage=0.4))}
        async with up(engines) as watched:
            targets = {engines["d0"].url[7:]: labels_of("PodMonitor", "d0")}
            with prometheus(tmp_path, static(targets, [drop])) as url:
                async with reading(
                    watched, Wanted(url, "shop", table=allowing(tmp_path, url))
                ) as by_prometheus:
                    found: dict[str, str | None] = {}

                    def named() -> bool:
                        found.update({n: v.cause for n, v in by_prometheus.verdicts().items()})
                        return "kv_cache_usage_perc is missing" in (found.get("d0") or "")

                    await true(named)
                    assert "relabelling" in (found["d0"] or "")

    asyncio.run(script())


def test_a_prometheus_that_ends_and_comes_back(tmp_path: Path) -> None:
    async def script() -> None:
        engines = {"d0": FakeVllm()}
        async with up(engines) as watched:
            targets = {engines["d0"].url[7:]: labels_of("PodMonitor", "d0")}
            with prometheus(tmp_path, static(targets)) as url:
                async with AsyncExitStack() as stack:
                    reader = await stack.enter_async_context(
                        reading(watched, Wanted(url, "shop", table=allowing(tmp_path, url)))
                    )
                    await true(lambda: reader.said().get("d0", (None,))[0] is State.HEALTHY)
                    stack_of_reader = stack.pop_all()
            async with stack_of_reader:

                def trouble() -> str | None:
                    found = reader.live.readings
                    return None if found is None or found.trouble is None else found.trouble.reason

                await true(lambda: "was refused" in (reader.verdicts()["d0"].cause or ""))
                assert reader.said()["d0"][0] is State.BLIND
                assert trouble() == "PrometheusUnreachable"
                port = int(url.rpartition(":")[2])
                with prometheus(tmp_path, static(targets), port=port):
                    await true(lambda: reader.said()["d0"][0] is State.HEALTHY)
                    assert trouble() is None

    asyncio.run(script())


def asked(url: str, text: str) -> Any:
    form = urllib.parse.urlencode({"query": text}).encode()
    with urllib.request.urlopen(f"{url}/api/v1/query", form, timeout=30) as answer:
        return json.load(answer)["data"]["result"]


def test_what_people_write_into_a_watch_is_one_label_for_prometheus(tmp_path: Path) -> None:
    """Whatever is in it, the query stays a query for that label."""
    odd = 'a"} or vector(1) or {x=~".*\\\n🦀'
    target = {**KUBE, "pod": "d0.x", "odd": odd}

    async def script() -> None:
        async with FakeVllm() as engine:
            with prometheus(tmp_path, static({engine.url[7:]: target})) as url:
                mine = list(places([Target("d0.x", engine.url)]).values())
                wanted = Wanted(url, "shop", table=allowing(tmp_path, url), matchers=(("odd", odd),))
                loop = asyncio.get_running_loop()
                found: list[Any] = []

                async def look() -> bool:
                    found[:] = await loop.run_in_executor(None, asked, url, query(WAYS[0], wanted, mine))
                    return bool(found)

                deadline = time.monotonic() + PATIENCE
                while not await look():
                    assert time.monotonic() < deadline
                    await asyncio.sleep(0.2)
                assert {one["metric"]["odd"] for one in found} == {odd}
                other = Wanted(url, "shop", table=allowing(tmp_path, url), matchers=(("odd", odd + "x"),))
                assert await loop.run_in_executor(None, asked, url, query(WAYS[0], other, mine)) == []

    asyncio.run(script())


def test_two_prometheuses_of_one_kind_are_told_apart(tmp_path: Path) -> None:
    """The same engine scraped twice, as by a PodMonitor and by annotations, or by two replicas whose series
    come together."""

    async def script() -> None:
        async with FakeVllm(Rank(usage=0.4)) as engine:
            address = engine.url[7:]
            targets = {
                address: {**labels_of("PodMonitor", "d0"), "prometheus_replica": "a"},
                f"localhost:{address.rpartition(':')[2]}": {
                    **labels_of("PodMonitor", "d0"),
                    "prometheus_replica": "b",
                },
            }
            watched = [Watched(Target("d0", engine.url), Role.DECODE, POLICY, "shop")]
            with prometheus(tmp_path, static(targets)) as url:
                async with reading(
                    watched, Wanted(url, "shop", table=allowing(tmp_path, url))
                ) as by_prometheus:
                    await true(lambda: by_prometheus.said().get("d0", (None,))[0] is State.FAULT)
                    scrape = by_prometheus.live.newest("d0")
                    assert scrape is not None
                    assert scrape.page.engines[0].generation_tokens == 1000
                    await until(lambda: len(engine.paths) > 12, 30)

    asyncio.run(script())
