"""The watchdog's whole loop over an API server and an engine that speak HTTP: what is written, and when."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from stanch.api.watch import LeakWatch
from stanch.edge.clock import Clock
from stanch.edge.cluster import Cluster
from stanch.edge.journal import Journal
from stanch.edge.telemetry import Telemetry
from stanch.edge.watchdog import Watchdog
from stanch_connector import contract
from tests.edge.fake_api import refusal
from tests.edge.fake_kit import FakeKit, entry
from tests.edge.fake_vllm import FakeVllm, Rank, until
from tests.edge.prometheus_server import allowing
from tests.edge.small_cluster import SmallCluster

pytestmark = pytest.mark.unit

RESTART = {"steps": ["Restart"], "drainSeconds": 5, "cooldownSeconds": 0}


class Scene:
    """One decode whose kit lists a request that is stuck; a watch over it; its watchdog when it is let go."""

    def __init__(self, cluster: SmallCluster, engine: FakeVllm) -> None:
        self.cluster = cluster
        self.engine = engine
        self.leads = True
        self.log = io.StringIO()
        self.prometheus_table: Path | None = None

    @asynccontextmanager
    async def watchdog(self) -> AsyncIterator[Watchdog]:
        clock = Clock()
        telemetry = Telemetry(Journal(self.log), clock)
        watch = LeakWatch.model_validate(self.cluster.objects["leakwatches", "shop"])
        async with Cluster(
            self.cluster.config, own_namespace="stanch-system", instance="operator-1", clock=clock
        ) as cluster:
            dog = Watchdog(
                cluster,
                telemetry,
                watch,
                clock,
                lambda: self.leads,
                prometheus_table=self.prometheus_table,
            )
            task = asyncio.create_task(dog.run())
            try:
                yield dog
            finally:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    @property
    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = self.cluster.incidents[0]["status"] if self.cluster.incidents else {}
        return found

    def ended(self) -> bool:
        return "ending" in self.status

    def steps(self) -> list[str]:
        return [step["name"] for step in self.status["steps"]]

    def turned(self) -> bool:
        return "conditions" in self.cluster.objects["leakwatches", "shop"].get("status", {})

    def reason(self) -> str | None:
        """Why nothing is done, by the watch's status."""
        return next(iter(self.reasons()), None)

    def reasons(self) -> list[str | None]:
        status = self.cluster.objects["leakwatches", "shop"].get("status", {})
        return [one.get("reason") for one in status.get("suspects", [])]


def play(path: Path, script: Callable[[Scene], Awaitable[None]], *, kit: bool = True) -> None:
    async def whole() -> None:
        async with SmallCluster(path) as cluster, FakeVllm() as engine:
            engine.rank.usage = 0.3
            engine.kit = FakeKit(entry(cacheShare=0.3)) if kit else None
            cluster.pod("d0", engine)
            await asyncio.wait_for(script(Scene(cluster, engine)), 60)

    asyncio.run(whole())


def test_a_leak_is_written_down_before_it_is_released(tmp_path: Path) -> None:
    async def script(s: Scene) -> None:
        s.cluster.watch()
        async with s.watchdog():
            await until(s.ended, 30)
            assert (s.status["ending"], s.status["code"]) == ("Resolved", "Released")
            await until(lambda: not s.cluster.marks("d0"), 30)
        writes = s.cluster.writes()
        first = writes.index("PATCH pods/d0")
        name = s.cluster.incidents[0]["metadata"]["name"]
        assert writes.index("POST leakincidents") < first
        assert writes.index(f"PUT leakincidents/{name}/status") < first
        assert s.status["watch"] == "shop"
        assert "POST events" in s.cluster.seen
        assert s.status["stuckRequests"][0]["id"] == "cmpl-a"
        assert s.cluster.incidents[0]["spec"]["trigger"] == {"type": "Watchdog", "by": "operator-1"}

    play(tmp_path, script)


