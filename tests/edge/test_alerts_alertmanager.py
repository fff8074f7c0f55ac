"""From a rule of Debian's real Prometheus through its Alertmanager to an incident, a repair, and the end of
the alert: with one server as the API server and one as the engine.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.alerting import Alertmanager, To, alertmanager, prometheus
from tests.edge.alerts_world import OTHER, SMALL, TOKEN, World, world
from tests.edge.fake_kit import FakeKit, entry
from tests.edge.fake_vllm import FakeVllm, until
from tests.edge.test_alerts_tls import Keys, made
from tests.edge.test_watchdog import Scene

pytestmark = [
    pytest.mark.unit,
    pytest.mark.skipif(
        shutil.which("prometheus") is None or shutil.which("prometheus-alertmanager") is None,
        reason="no Prometheus: apt-get install prometheus prometheus-alertmanager",
    ),
]

WITH_TOKEN = {"authorization": {"credentials": TOKEN}}


def test_a_rule_fires_the_engine_is_healed_and_the_alert_ends(tmp_path: Path) -> None:
    async def script(w: World, manager: Alertmanager) -> None:
        async with FakeVllm() as engine:
            engine.rank.usage = 0.3
            engine.kit = FakeKit(entry(cacheShare=0.3, ageSeconds=200.0))
            w.api.pod("d0", engine)
            # The watchdog's own holds are long. Its kit's list is the proof, as for every other incident.
            w.api.watch(signatures={"heldIdleSeconds": 3600, "parkedRemoteKvSeconds": 120})
            labels = {engine.url.removeprefix("http://"): {"namespace": "shop", "pod": "d0"}}
            with prometheus(tmp_path, manager, labels):
                await until(lambda: len(w.api.incidents) == 1, 60)
                (made_for,) = w.api.incidents
                trigger = made_for["spec"]["trigger"]
                assert (trigger["type"], trigger["by"]) == ("Alert", "stanch")
                assert trigger["alert"]["name"] == "EngineHoldsCache"
                assert trigger["reason"] == "d0 holds 30% for nobody"
                assert w.api.marks("d0") == {}
                s = Scene(w.api, engine)
                async with s.watchdog():
                    await until(s.ended, 60)
                    assert (s.status["ending"], s.status["code"]) == ("Resolved", "Released"), s.status
                    assert s.status["evidence"]["signature"] == "ParkedRemoteKV"
                    await w.worked(created=1, resolved=1)
                assert s.status["alertResolved"]
                assert (s.status["ending"], len(w.api.incidents)) == ("Resolved", 1)
                assert w.api.restarts("d0") == 0

    play(script, tmp_path, WITH_TOKEN)


def test_a_healthy_engine_is_asked_and_left_alone(tmp_path: Path) -> None:
    async def script(w: World, manager: Alertmanager) -> None:
        async with FakeVllm() as engine:
            engine.kit = FakeKit()
            w.api.pod("d0", engine)
            w.api.watch()
            manager.fire({"alertname": "SomebodyIsWrong", "namespace": "shop", "pod": "d0"})
            s = Scene(w.api, engine)
            async with s.watchdog():
                await until(s.ended, 60)
            assert (s.status["ending"], s.steps()) == ("Recovered", ["Confirm"]), s.status
            assert not [one for one in w.api.writes() if one.startswith("PATCH")]
            assert (w.api.marks("d0"), w.api.restarts("d0"), w.api.evicted) == ({}, 0, [])

    play(script, tmp_path, WITH_TOKEN)


def test_with_certificates(tmp_path: Path) -> None:
    keys = Keys(tmp_path)
    keys.ours.write(tmp_path, "trust")
    made("alertmanager", keys.ours).write(tmp_path, "client")
    files = {"ca_file": "trust.crt", "cert_file": "client.crt", "key_file": "client.key"}
    tls = {name: str(tmp_path / file) for name, file in files.items()}

    async def script(w: World, manager: Alertmanager) -> None:
        w.pod()
        manager.fire({"alertname": "x", "namespace": "shop", "pod": "d0"})
        await w.worked(created=1)

    http = {"tls_config": {**tls, "server_name": "stanch"}}
    play(script, tmp_path, http, token_file=None, alerts_tls_dir=keys.serve())


@pytest.mark.parametrize(("known", "code"), [("", 503), (OTHER, 401)], ids=["no-token", "another-token"])
def test_what_could_not_be_taken_is_sent_again(tmp_path: Path, known: str, code: int) -> None:
    """503 at once, until it is taken; what is refused with the group's next interval."""

    async def script(w: World, manager: Alertmanager) -> None:
        w.pod()
        token = tmp_path / "token"
        token.write_text(known)
        manager.fire({"alertname": "x", "namespace": "shop", "pod": "d0"})
        await until(lambda: requests(w, code) > 1, 60)
        token.write_text(TOKEN)
        await w.worked(created=1)

    play(script, tmp_path, WITH_TOKEN)


def test_what_could_not_be_written_is_sent_again(tmp_path: Path) -> None:
    """The API server hangs: with repeat_interval 1h nobody else would bring the alert again after a crash."""

    async def script(w: World, manager: Alertmanager) -> None:
        w.pod()
        hangs = asyncio.Event()

        async def refuse(_: web.Request) -> tuple[int, dict[str, Any]] | None:
            await hangs.wait()
            return None

        w.api.refuse = refuse
        manager.fire({"alertname": "x", "namespace": "shop", "pod": "d0"})
        await until(lambda: requests(w, 503) > 1, 60)
        assert requests(w, 200) == 0
        hangs.set()
        await until(lambda: requests(w, 200) > 0, 60)
        assert len(w.api.incidents) == 1

    play(script, tmp_path, WITH_TOKEN, bounds=replace(SMALL, answer_seconds=0.2))


def requests(w: World, code: int) -> float:
    name = "stanch_alert_requests_total"
    return w.telemetry.families.registry.get_sample_value(name, {"code": str(code)}) or 0.0


def play(
    script: Callable[[World, Alertmanager], Any], path: Path, http: dict[str, Any], **settings: Any
) -> None:
    async def whole() -> None:
        async with world(path, **settings) as w:
            scheme = "https" if "tls_config" in http else "http"
            with alertmanager(path, To(f"{scheme}://127.0.0.1:{w.port}/alerts/v4", http)) as manager:
                await asyncio.wait_for(script(w, manager), 180)

    asyncio.run(whole())
