"""The webhook's port: TLS, bounded in size and time, and away from the event loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Final

from aiohttp import web

from stanch.edge.telemetry_server import ServeError
from stanch.edge.webhook import Answer, NoReviewError
from stanch.edge.webhook_tls import Tls

PATH: Final = "/inject/v1"
# A pod has at most 1.5 MB in the API server's store (etcd's own limit), and comes once in a review.
_MOST_BYTES: Final = 2 * 1024 * 1024
# The API server waits 2 s for the whole answer.
_BODY_SECONDS: Final = 2.0
_HANDSHAKE_SECONDS: Final = 2.0
_MOST_CONNECTIONS: Final = 256
# Longer than the API server keeps an idle connection (90 s, Go's http.DefaultTransport): it is to end them.
_IDLE_SECONDS: Final = 120.0
_AT_ONCE: Final = 2
# Bodies that are read or wait; who comes then is sent away, and its pod starts without the kit.
_MOST_WAITING: Final = 64

Answering = Callable[[bytes], Answer]


# aiohttp logs a traceback for bytes that are no HTTP; whoever sends them must not fill our log.
_SILENT: Final = logging.Logger("webhook", logging.CRITICAL + 1)


def _connection(server: web.Server) -> asyncio.Protocol:
    """A new one is always taken; where there are too many the oldest goes. So whoever holds connections takes
    neither the API server's place, which comes back, nor all files of this process."""
    there = server.connections  # in the order in which they came (aiohttp 3.14)
    if len(there) >= _MOST_CONNECTIONS:
        there[0].force_close()
    return server()


@asynccontextmanager
async def serving_webhook(
    tls: Tls, host: str, port: int, answering: Answering, told: Callable[[Answer | None], None]
) -> AsyncIterator[int]:
    """While this lasts, reviews are answered; the port, which is a free one for 0. Raises ServeError.

    told: of every answer; None where the body was no review.
    """
    room = asyncio.Semaphore(_AT_ONCE)
    waiting = 0

    async def review(request: web.Request) -> web.Response:
        nonlocal waiting
        if waiting >= _MOST_WAITING:
            return web.Response(status=503, text="too many at once\n")
        waiting += 1
        try:
            return await answered(request)
        finally:
            waiting -= 1

    async def answered(request: web.Request) -> web.Response:
        try:
            body = await asyncio.wait_for(request.read(), _BODY_SECONDS)
        except asyncio.TimeoutError:
            return web.Response(status=408, text="the body did not come in time\n")
        try:
            # In a thread: a large pod must not hold up the loop that renews cordons.
            async with room:
                answer = await asyncio.to_thread(answering, body)
        except NoReviewError as error:
            told(None)
            return web.Response(status=400, text=f"{error}\n")
        told(answer)
        return web.Response(body=answer.body, content_type="application/json")

    application = web.Application(client_max_size=_MOST_BYTES)
    application.router.add_post(PATH, review)
    runner = web.AppRunner(
        application,
        access_log=None,
        logger=_SILENT,
        shutdown_timeout=_BODY_SECONDS,
        keepalive_timeout=_IDLE_SECONDS,
    )
    await runner.setup()
    try:
        assert runner.server is not None
        try:
            server = await asyncio.get_running_loop().create_server(
                partial(_connection, runner.server),
                host,
                port,
                ssl=tls.context,
                ssl_handshake_timeout=_HANDSHAKE_SECONDS,
            )
        except OSError as error:
            why = error.strerror or error
            raise ServeError(f"the webhook cannot be served on {host} port {port}: {why}") from None
        try:
            yield server.sockets[0].getsockname()[1]
        finally:
            server.close()
    finally:
        await runner.cleanup()
