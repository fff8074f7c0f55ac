"""Of which namespaces kopf hears, and when it is over. kopf itself: tests/cluster."""

from __future__ import annotations

import asyncio
import io
import sys
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from stanch.edge.cluster import Cluster
from stanch.edge.deployments import Deployments, Kit
from stanch.edge.journal import Journal
from stanch.edge.live import Clock
from stanch.edge.news import News
from stanch.edge.supervisor import Supervisor
from stanch.edge.telemetry import Telemetry
from tests.edge.fake_vllm import until

pytestmark = [
    pytest.mark.unit,
    pytest.mark.skipif(sys.version_info < (3, 11), reason="kopf needs Python 3.11"),
]


class Kopf:
    """In place of kopf.operator: each run is (namespaces, clusterwide), and lasts until it is stopped."""

    def __init__(self) -> None:
        self.runs: list[tuple[tuple[str, ...], bool]] = []
        self.over: list[tuple[str, ...]] = []
        self.error: Exception | None = None

    async def operator(
        self, *, namespaces: tuple[str, ...], clusterwide: bool, stop_flag: threading.Event, **_: Any
    ) -> None:
        self.runs.append((namespaces, clusterwide))
        while not stop_flag.is_set():
            if self.error is not None:
                raise self.error
            await asyncio.sleep(0.01)
        self.over.append(namespaces)


def play(
    monkeypatch: pytest.MonkeyPatch,
    namespaces: tuple[str, ...],
    script: Callable[[Kopf, Supervisor, asyncio.Future[None]], Awaitable[None]],
) -> Kopf:
    import kopf

    from stanch.edge.handlers import Hearing

    ours = Kopf()
    monkeypatch.setattr(kopf, "operator", ours.operator)

    async def whole() -> None:
        clock = Clock()
        telemetry = Telemetry(Journal(io.StringIO()), clock)
        # Not entered: nobody asks the API server here.
        cluster = Cluster(None, clock=clock)
        news = News()
        supervisor = Supervisor(cluster, telemetry, clock, lambda: True, news, namespaces)
        deployments = Deployments(cluster, telemetry, clock, lambda: True, Kit("", ""), namespaces)
        with Hearing(supervisor, news, deployments, namespaces) as hearing:
            await until(lambda: len(ours.runs) == 1, 30)
            await asyncio.wait_for(script(ours, supervisor, hearing.ended), 60)

    asyncio.run(whole())
    return ours


def test_of_a_namespace_that_may_not_be_listed_it_does_not_hear(monkeypatch: pytest.MonkeyPatch) -> None:
    async def script(kopf: Kopf, supervisor: Supervisor, ended: asyncio.Future[None]) -> None:
        for readable in [("a", "b"), ("a",), ("a",), ("a", "b")]:
            supervisor.tell_readable(readable)
        await until(lambda: len(kopf.runs) == 3 and len(kopf.over) == 2, 30)
        assert not ended.done()

    kopf = play(monkeypatch, ("a", "b"), script)
    assert sorted(kopf.runs) == [(("a",), False), (("a", "b"), False), (("a", "b"), False)]
    assert len(kopf.over) == 3


def test_of_the_whole_cluster_it_hears_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def script(kopf: Kopf, supervisor: Supervisor, ended: asyncio.Future[None]) -> None:
        supervisor.tell_readable(())

    assert play(monkeypatch, (), script).runs == [((), True)]


def test_an_error_of_its_own_is_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    async def script(kopf: Kopf, supervisor: Supervisor, ended: asyncio.Future[None]) -> None:
        kopf.error = ValueError("it is over")
        with pytest.raises(ValueError, match="it is over"):
            await ended

    play(monkeypatch, ("a",), script)
