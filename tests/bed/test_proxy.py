"""The fault proxy between a real client and a real server on loopback."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.bed import pki
from tests.bed.cluster import wait_for
from tests.bed.faults import (
    CutWatch,
    Drop,
    ExpireWatch,
    Hang,
    Refuse,
    Rule,
    SilentWatch,
    Slow,
)
from tests.bed.proxy import FaultProxy

pytestmark = pytest.mark.unit

PODS = "/api/v1/namespaces/shop/pods"
POD = f"{PODS}/decode-0"
EVENTS = 5


class Server(BaseHTTPRequestHandler):
    """Answers everything, and remembers what took effect; a watch has five events and then waits."""

    protocol_version = "HTTP/1.1"
    applied: list[str]
    heads: list[dict[str, str]]
    left: threading.Event
    end: threading.Event

    def do_GET(self) -> None:
        self.heads.append(dict(self.headers))
        if "watch=true" not in self.path:
            self._answer({"path": self.path})
            return
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for number in range(EVENTS):
            self._chunk(json.dumps({"type": "MODIFIED", "number": number}).encode() + b"\n")
        # Until whoever watches leaves.
        self.connection.settimeout(0.1)
        while not self.end.is_set():
            try:
                if not self.connection.recv(1):
                    break
            except TimeoutError:
                continue
            except ConnectionError:
                break
        self.left.set()
        self.close_connection = True

    def do_POST(self) -> None:
        self.do_PATCH()

    def do_PATCH(self) -> None:
        self.heads.append(dict(self.headers))
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.applied.append(body.decode())
        self._answer({"applied": len(self.applied)})

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Not to the tests' output."""

    def _answer(self, content: object) -> None:
        body = json.dumps(content).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("X-Kubernetes-Pf-Flowschema-Uid", "kept")
        self.end_headers()
        self.wfile.write(body)

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")


class Upstream:
    """The running server; tls: with this certificate."""

    def __init__(self, certificate: tuple[Path, Path] | None = None) -> None:
        members = {"applied": [], "heads": [], "left": threading.Event(), "end": threading.Event()}
        self.handler = type("Handler", (Server,), members)
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), self.handler)
        if certificate is not None:
            tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            tls.load_cert_chain(*certificate)
            self.server.socket = tls.wrap_socket(self.server.socket, server_side=True)
        self.url = f"{'https' if certificate else 'http'}://127.0.0.1:{self.server.server_address[1]}"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.05,))

    def __enter__(self) -> Upstream:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.handler.end.set()  # type: ignore[attr-defined]
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()

    @property
    def applied(self) -> list[str]:
        found: list[str] = self.handler.applied  # type: ignore[attr-defined]
        return found

    @property
    def heads(self) -> list[dict[str, str]]:
        found: list[dict[str, str]] = self.handler.heads  # type: ignore[attr-defined]
        return found

    def left(self) -> bool:
        """Whether somebody who watched has left."""
        return bool(self.handler.left.is_set())  # type: ignore[attr-defined]


@pytest.fixture
def upstream() -> Iterator[Upstream]:
    with Upstream() as found:
        yield found


@pytest.fixture
def proxy(upstream: Upstream) -> Iterator[FaultProxy]:
    with FaultProxy(upstream.url) as found:
        yield found


def connect(url: str, trust: Path | None = None, timeout_s: float = 10) -> http.client.HTTPConnection:
    parts = urlsplit(url)
    assert parts.hostname is not None
    if parts.scheme == "https":
        context = ssl.create_default_context(cafile=trust)
        return http.client.HTTPSConnection(parts.hostname, parts.port, timeout=timeout_s, context=context)
    return http.client.HTTPConnection(parts.hostname, parts.port, timeout=timeout_s)


def ask(
    proxy: FaultProxy, method: str, path: str, body: str | None = None, trust: Path | None = None
) -> tuple[http.client.HTTPResponse, Any]:
    connection = connect(proxy.url, trust)
    try:
        connection.request(method, path, body, {"Authorization": "Bearer me"})
        answer = connection.getresponse()
        return answer, json.loads(answer.read())
    finally:
        connection.close()


def watch(proxy: FaultProxy, timeout_s: float = 10) -> Iterator[Any]:
    """The events of a watch as they come; ends when it does. Raises TimeoutError and ConnectionError."""
    connection = connect(proxy.url, timeout_s=timeout_s)
    try:
        connection.request("GET", f"{PODS}?watch=true")
        answer = connection.getresponse()
        while line := answer.readline():
            yield json.loads(line)
    finally:
        connection.close()


def test_without_a_rule_everything_goes_through_as_it_is(proxy: FaultProxy, upstream: Upstream) -> None:
    path = f"{PODS}?labelSelector=app%3Dengines%2Crole+in+%28decode%29"
    answer, body = ask(proxy, "GET", path)
    assert (answer.status, body["path"]) == (200, path)
    assert answer.headers["X-Kubernetes-Pf-Flowschema-Uid"] == "kept"
    assert upstream.heads[0]["Authorization"] == "Bearer me"
    assert ask(proxy, "PATCH", POD, '{"a": 1}')[1] == {"applied": 1}
    assert upstream.applied == ['{"a": 1}']
    assert [(one.call.verb, one.status) for one in proxy.faults.seen] == [("list", 200), ("patch", 200)]


@pytest.mark.parametrize("code", [409, 410, 429, 500, 503])
def test_a_refused_call_never_reaches_the_server(proxy: FaultProxy, upstream: Upstream, code: int) -> None:
    proxy.faults.add(Rule(Refuse(code, retry_after_seconds=7), verb="patch", resource="pods"))
    answer, body = ask(proxy, "PATCH", POD, "{}")
    assert (answer.status, body["code"], answer.headers["Retry-After"]) == (code, code, "7")
    assert upstream.applied == []
    assert ask(proxy, "PATCH", POD, "{}")[0].status == 200


