"""The door for alerts: one request per connection, a few connections at a time, none for long.

A connection is accepted only when there is room for it; the others wait in the kernel's queue, in their
order. It has so many seconds for everything, from the TLS handshake on, and then it is cut off: whoever is
slow holds up nobody for longer. What is asked before anything is read of a body: who it is, and whether the
address is right.
"""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

from aiohttp import web

from stanch.edge.alerts_access import Certificates, Tokens
from stanch.edge.alerts_intake import Intake
from stanch.edge.alerts_payload import PayloadError, parse
from stanch.edge.errors import FileError
from stanch.edge.metrics import Families
from stanch.edge.telemetry_server import ServeError
from stanch.edge.waking import ended

ROUTE: Final = "/alerts/v4"


@dataclass(frozen=True, slots=True)
class Bounds:
    """Of the door. head_seconds: until a request's headers are there. connection_seconds: of one connection,
    from its acceptance to its end. rate: requests a second of those who are known; burst: so many at once."""

    body_bytes: int = 1 << 20
    header_bytes: int = 8190
    headers: int = 64
    connections: int = 32
    handshake_seconds: float = 3.0
    head_seconds: float = 3.0
    body_seconds: float = 5.0
    connection_seconds: float = 10.0
    rate: float = 20.0
    burst: int = 100


@dataclass(slots=True)
class Bucket:
    """So many at once, and then so many a second. left, at: what was there at that moment."""

    rate: float
    burst: float
    left: float
    at: float

    def take(self, now: float) -> float:
        """0 where there was one; else after how many seconds there will be."""
        self.left = min(self.burst, self.left + (now - self.at) * self.rate)
        self.at = now
        if self.left < 1.0:
            return (1.0 - self.left) / self.rate
        self.left -= 1.0
        return 0.0


class _RefusedError(Exception):
    """The answer, where it is not the good one."""

    def __init__(self, status: HTTPStatus, *errors: str, **headers: str) -> None:
        self.status, self.errors, self.headers = status, errors, headers


