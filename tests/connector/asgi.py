"""A tiny ASGI application in vLLM's place, a fake engine client, and a call of the protocol, without a
server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from stanch_connector.apiserver.middleware import Message, Receive, Scope, Send

Reply = Callable[[int, str], Any]


@dataclass
class FakeCores:
    """core_client.DPLBAsyncMPClient, as far as the kit touches it. reply(rank, question): JSON text, an
    exception to raise, or None for a rank that never answers."""

    reply: Reply
    ranks: tuple[int, ...] = (0,)
    asked: list[tuple[int, str]] = field(default_factory=list)

    @property
    def core_engines(self) -> list[bytes]:
        return [rank.to_bytes(2, "little") for rank in self.ranks]

    async def _call_utility_async(self, method: str, *args: Any, engine: bytes) -> Any:
        assert method == "stanch_ask"
        rank = int.from_bytes(engine, "little")
        self.asked.append((rank, args[0]))
        reply = self.reply(rank, args[0])
        if reply is None:
            await asyncio.Event().wait()
        if isinstance(reply, BaseException):
            raise reply
        await asyncio.sleep(0)
        return reply


class FakeApp:
    """Answers 200 `served` and remembers what reached it. args, engine_client: where vLLM keeps them."""

    def __init__(self, cores: Any = None, *, keys: list[str] | None = None, healthy: bool = True) -> None:
        async def check_health() -> None:
            if not healthy:
                raise RuntimeError("dead")

        client = SimpleNamespace(engine_core=cores, check_health=check_health)
        self.state = SimpleNamespace(args=SimpleNamespace(api_key=keys), engine_client=client)
        self.reached: list[str] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.reached.append(scope.get("path", scope["type"]))
        if scope["type"] == "http":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"served"})


@dataclass(frozen=True)
class Response:
    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


async def call(
    middleware: Any,
    app: Any,
    path: str,
    *,
    method: str = "GET",
    headers: Mapping[str, str] | None = None,
    body: bytes = b"",
    root_path: str = "",
) -> Response:
    """One HTTP request by the protocol."""
    scope: Scope = {
        "type": "http",
        "app": app,
        "method": method,
        "path": path,
        "root_path": root_path,
        "headers": [(name.lower().encode(), value.encode()) for name, value in (headers or {}).items()],
    }
    sent: list[Message] = []
    parts = [body[start : start + 65536] for start in range(0, len(body), 65536)] or [b""]

    async def receive() -> Message:
        part = parts.pop(0)
        return {"type": "http.request", "body": part, "more_body": bool(parts)}

    async def send(message: Message) -> None:
        sent.append(message)

    await middleware(scope, receive, send)
    start, *rest = sent
    assert start["type"] == "http.response.start"
    return Response(
        start["status"],
        {name.decode(): value.decode() for name, value in start["headers"]},
        b"".join(message.get("body", b"") for message in rest),
    )
