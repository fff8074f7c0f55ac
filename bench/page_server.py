"""A process that serves recorded vLLM pages on many loopback addresses: the targets of bench.scrape.

Every target has an address of its own (127.1.0.1, 127.1.0.2, ..., one port), as pods have, so that a scraper
needs one connection each. The bytes are rendered before they are asked for; the pages of the recording follow
one another every five seconds, each target somewhere else in it, and both scrapers see the same.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import json
import socket
import sys
import time
from collections import Counter
from pathlib import Path
from urllib.parse import parse_qs

RECORDING = Path(__file__).parents[1] / "tests" / "data" / "recordings" / "0.29.0" / "decode.jsonl.gz"
PAGE_SECONDS = 5.0


def recorded_pages(path: Path = RECORDING) -> list[bytes]:
    """Every whole page of the recording, in its order."""
    with gzip.open(path, "rt") as lines:
        bodies = [json.loads(line)["body"] for line in lines]
    return [body.encode() for body in bodies if body is not None]


def restrict(page: bytes, names: set[bytes]) -> bytes:
    """The page as prometheus_client serves it for `name[]=...`: those samples, with their HELP and TYPE."""
    kept: list[bytes] = []
    comments: list[bytes] = []
    for line in page.splitlines(keepends=True):
        if line.startswith(b"#"):
            if line.startswith(b"# HELP"):
                comments = []
            comments.append(line)
        elif line.split(b"{", 1)[0].split(b" ", 1)[0] in names:
            kept += comments
            kept.append(line)
            comments = []
    return b"".join(kept)


def address(index: int) -> str:
    """The address of target `index`, within 127.0.0.0/8."""
    return f"127.1.{index // 250}.{index % 250 + 1}"


class Pages:
    """The answers, ready to send: whole ones, and short ones per set of names that somebody asks for."""

    def __init__(self, pages: list[bytes]) -> None:
        self._pages = pages
        self._whole = [_response(page) for page in pages]
        self._short: dict[bytes, list[bytes]] = {}
        self._start = time.monotonic()

    def answer(self, path: bytes, target: int) -> bytes:
        """What target answers now to a GET of path, as vLLM does: only below /metrics/ the query counts."""
        turn = int((time.monotonic() - self._start) / PAGE_SECONDS) + target * 7
        base, _, query = path.partition(b"?")
        if base == b"/metrics" or (base == b"/metrics/" and not query):
            return self._whole[turn % len(self._whole)]
        if base != b"/metrics/":
            return b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"
        short = self._short.get(query)
        if short is None:
            names = {name.encode() for name in parse_qs(query.decode()).get("name[]", [])}
            short = self._short[query] = [_response(restrict(page, names)) for page in self._pages]
        return short[turn % len(short)]


def _response(body: bytes) -> bytes:
    # The headers that uvicorn and prometheus_client send (vLLM 0.29.0).
    return (
        b"HTTP/1.1 200 OK\r\ndate: Fri, 27 Nov 2026 12:00:00 GMT\r\nserver: uvicorn\r\n"
        b"content-type: text/plain; version=0.0.4; charset=utf-8\r\n"
        b"content-length: " + str(len(body)).encode() + b"\r\n\r\n" + body
    )


class _Connection(asyncio.Protocol):
    """counts: what each client (the word before the slash of its User-Agent) asked and got, in bytes."""

    def __init__(self, pages: Pages, counts: Counter[str]) -> None:
        self._pages = pages
        self._counts = counts
        self._rest = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        _, _, third, fourth = transport.get_extra_info("sockname")[0].split(".")
        self._target = int(third) * 250 + int(fourth) - 1

    def data_received(self, data: bytes) -> None:
        self._rest += data
        while b"\r\n\r\n" in self._rest:
            head, _, self._rest = self._rest.partition(b"\r\n\r\n")
            answer = self._pages.answer(head.split(b" ", 2)[1], self._target)
            client = _client(head)
            self._counts[f"{client} requests"] += 1
            self._counts[f"{client} received"] += len(answer)
            self._counts[f"{client} sent"] += len(head) + 4
            self._transport.write(answer)


def _client(head: bytes) -> str:
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b": ")
        if name.lower() == b"user-agent":
            return value.partition(b"/")[0].decode().lower()
    return "unknown"


async def _serve(targets: int, port: int) -> None:
    pages = Pages(recorded_pages())
    counts: Counter[str] = Counter()
    loop = asyncio.get_running_loop()
    for index in range(targets):
        listener = socket.create_server((address(index), port), backlog=16)
        await loop.create_server(lambda: _Connection(pages, counts), sock=listener)
    print("ready", flush=True)
    # A line on its input asks for the counts; the end of the input is its own end.
    while await loop.run_in_executor(None, sys.stdin.readline):
        print(json.dumps(counts), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--targets", type=int, default=1000)
    parser.add_argument("--port", type=int, default=18000)
    arguments = parser.parse_args()
    asyncio.run(_serve(arguments.targets, arguments.port))
