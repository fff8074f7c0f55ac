"""Which part has stalled, and whether a restart would help; over HTTP too, while the event loop hangs."""

from __future__ import annotations

import asyncio
import io
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest

from stanch.edge.cluster import Call
from stanch.edge.health import API_SERVER, Health
from stanch.edge.journal import Journal
from stanch.edge.telemetry import Telemetry, Turned, Watch
from stanch.edge.telemetry_server import ServeError, serving

pytestmark = pytest.mark.unit
row = pytest.param

NEWS = "news of pods"
LOOP = "watch shop/decodes"


def health(**seen: float) -> Health:
    """Parts with limits of 60 s by when they were last seen: api, news (which needs the API), loop."""
    found = Health()
    names = {"api": (API_SERVER, False), "news": (NEWS, True), "loop": (LOOP, False)}
    for key, at in seen.items():
        name, needs_api = names[key]
        found.sign(name, at, 60.0, needs_api=needs_api)
    return found


@pytest.mark.parametrize(
    ("seen", "unready", "dead"),
    [
        row({"api": 990, "news": 990, "loop": 990}, [], [], id="all-well"),
        row({"api": 990, "news": 990, "loop": 939}, [LOOP], [], id="a-loop-is-late"),
        row({"api": 990, "news": 990, "loop": 819}, [LOOP], [LOOP], id="a-loop-is-dead"),
        row(
            {"api": 990, "news": 819, "loop": 990},
            [NEWS],
            [NEWS],
            id="a-watch-is-silent-and-the-server-is-not",
        ),
        row({"api": 930, "news": 819, "loop": 990}, [API_SERVER, NEWS], [], id="the-server-does-not-answer"),
        row({"api": 100, "news": 100, "loop": 990}, [API_SERVER, NEWS], [], id="nor-for-long"),
        row({"api": 100, "news": 100, "loop": 100}, [API_SERVER, NEWS, LOOP], [LOOP], id="and-a-loop-hangs"),
        row({"loop": 940}, [], [], id="just-in-time"),
    ],
)
def test_which(seen: dict[str, float], unready: list[str], dead: list[str]) -> None:
    found = health(**seen)
    assert [line.partition(":")[0] for line in found.unready(1000)] == unready
    assert [line.partition(":")[0] for line in found.dead(1000)] == dead


def test_nothing_has_started() -> None:
    assert Health().unready(5) == ("nothing has started yet",)
    assert Health().dead(5) == ()


def test_how_late() -> None:
    assert health(loop=900).unready(1000) == (f"{LOOP}: no sign of life for 100 s (limit 60 s)",)


def test_a_part_that_ended_is_not_missed() -> None:
    found = health(api=990, loop=100)
    found.forget(LOOP)
    assert found.unready(1000) == ()


def test_what_lives_and_does_not_work_is_not_ready_and_not_dead() -> None:
    found = health(api=990)
    found.sign(LOOP, 990, 60.0, wrong="there is nothing to do it with")
    assert found.unready(1000) == (f"{LOOP}: there is nothing to do it with",)
    assert found.dead(1000) == ()
    found.sign(LOOP, 1000, 60.0)
    assert found.unready(1000) == ()


def test_a_turn_is_a_sign_with_a_limit_by_its_interval() -> None:
    clock = [1000.0]
    telemetry = Telemetry(Journal(io.StringIO()), time.time, lambda: clock[0])
    telemetry.turn(Watch("shop", "quick"), Turned(0, 0, 0, interval_seconds=5))
    telemetry.turn_failed(Watch("shop", "slow"), 600, "Unreachable", "")
    assert {part.name: part.limit_seconds for part in telemetry.health.parts} == {
        "watch shop/quick": 60,
        "watch shop/slow": 1800,
    }
    telemetry.forget(Watch("shop", "quick"))
    clock[0] = 2500.0
    assert telemetry.health.unready(clock[0]) == ()