def test_a_restart_in_place_goes_down_the_whole_ladder(tmp_path: Path) -> None:
    async def script(s: Scene) -> None:
        s.cluster.watch(remediation=RESTART)
        async with s.watchdog():
            await until(s.ended, 50)
        assert (s.status["ending"], s.status["code"]) == ("Resolved", "Restarted"), s.status
        assert s.steps() == [
            "Observe", "Confirm", "Cordon", "Drain", "Capture", "Confirm", "Restart", "Verify", "Uncordon",
        ]  # fmt: skip
        assert s.status["peerUnknown"] is True
        assert s.cluster.marks("d0") == {}
        # The canary after the restart names the new process, so it would pass a drain.
        canary = s.engine.asked[-1].headers["X-Request-Id"]
        assert canary.startswith(f"{contract.CANARY_PREFIX}boot-1+-")
        writes = s.cluster.writes()
        ledger = writes.index("PUT leakwatches/shop/status")
        assert ledger < writes.index("PATCH pods/d0")

    play(tmp_path, script)


def test_what_an_engine_said_counts_although_a_turn_reads_for_longer_than_an_interval(tmp_path: Path) -> None:
    async def script(s: Scene) -> None:
        s.cluster.watch(remediation=RESTART)

        async def slow(request: web.Request) -> None:
            if request.method == "GET" and request.path.endswith("/pods"):
                await asyncio.sleep(1.2)

        s.cluster.refuse = slow
        async with s.watchdog():
            await until(s.ended, 50)
        assert (s.status["ending"], s.status["code"]) == ("Resolved", "Restarted"), s.status

    play(tmp_path, script)


def test_eight_leaking_ranks_of_one_container_are_one_incident_and_one_restart(tmp_path: Path) -> None:
    async def script(s: Scene) -> None:
        assert s.engine.kit is not None
        ranks = [str(number) for number in range(8)]
        s.engine.ranks = [Rank(label, usage=0.3) for label in ranks]
        s.engine.kit.ranks = {
            label: {"requests": [entry(f"rank-{label}", cacheShare=0.3)]} for label in ranks
        }
        s.cluster.watch(remediation=RESTART)
        async with s.watchdog():
            await until(s.ended, 50)
        assert len(s.cluster.incidents) == 1
        assert s.status["code"] == "Restarted"
        assert [one["name"] for one in s.status["engines"]] == [f"d0/{label}" for label in ranks]
        assert {one["id"] for one in s.status["stuckRequests"]} == {f"cmpl-rank-{label}" for label in ranks}
        assert s.cluster.restarts("d0") == 1

    play(tmp_path, script)


def test_a_gauge_that_lies_is_found_out_by_the_canary(tmp_path: Path) -> None:
    async def script(s: Scene) -> None:
        # As vLLM does: it sets its gauges when it steps, and an idle engine makes no step.
        s.engine.rank.freed = {"usage": 0.0}
        s.cluster.watch()
        async with s.watchdog():
            await until(lambda: bool(s.engine.asked), 30)
            await until(lambda: s.reasons() == [] and s.turned(), 30)
        assert s.cluster.incidents == []
        assert not [one for one in s.cluster.writes() if "pods" in one]
        said = [
            one for one in map(json.loads, s.log.getvalue().splitlines()) if one["event"] == "fault-vetoed"
        ]
        assert [(one["engine"], one["unit"]) for one in said] == [("d0", "shop/d0")]
        assert "nothing leaked" in said[0]["message"]

    play(tmp_path, script, kit=False)


def test_observe_writes_the_incident_and_nothing_on_the_pod(tmp_path: Path) -> None:
    async def script(s: Scene) -> None:
        s.cluster.watch(mode="Observe")
        async with s.watchdog():
            await until(s.ended, 30)
        assert s.status["ending"] == "WouldDo"
        assert not [one for one in s.cluster.writes() if "pods" in one]

    play(tmp_path, script)


def test_a_ledger_that_cannot_be_written_stops_its_plan(tmp_path: Path) -> None:
    async def script(s: Scene) -> None:
        s.cluster.watch(remediation=RESTART)

        async def refuse(request: web.Request) -> Any:
            if request.method == "PUT" and "leakwatches" in request.path and "claims" in await _text(request):
                return refusal(409, "Conflict", "the object has been modified")
            return None

        s.cluster.refuse = refuse
        async with s.watchdog():
            await until(lambda: sum("PUT leakwatches" in one for one in s.cluster.seen) > 8, 30)
            assert not [one for one in s.cluster.writes() if "pods" in one]
            assert s.cluster.incidents == []
            s.cluster.refuse = None
            await until(s.ended, 50)
        assert s.status["ending"] == "Resolved"

    play(tmp_path, script)


