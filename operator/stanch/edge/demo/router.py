"""The demo's router: seeded traffic to the decodes that are ready. A process of its own with

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
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field

import aiohttp
from aiohttp import web

from stanch.edge.demo.deployment import Traffic
from stanch.edge.demo.pd import GaveUpError, PdRequest, RequestFailedError, pd_request
from stanch.edge.demo.process import serve
from stanch.edge.waking import ended
from stanch_connector.contract import ROUTE_READY

PATIENCE_SECONDS = 2.0
_KEPT = 200
# As a kubelet's readiness probe, and as soon as endpoints follow it.
_PROBE_SECONDS, _PROBE_PATIENCE_SECONDS = 0.5, 1.0


def pauses(rng: random.Random) -> Iterator[float]:
    """Seconds between a request and the next, for ever: waves, and a breath after each.

    Waves are what an idle reading must find its way through.
    """
    while True:
        for _ in range(rng.randint(6, 12)):
            yield rng.uniform(0.2, 0.5)
        yield rng.uniform(1.0, 2.5)


def ask(rng: random.Random, name: str, decode: str) -> PdRequest:
    """The request of that name, whichever decode engine it goes to."""
    return PdRequest(name, "word " * rng.randint(192, 448), rng.randint(4, 8), PATIENCE_SECONDS)


@dataclass(slots=True)
class Rotation:
    """Which decode engine gets the next request: round robin over those that are not out."""

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
    """Traffic and its control. pauses, ask: the traffic's habits, as those of this module."""

    def __init__(
        self,
        prefills: dict[str, str],
        decodes: dict[str, str],
        seed: int,
        pauses: Callable[[random.Random], Iterator[float]] = pauses,
        ask: Callable[[random.Random, str, str], PdRequest] = ask,
    ) -> None:
        self._prefills = itertools.cycle(prefills.values())
        self._rotation = Rotation(decodes)
        self._random = random.Random(f"{seed}/traffic")
        self._seed = seed
        self._pauses, self._ask = pauses, ask
        self._counts = Counts(in_flight=dict.fromkeys(decodes, 0))
        self._requests: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """The traffic, for as long as the block lasts."""
        async with aiohttp.ClientSession() as session:
            await self._probe_all(session)
            probing = asyncio.create_task(self._probing(session))
            traffic = asyncio.create_task(self._traffic(session))
            try:
                yield
            finally:
                await ended(probing, traffic, *self._requests)

    async def _probing(self, session: aiohttp.ClientSession) -> None:
        while True:
            await asyncio.sleep(_PROBE_SECONDS)
            await self._probe_all(session)

    async def _probe_all(self, session: aiohttp.ClientSession) -> None:
        names = list(self._rotation.urls)
        ready = await asyncio.gather(*(_ready(session, self._rotation.urls[name]) for name in names))
        self._rotation.out = {name for name, well in zip(names, ready, strict=True) if not well}

    async def _traffic(self, session: aiohttp.ClientSession) -> None:
        for number, pause in enumerate(self._pauses(self._random)):
            await asyncio.sleep(pause)
            task = asyncio.create_task(self._send(session, f"demo-{self._seed}-{number}"))
            self._requests.add(task)
            task.add_done_callback(self._requests.discard)

    async def _send(self, session: aiohttp.ClientSession, name: str) -> None:
        counts = self._counts
        counts.sent += 1
        decode = self._rotation.next()
        if decode is None:
            counts.failed += 1
            counts.failures.append(f"{name}: no decode engine is in rotation")
            return
        ask = self._ask(self._random, name, decode)
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

    def traffic(self) -> Traffic:
        """The counts so far, and who is not ready."""
        counts = self._counts
        return Traffic(
            counts.sent,
            counts.answered,
            counts.failed,
            tuple(counts.gave_up),
            tuple(counts.failures),
            dict(counts.in_flight),
            tuple(sorted(self._rotation.out)),
        )

    async def _run(self, _: web.Application) -> AsyncIterator[None]:
        async with self.running():
            yield

    async def _stats(self, _: web.Request) -> web.Response:
        return web.json_response(asdict(self.traffic()))

    def application(self) -> web.Application:
        """GET /stats: a Traffic in JSON."""
        app = web.Application()
        app.cleanup_ctx.append(self._run)
        app.add_routes([web.get("/stats", self._stats)])
        return app


async def _ready(session: aiohttp.ClientSession, url: str) -> bool:
    """What the kit of an engine says of its readiness; one that does not answer is not ready."""
    try:
        patience = aiohttp.ClientTimeout(total=_PROBE_PATIENCE_SECONDS)
        async with session.get(f"{url}{ROUTE_READY}", timeout=patience) as answer:
            return answer.status == 200
    except (aiohttp.ClientError, asyncio.TimeoutError):
        return False


def _named(text: str) -> tuple[str, str]:
    name, separator, url = text.partition("=")
    if not (name and separator and url):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=URL")
    return name, url


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m stanch.edge.demo.router", description="Traffic to the decodes that are ready."
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
