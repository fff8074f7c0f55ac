"""A small server on loopback that behaves like a vLLM API server as far as a test asks it to.

Its numbers are set from outside (`fake.rank.usage = 0.82`), its completions by a function of the request.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, TypeVar

import aiohttp
from aiohttp import web

from tests.edge.fake_kit import FakeKit

T = TypeVar("T")


@dataclass
class Rank:
    """One engine of the server. freed: what changes in it when it serves a completion."""

    label: str = "0"
    usage: float | str = 0.0
    running: float = 0
    waiting: float = 0
    deferred: float | str | None = 0
    generation_tokens: float = 1000
    prompt_tokens: float = 5000
    iterations: float | None = 900
    finished: float = 10
    awake: float | None = None
    freed: dict[str, float] = field(default_factory=dict)

    def lines(self) -> list[str]:
        mine = f'engine="{self.label}",model_name="tiny"'
        values: dict[str, object] = {
            "num_requests_running{%s}": self.running,
            "num_requests_waiting{%s}": self.waiting,
            'num_requests_waiting_by_reason{%s,reason="deferred"}': self.deferred,
            "kv_cache_usage_perc{%s}": self.usage,
            "generation_tokens_total{%s}": self.generation_tokens,
            "prompt_tokens_total{%s}": self.prompt_tokens,
            "iteration_tokens_total_count{%s}": self.iterations,
            'request_success_total{%s,finished_reason="length"}': self.finished,
            'engine_sleep_state{%s,sleep_state="awake"}': self.awake,
        }
        return [f"vllm:{name % mine} {value}" for name, value in values.items() if value is not None]

    def serve(self) -> None:
        """What one finished request of one token does to the numbers."""
        self.generation_tokens += 1
        self.prompt_tokens += 1
        self.finished += 1
        if self.iterations is not None:
            self.iterations += 1
        for name, value in self.freed.items():
            setattr(self, name, value)


def decode_evidence(label: str = "0") -> list[str]:
    """Lines that tell a decode: remote KV came in, and requests asked for more than one token."""
    mine = f'engine="{label}",model_name="tiny"'
    return [
        f"vllm:nixl_num_failed_transfers_total{{{mine}}} 0.0",
        f"vllm:external_prefix_cache_hits_total{{{mine}}} 2040.0",
        f"vllm:request_params_max_tokens_count{{{mine}}} 10.0",
        f'vllm:request_params_max_tokens_bucket{{{mine},le="1.0"}} 0.0',
    ]


def prefill_evidence(label: str = "0") -> list[str]:
    """Lines that tell a prefill: many requests, each for one token, and no remote KV."""
    mine = f'engine="{label}",model_name="tiny"'
    return [
        f"vllm:nixl_num_failed_transfers_total{{{mine}}} 0.0",
        f"vllm:external_prefix_cache_hits_total{{{mine}}} 0.0",
        f"vllm:request_params_max_tokens_count{{{mine}}} 30.0",
        f'vllm:request_params_max_tokens_bucket{{{mine},le="1.0"}} 30.0',
    ]


@dataclass(frozen=True)
class Asked:
    """One completion that was asked for."""

    headers: Mapping[str, str]
    body: dict[str, Any]


Completion = Callable[["FakeVllm", web.Request], Awaitable[web.StreamResponse]]


async def answers(fake: FakeVllm, request: web.Request) -> web.StreamResponse:
    """As a healthy engine: one token, on the rank whose place the header names."""
    ranks = sorted(fake.ranks, key=lambda rank: int(rank.label))
    ranks[int(request.headers.get("X-data-parallel-rank", "0"))].serve()
    usage = {"prompt_tokens": 1, "total_tokens": 2, "completion_tokens": 1}
    return web.json_response({"choices": [{"text": "a", "finish_reason": "length"}], "usage": usage})


ANSWER = b'{"usage": {"prompt_tokens": 1, "completion_tokens": 1}}'


async def hangs(fake: FakeVllm, request: web.Request) -> web.StreamResponse:
    """No answer while the server lives."""
    await fake.closing.wait()
    return web.Response(status=500)


def says(status: int, text: str = "", **headers: str) -> Completion:
    async def answer(fake: FakeVllm, request: web.Request) -> web.StreamResponse:
        return web.Response(status=status, text=text, headers=headers)

    return answer


def in_pieces(pieces: Sequence[bytes], status: int = 200, *, end: bool = True) -> Completion:
    """The body piece by piece, each a packet of its own; then its end, or nothing more."""

    async def answer(fake: FakeVllm, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(status=status, headers={"Content-Type": "application/json"})
        await response.prepare(request)
        for piece in pieces:
            await response.write(piece)
            await asyncio.sleep(0.02)
        if not end:
            await fake.closing.wait()
        return response

    return answer


async def drops(fake: FakeVllm, request: web.Request) -> web.StreamResponse:
    """The connection ends without an answer."""
    assert request.transport is not None
    request.transport.close()
    return web.Response()


class FakeVllm:
    """Use `async with FakeVllm(...) as fake`; it listens at fake.url. None: that route is not served."""

    def __init__(
        self, *ranks: Rank, extra: Sequence[str] = (), host: str = "127.0.0.1", port: int = 0
    ) -> None:
        self.ranks = list(ranks) or [Rank()]
        self.extra = list(extra)
        self.completion: Completion = answers
        self.version: object = "0.29.0"
        self.version_text: str | None = None
        self.healthy: bool = True
        self.paused: object = None
        self.sleeping: bool | None = None
        self.kit: FakeKit | None = None
        self.models: object = {"object": "list", "data": [{"id": "tiny", "max_model_len": 512}]}
        self.models_status = 200
        self.started = 1_700_000_000.0
        self.asked: list[Asked] = []
        self.paths: list[str] = []
        self.closing = asyncio.Event()
        self._runner: web.AppRunner | None = None
        self.host = host
        self._port = port

    @property
    def rank(self) -> Rank:
        return self.ranks[0]

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self._port}"

    def restart(self) -> None:
        """Another process answers from now on: its counters start anew, and nothing is held."""
        self.started += 60
        self.ranks = [
            Rank(rank.label, generation_tokens=0, prompt_tokens=0, iterations=0, finished=0)
            for rank in self.ranks
        ]

    async def __aenter__(self) -> FakeVllm:
        await self.up()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.down()

    async def up(self) -> None:
        """Listen; after `down` at the same port."""
        site = web.Application()
        site.router.add_get("/metrics", self._metrics)
        site.router.add_get("/metrics/", self._metrics)
        site.router.add_get("/health", self._health)
        site.router.add_get("/version", self._version)
        site.router.add_get("/is_paused", self._paused)
        site.router.add_get("/is_sleeping", self._sleeping)
        site.router.add_post("/v1/completions", self._complete)
        site.router.add_get("/v1/models", self._models)
        site.router.add_route("*", "/stanch/v1/{what}", self._ask_kit)
        self.closing = asyncio.Event()
        self._runner = web.AppRunner(site, access_log=None, handler_cancellation=True, shutdown_timeout=1.0)
        await self._runner.setup()
        await web.TCPSite(self._runner, self.host, self._port, reuse_address=True).start()
        self._port = self._runner.addresses[0][1]

    async def down(self) -> None:
        self.closing.set()
        if self._runner is not None:
            await self._runner.cleanup()

    async def _metrics(self, request: web.Request) -> web.Response:
        self.paths.append("/metrics")
        lines = [line for rank in self.ranks for line in rank.lines()]
        page = [f"process_start_time_seconds {self.started}", *lines, *self.extra]
        return web.Response(text="".join(f"{line}\n" for line in page))

    async def _health(self, request: web.Request) -> web.Response:
        self.paths.append("/health")
        return web.Response(status=200 if self.healthy else 503)

    async def _version(self, request: web.Request) -> web.Response:
        self.paths.append("/version")
        if self.version_text is not None:
            return web.Response(body=self.version_text.encode(), headers={"Content-Type": "text/html"})
        return web.json_response({"version": self.version})

    async def _paused(self, request: web.Request) -> web.Response:
        self.paths.append("/is_paused")
        if self.paused is None:
            raise web.HTTPNotFound
        return web.json_response({"is_paused": self.paused})

    async def _sleeping(self, request: web.Request) -> web.Response:
        self.paths.append("/is_sleeping")
        if self.sleeping is None:
            raise web.HTTPNotFound
        return web.json_response({"is_sleeping": self.sleeping})

    async def _models(self, request: web.Request) -> web.Response:
        return web.json_response(self.models, status=self.models_status)

    async def _ask_kit(self, request: web.Request) -> web.StreamResponse:
        self.paths.append(request.path)
        if self.kit is None:
            return web.json_response({"detail": "Not Found"}, status=404)
        return await self.kit.serve(request)

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(Asked(request.headers, await request.json()))
        return await self.completion(self, request)


async def until(true: Callable[[], bool], seconds: float = 10.0) -> None:
    """Wait until it is true; fails after so long."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "it did not come true"
        await asyncio.sleep(0.01)


def talk(fake: FakeVllm, with_it: Callable[[aiohttp.ClientSession, FakeVllm], Awaitable[T]]) -> T:
    """What `with_it` returns; nothing may be left over when it has."""

    async def scene() -> T:
        async with fake, aiohttp.ClientSession() as session:
            found = await with_it(session, fake)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        return found

    return asyncio.run(scene())