def test_a_call_that_was_applied_and_then_refused(proxy: FaultProxy, upstream: Upstream) -> None:
    proxy.faults.add(Rule(Refuse(500, applied=True), verb="create", resource="pods/eviction"))
    assert ask(proxy, "POST", f"{POD}/eviction", "{}")[0].status == 500
    assert upstream.applied == ["{}"]


@pytest.mark.parametrize("applied", [False, True], ids=["lost-call", "lost-answer"])
def test_a_dropped_connection(proxy: FaultProxy, upstream: Upstream, applied: bool) -> None:
    proxy.faults.add(Rule(Drop(applied=applied), verb="patch"))
    with pytest.raises(ConnectionResetError):
        ask(proxy, "PATCH", POD, "{}")
    assert len(upstream.applied) == applied


def test_a_hang_lasts_until_its_time_is_over(proxy: FaultProxy, upstream: Upstream) -> None:
    proxy.faults.add(Rule(Hang(seconds=0.3), verb="patch"))
    began = time.monotonic()
    with pytest.raises(ConnectionResetError):
        ask(proxy, "PATCH", POD, "{}")
    assert time.monotonic() - began >= 0.3
    assert upstream.applied == []


def test_a_hang_without_a_time_lasts_until_the_client_leaves(proxy: FaultProxy) -> None:
    proxy.faults.add(Rule(Hang(), verb="get"))
    connection = connect(proxy.url, timeout_s=0.3)
    connection.request("GET", POD)
    with pytest.raises(TimeoutError):
        connection.getresponse()
    connection.close()
    assert proxy.faults.hit()[0].status is None
    # And it holds up nobody else.
    assert ask(proxy, "GET", POD)[0].status == 200


def test_a_slow_answer_is_the_right_one(proxy: FaultProxy) -> None:
    proxy.faults.add(Rule(Slow(0.3), verb="get"))
    began = time.monotonic()
    assert ask(proxy, "GET", POD)[1] == {"path": POD}
    assert time.monotonic() - began >= 0.3


def test_a_watch_brings_every_event_as_it_comes_and_ends_with_its_client(
    proxy: FaultProxy, upstream: Upstream
) -> None:
    events = watch(proxy)
    assert [next(events)["number"] for _ in range(EVENTS)] == list(range(EVENTS))
    events.close()  # type: ignore[attr-defined]
    wait_for("the server sees its client leave", upstream.left, 10)


@pytest.mark.parametrize("after", [0, 2, EVENTS])
def test_a_watch_cut_in_order(proxy: FaultProxy, after: int) -> None:
    proxy.faults.add(Rule(CutWatch(after_events=after), verb="watch"))
    assert [event["number"] for event in watch(proxy)] == list(range(after))


def test_a_watch_cut_by_a_reset(proxy: FaultProxy) -> None:
    proxy.faults.add(Rule(CutWatch(after_events=2, in_order=False), verb="watch"))
    events = watch(proxy)
    assert [next(events)["number"] for _ in range(2)] == [0, 1]
    with pytest.raises(ConnectionResetError):
        next(events)


def test_a_watch_that_falls_silent_stays_open(proxy: FaultProxy) -> None:
    proxy.faults.add(Rule(SilentWatch(after_events=3), verb="watch"))
    events = watch(proxy, timeout_s=0.5)
    assert [next(events)["number"] for _ in range(3)] == [0, 1, 2]
    with pytest.raises(TimeoutError):
        next(events)


def test_a_watch_that_expires(proxy: FaultProxy) -> None:
    proxy.faults.add(Rule(ExpireWatch(after_events=1), verb="watch"))
    first, error = watch(proxy)
    assert first["number"] == 0
    assert (error["type"], error["object"]["code"], error["object"]["reason"]) == ("ERROR", 410, "Expired")


def test_slow_events(proxy: FaultProxy) -> None:
    proxy.faults.add(Rule(Slow(0.1), verb="watch"))
    events, began = watch(proxy), time.monotonic()
    assert [next(events)["number"] for _ in range(3)] == [0, 1, 2]
    assert time.monotonic() - began >= 0.4


def test_tls_on_both_sides(tmp_path: Path) -> None:
    pki.write(tmp_path / "pki")
    certificate = (tmp_path / "pki/api.crt", tmp_path / "pki/api.key")
    authority = tmp_path / "pki/ca.crt"
    with (
        Upstream(certificate) as server,
        FaultProxy(server.url, trust=authority, certificate=certificate) as proxy,
    ):
        assert proxy.url.startswith("https://")
        assert ask(proxy, "GET", POD, trust=authority)[0].status == 200


def test_an_unknown_api_server_is_not_trusted(tmp_path: Path) -> None:
    for name in ("one", "other"):
        pki.write(tmp_path / name)
    certificate = (tmp_path / "one/api.crt", tmp_path / "one/api.key")
    with Upstream(certificate) as server, FaultProxy(server.url, trust=tmp_path / "other/ca.crt") as proxy:
        answer, body = ask(proxy, "PATCH", POD, "{}")
        assert (answer.status, server.applied) == (502, [])
        assert "certificate" in body["message"]


def test_an_api_server_that_is_not_there() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        with FaultProxy(f"http://127.0.0.1:{unused.getsockname()[1]}") as proxy:
            assert ask(proxy, "GET", POD)[0].status == 502


def test_an_upgrade_is_refused(proxy: FaultProxy) -> None:
    connection = connect(proxy.url)
    connection.request("GET", f"{POD}/exec", headers={"Connection": "Upgrade", "Upgrade": "websocket"})
    assert connection.getresponse().status == 501
    connection.close()
