"""Connections of strangers: a few at a time, none for long, one request on each.

A connection has so many seconds for everything, from the TLS handshake on, and then it is cut off. Where
there are too many, the oldest of those that have not shown yet who they are goes at once: so nobody waits for
a place that a stranger holds, and never more files are open.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

from aiohttp import web

from stanch.edge.alerts_access import Certificates
from stanch.edge.errors import FileError
from stanch.edge.executor import Note
from stanch.edge.telemetry_server import ServeError
from stanch.edge.waking import ended


@dataclass(frozen=True, slots=True)
class Bounds:
    """head_seconds: until the headers of a request are there. answer_seconds: until its incidents are
    written. connection_seconds: of one connection, from its acceptance to its end. rate: requests a second
    of those who are known; burst: so many at once."""

    body_bytes: int = 1 << 20
    header_bytes: int = 8190
    headers: int = 64
    connections: int = 64
    handshake_seconds: float = 3.0
    head_seconds: float = 3.0
    body_seconds: float = 5.0
    answer_seconds: float = 4.0
    connection_seconds: float = 10.0
    rate: float = 20.0
    burst: int = 100


class Listener:
    """answer: to each request. nonsense: the one to bytes that are no HTTP. certificates: None for no TLS."""

    def __init__(
        self,
        answer: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]],
        nonsense: Callable[[], web.Response],
        note: Note,
        certificates: Certificates | None,
        bounds: Bounds,
    ) -> None:
        self._answer = answer
        self._nonsense = nonsense
        self._note = note
        self._certificates = certificates
        self._bounds = bounds
        self._open: dict[asyncio.Task[None], _Connection] = {}  # the oldest first

    def known(self, request: web.BaseRequest) -> None:
        """Who sends this one has shown who they are: their connection keeps its place."""
        if isinstance(request.protocol, _Connection):
            request.protocol.known = True

    @asynccontextmanager
    async def open(self, host: str, port: int) -> AsyncIterator[tuple[int, asyncio.Future[Any]]]:
        """While this lasts, requests are answered; the port (a free one for 0), and what only an error ends.
        Raises ServeError."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            both = family == socket.AF_INET6 and socket.has_dualstack_ipv6()
            listener = socket.create_server((host, port), family=family, backlog=128, dualstack_ipv6=both)
        except (OSError, OverflowError) as error:
            why = getattr(error, "strerror", None) or error
            raise ServeError(f"alerts cannot be taken on {host} port {port}: {why}") from None
        listener.setblocking(False)
        server = web.Server(self._answer)
        accepting = asyncio.create_task(self._accept(listener, server))
        try:
            yield listener.getsockname()[1], accepting
        finally:
            await ended(accepting)
            listener.close()
            await ended(*self._open)

    async def _accept(self, listener: socket.socket, server: web.Server) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, _ = await loop.sock_accept(listener)
            except OSError as error:  # one that has gone again; or no more files may be open
                self._note("warning", "alerts-not-accepted", str(error))
                await asyncio.sleep(1.0)
                continue
            handler = _Connection(server, loop.create_future(), self._bounds, self._nonsense)
            task = asyncio.create_task(self._serve(connection, handler))
            self._open[task] = handler
            task.add_done_callback(self._open.pop)
            await asyncio.sleep(0)  # it has begun: one that is ended before that would not close what it has
            await self._room()

    async def _room(self) -> None:
        """Until no more are open than may be. The newest one stays."""
        while len(self._open) > self._bounds.connections:
            strangers = [task for task, one in self._open.items() if not one.known]
            if len(strangers) > 1:
                await ended(strangers[0])
            else:
                await asyncio.wait(self._open, return_when=asyncio.FIRST_COMPLETED)

    async def _serve(self, connection: socket.socket, handler: _Connection) -> None:
        """One connection, until it is over or its time is."""
        loop = asyncio.get_running_loop()
        tls = None
        if self._certificates is not None:
            try:
                self._certificates.refresh()
            except FileError as error:
                self._note("error", "alerts-certificate", f"the one before stays: {error}")
            tls = self._certificates.context()
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
            await handler.over

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

    __slots__ = ("_nonsense", "known", "over")

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
        self.over = over
        self.known = False
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
        if not self.over.done():
            self.over.set_result(None)
