"""One real request through a prefill/decode pair, and where it broke.

The prompt is new each time, so no prefix cache answers it, and longer than a block. It is one of token ids:
that needs no tokenizer, and both engines are sure to see the same number of them (0.29 dies of a prompt that
is longer on the decode across a block boundary). Small ids are in every vocabulary.
"""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any
from uuid import uuid4

import aiohttp

from stanch.core.sample import Role
from stanch.edge import kit
from stanch.edge.errors import FileError
from stanch.edge.exposition import Page, read
from stanch.edge.families import CACHE_CONFIG
from stanch.edge.fetch import fetch
from stanch.edge.kit import Key, exchange
from stanch.edge.kit_answers import KitError
from stanch.edge.probed import DECODE_TOKENS, End, MisuseError, Probed, StopError, judge, total
from stanch.edge.targets import Watched
from stanch.edge.text import one_line
from stanch.edge.waking import ended

# What a router asks of a prefill engine (vLLM's NIXL connector, 0.10 .. 0.33).
COMPUTE_ONLY: Mapping[str, object] = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}
_IDS = range(100, 250)
# For a last look at a request that is given up.
_LOOK_SECONDS = 15.0
_BLOCK, _LEAST_TOKENS, _ROOM = 16, 48, 8
_PAGE_SECONDS = 4.0
# vLLM sets its counters after it has answered; on a busy machine that was seen to take 3 to 6 s.
_SETTLE_SECONDS, _POLL_SECONDS = 10.0, 0.25
_BLOCK_SIZE = re.compile(re.escape(CACHE_CONFIG).encode() + rb'\{[^}]*\bblock_size="(\d{1,6})"')


