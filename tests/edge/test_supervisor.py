"""Which watches are followed, and what belongs to none, over an API server that speaks HTTP."""

from __future__ import annotations

import asyncio
import io
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from stanch.edge.clock import Clock
from stanch.edge.cluster import Cluster
from stanch.edge.journal import Journal
from stanch.edge.news import News
from stanch.edge.supervisor import Supervisor
from stanch.edge.telemetry import Telemetry
from tests.edge.fake_api import refusal
from tests.edge.fake_kit import FakeKit
from tests.edge.fake_vllm import FakeVllm, until
from tests.edge.small_cluster import NAMESPACE, Hook, SmallCluster

pytestmark = pytest.mark.unit


class Scene:
    def __init__(self, cluster: SmallCluster) -> None:
        self.cluster = cluster
        self.log = io.StringIO()
        self.leads = True
        self.time = 0.0
        self.telemetry = Telemetry(Journal(self.log), time.time, lambda: self.time)

    @asynccontextmanager
    async def supervisor(self, *namespaces: str) -> AsyncIterator[Supervisor]:
        clock, telemetry = Clock(), self.telemetry
        async with Cluster(self.cluster.config, clock=clock) as cluster:
            one = Supervisor(cluster, telemetry, clock, lambda: self.leads, News(), namespaces)
            task = asyncio.create_task(one.run())
            try:
                yield one
            finally:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    def incident(self, name: str, pod: str = "d0", **more: Any) -> dict[str, Any]:
        spec = {"podRef": {"name": pod}, "ttlSecondsAfterFinished": 3600, **more.pop("spec", {})}
        return self.cluster.put("leakincidents", name, {"spec": spec, "status": more})

    def status(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.cluster.objects["leakincidents", name]["status"]
        return found

    def turned(self) -> bool:
        return "conditions" in self.cluster.objects["leakwatches", "shop"].get("status", {})


def play(path: Path, script: Callable[[Scene], Awaitable[None]]) -> None:
    async def whole() -> None:
        async with SmallCluster(path) as cluster, FakeVllm() as engine:
            engine.kit = FakeKit()
            cluster.pod("d0", engine)
            await asyncio.wait_for(script(Scene(cluster)), 60)

    asyncio.run(whole())


def ago(seconds: float) -> str:
    return (datetime.now(timezone.utc) - timedelta(seconds=seconds)).isoformat()


def test_an_incident_that_no_watch_means_ends(tmp_path: Path) -> None:
    async def script(s: Scene) -> None:
        s.incident("mine")
        async with s.supervisor():
            await until(lambda: s.status("mine").get("ending") == "NotWatched", 30)
        ready = s.status("mine")["conditions"][0]
        assert (ready["type"], ready["status"], ready["reason"]) == ("Ready", "False", "NotWatched")
        assert not [one for one in s.cluster.writes() if "pods" in one]

    play(tmp_path, script)


def test_an_incident_of_a_watched_pod_is_the_watch_s(tmp_path: Path) -> None:
    async def script(s: Scene) -> None:
        s.cluster.watch()
        s.incident("mine")
        async with s.supervisor():
            await until(lambda: s.status("mine").get("ending") is not None, 30)
        assert (s.status("mine")["ending"], s.status("mine")["watch"]) == ("Recovered", "shop")

    play(tmp_path, script)


def test_a_watch_that_is_deleted_is_followed_no_more(tmp_path: Path) -> None:
    async def script(s: Scene) -> None:
        s.cluster.watch()
        async with s.supervisor() as supervisor:
            await until(s.turned, 30)
            s.incident("open", watch="shop")
            del s.cluster.objects["leakwatches", "shop"]
            supervisor.watch_changed(NAMESPACE, "shop")
            await until(lambda: s.status("open").get("ending") == "NotWatched", 30)
            asked = s.cluster.seen.count("GET pods")
            supervisor.watch_changed(NAMESPACE, "shop")
            await until(lambda: s.cluster.seen[-1] == "GET leakincidents", 30)
            assert s.cluster.seen.count("GET pods") == asked

    play(tmp_path, script)


def test_readings_from_elsewhere_are_another_watchdog_s(tmp_path: Path) -> None:
    async def script(s: Scene) -> None:
        watch = s.cluster.watch(source="Prometheus", prometheus={"url": "http://127.0.0.1:9"})

        def ready() -> str:
            conditions = watch.get("status", {}).get("conditions", [{}])
            return str(conditions[0].get("reason"))

        async with s.supervisor():
            await until(lambda: ready() == "PrometheusNotAllowed", 40)
            del watch["spec"]["source"], watch["spec"]["prometheus"]
            await until(lambda: ready() == "Watching", 40)

    play(tmp_path, script)


def test_a_watch_that_makes_no_sense_hinders_no_other(tmp_path: Path) -> None:
    async def script(s: Scene) -> None:
        s.cluster.watch()
        s.cluster.put("leakwatches", "strange", {"spec": {"roles": [], "mode": "Later"}})
        async with s.supervisor():
            await until(s.turned, 30)
        assert "LeakWatch strange" in s.log.getvalue()

    play(tmp_path, script)


FORBIDDEN = refusal(403, "Forbidden", "may not list there")
TROUBLE = refusal(400, "BadRequest", "not today")
NOTHING = (200, {"metadata": {"resourceVersion": "7"}, "items": []})


def lists_of(namespace: str, answers: dict[str, tuple[int, Any]]) -> Hook:
    """answers: to lists in each namespace but that one."""

    async def answer(request: web.Request) -> tuple[int, Any] | None:
        where = request.path.partition("/namespaces/")[2].partition("/")[0]
        listed = request.method == "GET" and request.path.endswith(("leakwatches", "leakincidents"))
        return answers.get(where) if listed and where != namespace else None

    return answer


async def another_round(s: Scene, supervisor: Supervisor) -> None:
    before = s.cluster.seen.count("GET leakincidents")
    supervisor.watch_changed(NAMESPACE, "shop")
    await until(lambda: s.cluster.seen.count("GET leakincidents") > before, 30)


@pytest.mark.parametrize("answer", [FORBIDDEN, TROUBLE])
def test_a_namespace_that_cannot_be_listed_hinders_no_other(tmp_path: Path, answer: tuple[int, Any]) -> None:
    async def script(s: Scene) -> None:
        s.cluster.watch()
        s.incident("nobody-s", pod="unknown")
        s.cluster.refuse = lists_of(NAMESPACE, {"gone": answer})
        readable: list[tuple[str, ...]] = []
        async with s.supervisor("gone", NAMESPACE) as supervisor:
            supervisor.tell_readable = readable.append
            await until(s.turned, 30)
            await until(lambda: s.status("nobody-s").get("ending") == "NotWatched", 30)
            for _ in range(3):
                await another_round(s, supervisor)
        told = [line for line in s.log.getvalue().splitlines() if "namespace-left-out" in line]
        assert set(readable) == {(NAMESPACE,) if answer is FORBIDDEN else ("gone", NAMESPACE)}
        assert [("namespace gone" in line, '"warning"' in line) for line in told] == [(True, True)]

    play(tmp_path, script)


@pytest.mark.parametrize(("answer", "kept"), [(TROUBLE, True), (FORBIDDEN, False)])
def test_who_watches_where_nothing_is_known_for_now_goes_on(
    tmp_path: Path, answer: tuple[int, Any], kept: bool
) -> None:
    async def script(s: Scene) -> None:
        s.cluster.watch()
        answers = {"empty": NOTHING}
        s.cluster.refuse = lists_of("", answers)
        async with s.supervisor("empty", NAMESPACE) as supervisor:
            await until(s.turned, 30)
            answers[NAMESPACE] = answer
            supervisor.watch_changed("empty", "some")
            await until(lambda: "namespace-left-out" in s.log.getvalue(), 30)
            await until(lambda: ("shop", "shop") not in supervisor.followed or kept, 30)
            assert (("shop", "shop") in supervisor.followed) is kept

    play(tmp_path, script)


def test_where_no_namespace_can_be_listed_it_gives_no_sign(tmp_path: Path) -> None:
    async def script(s: Scene) -> None:
        s.cluster.refuse = lists_of("", {NAMESPACE: FORBIDDEN, "gone": FORBIDDEN})
        async with s.supervisor("gone", NAMESPACE):
            await until(lambda: "watches-not-listed" in s.log.getvalue(), 30)

    play(tmp_path, script)


@pytest.mark.parametrize("plural", ["leakwatches", "leakincidents"])
def test_a_kind_that_is_taken_away_and_comes_back(tmp_path: Path, plural: str) -> None:
    """Not ready, and why; not dead, however long: a restart would bring nothing back."""

    async def script(s: Scene) -> None:
        health = s.telemetry.health
        gone = [(404, {"kind": "Status", "message": f"{plural}: 404 page not found"})]

        async def refuse(request: web.Request) -> tuple[int, Any] | None:
            return gone[0] if gone and plural in request.path else None

        s.cluster.watch()
        async with s.supervisor() as supervisor:
            await until(s.turned, 30)
            assert health.unready(s.time) == ()
            s.cluster.refuse = refuse
            supervisor.watch_changed(NAMESPACE, "shop")
            await until(lambda: health.unready(s.time) != (), 30)
            (why,) = health.unready(s.time)
            assert "a kind of Stanch is not installed" in why
            assert plural in why
            await until(lambda: supervisor.followed == frozenset(), 30)
            s.time = 10_000.0
            supervisor.watch_changed(NAMESPACE, "shop")
            await until(lambda: health.dead(s.time) == (), 30)
            gone.clear()
            supervisor.watch_changed(NAMESPACE, "shop")
            await until(lambda: health.unready(s.time) == (), 30)
            await until(lambda: ("shop", "shop") in supervisor.followed, 30)

    play(tmp_path, script)


def test_what_ended_is_deleted_when_its_time_to_live_is_over(tmp_path: Path) -> None:
    async def script(s: Scene) -> None:
        s.incident("old", ending="Resolved", ended=ago(3700))
        s.incident("young", ending="Resolved", ended=ago(3500))
        async with s.supervisor():
            await until(lambda: ("leakincidents", "old") not in s.cluster.objects, 30)
            assert ("leakincidents", "young") in s.cluster.objects

    play(tmp_path, script)


def test_a_process_that_does_not_lead_ends_and_deletes_nothing(tmp_path: Path) -> None:
    async def script(s: Scene) -> None:
        s.leads = False
        s.incident("old", ending="Resolved", ended=ago(3700))
        s.incident("mine")
        async with s.supervisor() as supervisor:
            for _ in range(3):
                before = len(s.cluster.seen)
                supervisor.incident_changed(NAMESPACE)
                await until(lambda before=before: len(s.cluster.seen) > before + 1, 30)  # type: ignore[misc]
        assert s.cluster.writes() == []

    play(tmp_path, script)
