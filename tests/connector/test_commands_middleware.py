"""The middleware with a real Gate: what a client of the engine and an operator see. No thread, no clock."""

from __future__ import annotations

import asyncio
import json
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

import pytest

from stanch_connector.apiserver.gate import Gate
from stanch_connector.apiserver.middleware import StanchMiddleware
from stanch_connector.contract import CANARY_PREFIX, ROUTE_COMMAND, ROUTE_READY, ROUTE_STATE

pytestmark = pytest.mark.unit

BOOT = "b00t"
TOKEN = "a-token-of-enough-bytes"


class Engine:
    """An application that answers 200 once it may."""

    def __init__(self, token_file: Path) -> None:
        self.now = 0.0
        self.gate = Gate(BOOT, clock=lambda: self.now, token_file=str(token_file), counting=True)
        self.may = asyncio.Event()
        self.app = StanchMiddleware(self.answer, self.gate)

    async def answer(self, scope: Any, receive: Any, send: Any) -> None:
        await self.may.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})

    async def ask(
        self, path: str, method: str = "GET", body: bytes = b"", **headers: str
    ) -> tuple[int, dict[str, Any], dict[bytes, bytes]]:
        sent: list[MutableMapping[str, Any]] = []
        named = [(key.replace("_", "-").encode(), value.encode()) for key, value in headers.items()]
        scope = {"type": "http", "method": method, "path": path, "headers": named}

        async def receive() -> MutableMapping[str, Any]:
            return {"type": "http.request", "body": body}

        async def send(message: MutableMapping[str, Any]) -> None:
            sent.append(message)

        await self.app(scope, receive, send)
        return sent[0]["status"], json.loads(sent[1]["body"]), dict(sent[0]["headers"])

    async def command(self, name: str, verb: str) -> tuple[int, dict[str, Any]]:
        body = json.dumps({"id": name, "verb": verb, "bootId": BOOT, "deadlineSeconds": 20}).encode()
        return (await self.ask(ROUTE_COMMAND, "POST", body, authorization=f"Bearer {TOKEN}"))[:2]

    def turns(self, seconds: float) -> None:
        for _ in range(round(seconds * 10)):
            self.now += 0.1
            self.gate.turn(self.gate.open_requests())


def test_a_drain_as_clients_see_it(tmp_path: Path) -> None:
    async def scene() -> None:
        token = tmp_path / "token"
        token.write_text(TOKEN)
        engine = Engine(token)
        under_way = asyncio.create_task(engine.ask("/v1/completions", "POST"))
        await asyncio.sleep(0)
        assert (await engine.command("d", "drain"))[1]["state"] == "running"
        status, body, headers = await engine.ask("/v1/completions", "POST")
        assert (status, body["error"]["code"], headers[b"connection"]) == (503, 503, b"close")
        assert (await engine.ask(ROUTE_READY))[0] == 503
        engine.turns(2)
        assert (await engine.ask(ROUTE_STATE))[1]["outcomes"][0]["state"] == "running"
        engine.may.set()
        assert (await under_way)[0] == 200
        engine.turns(1)
        state = (await engine.ask(ROUTE_STATE))[1]
        assert (state["outcomes"][0]["state"], state["draining"], state["ready"]) == ("done", True, False)
        assert (await engine.ask("/v1/completions", "POST", x_request_id=f"{CANARY_PREFIX}{BOOT}-1"))[
            0
        ] == 200
        assert (await engine.ask("/health"))[0] == 200
        assert (await engine.command("u", "undrain"))[1]["state"] == "done"
        assert (await engine.ask("/v1/completions", "POST"))[0] == 200
        assert (await engine.ask(ROUTE_READY))[0] == 200

    asyncio.run(scene())


def test_post_without_the_token(tmp_path: Path) -> None:
    async def scene() -> None:
        engine = Engine(tmp_path / "token")
        assert (await engine.ask(ROUTE_COMMAND, "POST", b"{}"))[0] == 404
        (tmp_path / "token").write_text(TOKEN)
        assert (await engine.ask(ROUTE_COMMAND, "POST", b"{}"))[0] == 401
        assert (await engine.ask(ROUTE_COMMAND, "POST", b"{}", authorization="Bearer wrong"))[0] == 401

    asyncio.run(scene())
