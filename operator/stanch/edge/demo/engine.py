"""A simulated vLLM 0.29.0 engine as a process of its own.

    python -m stanch.edge.demo.engine --role decode --name decode-0 --port 0

It needs nothing but the standard library and aiohttp, knows nothing of a fleet, and says its port as JSON
when it is ready. Paths under /sim exist in no real engine (sim.py); everything else has the form of the real
one's.
"""

from __future__ import annotations

import asyncio
import gzip
import itertools
import logging
import os
import random
import resource
import sys
import time
import uuid
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from aiohttp import web

from stanch.edge.demo.enginecore import EngineCore, TransferError
from stanch.edge.demo.kit import About, Kit
from stanch.edge.demo.page import CONTENT_TYPE, Page, text_of
from stanch.edge.demo.process import serve
from stanch.edge.demo.scheduler import Ask, Remote, Scheduler
from stanch.edge.demo.settings import Settings, settings_from, token_file
from stanch.edge.demo.sim import Sim

VERSION = "0.29.0"
MAX_MODEL_LEN = 2048
_WORDS = (
    "a",
    "an",
    "and",
    "at",
    "be",
    "by",
    "for",
    "from",
    "go",
    "in",
    "is",
    "it",
    "no",
    "of",
    "on",
    "so",
    "the",
    "to",
)
# As vLLM logs, and with it the kit.
_LOG = "%(levelname)s %(asctime)s [%(filename)s:%(lineno)d] %(message)s"
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class BadRequestError(Exception):
    """What vLLM answers with 400."""