def test_an_incident_that_cannot_be_written_has_no_steps(tmp_path: Path) -> None:
    async def script(s: Scene) -> None:
        s.cluster.watch()

        async def refuse(request: web.Request) -> Any:
            writes = request.method in ("POST", "PUT") and "leakincidents" in request.path
            return refusal(500, "InternalError", "etcd is not well") if writes else None

        s.cluster.refuse = refuse
        async with s.watchdog():
            await until(lambda: s.cluster.seen.count("POST leakincidents") > 2, 30)
            assert not [one for one in s.cluster.writes() if "pods" in one]
            s.cluster.refuse = None
            await until(s.ended, 30)
        assert s.status["code"] == "Released"

    play(tmp_path, script)


def test_a_pod_that_changed_since_it_was_listed_is_looked_at_again(tmp_path: Path) -> None:
    async def script(s: Scene) -> None:
        s.cluster.watch()
        conflicts = 0

        async def refuse(request: web.Request) -> Any:
            nonlocal conflicts
            if request.method == "PATCH" and conflicts < 2:
                conflicts += 1
                return refusal(409, "Conflict", "the object has been modified")
            return None

        s.cluster.refuse = refuse
        async with s.watchdog():
            await until(s.ended, 30)
            await until(lambda: not s.cluster.marks("d0"), 30)
        assert s.status["code"] == "Released"
        assert s.cluster.writes().count("PATCH pods/d0") == 2 + 2  # then the release, and what is lifted

    play(tmp_path, script)


@pytest.mark.parametrize(
    ("listed", "reason", "message"),
    [
        (True, "PrometheusUnreachable", "http://127.0.0.1:9: the connection was refused"),
        (
            False,
            "PrometheusNotAllowed",
            "http://127.0.0.1:9 is not asked, since STANCH_PROMETHEUS_TABLE is not",
        ),
    ],
    ids=["silent", "not-allowed"],
)
def test_a_watch_whose_prometheus_does_not_answer_says_so_and_believes_nothing(
    tmp_path: Path, listed: bool, reason: str, message: str
) -> None:
    async def script(s: Scene) -> None:
        s.prometheus_table = allowing(tmp_path, "http://127.0.0.1:9") if listed else None
        s.cluster.watch(source="Prometheus", prometheus={"url": "http://127.0.0.1:9"})

        def ready() -> dict[str, str]:
            status = s.cluster.objects["leakwatches", "shop"].get("status", {})
            found = [one for one in status.get("conditions", []) if one["type"] == "Ready"]
            return found[0] if found else {}

        async with s.watchdog():
            await until(lambda: ready().get("reason") == reason, 30)
            turns = s.cluster.seen.count("GET pods")
            await until(lambda: s.cluster.seen.count("GET pods") > turns + 3, 30)
        assert ready()["status"] == "False"
        assert ready()["message"].startswith(message)
        status = s.cluster.objects["leakwatches", "shop"]["status"]
        assert [(one["engines"], one["blind"]) for one in status["roles"]] == [(1, 1)]
        assert ("/metrics" in s.engine.paths, s.cluster.incidents) == (False, [])

    play(tmp_path, script)


def test_a_process_that_does_not_lead_writes_nothing(tmp_path: Path) -> None:
    async def script(s: Scene) -> None:
        s.cluster.watch()
        s.leads = False
        async with s.watchdog() as dog:
            await until(lambda: s.cluster.seen.count("GET pods") > 4, 30)
            assert s.cluster.writes() == []
            s.leads = True
            dog.wake()
            await until(s.ended, 30)

    play(tmp_path, script)


