"""/metrics, /healthz and /readyz, from a thread of its own: they still answer while the event loop hangs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socket import AF_INET6
from typing import Any
from urllib.parse import urlsplit

from prometheus_client.exposition import choose_encoder

from stanch.edge.telemetry import Telemetry

# Of one request; a reader that is slower holds up nobody but itself.
_SECONDS = 10.0


class ServeError(Exception):
    """The port cannot be had; the text says which and why."""


@contextmanager
def serving(
    telemetry: Telemetry, host: str, port: int, monotonic: Callable[[], float] = time.monotonic
) -> Iterator[int]:
    """While this lasts, the pages are served; the port, which is a free one for 0. Raises ServeError."""

    class Handler(_Pages):
        pages = telemetry
        clock = staticmethod(monotonic)

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        # A reader that hangs must not hold up the end of the process.
        block_on_close = False
        address_family = AF_INET6 if ":" in host else ThreadingHTTPServer.address_family

        def handle_error(self, request: Any, client_address: Any) -> None:
            """A reader that has gone is no news."""

    try:
        server = Server((host, port), Handler)
    except (OSError, OverflowError) as error:
        why = getattr(error, "strerror", None) or error
        raise ServeError(f"metrics and health cannot be served on {host} port {port}: {why}") from None
    thread = threading.Thread(
        target=server.serve_forever, kwargs={"poll_interval": 0.1}, name="telemetry", daemon=True
    )
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Pages(BaseHTTPRequestHandler):
    pages: Telemetry
    clock: Callable[[], float]
    timeout = _SECONDS
    server_version = "stanch"
    sys_version = ""

    def do_GET(self) -> None:
        path = urlsplit(self.path).path
        if path == "/metrics":
            encode, kind = choose_encoder(self.headers.get("Accept", ""))
            self._answer(HTTPStatus.OK, encode(self.pages.families.registry), kind)
        elif path in ("/healthz", "/readyz"):
            health, now = self.pages.health, type(self).clock()
            problems = health.dead(now) if path == "/healthz" else health.unready(now)
            status = HTTPStatus.SERVICE_UNAVAILABLE if problems else HTTPStatus.OK
            self._answer(
                status,
                "".join(f"{line}\n" for line in problems or ("ok",)).encode(),
                "text/plain; charset=utf-8",
            )
        else:
            text = b"there are /metrics, /healthz and /readyz\n"
            self._answer(HTTPStatus.NOT_FOUND, text, "text/plain; charset=utf-8")

    def _answer(self, status: HTTPStatus, body: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Probes every few seconds are no news."""
