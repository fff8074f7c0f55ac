"""A whole LeakWatch with source Prometheus, over an API server, an engine and Debian's Prometheus: the leak
is found by what Prometheus scraped, and confirmed and healed with the engine itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from stanch.api.watch import LeakWatch
from stanch.edge import examination
from stanch.edge.cluster import Cluster
from stanch.edge.findings import Finding, Mark
from stanch.edge.foresight import foresee
from tests.edge.fake_kit import FakeKit, entry
from tests.edge.fake_vllm import FakeVllm, until
from tests.edge.prometheus_server import FakePrometheus, Reply, allowing
from tests.edge.small_cluster import NAMESPACE, SmallCluster
from tests.edge.test_watchdog import RESTART, Scene
from tests.prometheus import prometheus, static

pytestmark = pytest.mark.unit


def play(path: Path, script: Callable[[Scene, str], Awaitable[None]], *, kit: bool = True) -> None:
    """One decode, d0, that leaks, and a Prometheus that scrapes it every second; its URL."""

    async def whole() -> None:
        async with SmallCluster(path) as cluster, FakeVllm() as engine:
            engine.rank.usage = 0.3
            engine.kit = FakeKit(entry(cacheShare=0.3)) if kit else None
            cluster.pod("d0", engine)
            labels = {"namespace": NAMESPACE, "pod": "d0", "container": "vllm"}
            with prometheus(path / "prometheus", static({engine.url[7:]: labels})) as url:
                scene = Scene(cluster, engine)
                scene.prometheus_table = allowing(path, url)
                await asyncio.wait_for(script(scene, url), 120)

    asyncio.run(whole())


def by_prometheus(url: str, **more: Any) -> dict[str, Any]:
    return {"source": "Prometheus", "prometheus": {"url": url, **more}}


def condition(s: Scene, kind: str) -> tuple[str, str, str]:
    status = s.cluster.objects["leakwatches", "shop"].get("status", {})
    found = [one for one in status.get("conditions", []) if one["type"] == kind]
    return (found[0]["status"], found[0]["reason"], found[0].get("message", "")) if found else ("", "", "")


@pytest.mark.parametrize(
    ("kit", "spec", "end"),
    [
        (True, {}, ("Resolved", "Released")),
        (True, {"remediation": RESTART}, ("Resolved", "Restarted")),
        (False, {}, ("Resolved", "Evicted")),
    ],
    ids=["released", "restarted", "without-the-kit"],
)
def test_a_leak_is_healed(tmp_path: Path, kit: bool, spec: dict[str, Any], end: tuple[str, str]) -> None:
    async def script(s: Scene, url: str) -> None:
        s.cluster.watch(**by_prometheus(url), **spec)
        async with s.watchdog():
            await until(s.ended, 100)
            assert (s.status["ending"], s.status["code"]) == end
            if kit:
                await until(lambda: not s.cluster.marks("d0"), 30)
                await until(lambda: condition(s, "Ready")[:2] == ("True", "Watching"), 30)

    play(tmp_path, script, kit=kit)


def test_a_healthy_engine_is_read_by_prometheus_only(tmp_path: Path) -> None:
    async def script(s: Scene, url: str) -> None:
        s.engine.rank.usage = 0.0
        s.engine.kit = None
        s.cluster.watch(**by_prometheus(url))
        async with s.watchdog():
            await until(lambda: condition(s, "Ready")[:2] == ("True", "Watching"), 60)
            seen = len(s.engine.paths)
            turns = s.cluster.seen.count("GET pods")
            await until(lambda: s.cluster.seen.count("GET pods") > turns + 4, 60)
            # Debian's Prometheus asks for /metrics, we for /metrics/?name[]=...
            assert set(s.engine.paths[seen:]) == {"/metrics"}
        assert s.cluster.incidents == []

    play(tmp_path, script)


def test_a_prometheus_without_the_engines_says_what_was_looked_for(tmp_path: Path) -> None:
    async def script(s: Scene, url: str) -> None:
        s.cluster.watch(**by_prometheus(url, matchers={"cluster": "elsewhere"}))
        async with s.watchdog():
            await until(lambda: condition(s, "Ready")[1] == "NoSeries", 60)
        assert 'cluster="elsewhere"' in condition(s, "Ready")[2]
        assert condition(s, "Degraded")[:2] == ("True", "BlindFleet")
        assert s.cluster.incidents == []

    play(tmp_path, script)


async def doctor(s: Scene) -> list[Finding]:
    watch = LeakWatch.model_validate(s.cluster.objects["leakwatches", "shop"])
    async with Cluster(s.cluster.config, own_namespace="stanch-system") as cluster:
        return await examination.of_watch(cluster, watch, prometheus_table=s.prometheus_table)


def test_plan_and_doctor_read_by_the_same_code(tmp_path: Path) -> None:
    async def script(s: Scene, url: str) -> None:
        s.cluster.watch(**by_prometheus(url))
        found: list[Finding] = []

        def about(check: str) -> list[tuple[str, Mark]]:
            return [(one.about, one.mark) for one in found if one.check == check]

        for _ in range(60):
            found = await doctor(s)
            if about("prometheus") == [("shop/shop", Mark.OK)]:
                break
            await asyncio.sleep(0.5)  # until it has scraped for the first time
        assert about("prometheus") == [("shop/shop", Mark.OK)]
        assert f"{url} has readings of 1 of 1 engines" in [one.says for one in found]
        assert about("metrics") == [("shop/d0", Mark.OK)], "the engine itself must be reached too"
        async with Cluster(s.cluster.config, own_namespace="stanch-system") as cluster:
            foreseen = await foresee(cluster, NAMESPACE, "shop", None, canary=False, table=s.prometheus_table)
        (unit,) = foreseen.units
        assert (unit.unit, [step.name.value for step in unit.steps][:2]) == (
            "shop/d0",
            ["Observe", "Confirm"],
        )

    play(tmp_path, script)


def test_doctor_says_what_is_wrong_with_prometheus(tmp_path: Path) -> None:
    async def script() -> None:
        async with SmallCluster(tmp_path) as cluster, FakeVllm() as engine:
            cluster.pod("d0", engine)
            with FakePrometheus(lambda _: Reply(b"", 401)) as fake:
                cluster.watch(**by_prometheus(fake.url))
                scene = Scene(cluster, engine)
                for table, reason in (
                    (allowing(tmp_path, fake.url), "Unauthorized: "),
                    (None, "PrometheusNotAllowed: "),
                ):
                    scene.prometheus_table = table
                    found = await doctor(scene)
                    (said,) = [one for one in found if one.check == "prometheus"]
                    assert (said.about, said.mark) == ("shop/shop", Mark.FAIL)
                    assert said.says.startswith(reason)

    asyncio.run(asyncio.wait_for(script(), 60))
