"""The demo's router, as a process of its own: seeded traffic through the pairs, and who is in rotation.

    python -m stanch.edge.demo.router --prefill NAME=URL ... --decode NAME=URL ... --seed N

Clients have little patience: who waits longer than two seconds leaves, as real ones do after their time-out.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import random
from collections import deque
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field

import aiohttp
from aiohttp import web

from stanch.edge.demo.pd import GaveUpError, PdRequest, RequestFailedError, pd_request
from stanch.edge.demo.process import serve

PATIENCE_SECONDS = 2.0
_KEPT = 200


def pauses(rng: random.Random) -> Iterator[float]:
    """Seconds between a request and the next, for ever: waves, a breath after each, now and then a lull.

    Waves are what an idle reading must find its way through; a lull lets a whole hold pass without a token.
    """
    while True:
        for _ in range(rng.randint(6, 12)):
            yield rng.uniform(0.2, 0.5)
        yield rng.uniform(8.5, 10.0) if rng.random() < 0.1 else rng.uniform(1.0, 2.5)


@dataclass(slots=True)
class Rotation:
    """Which decode engine gets the next request: round robin over those that are in."""

    urls: dict[str, str]
    out: set[str] = field(default_factory=set)
    _turn: Iterator[int] = field(default_factory=itertools.count)

    def next(self) -> str | None:
        """The next one's name; None where none is left."""
        names = [name for name in self.urls if name not in self.out]
        return names[next(self._turn) % len(names)] if names else None


@dataclass(slots=True)
class Counts:
    """What became of the requests so far. gave_up: the ids of those whose clients left, the newest."""

    sent: int = 0
    answered: int = 0
    failed: int = 0
    gave_up: deque[str] = field(default_factory=lambda: deque(maxlen=_KEPT))
    failures: deque[str] = field(default_factory=lambda: deque(maxlen=_KEPT))
    in_flight: dict[str, int] = field(default_factory=dict)


class Router:
    """Traffic and its control."""

    def __init__(self, prefills: dict[str, str], decodes: dict[str, str], seed: int) -> None:
        self._prefills = itertools.cycle(prefills.values())
        self._rotation = Rotation(decodes)
        self._random = random.Random(f"{seed}/traffic")
        self._seed = seed
        self._counts = Counts(in_flight=dict.fromkeys(decodes, 0))
        self._requests: set[asyncio.Task[None]] = set()

    async def run(self, _: web.Application) -> AsyncIterator[None]:
        """The traffic, for as long as the application lives (an aiohttp cleanup context)."""
        async with aiohttp.ClientSession() as session:
            traffic = asyncio.create_task(self._traffic(session))
            yield
            ending = (traffic, *self._requests)
            for task in ending:
                task.cancel()
            await asyncio.gather(*ending, return_exceptions=True)

    async def _traffic(self, session: aiohttp.ClientSession) -> None:
        for number, pause in enumerate(pauses(self._random)):
            await asyncio.sleep(pause)
            task = asyncio.create_task(self._send(session, number))
            self._requests.add(task)
            task.add_done_callback(self._requests.discard)

    async def _send(self, session: aiohttp.ClientSession, number: int) -> None:
        words = self._random.randint(192, 448)
        tokens = self._random.randint(4, 8)
        ask = PdRequest(f"demo-{self._seed}-{number}", "word " * words, tokens, PATIENCE_SECONDS)
        counts = self._counts
        counts.sent += 1
        decode = self._rotation.next()
        if decode is None:
            counts.failed += 1
            counts.failures.append(f"{ask.request_id}: no decode engine is in rotation")
            return
        counts.in_flight[decode] += 1
        try:
            await pd_request(session, next(self._prefills), self._rotation.urls[decode], ask)
            counts.answered += 1
        except GaveUpError:
            counts.gave_up.append(ask.request_id)
        except RequestFailedError as error:
            counts.failed += 1
            counts.failures.append(f"{ask.request_id}: {error}")
        finally:
            counts.in_flight[decode] -= 1

    async def stats(self, _: web.Request) -> web.Response:
        """GET /stats: the counts, and who is out of rotation."""
        counts = self._counts
        return web.json_response(
            {
                "sent": counts.sent,
                "answered": counts.answered,
                "failed": counts.failed,
                "gave_up": list(counts.gave_up),
                "failures": list(counts.failures),
                "in_flight": counts.in_flight,
                "out": sorted(self._rotation.out),
            }
        )

    async def take_out(self, request: web.Request) -> web.Response:
        """POST /out/NAME: no request that has not been sent yet goes to this engine."""
        return self._set(request, out=True)

    async def put_back(self, request: web.Request) -> web.Response:
        """POST /in/NAME."""
        return self._set(request, out=False)

    def _set(self, request: web.Request, *, out: bool) -> web.Response:
        name = request.match_info["name"]
        if name not in self._rotation.urls:
            return web.json_response({"error": f"no decode engine {name}"}, status=404)
        (self._rotation.out.add if out else self._rotation.out.discard)(name)
        return web.json_response({"out": sorted(self._rotation.out)})

    def application(self) -> web.Application:
        app = web.Application()
        app.cleanup_ctx.append(self.run)
        app.add_routes(
            [
                web.get("/stats", self.stats),
                web.post("/out/{name}", self.take_out),
                web.post("/in/{name}", self.put_back),
            ]
        )
        return app


def _named(text: str) -> tuple[str, str]:
    name, separator, url = text.partition("=")
    if not (name and separator and url):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=URL")
    return name, url


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m stanch.edge.demo.router", description="Traffic and rotation."
    )
    parser.add_argument("--prefill", type=_named, action="append", required=True, metavar="NAME=URL")
    parser.add_argument("--decode", type=_named, action="append", required=True, metavar="NAME=URL")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--leash", action="store_true", help="end when standard input ends")
    flags = parser.parse_args()

    async def life() -> None:
        router = Router(dict(flags.prefill), dict(flags.decode), flags.seed)
        ready = {"name": "router", "pid": os.getpid()}
        await serve(router.application(), flags.host, flags.port, ready, flags.leash)

    asyncio.run(life())


if __name__ == "__main__":
    main()
