"""/metrics, /healthz and /readyz, from a thread of its own: they still answer while the event loop hangs.

The port is open to the pod network, and a probe that gets no answer ends the operator. So nobody has to
wait for a place: a connection is always taken, and where there are too many, the oldest one goes.
"""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from stanch.edge.telemetry import Telemetry
from stanch.edge.telemetry_pages import Answer, Pages, refusal


@dataclass(frozen=True, slots=True)
class Bounds:
    """seconds: of one connection, from its acceptance to its end. silent: connections that have asked
    nothing yet; answering: those that have not taken their whole answer yet, each of which may hold a page
    in memory."""

    head_bytes: int = 8192
    seconds: float = 10.0
    silent: int = 128
    answering: int = 16


# So many are accepted before the first of them is looked at: files that are open beyond the bounds.
_BACKLOG: Final = 128


class ServeError(Exception):
    """The port cannot be had; the text says which and why."""


@contextmanager
def serving(
    telemetry: Telemetry,
    host: str,
    port: int,
    monotonic: Callable[[], float] = time.monotonic,
    bounds: Bounds | None = None,
) -> Iterator[int]:
    """While this lasts, the pages are served; the port, which is a free one for 0. Raises ServeError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        both = family == socket.AF_INET6 and socket.has_dualstack_ipv6()
        listener = socket.create_server((host, port), family=family, backlog=_BACKLOG, dualstack_ipv6=both)
    except (OSError, OverflowError) as error:
        why = getattr(error, "strerror", None) or error
        raise ServeError(f"metrics and health cannot be served on {host} port {port}: {why}") from None
    site = _Site(Pages(telemetry, monotonic), bounds or Bounds())
    loop = asyncio.new_event_loop()
    # What strangers do to their connections is no news.
    loop.set_exception_handler(lambda _, context: None)
    over = asyncio.Event()
    thread = threading.Thread(
        target=loop.run_until_complete, args=(site.serve(listener, over),), name="telemetry", daemon=True
    )
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join()
        loop.close()


class _Site:
    """The connections, each kind from the oldest to the newest."""

    def __init__(self, pages: Pages, bounds: Bounds) -> None:
        self.pages = pages
        self.bounds = bounds
        self.silent: dict[_Connection, None] = {}
        self.answering: dict[_Connection, None] = {}

    async def serve(self, listener: socket.socket, over: asyncio.Event) -> None:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: _Connection(self), sock=listener, backlog=_BACKLOG)
        await over.wait()
        server.close()
        for one in [*self.silent, *self.answering]:
            one.end()
        # An aborted transport closes its socket at the loop's next round.
        await asyncio.sleep(0)

    def place(self, one: _Connection, places: dict[_Connection, None], most: int) -> None:
        """Who is quick is through long before as many have come after it."""
        places[one] = None
        if len(places) > most:
            next(iter(places)).end()


class _Connection(asyncio.Protocol):
    """One request, one answer."""

    def __init__(self, site: _Site) -> None:
        self._site = site
        self._head = bytearray()
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        bounds = self._site.bounds
        self._timer = asyncio.get_running_loop().call_later(bounds.seconds, self.end)
        self._site.place(self, self._site.silent, bounds.silent)

    def data_received(self, data: bytes) -> None:
        if self not in self._site.silent:
            return  # more than one request: not read, but taken, so that the answer is not lost
        self._head += data
        if b"\r\n\r\n" in self._head[: self._site.bounds.head_bytes]:
            self._answer(self._site.pages.answer(bytes(self._head)))
        elif len(self._head) >= self._site.bounds.head_bytes:
            self._answer(refusal(431, f"a request has at most {self._site.bounds.head_bytes} bytes"))

    def eof_received(self) -> None:
        """Nothing more will be asked: asyncio closes it once the answer is away."""

    def _answer(self, answer: Answer) -> None:
        assert self._transport is not None
        self._head.clear()
        self._site.silent.pop(self, None)
        self._site.place(self, self._site.answering, self._site.bounds.answering)
        self._transport.write(answer.data)
        if self._transport.can_write_eof():
            self._transport.write_eof()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._site.silent.pop(self, None)
        self._site.answering.pop(self, None)

    def end(self) -> None:
        """At once, whatever is still to be sent."""
        self._site.silent.pop(self, None)
        self._site.answering.pop(self, None)
        if self._transport is not None:
            self._transport.abort()