@dataclass(slots=True)
class Probe:
    """One probe of one pair. timeout_seconds: for each of the two requests."""

    session: aiohttp.ClientSession
    prefill: Watched
    decode: Watched
    timeout_seconds: float = 60.0
    model: str | None = None
    key: Key = kit.no_key
    request_id: str = field(default_factory=lambda: f"stanch-probe-{uuid4().hex[:12]}")
    _tokens: list[int] = field(default_factory=list)
    _took: dict[str, float] = field(default_factory=dict)

    async def run(self) -> Probed:
        """Raises MisuseError."""
        other = await self._other_roles()
        try:
            why = await self._run()
        except StopError as stop:
            return self._end(stop.end, stop.where, stop.why + "".join(f"; {text}" for text in other))
        return self._end(End.WORKS, None, why)

    def _end(self, end: End, where: str | None, why: str) -> Probed:
        took = self._took
        return Probed(
            end, where, why, self.request_id, len(self._tokens), took.get("prefill"), took.get("decode")
        )

    async def _run(self) -> str:
        before = await self._pages()
        models = {}
        longest: list[int] = []
        for where, watched in self._ends():
            models[where], room = await self._served(where, watched)
            longest += [room] if room else []
        self._tokens = prompt([body for body, _ in before.values()], min(longest, default=None))
        payload = {"prompt": self._tokens, "temperature": 0, "ignore_eos": True, "stream": False}
        first = {**payload, "model": models["prefill"], "max_tokens": 1, "kv_transfer_params": COMPUTE_ONLY}
        params = (await self._ask("prefill", self.prefill, first)).get("kv_transfer_params")
        if not isinstance(params, dict) or not params:
            raise StopError(
                End.BROKE,
                "handover",
                "the prefill engine computed the prompt but gave no kv_transfer_params: it holds nothing to "
                "be read, so it has no KV connector, or its kv_role is kv_consumer",
            )
        second = {
            **payload,
            "model": models["decode"],
            "max_tokens": DECODE_TOKENS,
            "kv_transfer_params": params,
        }
        await self._ask("decode", self.decode, second)
        after = await self._settled(before)
        return judge(
            {where: page for where, (_, page) in before.items()},
            {where: page for where, (_, page) in after.items()},
            len(self._tokens),
        )

    async def _other_roles(self) -> list[str]:
        """Who, by the kv_role that its kit tells, is not what it was given as. Raises MisuseError of both."""
        told = await asyncio.gather(*(self._role(watched) for _, watched in self._ends()))
        if told == [Role.DECODE, Role.PREFILL]:
            raise MisuseError(
                "the two are given the wrong way round: by their kits' kv_role "
                f"{self.prefill.target.shown} is the decode and {self.decode.target.shown} the prefill"
            )
        return [
            f"by the kv_role that its kit tells, what was given as {where} is a {role.value}"
            for (where, _), role in zip(self._ends(), told, strict=True)
            if role not in (None, Role(where))
        ]

    async def _role(self, watched: Watched) -> Role | None:
        try:
            return (await kit.state(self.session, watched.base)).role
        except KitError:
            return None

    def _ends(self) -> Sequence[tuple[str, Watched]]:
        return (("prefill", self.prefill), ("decode", self.decode))

    async def _pages(self) -> dict[str, tuple[bytes, Page]]:
        """The whole page of each end, and what it says."""
        fetched = await asyncio.gather(
            *(fetch(self.session, watched.target.page, _PAGE_SECONDS) for _, watched in self._ends())
        )
        return {
            where: (got.body or b"", Page(problem=got.problem) if got.body is None else read(got.body))
            for (where, _), got in zip(self._ends(), fetched, strict=True)
        }

    async def _served(self, where: str, watched: Watched) -> tuple[str, int | None]:
        """(the model to name, how many tokens it takes) of one end."""
        data = await self._exchange(where, watched, "GET", "/v1/models", _PAGE_SECONDS)
        served = data.get("data")
        models = [one for one in served if isinstance(one, dict)] if isinstance(served, list) else []
        if not models or not isinstance(models[0].get("id"), str):
            raise StopError(End.BROKE, where, f"the {where} engine's /v1/models names no model")
        names = [one["id"] for one in models if isinstance(one.get("id"), str)]
        if self.model is not None and self.model not in names:
            serves = one_line(", ".join(names), 200)
            raise MisuseError(f"the {where} engine serves no model {self.model!r}; it serves {serves}")
        room = next((m.get("max_model_len") for m in models if isinstance(m.get("max_model_len"), int)), None)
        return self.model or models[0]["id"], room

    async def _ask(self, where: str, watched: Watched, payload: Mapping[str, object]) -> dict[str, Any]:
        began = time.monotonic()
        patience = self.timeout_seconds + _LOOK_SECONDS
        asking = asyncio.ensure_future(
            self._exchange(where, watched, "POST", "/v1/completions", patience, payload)
        )
        try:
            # Where it hangs is seen while it hangs: once we give it up it is aborted.
            if not (await asyncio.wait((asking,), timeout=self.timeout_seconds))[0]:
                why = f"the {where} engine gave no answer within {self.timeout_seconds:g} s"
                raise StopError(End.BROKE, where, why + await self._seen(where, watched))
            answer = asking.result()
        finally:
            await ended(asking)
        if not isinstance(answer.get("choices"), list):
            raise StopError(End.BROKE, where, f"the {where} engine's answer holds no token")
        self._took[where] = time.monotonic() - began
        return answer

    async def _exchange(
        self, where: str, watched: Watched, method: str, path: str, seconds: float, body: object = None
    ) -> dict[str, Any]:
        try:
            key = self.key()
        except FileError as error:
            raise StopError(End.UNKNOWN, where, str(error)) from None
        headers = {"X-Request-Id": self.request_id, **({"Authorization": f"Bearer {key}"} if key else {})}
        who = f"the {where} engine"
        try:
            reply = await exchange(
                self.session, method, watched.base + path, seconds, headers=headers, body=body
            )
        except KitError as error:
            why = str(error).replace("its kit", who, 1)
            raise StopError(End.BROKE, where, why) from None
        if reply.status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
            why = f"{who} wants its API key (HTTP {reply.status}): give its file with --api-key-file"
            raise StopError(End.UNKNOWN, where, why)
        if reply.status != HTTPStatus.OK:
            raise StopError(
                End.BROKE, where, f"{who} refused {path}: HTTP {reply.status}{_detail(reply.data)}"
            )
        if not isinstance(reply.data, dict):
            raise StopError(End.BROKE, where, f"{who}'s answer to {path} is not what vLLM answers")
        return reply.data

    async def _seen(self, where: str, watched: Watched) -> str:
        """What the engine says of the request that it does not answer; "" where it says nothing of it."""
        try:
            lists = await kit.requests(self.session, watched.base, self.key)
        except KitError:
            lists = None
        for entries in lists.ranks.values() if lists is not None else ():
            for entry in entries:
                if entry.id.endswith(self.request_id):
                    engine = f" from engine {entry.remote_engine}" if entry.remote_engine else ""
                    waits = f" and waits for {entry.waits_for}{engine}" if entry.waits_for else ""
                    held = f"{entry.blocks} blocks held"
                    return f": its kit lists the request as {entry.status}{waits}, {held}"
        _, page = (await self._pages())[where]
        deferred = total(page, "waiting_deferred")
        if deferred:
            return f": it is parked, as far as can be seen ({deferred:g} wait for a transfer or the like)"
        return f", nor its metrics: {page.problem}" if page.problem is not None else ""

    async def _settled(self, before: Mapping[str, tuple[bytes, Page]]) -> dict[str, tuple[bytes, Page]]:
        """The pages once the decode's shows our tokens, and once more for what comes with the step after."""
        deadline = time.monotonic() + _SETTLE_SECONDS
        first = total(before["decode"][1], "generation_tokens")
        while True:
            after = await self._pages()
            now = total(after["decode"][1], "generation_tokens")
            if first is None or now is None or not 0 <= now - first < DECODE_TOKENS:
                break
            if time.monotonic() > deadline:
                break
            await asyncio.sleep(_POLL_SECONDS)
        await asyncio.sleep(_POLL_SECONDS)
        return await self._pages()


def prompt(pages: Sequence[bytes], longest: int | None) -> list[int]:
    """Random token ids for two and a half blocks of the larger block size, within what the engines take."""
    sizes = [int(match[1]) for page in pages for match in _BLOCK_SIZE.finditer(page)]
    wanted = max(_LEAST_TOKENS, max(sizes, default=_BLOCK) * 5 // 2)
    count = wanted if longest is None else max(1, min(wanted, longest - _ROOM))
    chance = random.SystemRandom()
    return [chance.choice(_IDS) for _ in range(count)]


def _detail(data: object) -> str:
    """What vLLM says in an error's body."""
    error = data.get("error", data) if isinstance(data, dict) else None
    message = error.get("message") if isinstance(error, dict) else error
    return f" ({one_line(message, 200)})" if isinstance(message, str) and message.strip() else ""
