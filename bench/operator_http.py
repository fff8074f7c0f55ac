"""HTTP/1.1 of all stand-in engines, as far as Stanch speaks it, behind one listening socket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping

from bench.operator_engine import Engine

_LOG = b"".join(b"INFO 11-30 01:00:00 engine.py:%d a line of an engine's log\n" % n for n in range(50))


class Connection(asyncio.Protocol):
    """GET, and POST with a length. engines: by their address."""

    def __init__(self, engines: Mapping[str, Engine]) -> None:
        self._engines = engines
        self._rest = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        # The engine is the one whose address was called; none any more when its pod has been replaced.
        self._address = transport.get_extra_info("sockname")[0]

    def data_received(self, data: bytes) -> None:
        self._rest += data
        while b"\r\n\r\n" in self._rest:
            head, _, rest = self._rest.partition(b"\r\n\r\n")
            length = 0
            for line in head.split(b"\r\n")[1:]:
                name, _, value = line.partition(b":")
                if name.lower() == b"content-length":
                    length = int(value)
            if len(rest) < length:
                return
            body, self._rest = rest[:length], rest[length:]
            engine = self._engines.get(self._address)
            if engine is None:
                self._transport.abort()
                return
            self._transport.write(_answered(engine, head.split(b" ", 2)[1].decode(), body))


def _answered(engine: Engine, path: str, body: bytes) -> bytes:
    if path.partition("?")[0].rstrip("/") == "/metrics":
        return _response(200, b"text/plain; version=0.0.4; charset=utf-8", engine.page())
    status, found = engine.answer(path, body)
    return _response(status, b"application/json", json.dumps(found).encode())


def _response(status: int, kind: bytes, body: bytes) -> bytes:
    head = b"HTTP/1.1 %d OK\r\nserver: uvicorn\r\ncontent-type: %s\r\ncontent-length: %d\r\n\r\n"
    return head % (status, kind, len(body)) + body


class Logs(asyncio.Protocol):
    """The kubelet's port, which the API server asks for a container's log."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        for _ in range(data.count(b"\r\n\r\n")):
            self._transport.write(_response(200, b"text/plain", _LOG))