def test_only_an_answer_is_a_sign_of_the_server() -> None:
    telemetry = Telemetry(Journal(io.StringIO()))
    telemetry.call(Call("get", "pods", 0, 10.0))
    assert not telemetry.health.parts
    telemetry.call(Call("get", "pods", 503, 0.1))
    assert [part.name for part in telemetry.health.parts] == [API_SERVER]


class Served:
    """Telemetry over HTTP, on a clock that the test turns."""

    def __init__(self) -> None:
        self.time = 0.0
        self.telemetry = Telemetry(Journal(io.StringIO()), time.time, lambda: self.time)
        self.port = 0

    def get(self, path: str, accept: str = "*/*") -> tuple[int, str, str]:
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", headers={"Accept": accept})
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.status, answer.headers["Content-Type"], answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.headers["Content-Type"], error.read().decode()


@pytest.fixture
def served() -> Iterator[Served]:
    found = Served()
    with serving(found.telemetry, "127.0.0.1", 0, lambda: found.time) as port:
        found.port = port
        yield found


class TestPages:
    def test_well_then_late_then_dead(self, served: Served) -> None:
        served.telemetry.sign(LOOP, 60.0)
        assert [served.get(path)[::2] for path in ("/healthz", "/readyz")] == [(200, "ok\n"), (200, "ok\n")]
        served.time = 70.0
        assert served.get("/readyz")[::2] == (503, f"{LOOP}: no sign of life for 70 s (limit 60 s)\n")
        assert served.get("/healthz?verbose")[0] == 200
        served.time = 190.0
        assert served.get("/healthz")[::2] == (503, f"{LOOP}: no sign of life for 190 s (limit 60 s)\n")

    def test_metrics(self, served: Served) -> None:
        served.telemetry.sign(NEWS, 60.0)
        served.time = 7.0
        status, kind, page = served.get("/metrics")
        assert (status, kind.startswith("text/plain")) == (200, True)
        assert f'stanch_sign_age_seconds{{part="{NEWS}"}} 7.0' in page
        assert served.get("/metrics", "application/openmetrics-text; version=1.0.0")[2].endswith("# EOF\n")

    def test_elsewhere(self, served: Served) -> None:
        assert served.get("/")[::2] == (404, "there are /metrics, /healthz and /readyz\n")

    def test_they_answer_while_the_event_loop_hangs(self, served: Served) -> None:
        telemetry, answered, seen = served.telemetry, threading.Event(), list[str]()

        async def hangs() -> None:
            pulse = asyncio.create_task(telemetry.pulse())
            await asyncio.sleep(0)
            # The loop stands still, and a minute passes, until the probe has its answer.
            served.time += 60.0
            answered.wait(60)
            pulse.cancel()

        def probe() -> None:
            while not telemetry.health.unready(served.time):
                time.sleep(0.01)
            for path in ("/readyz", "/healthz"):
                status, _, text = served.get(path)
                seen.append(f"{path} {status} {text}")
            answered.set()

        telemetry.sign(LOOP, 600.0)
        thread = threading.Thread(target=probe)
        thread.start()
        asyncio.run(hangs())
        thread.join()
        words = "event loop: no sign of life for 60 s (limit 10 s)\n"
        assert seen == [f"/readyz 503 {words}", f"/healthz 503 {words}"]

    def test_a_reader_that_hangs_holds_up_nobody(self, served: Served) -> None:
        with socket.create_connection(("127.0.0.1", served.port)) as reader:
            reader.sendall(b"GET /metrics HTTP/1.1\r\n")
            assert served.get("/metrics")[0] == 200


def test_a_port_that_is_taken() -> None:
    telemetry = Telemetry(Journal(io.StringIO()))
    with (
        serving(telemetry, "127.0.0.1", 0) as port,
        pytest.raises(ServeError, match=f"cannot be served on 127.0.0.1 port {port}: Address already in use"),
        serving(telemetry, "127.0.0.1", port),
    ):
        pass
