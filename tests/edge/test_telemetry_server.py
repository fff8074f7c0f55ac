"""The port for metrics and health is open to the pod network: what strangers may do to it, and what not."""

from __future__ import annotations

import io
import random
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from threading import enumerate as threads

import pytest
from prometheus_client import Gauge
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from stanch.edge.journal import Journal
from stanch.edge.telemetry import Telemetry
from stanch.edge.telemetry_pages import Pages
from stanch.edge.telemetry_server import Bounds, serving

pytestmark = pytest.mark.unit
row = pytest.param

GET = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
SMALL = Bounds(seconds=120.0)


class Port:
    def __init__(self, telemetry: Telemetry, number: int) -> None:
        self.telemetry = telemetry
        self.number = number

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.number), timeout=60)

    def ask(self, request: bytes) -> bytes:
        """All that comes back until the server ends the connection."""
        with self.connect() as one:
            one.sendall(request)
            return taken(one)

    def well(self) -> bool:
        return self.ask(GET).startswith(b"HTTP/1.1 200 ") and b"\nstanch_active " in self.ask(
            b"GET /metrics HTTP/1.1\r\n\r\n"
        )


def taken(one: socket.socket) -> bytes:
    found = b""
    with suppress(ConnectionResetError):
        while data := one.recv(65536):
            found += data
    return found


@contextmanager
def port(bounds: Bounds = SMALL) -> Iterator[Port]:
    telemetry = Telemetry(Journal(io.StringIO()))
    with serving(telemetry, "127.0.0.1", 0, bounds=bounds) as number:
        yield Port(telemetry, number)


@pytest.fixture
def silence(caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]) -> Iterator[None]:
    """Nothing of what comes is told to anybody, a traceback least of all."""
    yield
    assert caplog.records == []
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        row(b"GET / HTTP/1.1\r\n\r\n", 404, id="another-path"),
        row(b"GET /metrics/ HTTP/1.1\r\n\r\n", 404, id="with-a-slash"),
        row(b"GET /healthz/../metrics HTTP/1.1\r\n\r\n", 404, id="dots"),
        row(b"GET /%2e%2e/etc/passwd HTTP/1.1\r\n\r\n", 404, id="a-file"),
        row(b"GET /healthz?a=b HTTP/1.0\r\n\r\n", 200, id="a-query"),
        row(b"POST /metrics HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello", 405, id="post"),
        row(b"DELETE /healthz HTTP/1.1\r\n\r\n", 405, id="delete"),
        row(b"CONNECT /healthz HTTP/1.1\r\n\r\n", 405, id="connect"),
        row(b"GET http://elsewhere/metrics HTTP/1.1\r\n\r\n", 400, id="a-proxy"),
        row(b"GET /healthz\r\n\r\n", 400, id="http-0.9"),
        row(b"GET /healthz HTTP/2\r\n\r\n", 400, id="http-2"),
        row(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400, id="http-2-by-itself"),
        row(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\r\n\r\n", 400, id="tls"),
        row(b"\r\n\r\n", 400, id="nothing"),
        row(b"\xff" * 100 + b"\r\n\r\n", 400, id="bytes"),
        row(b"GET /healthz HTTP/1.1\r\nno colon\r\n: \r\n\r\n", 200, id="odd-headers"),
        row(b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\n\r\n", 431, id="long-path"),
        row(b"GET /healthz HTTP/1.1\r\nA: " + b"b" * 100_000, 431, id="long-header"),
        row(b"GET /healthz HTTP/1.1\r\n" + b"A: b\r\n" * 100_000, 431, id="many-headers"),
        row(b"a" * 1_000_000, 431, id="no-line"),
    ],
)
@pytest.mark.usefixtures("silence")
def test_each_request_has_one_answer(request_: bytes, status: int) -> None:
    with port() as at:
        got = at.ask(request_)
        # A client that still sends while it is answered may lose the answer; it never gets another.
        assert got == b"" or got.startswith(f"HTTP/1.1 {status} ".encode())
        if len(request_) < 8192:
            assert got.count(b"HTTP/1.1") == 1
            assert b"Server: stanch\r\n" in got
            assert b"Python" not in got
        assert at.well()


@pytest.mark.usefixtures("silence")
def test_of_many_requests_on_one_connection_the_first_is_answered() -> None:
    with port() as at:
        got = at.ask(GET + b"GET /metrics HTTP/1.1\r\n\r\n" * 50 + b"\x00garbage" * 100)
        assert got.count(b"HTTP/1.1 ") == 1
        assert got.endswith(b"ok\n") or b"nothing has started yet" in got


def test_nothing_that_a_reader_asks_for_comes_back() -> None:
    pages = Pages(Telemetry(Journal(io.StringIO())), time.monotonic)
    for accept in (
        "application/openmetrics-text; version=<script>",
        "application/openmetrics-text; version=1.0.0; escaping=\r",
        "text/plain; version=9.9.9; escaping=nonsense",
        "application/openmetrics-text; version=" + "1" * 5000,
    ):
        got = pages.answer(f"GET /metrics HTTP/1.1\r\nAccept: {accept}\r\n\r\n".encode())
        head = got.data.partition(b"\r\n\r\n")[0]
        assert got.status == 200
        assert not any(word in head for word in (b"script", b"nonsense", b"9.9.9", b"1111"))


