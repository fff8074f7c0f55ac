"""A simulated vLLM 0.29.0 engine as a process of its own.

    python -m stanch.edge.demo.engine --role decode --name decode-0 --port 0

It needs nothing but the standard library and aiohttp, knows nothing of a fleet, and says its port as JSON
when it is ready. The KV side channel (a port of NIXL's own in vLLM) is a route here. Paths under /sim exist
in no real engine; everything else has the form of the real one's.
"""

from __future__ import annotations

import asyncio
import gzip
import os
import random
import resource
import sys
import time
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from aiohttp import web

from stanch.edge.demo.enginecore import EngineCore, TransferError
from stanch.edge.demo.kit import About, Kit
from stanch.edge.demo.page import CONTENT_TYPE, Page
from stanch.edge.demo.process import serve
from stanch.edge.demo.scheduler import Ask, Phase, Remote, Scheduler
from stanch.edge.demo.settings import Settings, settings_from, token_file

VERSION = "0.29.0"
MAX_MODEL_LEN = 1024
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
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class BadRequestError(Exception):
    """What vLLM answers with 400."""


class Engine:
    """The API server of one engine."""

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
        self.page = Page(settings.model, self._started, config)
        self.scheduler = Scheduler(
            settings.blocks, settings.block_tokens, lease_seconds=settings.lease_seconds
        )
        self.core = EngineCore(self.scheduler, self.page, f"{settings.seed}/{settings.name}/transfers")
        self._random = random.Random(f"{settings.seed}/{settings.name}/words")
        about = About(
            VERSION,
            settings.role,
            settings.lease_seconds,
            settings.api_key,
            settings.token_file,
            settings.annotations,
        )
        self.kit = Kit(self.core, about) if settings.kit else None

    async def completion(self, request: web.Request) -> web.Response:
        """POST /v1/completions, not streamed."""
        body = await request.json()
        model = self.settings.model
        if body.get("model") not in (None, model):
            return _error(404, "NotFoundError", f"The model `{body.get('model')}` does not exist.")
        answer_id = f"cmpl-{request.headers.get('X-Request-Id') or uuid.uuid4().hex}"
        ask = self._ask(body, f"{answer_id}-0-{uuid.uuid4().hex[:8]}")
        try:
            done = await self.core.generate(ask)
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
            "kv_transfer_params": self._handover(ask, request) if ask.keep else None,
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

    def _handover(self, ask: Ask, request: web.Request) -> dict[str, Any]:
        """The kv_transfer_params under which a decode can read what is held for it now."""
        # Where this very request came in: the port may be any free one, the host a wildcard.
        host, port, *_ = request.get_extra_info("sockname")
        return {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_block_ids": [list(range(self.scheduler.blocks_for(ask.prompt_tokens)))],
            "remote_engine_id": self.engine_id,
            "remote_request_id": ask.id,
            "remote_host": self.settings.advertise or host,
            "remote_port": port,
            "tp_size": 1,
        }

    async def read(self, request: web.Request) -> web.Response:
        """POST /sim/read {"request_id"}: the side channel; 410 where nothing is held (any more)."""
        return web.Response(status=200 if self.core.read((await request.json())["request_id"]) else 410)

    async def plant(self, request: web.Request) -> web.Response:
        """POST /sim/plant {"requests": K}: the next K P/D requests meet the defect."""
        self.scheduler.plant(int((await request.json())["requests"]))
        return web.json_response({"planted": self.scheduler.planted})

    async def stuck(self, _: web.Request) -> web.Response:
        """GET /sim/requests: requests that wait for remote KV, and orphans; oldest first."""
        now = time.monotonic()
        listed = [
            {
                "id": held.ask.id,
                "status": held.phase.value,
                "age_seconds": round(now - held.admitted, 3),
                "blocks": held.blocks,
                "cache_share": held.blocks / self.scheduler.blocks,
                "remote_engine": held.ask.remote.engine_id if held.ask.remote else None,
            }
            for held in self.scheduler.of(Phase.PARKED, Phase.ORPHAN)
        ]
        return web.json_response(listed)

    async def metrics(self, request: web.Request) -> web.Response:
        """GET /metrics whole; GET /metrics/ (the slash matters, as in vLLM) restricted to name[]."""
        used = resource.getrusage(resource.RUSAGE_SELF)
        self.page.set("process_start_time_seconds", round(self._started, 2))
        self.page.set("process_cpu_seconds_total", round(used.ru_utime + used.ru_stime, 2))
        # Bytes on macOS, kibibytes elsewhere.
        unit = 1 if sys.platform == "darwin" else 1024
        self.page.set("process_resident_memory_bytes", used.ru_maxrss * unit)
        names = request.query.getall("name[]", []) if request.path.endswith("/") else []
        body, headers = self.page.text(names).encode(), {"Content-Type": CONTENT_TYPE}
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
            self.page.add("http_requests_total", handler=request.path, method=request.method, status=status)
            self.page.observe("http_request_duration_highr_seconds", time.monotonic() - began)
        return response

    def application(self) -> web.Application:
        """The routes; the engine's core lives as long as the application."""
        app = web.Application(middlewares=[*([self.kit.guarded] if self.kit else []), self.counted])
        app.cleanup_ctx.append(self.core.run)
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
                web.get("/sim/requests", self.stuck),
                web.post("/sim/plant", self.plant),
                web.post("/sim/read", self.read),
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


def main() -> None:
    async def life(settings: Settings) -> None:
        ready = {"name": settings.name, "role": settings.role, "pid": os.getpid()}
        await serve(Engine(settings).application(), settings.host, settings.port, ready, settings.leash)

    with token_file(settings_from()) as settings:
        asyncio.run(life(settings))


if __name__ == "__main__":
    main()
