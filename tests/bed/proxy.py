"""A proxy before the API server that injects faults by rule; see faults.py for the rules.

    with FaultProxy("https://127.0.0.1:6443", trust="ca.crt") as proxy:
        proxy.faults.add(Rule(Refuse(503), verb="patch", resource="pods"))
        ...                       # a client that talks to proxy.url, with its own bearer token
        assert proxy.faults.hit()

Who the client is, is passed on: its Authorization header goes through as it is. It runs in a thread of its
own, so that a test need not be asynchronous. Upgraded connections (exec, attach, port-forward) get 501.
"""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import struct
import threading
from pathlib import Path
from types import TracebackType

import aiohttp
from aiohttp import web
from yarl import URL

from tests.bed.faults import (
    CutWatch,
    Drop,
    ExpireWatch,
    Faults,
    Hang,
    Refuse,
    Seen,
    SilentWatch,
    Slow,
    WatchFault,
    parse,
    status,
)

_START_SECONDS = 10.0
# RFC 9110, 7.6.1, and what the two connections must each say for themselves.
_OWN_HEADERS = {
    "connection",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "host",
    "content-length",
}
# An event may hold a whole object: etcd takes 1.5 MiB.
_LINE_BYTES = 4 * 2**20


class FaultProxy:
    """A context: `url` is where clients go. certificate: (certificate, key) files, for TLS to the client;
    without it plain HTTP, over which kubectl and other clients of client-go send no token (pki.py makes one).
    trust: the file with the authority of the API server's certificate; None where it speaks plain HTTP."""

    def __init__(
        self,
        upstream: str,
        trust: Path | str | None = None,
        certificate: tuple[Path, Path] | None = None,
    ) -> None:
        self.faults = Faults()
        self.url = ""
        self._upstream = upstream.rstrip("/")
        self._trust = ssl.create_default_context(cafile=trust) if trust is not None else True
        self._tls: ssl.SSLContext | None = None
        if certificate is not None:
            self._tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            self._tls.load_cert_chain(*certificate)
        self._session: aiohttp.ClientSession | None = None
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, name="fault-proxy", daemon=True)
        self._error: BaseException | None = None

    def __enter__(self) -> FaultProxy:
        self._thread.start()
        if not self._started.wait(_START_SECONDS) or self._error is not None:
            raise RuntimeError("the fault proxy did not start") from self._error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(_START_SECONDS)
        self._loop.close()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._serve())
            # Connections that were given up are closed in the loop's next rounds.
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        except BaseException as error:
            self._error = error
            self._started.set()

    async def _serve(self) -> None:
        app = web.Application(client_max_size=64 * 2**20)
        app.router.add_route("*", "/{path:.*}", self._handle)
        # A client that leaves cancels its handler, and so the call to the API server.
        runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0.1)
        limits = aiohttp.ClientTimeout(total=None, sock_connect=10)
        connector = aiohttp.TCPConnector(ssl=self._trust, limit=0)
        async with aiohttp.ClientSession(
            connector=connector, timeout=limits, auto_decompress=False, read_bufsize=_LINE_BYTES
        ) as self._session:
            await runner.setup()
            try:
                await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=self._tls).start()
                self.url = f"{'https' if self._tls else 'http'}://127.0.0.1:{runner.addresses[0][1]}"
                self._started.set()
                await self._stop.wait()
            finally:
                await runner.cleanup()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        seen = self.faults.take(parse(request.method, request.path, request.query))
        if "upgrade" in request.headers.get("Connection", "").lower():
            return web.json_response(status(501, seen.call), status=501)
        try:
            return await self._act(request, seen)
        except aiohttp.ClientConnectorError as error:
            why = {**status(502, seen.call), "message": f"the proxy cannot reach the API server: {error}"}
            return web.json_response(why, status=502)

    async def _act(self, request: web.Request, seen: Seen) -> web.StreamResponse:
        fault = seen.fault
        if isinstance(fault, Refuse | Drop | Hang):
            if fault.applied:
                async with self._forward(request, await request.read()) as answer:
                    await answer.read()
            return await self._instead(request, seen, fault)
        async with self._forward(request, await request.read()) as answer:
            try:
                return await self._pass_on(request, seen, answer)
            finally:
                # Left before its end: no goodbye under TLS, which would outlast this loop.
                if answer.connection is not None and answer.connection.transport is not None:
                    answer.connection.transport.abort()

    def _forward(self, request: web.Request, body: bytes) -> aiohttp.client._RequestContextManager:
        assert self._session is not None
        return self._session.request(
            request.method,
            # As it came, byte by byte.
            URL(self._upstream + request.raw_path, encoded=True),
            headers=[
                (key, value) for key, value in request.headers.items() if key.lower() not in _OWN_HEADERS
            ],
            data=body or None,
            allow_redirects=False,
        )

    async def _instead(self, request: web.Request, seen: Seen, fault: Refuse | Drop | Hang) -> web.Response:
        """What comes in place of the API server's answer."""
        if isinstance(fault, Refuse):
            headers = (
                {} if fault.retry_after_seconds is None else {"Retry-After": str(fault.retry_after_seconds)}
            )
            seen.status = fault.code
            body = status(fault.code, seen.call, fault.retry_after_seconds)
            return web.json_response(body, status=fault.code, headers=headers)
        if isinstance(fault, Hang):
            if fault.seconds is None:
                await asyncio.Event().wait()
            else:
                await asyncio.sleep(fault.seconds)
        _reset(request)
        return web.Response()

    async def _pass_on(
        self, request: web.Request, seen: Seen, answer: aiohttp.ClientResponse
    ) -> web.StreamResponse:
        """The API server's answer, as it comes; of a watch line by line."""
        fault = seen.fault
        if isinstance(fault, Slow):
            await asyncio.sleep(fault.seconds)
        headers = [(key, value) for key, value in answer.headers.items() if key.lower() not in _OWN_HEADERS]
        out = web.StreamResponse(status=answer.status, reason=answer.reason)
        out.headers.extend(headers)
        await out.prepare(request)
        seen.status = answer.status
        if seen.call.verb == "watch" and answer.status == 200:
            if not await _events(answer, out, fault if isinstance(fault, WatchFault | Slow) else None, seen):
                _reset(request)
                return out
        else:
            async for chunk in answer.content.iter_any():
                await out.write(chunk)
        await out.write_eof()
        return out


async def _events(
    answer: aiohttp.ClientResponse, out: web.StreamResponse, fault: WatchFault | Slow | None, seen: Seen
) -> bool:
    """Pass the events of a watch on; whether it shall end in order."""
    count = 0
    while True:
        # Before the next event is waited for: an idle watch is cut too.
        if isinstance(fault, CutWatch) and count == fault.after_events:
            return fault.in_order
        if isinstance(fault, ExpireWatch) and count == fault.after_events:
            gone = {"type": "ERROR", "object": status(410, seen.call)}
            await out.write(json.dumps(gone).encode() + b"\n")
            return True
        line = await answer.content.readline()
        if not line:
            return True
        if isinstance(fault, Slow):
            await asyncio.sleep(fault.seconds)
        if not (isinstance(fault, SilentWatch) and count >= fault.after_events):
            await out.write(line)
        count += 1


def _reset(request: web.Request) -> None:
    """Close the client's connection by a reset, as when the machine at its other end is gone."""
    if request.transport is not None:
        peer = request.transport.get_extra_info("socket")
        # Lingering for no time at all: what the kernel then sends is RST. What was sent before still arrives.
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        request.transport.abort()
