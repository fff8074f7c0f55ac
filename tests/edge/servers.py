"""HTTP servers on loopback whose every byte a test decides, and prometheus_client's as vLLM mounts it."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from stanch.edge.scrape import Scrape, Scraper
from stanch.edge.target import Target

Handler = Callable[[str, asyncio.StreamWriter], Awaitable[None]]


def answer(
    body: bytes,
    status: str = "200 OK",
    kind: str | None = "text/plain; version=0.0.4",
    length: int | None = None,
    **headers: str,
) -> bytes:
    """A whole HTTP answer. length: what Content-Length says, if not the truth."""
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body) if length is None else length}"]
    lines += [f"Content-Type: {kind}"] if kind is not None else []
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + body


@asynccontextmanager
async def serving(handler: Handler, tls: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    """The base URL of a server that gives every request (its path with the query) to the handler."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                await handler(head.split(b" ", 2)[1].decode(), writer)
                await writer.drain()
                if writer.is_closing():
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    tasks: set[asyncio.Task[None]] = set()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.add(asyncio.ensure_future(connected(reader, writer)))

    server = await asyncio.start_server(accept, "127.0.0.1", 0, ssl=tls, limit=2**20)
    port = server.sockets[0].getsockname()[1]
    try:
        yield f"{'https' if tls else 'http'}://127.0.0.1:{port}"
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def turns(handler: Handler, count: int = 1, deadline: float = 5.0, path: str = "") -> list[Scrape]:
    """So many turns of one target, "d", whose server has this handler; the clock always says 7."""
    async with (
        serving(handler) as url,
        Scraper([Target("d", url + path)], 1, deadline, clock=lambda: 7.0) as scraper,
    ):
        return [await scraper.once(scraper.targets[0]) for _ in range(count)]


def always(data: bytes, close: bool = False) -> Handler:
    """A handler that sends the same bytes to everyone."""

    async def handle(_: str, writer: asyncio.StreamWriter) -> None:
        writer.write(data)
        if close:
            writer.close()

    return handle


def by_filter(short: bytes, whole: bytes) -> Handler:
    """A handler that sends one answer where the families are asked for, another for the whole page."""

    async def handle(path: str, writer: asyncio.StreamWriter) -> None:
        writer.write(short if "name%5B%5D=" in path else whole)

    return handle


@asynccontextmanager
async def vllm_metrics(app: Callable[..., Awaitable[None]], whole: Callable[[], bytes]) -> AsyncIterator[str]:
    """A server with an ASGI app below /metrics/ and another handler on /metrics itself, as vLLM 0.9 .. 0.33.

    (vllm/entrypoints/openai/api_server.py mounts prometheus_client's app after the instrumentator's route.)
    """

    async def exact(_: web.Request) -> web.Response:
        return web.Response(body=whole(), content_type="text/plain")

    async def mounted(request: web.Request) -> web.Response:
        scope = {
            "type": "http",
            "query_string": request.query_string.encode(),
            "headers": [(name.lower(), value) for name, value in request.raw_headers],
        }
        sent: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request"}

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        # raw: the query as it was sent, not as a framework has understood it
        scope["query_string"] = request.rel_url.raw_query_string.encode()
        await app(scope, receive, send)
        headers = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
        return web.Response(status=sent[0]["status"], headers=headers, body=sent[1]["body"])

    site = web.Application()
    site.router.add_get("/metrics", exact)
    site.router.add_get("/metrics/", mounted)
    runner = web.AppRunner(site)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()