class Engine:
    """The API server of one engine, or of several data-parallel ones."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.engine_id = str(uuid.uuid4())
        # One block of vLLM's is the null block: 101 configured are 100 usable.
        config = {
            "block_size": str(settings.block_tokens),
            "cache_dtype": "auto",
            "enable_prefix_caching": "True",
            "num_gpu_blocks": str(settings.blocks + 1),
        }
        self._started = time.time()
        ranks = range(settings.ranks)
        self.pages = [Page(settings.model, self._started, config, rank) for rank in ranks]
        self.cores = [
            EngineCore(
                Scheduler(settings.blocks, settings.block_tokens, lease_seconds=settings.lease_seconds),
                self.pages[rank],
                f"{settings.seed}/{settings.name}/transfers{rank or ''}",
            )
            for rank in ranks
        ]
        # Who names no rank is served by each in turn.
        self._turns = itertools.cycle(ranks)
        self._random = random.Random(f"{settings.seed}/{settings.name}/words")
        about = About(
            VERSION,
            settings.role,
            settings.lease_seconds,
            settings.api_key,
            settings.token_file,
            settings.annotations,
            tuple(self._transfer_id(rank) for rank in ranks),
        )
        self.kit = Kit(self.cores, about) if settings.kit else None

    async def completion(self, request: web.Request) -> web.Response:
        """POST /v1/completions, not streamed."""
        body = await request.json()
        model = self.settings.model
        if body.get("model") not in (None, model):
            return _error(404, "NotFoundError", f"The model `{body.get('model')}` does not exist.")
        answer_id = f"cmpl-{request.headers.get('X-Request-Id') or uuid.uuid4().hex}"
        ask = self._ask(body, f"{answer_id}-0-{uuid.uuid4().hex[:8]}")
        rank = self._rank(request)
        try:
            done = await self.cores[rank].generate(ask)
        except TransferError as error:
            return _error(500, "InternalServerError", str(error))
        text = " ".join(self._random.choices(_WORDS, k=done.tokens))
        usage = {
            "prompt_tokens": ask.prompt_tokens,
            "completion_tokens": done.tokens,
            "total_tokens": ask.prompt_tokens + done.tokens,
        }
        answer = {
            "id": answer_id,
            "object": "text_completion",
            "created": int(time.time()),
            "model": model,
            "choices": [{"index": 0, "text": text, "logprobs": None, "finish_reason": "length"}],
            "usage": usage,
            "kv_transfer_params": self._handover(ask, request, rank) if ask.keep else None,
        }
        return web.json_response(answer)

    def _ask(self, body: dict[str, Any], request_id: str) -> Ask:
        prompt = body.get("prompt")
        if isinstance(prompt, str):
            tokens = len(prompt.split())
        elif isinstance(prompt, list) and all(isinstance(token, int) for token in prompt):
            tokens = len(prompt)
        else:
            raise BadRequestError("this engine takes one prompt: a text or a list of token ids")
        max_tokens = body.get("max_tokens", 16)
        if not isinstance(max_tokens, int) or max_tokens < 1 or not tokens:
            raise BadRequestError("prompt and max_tokens must have at least one token each")
        room = min(MAX_MODEL_LEN, self.settings.blocks * self.settings.block_tokens)
        if tokens + max_tokens > room:
            raise BadRequestError(f"maximum context length is {room} tokens; asked for {tokens + max_tokens}")
        params = body.get("kv_transfer_params") or {}
        ask = Ask(request_id, tokens, max_tokens, keep=bool(params.get("do_remote_decode")))
        if not params.get("do_remote_prefill"):
            return ask
        engine, remote_id, host, port = (
            params.get(f"remote_{key}") for key in ("engine_id", "request_id", "host", "port")
        )
        if not (engine and remote_id and host and port):
            raise BadRequestError("kv_transfer_params names no remote engine")
        return replace(ask, remote=Remote(str(engine), str(remote_id), str(host), int(port)))

    def _rank(self, request: web.Request) -> int:
        """The engine that serves it: the one that X-data-parallel-rank names, as in vLLM, else the next."""
        named = request.headers.get("X-data-parallel-rank")
        if named is None:
            return next(self._turns)
        rank = int(named)
        if not 0 <= rank < len(self.cores):
            raise BadRequestError(f"data_parallel_rank {rank} is out of range [0, {len(self.cores)})")
        return rank

    def _transfer_id(self, rank: int) -> str:
        """Each rank of several has an id of its own (vllm/v1/engine/core.py, 0.29.0)."""
        return f"{self.engine_id}_dp{rank}" if len(self.cores) > 1 else self.engine_id

    def _handover(self, ask: Ask, request: web.Request, rank: int) -> dict[str, Any]:
        """The kv_transfer_params under which a decode can read what is held for it now."""
        # Where this very request came in: the port may be any free one, the host a wildcard.
        host, port, *_ = request.get_extra_info("sockname")
        blocks = self.cores[rank].scheduler.blocks_for(ask.prompt_tokens)
        return {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_block_ids": [list(range(blocks))],
            "remote_engine_id": self._transfer_id(rank),
            "remote_request_id": ask.id,
            "remote_host": self.settings.advertise or host,
            "remote_port": port,
            "tp_size": 1,
        }

    async def metrics(self, request: web.Request) -> web.Response:
        """GET /metrics whole; GET /metrics/ (the slash matters, as in vLLM) restricted to name[]."""
        used = resource.getrusage(resource.RUSAGE_SELF)
        page = self.pages[0]
        page.set("process_start_time_seconds", round(self._started, 2))
        page.set("process_cpu_seconds_total", round(used.ru_utime + used.ru_stime, 2))
        # Bytes on macOS, kibibytes elsewhere.
        unit = 1 if sys.platform == "darwin" else 1024
        page.set("process_resident_memory_bytes", used.ru_maxrss * unit)
        names = request.query.getall("name[]", []) if request.path.endswith("/") else []
        body, headers = text_of(self.pages, names).encode(), {"Content-Type": CONTENT_TYPE}
        if "gzip" in request.headers.get("Accept-Encoding", ""):
            body, headers["Content-Encoding"] = gzip.compress(body), "gzip"
        return web.Response(body=body, headers=headers)

    @web.middleware
    async def counted(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        """Count requests as vLLM's HTTP metrics do, and answer what cannot be understood with its 400."""
        began = time.monotonic()
        response: web.StreamResponse
        try:
            response = await handler(request)
        except (BadRequestError, ValueError, KeyError, AttributeError, TypeError) as error:
            response = _error(400, "BadRequestError", str(error))
        if request.path.startswith("/v1/"):
            status = f"{response.status // 100}xx"
            page = self.pages[0]
            page.add("http_requests_total", handler=request.path, method=request.method, status=status)
            page.observe("http_request_duration_highr_seconds", time.monotonic() - began)
        return response

    def application(self) -> web.Application:
        """The routes; the engine's core lives as long as the application."""
        app = web.Application(middlewares=[*([self.kit.guarded] if self.kit else []), self.counted])
        app.cleanup_ctx.extend(core.run for core in self.cores)
        if self.kit is not None:
            app.cleanup_ctx.append(self.kit.run)
            app.add_routes(self.kit.routes())
        model = {"id": self.settings.model, "object": "model", "created": int(self._started)}
        served = {**model, "owned_by": "vllm", "root": self.settings.model, "max_model_len": MAX_MODEL_LEN}
        app.add_routes(
            [
                web.get("/health", _always("")),
                web.get("/version", _always({"version": VERSION})),
                web.get("/v1/models", _always({"object": "list", "data": [served]})),
                web.post("/v1/completions", self.completion),
                web.get("/metrics", self.metrics),
                web.get("/metrics/", self.metrics),
                *Sim(self.cores).routes(),
            ]
        )
        return app


def _always(content: object) -> _Handler:
    async def answer(_: web.Request) -> web.StreamResponse:
        return web.json_response(content) if content else web.Response()

    return answer


def _error(status: int, kind: str, message: str) -> web.Response:
    error = {"message": message, "type": kind, "param": None, "code": status}
    return web.json_response({"error": error}, status=status)


def _remove(annotations: Path) -> None:
    """The file, and where it was the last one its folder: nobody else is left to do it."""
    with suppress(OSError):
        annotations.unlink()
        annotations.parent.rmdir()


def main() -> None:
    async def life(settings: Settings) -> None:
        ready = {"name": settings.name, "role": settings.role, "pid": os.getpid()}
        app = Engine(settings).application()
        alone = await serve(app, settings.host, settings.port, ready, settings.leash)
        if alone and settings.annotations is not None:
            _remove(Path(settings.annotations))

    logging.basicConfig(level=logging.INFO, format=_LOG, datefmt="%m-%d %H:%M:%S")
    with token_file(settings_from()) as settings:
        asyncio.run(life(settings))


if __name__ == "__main__":
    main()
