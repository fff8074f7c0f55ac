"""The engine kit as a server says it, right or wrong: what it answers is set from outside."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from stanch_connector import contract

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


def entry(name: str = "a", **differs: Any) -> dict[str, Any]:
    """An orphan of ten minutes that holds a tenth of the cache, and what differs."""
    return {
        "id": f"cmpl-{name}",
        "schedulerId": f"cmpl-{name}-0-0badcafe",
        "status": "FINISHED_ABORTED",
        "ageSeconds": 612.4,
        "blocks": 10,
        "cacheShare": 0.1,
        "remoteEngine": "prefill-3",
        "clientGone": True,
        "waitsFor": "remote_kv",
        "leased": False,
        "pinned": False,
        "releasable": True,
        "way": "freed",
        "refusal": None,
        "refusalKind": None,
        **differs,
    }


class FakeKit:
    """requests, state, command: its answers, as JSON or as a function of the request."""

    def __init__(self, *entries: dict[str, Any], **state: Any) -> None:
        self.boot_id = "boot-1"
        self.key: str | None = None
        self.ranks: dict[str, Any] = {"0": {"requests": list(entries)}}
        self.missing: list[int] = []
        self.facts: dict[str, Any] = {
            "contract": 1,
            "draining": False,
            "ready": True,
            "outcomes": [],
            **state,
        }
        self.answers: dict[str, Answer] = {}
        self.commands: list[tuple[str | None, dict[str, Any]]] = []
        self.extra: dict[str, Any] = {}

    async def serve(self, request: web.Request) -> web.StreamResponse:
        what = request.match_info["what"]
        if what in self.answers:
            return await self.answers[what](request)
        if what == "state":
            return web.json_response(
                {"schema": contract.SCHEMA_STATE, "bootId": self.boot_id, **self.facts, **self.extra}
            )
        if what == "requests":
            if self.key is not None and request.headers.get("Authorization") != f"Bearer {self.key}":
                return web.json_response({"error": "Unauthorized"}, status=401)
            listed = {"ranks": self.ranks, "missingRanks": self.missing, **self.extra}
            return web.json_response({"schema": contract.SCHEMA_REQUESTS, "bootId": self.boot_id, **listed})
        return web.json_response({"error": "commands by POST are off"}, status=404)

    def takes(self, **outcome: Any) -> None:
        """Commands are accepted, and the outcome of each is this, in the state."""

        async def command(request: web.Request) -> web.StreamResponse:
            body = await request.json()
            self.commands.append((request.headers.get("Authorization"), body))
            self.facts["outcomes"] = [{"id": body["id"], "verb": "release", **outcome}]
            return web.json_response({"id": body["id"], "verb": "release", "state": "accepted"})

        self.answers["command"] = command


def says(status: int, body: object = None, *, text: str | None = None) -> Answer:
    async def answer(request: web.Request) -> web.StreamResponse:
        return web.Response(status=status, text=json.dumps(body) if text is None else text)

    return answer


async def hangs(request: web.Request) -> web.StreamResponse:
    """No answer for longer than anybody waits; its client's leaving ends it."""
    await asyncio.sleep(3600)
    return web.Response()
