"""A simulated EngineCore: the scheduler's model in real time, and the worker that reads KV from its peers."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator

import aiohttp
from aiohttp import web

from stanch.edge.demo.page import Page
from stanch.edge.demo.scheduler import Ask, Pull, Request, Scheduler
from stanch.edge.waking import ended, woken
from stanch_connector.release import RankState

_STEP_SECONDS = 0.02
# Reading one block: 10 blocks take about as long as on a real engine on a CPU.
_SECONDS_PER_BLOCK = 0.003


class TransferError(Exception):
    """The KV of a prompt could not be read; vLLM answers 500."""


class EngineCore:
    """Requests come in, steps go on while there is anything to do, and the page follows the steps only."""

    def __init__(self, scheduler: Scheduler, page: Page, seed: str) -> None:
        self.scheduler = scheduler
        self.page = page
        self._random = random.Random(seed)
        self._wake = asyncio.Event()
        self._open: dict[str, asyncio.Future[Request]] = {}
        # Reads that are under way; asyncio itself holds tasks weakly only.
        self._pulls: set[asyncio.Task[None]] = set()
        # What the worker would say of each receive that it does not report as ended.
        self.said: dict[str, RankState] = {}

    async def run(self, app: web.Application) -> AsyncIterator[None]:
        """The engine's life, for as long as the application's (an aiohttp cleanup context)."""
        # No time-out: vLLM has none on a read from a peer either.
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None)) as peers:
            life = asyncio.create_task(self._step_on(peers))
            yield
            await ended(life, *self._pulls)

    async def generate(self, ask: Ask) -> Request:
        """The finished request. Cancelled (its client left) it is aborted. Raises TransferError."""
        self._open[ask.id] = asyncio.get_running_loop().create_future()
        self.scheduler.submit(ask, time.monotonic())
        self._wake.set()
        try:
            return await self._open[ask.id]
        finally:
            del self._open[ask.id]
            # Of a request that is answered nothing is left to abort.
            self.scheduler.abort(ask.id, time.monotonic())
            self._wake.set()

    def read(self, request_id: str) -> bool:
        """A peer has read what is held for it, or says that it need not; False where nothing is held."""
        held = self.scheduler.read(request_id, time.monotonic())
        self._wake.set()
        return held

    def release(self, request_id: str) -> None:
        """Report a receive in the worker's stead: an orphan is freed, a parked request goes on."""
        self.said.pop(request_id, None)
        self.scheduler.pulled(request_id, time.monotonic())
        self._wake.set()

    async def _step_on(self, peers: aiohttp.ClientSession) -> None:
        while True:
            step = self.scheduler.step(time.monotonic())
            self.page.count(step)
            for request in step.done:
                self._answer(request.ask.id, request)
            for pull in step.pulls:
                task = asyncio.create_task(self._pull(peers, pull))
                self._pulls.add(task)
                task.add_done_callback(self._pulls.discard)
            if self.scheduler.busy:
                await asyncio.sleep(_STEP_SECONDS)
                continue
            self._wake.clear()
            expiry = self.scheduler.next_expiry
            patience = None if expiry is None else max(0.0, expiry - time.monotonic())
            await woken(self._wake, patience)

    async def _pull(self, peers: aiohttp.ClientSession, pull: Pull) -> None:
        """The worker's part: read a prompt's KV, tell the producer, report it to the scheduler."""
        began = time.monotonic()
        url = f"http://{pull.remote.host}:{pull.remote.port}/sim/read"
        self.said[pull.ask.id] = RankState.READING
        try:
            await asyncio.sleep(pull.blocks * _SECONDS_PER_BLOCK * self._random.uniform(0.7, 1.3))
            async with peers.post(url, json={"request_id": pull.remote.request_id}) as answer:
                answer.raise_for_status()
        except aiohttp.ClientError as error:
            self.page.add("vllm:nixl_num_failed_transfers_total")
            self.page.add("vllm:nixl_num_failed_notifications_total")
            self.said.pop(pull.ask.id, None)
            self.scheduler.pull_failed(pull.ask.id, time.monotonic())
            self._answer(pull.ask.id, TransferError(f"reading from engine {pull.remote.engine_id}: {error}"))
            self._wake.set()
            return
        if not pull.blocks:
            # The defect: the producer is told, nothing is recorded, the request is never reported.
            self.said[pull.ask.id] = RankState.EMPTY
            return
        del self.said[pull.ask.id]
        self.page.observe("vllm:nixl_xfer_time_seconds", time.monotonic() - began)
        self.page.observe("vllm:nixl_post_time_seconds", 0.0005)
        self.page.observe("vllm:nixl_bytes_transferred", pull.blocks * self.scheduler.block_tokens * 1024)
        self.page.observe("vllm:nixl_num_descriptors", 2 * pull.blocks)
        self.scheduler.pulled(pull.ask.id, time.monotonic())
        self._wake.set()

    def _answer(self, request_id: str, answer: Request | TransferError) -> None:
        future = self._open.get(request_id)
        if future is None or future.done():
            return
        if isinstance(answer, TransferError):
            future.set_exception(answer)
        else:
            future.set_result(answer)
