"""Of which namespaces and kinds kopf hears, and that it is begun again. kopf itself: tests/cluster."""

from __future__ import annotations

import asyncio
import io
import json
import sys
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from stanch.edge.clock import Clock
from stanch.edge.cluster import Cluster
from stanch.edge.deployments import Deployments, Kit
from stanch.edge.journal import Journal
from stanch.edge.news import News
from stanch.edge.supervisor import Supervisor
from stanch.edge.telemetry import Telemetry
from stanch.edge.waking import ended
from tests.edge.fake_api import FakeApi
from tests.edge.fake_vllm import until

pytestmark = [
    pytest.mark.unit,
    pytest.mark.skipif(sys.version_info < (3, 11), reason="kopf needs Python 3.11"),
]

KINDS = "GET /apis/stanch.dev/v1alpha1"
ALL = ("disaggdeployments", "leakincidents", "leakwatches")


class Kopf:
    """In place of kopf.operator: each run is (namespaces, clusterwide, kinds), and lasts until it is stopped
    or fails. As kopf (1.45) does, it waits for its flag in a thread of the loop's executor."""

    def __init__(self) -> None:
        self.runs: list[tuple[tuple[str, ...], bool, tuple[str, ...]]] = []
        self.over: list[tuple[str, ...]] = []
        self.error: Exception | None = None

    async def operator(
        self,
        *,
        namespaces: tuple[str, ...],
        clusterwide: bool,
        stop_flag: threading.Event,
        registry: Any,
        **_: Any,
    ) -> None:
        kinds = {str(one.plural) for one in registry._watching.get_all_selectors()}
        self.runs.append((namespaces, clusterwide, tuple(sorted(kinds))))
        stopped = asyncio.get_running_loop().run_in_executor(None, stop_flag.wait)
        while not stopped.done():
            if self.error is not None:
                error, self.error = self.error, None
                raise error
            await asyncio.sleep(0.01)
        self.over.append(namespaces)


class Scene:
    def __init__(self, api: FakeApi, kopf: Kopf, supervisor: Supervisor, log: io.StringIO) -> None:
        self.api = api
        self.kopf = kopf
        self.supervisor = supervisor
        self._log = log

    def installed(self, *plurals: str) -> None:
        kinds = [{"name": one} for one in plurals] + [{"name": f"{one}/status"} for one in plurals]
        self.api.answers[KINDS] = 200, {"kind": "APIResourceList", "resources": kinds}

    def told(self, event: str) -> list[str]:
        lines = [json.loads(line) for line in self._log.getvalue().splitlines()]
        return [line["message"] for line in lines if line["event"] == event]


def play(
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
    namespaces: tuple[str, ...],
    script: Callable[[Scene], Awaitable[None]],
    installed: tuple[str, ...] = ALL,
) -> Kopf:
    import kopf

    from stanch.edge import handlers

    ours, log = Kopf(), io.StringIO()
    monkeypatch.setattr(kopf, "operator", ours.operator)
    for name in ("_LOOK_SECONDS", "_SOON_SECONDS", "_AGAIN_SECONDS"):
        monkeypatch.setattr(handlers, name, 0.05)

    async def whole() -> None:
        clock = Clock()
        telemetry = Telemetry(Journal(log), clock)
        async with FakeApi() as api, Cluster(api.kubeconfig(path / "k"), clock=clock) as cluster:
            news = News()
            supervisor = Supervisor(cluster, telemetry, clock, lambda: True, news, namespaces)
            deployments = Deployments(cluster, telemetry, clock, lambda: True, Kit("", ""), namespaces)
            scene = Scene(api, ours, supervisor, log)
            scene.installed(*installed)
            hearing = handlers.Hearing(cluster, telemetry, supervisor, news, deployments, namespaces)
            task = asyncio.create_task(hearing.keep())
            try:
                await asyncio.wait_for(script(scene), 60)
                assert not task.done()
            finally:
                await ended(task)

    asyncio.run(whole())
    assert not [one for one in threading.enumerate() if one.name == "kopf"]
    return ours


def test_of_a_namespace_that_may_not_be_listed_it_does_not_hear(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def script(s: Scene) -> None:
        await until(lambda: len(s.kopf.runs) == 1, 30)
        for number, readable in enumerate([("a", "b"), ("a",), ("a",), ("a", "b")]):
            s.supervisor.tell_readable(readable)
            await until(lambda number=number: len(s.kopf.runs) == (1, 2, 2, 3)[number], 30)  # type: ignore[misc]
        await until(lambda: len(s.kopf.over) == 2, 30)

    kopf = play(tmp_path, monkeypatch, ("a", "b"), script)
    assert [(one[0], one[1]) for one in kopf.runs] == [
        (("a", "b"), False),
        (("a",), False),
        (("a", "b"), False),
    ]
    assert len(kopf.over) == 3


def test_of_the_whole_cluster_it_hears_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def script(s: Scene) -> None:
        s.supervisor.tell_readable(())
        await until(lambda: s.api.asked.count((KINDS, None)) > 3, 30)
        assert s.told("kinds-missing") == []

    assert play(tmp_path, monkeypatch, (), script).runs == [((), True, ALL)]


def test_kopf_that_ends_is_begun_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def script(s: Scene) -> None:
        await until(lambda: len(s.kopf.runs) == 1, 30)
        s.kopf.error = ValueError("it is over")
        await until(lambda: len(s.kopf.runs) == 2, 30)
        (said,) = s.told("hearing-ended")
        assert "it is over" in said

    play(tmp_path, monkeypatch, ("a",), script)


def test_kinds_that_are_deleted_and_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def script(s: Scene) -> None:
        await until(lambda: len(s.kopf.runs) == 1, 30)
        del s.api.answers[KINDS]
        s.kopf.error = ValueError("404 page not found")
        await until(lambda: bool(s.told("kinds-missing")), 30)
        assert "LeakWatch, LeakIncident, DisaggDeployment" in s.told("kinds-missing")[0]
        asked = len(s.api.asked)
        await until(lambda: len(s.api.asked) > asked + 3, 30)
        assert len(s.kopf.runs) == 1
        s.installed("leakwatches", "leakincidents")
        await until(lambda: len(s.kopf.runs) == 2, 30)
        s.installed(*ALL)
        await until(lambda: len(s.kopf.runs) == 3, 30)
        assert len(s.told("kinds-missing")) == 2
        assert len(s.told("kinds-back")) == 1

    runs = play(tmp_path, monkeypatch, (), script).runs
    assert [one[2] for one in runs] == [ALL, ("leakincidents", "leakwatches"), ALL]


def test_kinds_that_are_not_there_yet_are_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def script(s: Scene) -> None:
        await until(lambda: bool(s.told("kinds-missing")), 30)
        assert s.kopf.runs == []
        s.installed(*ALL)
        await until(lambda: len(s.kopf.runs) == 1, 30)

    play(tmp_path, monkeypatch, (), script, installed=())


def test_while_the_api_server_is_away_it_hears_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def script(s: Scene) -> None:
        await until(lambda: len(s.kopf.runs) == 1, 30)
        s.api.answers[KINDS] = 403, {"kind": "Status", "message": "no"}
        asked = len(s.api.asked)
        await until(lambda: len(s.api.asked) > asked + 3, 30)
        assert s.told("kinds-missing") == []

    assert len(play(tmp_path, monkeypatch, (), script).runs) == 1