def test_a_pod_without_the_kit_is_evicted_when_its_budget_allows_it(tmp_path: Path) -> None:
    async def script(s: Scene) -> None:
        s.cluster.watch()
        s.cluster.budget = "two-at-least"
        async with s.watchdog():
            await until(lambda: "two-at-least" in s.status.get("wait", ""), 30)
            assert "d0" not in s.cluster.evicted
            # A refusal counts for a quarter of a minute; what is seen here is what is asked next.
            s.cluster.budget = None
            await until(s.ended, 50)
        assert (s.status["code"], s.cluster.evicted) == ("Evicted", ["d0"])
        assert not [one for one in s.cluster.writes() if one == "PATCH pods/d0"]

    play(tmp_path, script, kit=False)


def test_a_pod_without_the_kit_and_without_a_controller_is_left_to_a_person(tmp_path: Path) -> None:
    async def script(s: Scene) -> None:
        s.cluster.watch()
        del s.cluster.objects["pods", "d0"]["metadata"]["ownerReferences"]
        async with s.watchdog():
            await until(s.ended, 50)
        assert (s.status["ending"], s.status["code"]) == ("Escalated", "NotRemade")
        assert "no controller owns d0" in s.status["detail"]
        assert not [one for one in s.cluster.seen if one.endswith("/eviction")]

    play(tmp_path, script, kit=False)


def test_an_engine_that_cannot_answer_is_left_alone(tmp_path: Path) -> None:
    async def script(s: Scene) -> None:
        async def broken(_: web.Request) -> web.StreamResponse:
            return web.Response(status=500)

        assert s.engine.kit is not None
        s.cluster.watch(canary={"enabled": False})
        async with s.watchdog():
            # The list was seen once; what is asked anew is not answered.
            s.engine.kit.answers["requests"] = broken
            await until(lambda: s.reason() in ("Inconclusive", "CannotAsk"), 30)
        assert s.cluster.incidents == []

    play(tmp_path, script)


@pytest.mark.parametrize("stop", ["true", "yes"])
def test_the_cluster_wide_stop_holds_everything(tmp_path: Path, stop: str) -> None:
    async def script(s: Scene) -> None:
        s.cluster.watch()
        s.cluster.put("configmaps", "stanch-stop", {"data": {"stop": stop}})
        async with s.watchdog():
            await until(lambda: s.reason() == "Stopped", 30)
            assert s.cluster.incidents == []
            del s.cluster.objects["configmaps", "stanch-stop"]
            await until(s.ended, 30)

    play(tmp_path, script)


def test_a_rest_of_an_incident_that_nobody_knows_is_swept(tmp_path: Path) -> None:
    async def script(s: Scene) -> None:
        s.engine.kit = FakeKit()
        s.engine.rank.usage = 0.0
        s.cluster.watch()
        rest = {
            "stanch.dev/incident": "gone",
            "stanch.dev/cordon": json.dumps({"incident": "gone", "beat": 1}),
        }
        s.cluster.marks("d0").update(rest)
        async with s.watchdog():
            await until(lambda: not s.cluster.marks("d0"), 30)

    play(tmp_path, script)


def test_a_selected_pod_that_cannot_be_watched_is_named_with_its_reason(tmp_path: Path) -> None:
    async def script(s: Scene) -> None:
        s.cluster.watch()
        raw = s.cluster.pod("d1", s.engine)
        raw["spec"]["containers"].append({"name": "other", "image": "y"})
        raw["spec"]["containers"][0].pop("ports")
        async with s.watchdog():
            await until(lambda: "NotWatchable" in s.reasons(), 30)

    play(tmp_path, script)


async def _text(request: web.Request) -> str:
    return await request.text()


@pytest.mark.parametrize("ends", [True, False])
def test_that_a_namespace_takes_nothing_new_when_it_ends_is_no_news(tmp_path: Path, ends: bool) -> None:
    async def script(s: Scene) -> None:
        causes = [{"reason": "NamespaceTerminating", "message": "namespace shop is being terminated"}]

        async def refuse(request: web.Request) -> Any:
            if request.method == "POST" and "events" in request.path:
                return refusal(403, "Forbidden", "not here", causes=causes if ends else [])
            return None

        s.cluster.refuse = refuse
        s.cluster.watch()
        async with s.watchdog():
            await until(s.ended, 30)
            await until(lambda: s.cluster.seen.count("POST events") >= 3, 30)
        assert ("event-not-written" in s.log.getvalue()) is not ends

    play(tmp_path, script)
