"""In which order a plan is carried out, and what becomes of what a turn has no time for."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from stanch.core.history import Incident
from stanch.core.plan_types import Action, Verb
from stanch.edge.carrying import order
from tests.edge.fake_kit import FakeKit, entry
from tests.edge.fake_vllm import FakeVllm, until
from tests.edge.small_cluster import SmallCluster
from tests.edge.test_watchdog import RESTART, Scene

pytestmark = pytest.mark.unit


def action(verb: Verb, unit: str, incident: str = "i") -> Action:
    return Action(verb, incident, unit, f"{unit}/{verb.value}", ())


def incident(unit: str) -> Incident:
    return Incident(f"i-{unit}", unit, f"uid-{unit}", 0.0, unit=unit)


def test_who_is_only_asked_goes_first_then_whose_leak_still_does_harm() -> None:
    incidents = [incident("drains"), incident("leaks"), incident("frees"), incident("goes")]
    actions = [
        action(Verb.DRAIN, "drains"),
        action(Verb.CORDON, "leaks"),
        action(Verb.RELEASE, "frees"),
        action(Verb.EVICT, "goes"),
        action(Verb.ASK, "asked", ""),
    ]
    assert order(incidents, actions, ()) == (["asked", "leaks", "frees", "goes"], ["drains"])


def test_a_cordon_that_is_to_be_renewed_does_not_wait() -> None:
    actions = [action(Verb.CAPTURE, "a"), action(Verb.RESTART, "b"), action(Verb.CORDON, "b")]
    assert order([incident("a"), incident("b")], actions, ()) == (["b"], ["a"])


def test_a_question_of_an_incident_that_is_to_be_written_waits_with_it() -> None:
    assert order([incident("a")], [action(Verb.ASK, "a")], ()) == ([], ["a"])


def test_of_the_rest_those_come_first_that_had_no_time_before() -> None:
    units = ["a", "b", "c", "d"]
    drains = [action(Verb.DRAIN, unit) for unit in units]
    assert order([incident(unit) for unit in units], drains, {"c", "d"}) == ([], ["c", "d", "a", "b"])


def test_many_repairs_at_once_and_a_slow_server(tmp_path: Path) -> None:
    """No turn has time for all of them; none is lost, given up, or done twice."""
    names = [f"d{number}" for number in range(34)]

    async def slow(request: web.Request) -> tuple[int, dict[str, Any]] | None:
        if request.method == "PUT" and "leakincidents" in request.path:
            await asyncio.sleep(0.6)  # sixteen are written at a time: the third sixteen are late
        return None

    async def whole() -> None:
        async with SmallCluster(tmp_path) as cluster, AsyncExitStack() as stack:
            port = 0
            for number, name in enumerate(names, 1):
                engine = await stack.enter_async_context(FakeVllm(host=f"127.0.1.{number}", port=port))
                port = int(engine.url.rpartition(":")[2])
                engine.rank.usage = 0.3
                engine.kit = FakeKit(entry(cacheShare=0.3))
                cluster.pod(name, engine)
            limits = {"maxUnavailable": "100%", "maxPerHour": 1000}
            cluster.watch(remediation={**RESTART, **limits})
            cluster.refuse = slow
            scene = Scene(cluster, engine)
            async with scene.watchdog():

                def over() -> bool:
                    ends = ["ending" in one.get("status", {}) for one in cluster.incidents]
                    return len(ends) == len(names) and all(ends)

                await until(over, 150)
            for one in cluster.incidents:
                status = one["status"]
                assert (status["ending"], status["code"]) == ("Resolved", "Restarted"), status
                assert {step["outcome"] for step in status["steps"]} == {"Done"}, status
            assert [cluster.restarts(name) for name in names] == [1] * len(names)

    asyncio.run(whole())