def test_of_ten_thousand_heads_each_is_answered() -> None:
    dice = random.Random(20261130)
    pages = Pages(Telemetry(Journal(io.StringIO())), time.monotonic)
    seen = set()
    for _ in range(10_000):
        head = bytearray(
            dice.choice((b"GET", b"POST", b"get", b"")) + b" "
            + dice.choice((b"/metrics", b"/healthz", b"/readyz", b"/", b"*", b"//[", b"/\xff")) + b" HTTP/1."
            + dice.choice((b"0", b"1", b"2", b"")) + b"\r\nHost: x\r\nAccept: openmetrics-text\r\n"
        )  # fmt: skip
        for _ in range(dice.choice((0, 0, 1, 5))):
            head[dice.randrange(len(head))] = dice.randrange(256)
        got = pages.answer(bytes(head) + b"\r\n\r\n")
        assert got.data.startswith(f"HTTP/1.1 {got.status} ".encode())
        seen.add(got.status)
    assert seen == {200, 400, 404, 405, 503} or seen == {200, 400, 404, 405}


@pytest.mark.parametrize(
    "first", [b"", b"GET", b"GET /healthz HTTP/1.1\r\nX: "], ids=["silent", "a word", "half a head"]
)
@pytest.mark.usefixtures("silence")
def test_a_thousand_connections_hold_up_nobody(first: bytes) -> None:
    """They are held until the end of the test; of each time only so many stay, and nobody waits for them."""
    with port() as at, ExitStack() as held:
        before = len(threads())
        crowd = []
        for number in range(1000):
            crowd.append(held.enter_context(at.connect()))
            with suppress(OSError):
                crowd[-1].sendall(first)
            if number % 100 == 99:
                assert at.well()
        assert len(threads()) == before
        open_ = sum(_stays(one) for one in crowd)
        assert open_ <= SMALL.silent
        # The newest stay, and may still ask.
        crowd[-1].sendall(b"" if first.startswith(b"GET /") else GET.removeprefix(first))
        crowd[-1].sendall(b"x\r\n\r\n" if first.startswith(b"GET /") else b"")
        assert taken(crowd[-1]).startswith(b"HTTP/1.1 200 ")


def _stays(one: socket.socket) -> bool:
    """Whether the server has not ended it."""
    one.setblocking(False)
    try:
        return one.recv(1) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        one.settimeout(60)


@pytest.mark.parametrize("drip", [None, b"G", b"A: b\r\n"], ids=["silent", "no line", "headers"])
@pytest.mark.usefixtures("silence")
def test_a_slow_one_is_ended(drip: bytes | None) -> None:
    with port(replace(SMALL, seconds=0.3)) as at, at.connect() as slow:
        if drip is None:
            assert taken(slow) == b""
            return
        with suppress(BrokenPipeError, ConnectionResetError):
            for _ in range(6000):  # a minute
                slow.sendall(drip)
                time.sleep(0.01)
            pytest.fail("it was never ended")


@contextmanager
def unread(at: Port, count: int) -> Iterator[list[socket.socket]]:
    """Connections that have asked for the metrics and take nothing of them."""
    with ExitStack() as held:
        found = []
        for _ in range(count):
            one = held.enter_context(socket.socket())
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            one.settimeout(60)
            one.connect(("127.0.0.1", at.number))
            one.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
            found.append(one)
        yield found


LARGE = 16_000_000


@pytest.mark.usefixtures("silence")
def test_pages_that_nobody_takes_do_not_fill_the_memory() -> None:
    with port(replace(SMALL, answering=2)) as at:
        Gauge("large", "x" * LARGE, registry=at.telemetry.families.registry)
        with unread(at, 5) as readers:
            until(lambda: [_ended_early(one) for one in readers[:3]] == [True] * 3)
            assert at.ask(GET).startswith(b"HTTP/1.1 ")


def _ended_early(one: socket.socket) -> bool:
    """Whether it came to an end before the whole page; takes no more of it than is there."""
    with suppress(BlockingIOError):
        one.setblocking(False)
        try:
            for _ in range(200):
                if one.recv(65536) == b"":
                    return True
        except ConnectionResetError:
            return True
    return False


@pytest.mark.usefixtures("silence")
def test_who_does_not_read_is_ended() -> None:
    with port(replace(SMALL, seconds=0.3)) as at:
        Gauge("large", "x" * LARGE, registry=at.telemetry.families.registry)
        with unread(at, 1) as (one,), at.connect() as later:
            assert taken(later) == b""
            assert len(taken(one)) < LARGE


def until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)


class Slow(Collector):
    """Metrics whose page takes long."""

    def __init__(self) -> None:
        self.times = 0

    def collect(self) -> Iterator[GaugeMetricFamily]:
        time.sleep(0.2)
        yield GaugeMetricFamily("collected", "", self.times)
        self.times += 1


def test_who_asks_without_end_gets_the_same_page_for_a_while() -> None:
    telemetry, slow = Telemetry(Journal(io.StringIO())), Slow()
    telemetry.families.registry.register(slow)
    pages = Pages(telemetry, time.monotonic)
    for _ in range(100):
        assert b"\ncollected 0.0\n" in pages.answer(b"GET /metrics HTTP/1.1\r\n\r\n").data
    assert slow.times == 1
    until(lambda: b"\ncollected 1.0\n" in pages.answer(b"GET /metrics HTTP/1.1\r\n\r\n").data)


def test_no_label_names_a_pod_or_a_request() -> None:
    """Whoever reaches the port may read them."""
    families = Telemetry(Journal(io.StringIO())).families
    found = {
        label
        for collector in families.registry._collector_to_names
        for label in getattr(collector, "_labelnames", ())
    }
    assert found >= {"namespace", "watch"}
    assert not found & {"pod", "uid", "ip", "node", "container", "request", "id", "engine", "user", "url"}


@pytest.mark.usefixtures("silence")
def test_it_ends_while_clients_hang() -> None:
    with ExitStack() as held:
        with port() as at:
            crowd = [held.enter_context(at.connect()) for _ in range(20)]
            assert at.well()
        assert [taken(one) for one in crowd] == [b""] * 20