class Door:
    """Answers one request at a time from each of its connections. tokens, certificates: at least one."""

    def __init__(
        self,
        intake: Intake,
        families: Families,
        note: Callable[..., None],
        tokens: Tokens | None,
        certificates: Certificates | None,
        bounds: Bounds | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        if tokens is None and (certificates is None or not certificates.mutual):
            raise ValueError("alerts are taken from those who are known only")
        self._bounds = bounds = bounds or Bounds()
        self._intake = intake
        self._families = families
        self._note = note
        self._tokens = tokens
        self._certificates = certificates
        self._monotonic = monotonic
        self._bucket = Bucket(bounds.rate, bounds.burst, bounds.burst, monotonic())
        self._said: dict[str, float] = {}

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        """Whatever is asked, in whatever shape: an answer, never an error."""
        headers: dict[str, str] = {}
        try:
            status, data = await self._good(request)
        except _RefusedError as refused:
            status, headers = refused.status, refused.headers
            data = {"schema": "stanch.alerts/1", "errors": list(refused.errors)} if refused.errors else {}
        except (asyncio.CancelledError, ConnectionError):
            raise
        except Exception as error:
            self._note("error", "alerts-not-answered", f"{type(error).__name__}: {error}")
            status, data = HTTPStatus.INTERNAL_SERVER_ERROR, {}
        self._families.alert_requests.labels(str(status.value)).inc()
        body = json.dumps(data).encode() + b"\n" if data else b""
        response = web.Response(
            body=body,
            status=status,
            headers={"Server": "stanch", **{name.replace("_", "-"): text for name, text in headers.items()}},
            content_type="application/json" if data else "text/plain",
        )
        response.force_close()
        return response

    async def _good(self, request: web.BaseRequest) -> tuple[HTTPStatus, dict[str, object]]:
        """Raises _RefusedError."""
        self._known(request)
        if request.path != ROUTE:
            raise _RefusedError(HTTPStatus.NOT_FOUND, f"there is only {ROUTE}")
        if request.method != "POST":
            raise _RefusedError(HTTPStatus.METHOD_NOT_ALLOWED, f"{ROUTE} takes POST only", Allow="POST")
        wait = self._bucket.take(self._monotonic())
        if wait > 0:
            raise _RefusedError(
                HTTPStatus.TOO_MANY_REQUESTS, "too many requests", Retry_After=f"{int(wait) + 1}"
            )
        try:
            payload = parse(await self._body(request))
        except PayloadError as error:
            self._seldom("alerts-not-understood", str(error)[:500])
            raise _RefusedError(HTTPStatus.BAD_REQUEST, *error.errors) from None
        taken = self._intake.take(payload)
        if taken is None:
            self._seldom("alerts-full", "more alerts wait than there is room for")
            raise _RefusedError(HTTPStatus.SERVICE_UNAVAILABLE, "too many alerts wait", Retry_After="10")
        return HTTPStatus.ACCEPTED if taken.accepted or taken.resolved else HTTPStatus.OK, taken.as_data()

    def _known(self, request: web.BaseRequest) -> None:
        """Raises _RefusedError for whoever has no token. Who has no certificate never comes so far."""
        if self._tokens is None:
            return
        try:
            if self._tokens.allow(request.headers.get("Authorization")):
                return
        except FileError as error:
            self._seldom("alerts-token", f"no alert can be taken: {error}", level="error")
            raise _RefusedError(HTTPStatus.SERVICE_UNAVAILABLE, Retry_After="10") from None
        self._seldom(
            "alerts-refused", f"a request without the right token, from {request.remote or 'nobody'}"
        )
        raise _RefusedError(HTTPStatus.UNAUTHORIZED, WWW_Authenticate="Bearer")

    async def _body(self, request: web.BaseRequest) -> bytes:
        """Raises _RefusedError for one that is too long, too slow, or packed."""
        most = self._bounds.body_bytes
        if request.headers.get("Content-Encoding", "identity").lower() != "identity":
            raise _RefusedError(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "Content-Encoding must be identity")
        if request.content_length is not None and request.content_length > most:
            raise _RefusedError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"more than {most} bytes")
        found = bytearray()

        async def read() -> None:
            async for chunk in request.content.iter_any():
                found.extend(chunk)
                if len(found) > most:
                    raise _RefusedError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"more than {most} bytes")

        try:
            await asyncio.wait_for(read(), self._bounds.body_seconds)
        except asyncio.TimeoutError:
            raise _RefusedError(HTTPStatus.REQUEST_TIMEOUT, "the body did not come in time") from None
        except web.RequestPayloadError:
            raise _RefusedError(HTTPStatus.BAD_REQUEST, "the body is not whole") from None
        return bytes(found)

    def _nonsense(self) -> web.Response:
        """To bytes that are no HTTP."""
        status = HTTPStatus.BAD_REQUEST
        self._families.alert_requests.labels(str(status.value)).inc()
        response = web.Response(status=status, headers={"Server": "stanch"})
        response.force_close()
        return response

    def _seldom(self, event: str, message: str, level: str = "warning") -> None:
        """At most one such line a minute: whoever sends us nonsense does not fill the log."""
        now = self._monotonic()
        if now - self._said.get(event, -60.0) >= 60.0:
            self._said[event] = now
            self._note(level, event, message)

    @asynccontextmanager
    async def open(self, host: str, port: int) -> AsyncIterator[tuple[int, asyncio.Future[Any]]]:
        """While this lasts, alerts are taken; the port (a free one for 0), and what ends only by an error.
        Raises ServeError."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            both = family == socket.AF_INET6 and socket.has_dualstack_ipv6()
            listener = socket.create_server((host, port), family=family, backlog=128, dualstack_ipv6=both)
        except (OSError, OverflowError) as error:
            why = getattr(error, "strerror", None) or error
            raise ServeError(f"alerts cannot be taken on {host} port {port}: {why}") from None
        listener.setblocking(False)
        server = web.Server(self.answer)
        connections: set[asyncio.Task[None]] = set()
        accepting = asyncio.create_task(self._accept(listener, server, connections))
        try:
            yield listener.getsockname()[1], accepting
        finally:
            await ended(accepting)
            listener.close()
            await ended(*connections)

    async def _accept(
        self, listener: socket.socket, server: web.Server, connections: set[asyncio.Task[None]]
    ) -> None:
        loop = asyncio.get_running_loop()
        room = asyncio.Semaphore(self._bounds.connections)
        while True:
            await room.acquire()
            try:
                connection, _ = await loop.sock_accept(listener)
            except OSError as error:  # one that has gone again; or no more files may be open
                room.release()
                self._seldom("alerts-not-accepted", str(error))
                await asyncio.sleep(0.1)
                continue
            task = asyncio.create_task(self._serve(connection, server))
            connections.add(task)
            task.add_done_callback(connections.discard)
            task.add_done_callback(lambda _: room.release())

    async def _serve(self, connection: socket.socket, server: web.Server) -> None:
        """One connection, until it is over or its time is."""
        loop = asyncio.get_running_loop()
        tls = None
        if self._certificates is not None:
            try:
                self._certificates.refresh()
            except FileError as error:
                self._note("error", "alerts-certificate", f"the one before stays: {error}")
            tls = self._certificates.context()
        over = loop.create_future()
        handler = _Connection(server, over, self._bounds, self._nonsense)
        transport: asyncio.BaseTransport | None = None
        taken = False

        async def whole() -> None:
            nonlocal transport, taken
            taken = True  # from here on it is closed by asyncio, which would otherwise look for it in vain
            transport, _ = await loop.connect_accepted_socket(
                lambda: handler,
                connection,
                ssl=tls,
                ssl_handshake_timeout=self._bounds.handshake_seconds if tls is not None else None,
            )
            await over

        try:
            await asyncio.wait_for(whole(), self._bounds.connection_seconds)
        except (OSError, asyncio.TimeoutError):
            pass  # no handshake, or too slow
        finally:
            if transport is not None and isinstance(transport, asyncio.Transport):
                transport.abort()
            if not taken:
                connection.close()


# aiohttp logs a traceback for bytes that are no HTTP; whoever sends them must not fill our log.
_SILENT: Final = logging.Logger("alerts", logging.CRITICAL + 1)


class _Connection(web.RequestHandler):
    """aiohttp's connection (3.14), which says when it is over, and does not say which bytes it cannot read to
    whom it does not know."""

    __slots__ = ("_nonsense", "_over")

    def __init__(
        self,
        server: web.Server,
        over: asyncio.Future[None],
        bounds: Bounds,
        nonsense: Callable[[], web.Response],
    ) -> None:
        super().__init__(
            server,
            loop=asyncio.get_running_loop(),
            logger=_SILENT,
            access_log=_SILENT,
            # A packed body could be a thousand times as long as it looks.
            auto_decompress=False,
            # This is also how long it waits for a first request (aiohttp 3.14, web_protocol.py).
            keepalive_timeout=bounds.head_seconds,
            lingering_time=1.0,
            max_line_size=bounds.header_bytes,
            max_field_size=bounds.header_bytes,
            max_headers=bounds.headers,
        )
        self._over = over
        self._nonsense = nonsense

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        return self._nonsense()

    def connection_lost(self, exc: BaseException | None) -> None:
        super().connection_lost(exc)
        if not self._over.done():
            self._over.set_result(None)
