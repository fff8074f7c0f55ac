"""Asking one engine itself: its version, its health, whether it is paused, and the canary.

Facts read from vLLM 0.9 to 0.33: `/health` answers 200 for a hung, paused or sleeping engine; `/is_paused`,
`/is_sleeping` are served in development mode only (the first without it from 0.12 to 0.15); a prompt may be a
list of token ids, so a canary needs no tokenizer; `model` may be left out; the header X-data-parallel-rank
(0.11.1) counts the server's own engines; an answer's `usage` counts its tokens.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from http import HTTPStatus
from uuid import uuid4

import aiohttp

from stanch.core.confirm import Canary, Evidence, Outcome, Paused, Ruling, judge
from stanch.core.policy import Policy
from stanch.core.sample import Lifecycle, Sample, problem
from stanch.core.verdict import Answer, Verdict
from stanch.edge.text import one_line
from stanch_connector import contract

_SHORT = aiohttp.ClientTimeout(total=2.0)
_BODY_LIMIT = 1 << 20
# We send one token; a server may put a few of its own before it.
_PROMPT_LIMIT = 16
# vLLM sets its gauges after it has answered, and they were seen to lag by 3 to 6 s on a busy machine. A page
# that does not show the canary's token by then proves nothing.
_SETTLE_SECONDS = 10.0
_POLL_SECONDS = 0.25
# While a canary is out the engine is read so often, to see whether it works.
_WATCH_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Address:
    """Where an engine listens. base: URL without /metrics. rank: its place among the ranks of that server.
    boot_id: of its kit, by which a canary passes while the engine drains."""

    base: str
    rank: int | None = None
    api_key: str | None = None
    boot_id: str | None = None

    @property
    def canary_id(self) -> str:
        """A new id of a canary's request."""
        own = uuid4().hex[:12]
        return contract.CANARY_PREFIX + (own if self.boot_id is None else f"{self.boot_id}-{own}")

    def headers(self) -> dict[str, str]:
        found = {} if self.rank is None else {"X-data-parallel-rank": str(self.rank)}
        if self.api_key:
            found["Authorization"] = f"Bearer {self.api_key}"
        return found


async def _get(
    session: aiohttp.ClientSession, url: str, headers: dict[str, str] | None = None
) -> tuple[int, object] | None:
    """(status, JSON or None) of a small answer; None where there is none within two seconds."""
    try:
        async with session.get(url, headers=headers, timeout=_SHORT, allow_redirects=False) as response:
            return response.status, _json(await _body(response))
    except (aiohttp.ClientError, asyncio.TimeoutError, OSError, ValueError):
        return None


async def _body(response: aiohttp.ClientResponse) -> bytes:
    """The whole body, however many pieces it comes in; cut where it is too long to be an answer to us."""
    got = bytearray()
    while len(got) <= _BODY_LIMIT and (chunk := await response.content.readany()):
        got += chunk
    return bytes(got[:_BODY_LIMIT])


def _json(body: bytes) -> object:
    """What the body says; None where it is not JSON."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


async def version(session: aiohttp.ClientSession, base: str) -> str | None:
    """What /version says, as it says it ("0.29.0+cpu"); None where it does not."""
    found = await _get(session, f"{base}/version")
    if found is not None and found[0] == HTTPStatus.OK and isinstance(found[1], dict):
        text = found[1].get("version")
        if isinstance(text, str) and 0 < len(text) <= 100 and text.isprintable():
            return text
    return None


def parsed_version(text: str | None) -> tuple[int, int] | None:
    """(major, minor) of a version such as 0.29.0+cpu; None for a build that has none (dev, 0.0.0)."""
    match = re.match(r"v?(\d+)\.(\d+)", text or "")
    if match is None or (match[1], match[2]) == ("0", "0"):
        return None
    return int(match[1]), int(match[2])


async def healthy(session: aiohttp.ClientSession, base: str) -> bool:
    """Whether /health answers 200 within two seconds."""
    found = await _get(session, f"{base}/health")
    return found is not None and found[0] == HTTPStatus.OK


async def locked(session: aiohttp.ClientSession, base: str, api_key: str | None = None) -> bool:
    """Whether it refuses requests with this key: /v1/models wants vLLM's --api-key as completions do."""
    found = await _get(session, f"{base}/v1/models", Address(base, api_key=api_key).headers())
    return found is not None and found[0] in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)


async def paused(session: aiohttp.ClientSession, base: str) -> Paused:
    found = await _get(session, f"{base}/is_paused")
    if found is None:
        return Paused.UNKNOWN
    status, data = found
    if status in (HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED):
        return Paused.NOT_SERVED
    if status == HTTPStatus.OK and isinstance(data, dict) and isinstance(data.get("is_paused"), bool):
        return Paused.YES if data["is_paused"] else Paused.NO
    return Paused.UNKNOWN


async def _asleep(session: aiohttp.ClientSession, base: str) -> bool:
    found = await _get(session, f"{base}/is_sleeping")
    return found is not None and isinstance(found[1], dict) and found[1].get("is_sleeping") is True


async def canary(session: aiohttp.ClientSession, address: Address, deadline_seconds: float) -> Canary:
    """One request of one token to the engine's own port, under an id of its own; every end is an outcome."""
    started = time.monotonic()
    status: int | None = None

    def end(outcome: Outcome, detail: str = "") -> Canary:
        return Canary(outcome, time.monotonic() - started, status, detail)

    try:
        async with session.post(
            f"{address.base}/v1/completions",
            json={"prompt": [1], "max_tokens": 1, "ignore_eos": True, "temperature": 0, "stream": False},
            headers={"X-Request-Id": address.canary_id, **address.headers()},
            timeout=aiohttp.ClientTimeout(total=deadline_seconds),
            allow_redirects=False,
        ) as response:
            status = response.status
            body = await _body(response)
    except asyncio.TimeoutError:
        # vLLM sends the head of an answer when its token is there: a body that does not end is no hang.
        return end(Outcome.TIMED_OUT) if status is None else end(_refusal(status), "an answer without an end")
    except (aiohttp.ClientError, OSError, ValueError) as error:
        return end(Outcome.UNREACHABLE if status is None else _refusal(status), trouble(error))
    if status != HTTPStatus.OK:
        wants = "it wants an API key: " if status == HTTPStatus.UNAUTHORIZED else ""
        return end(_refusal(status), wants + _said(body))
    if (counted := _tokens(_json(body))) is None:
        # A 200 without a token is no answer: a server that is shutting down gives those.
        return end(Outcome.FAILED, "an answer without a token")
    return Canary(Outcome.FINISHED, time.monotonic() - started, status, "", *counted)


def _refusal(status: int) -> Outcome:
    return Outcome.REJECTED if 400 <= status < 500 else Outcome.FAILED


def _tokens(data: object) -> tuple[float, float] | None:
    """(generated, prompt) tokens of an answer; None where it names no token that was generated."""
    usage = data.get("usage") if isinstance(data, dict) else None
    if not isinstance(usage, dict):
        return None
    generated, prompt = usage.get("completion_tokens"), usage.get("prompt_tokens")
    if type(generated) is not int or type(prompt) is not int:
        return None
    # More than we asked for is not our answer, and would hide other people's tokens.
    return (float(generated), float(prompt)) if generated == 1 and 0 <= prompt <= _PROMPT_LIMIT else None


def trouble(error: Exception) -> str:
    """Why there was no answer, in words."""
    if isinstance(error, ConnectionRefusedError) or (
        isinstance(error, aiohttp.ClientConnectorError) and isinstance(error.os_error, ConnectionRefusedError)
    ):
        return "the connection was refused"
    if isinstance(error, (aiohttp.ServerDisconnectedError, aiohttp.ClientPayloadError, ConnectionError)):
        return "the connection was closed before the answer's end"
    return one_line(str(error), 120) or type(error).__name__


def _said(body: bytes) -> str:
    """The start of an error's text, on one line."""
    return one_line(body[:400].decode(errors="replace"), 120)


async def confirm(
    session: aiohttp.ClientSession,
    address: Address,
    verdict: Verdict,
    policy: Policy,
    read: Callable[[], Awaitable[Sample]],
) -> tuple[Ruling, Canary | None]:
    """Ask the engine about its verdict. `read` takes a new reading of it.

    The second of the pair is the canary that was sent, whose tokens are no progress; None where none was.
    """
    before = await read()
    if (unfit := problem(before)) is not None:
        return Ruling(
            Answer.INCONCLUSIVE, f"no canary was sent, since the engine cannot be read: {unfit}"
        ), None
    # Up to vLLM 0.16 a sleeping engine would run a request on memory that it has given back.
    if before.lifecycle is not None or await _asleep(session, address.base):
        state = (before.lifecycle or Lifecycle.ASLEEP).value
        return Ruling(Answer.VETOED, f"no canary was sent, since it is {state}"), None
    sent = asyncio.ensure_future(canary(session, address, policy.canary_seconds))
    after: list[Sample] = []
    try:
        while not (await asyncio.wait((sent,), timeout=_WATCH_SECONDS))[0]:
            after.append(await read())
    finally:
        sent.cancel()
        await asyncio.wait((sent,))
    result = sent.result()
    health_ok, pause = False, Paused.UNKNOWN
    if result.outcome is Outcome.FINISHED:
        after = await _settled(before, result, read)
    elif result.outcome is Outcome.TIMED_OUT:
        after.append(await read())
        # Of no other outcome do these two decide.
        health_ok, pause = await asyncio.gather(healthy(session, address.base), paused(session, address.base))
    return judge(verdict, Evidence(result, before, after, health_ok, pause), policy), result


async def _settled(before: Sample, result: Canary, read: Callable[[], Awaitable[Sample]]) -> list[Sample]:
    """Readings until the canary's own token shows, and one more after the step in which frees may come."""
    readings: list[Sample] = []
    deadline = time.monotonic() + _SETTLE_SECONDS
    while True:
        readings.append(await read())
        now, then = readings[-1].generation_tokens, before.generation_tokens
        rise = None if now is None or then is None else now - then
        # A counter that fell is another process: nothing more will show.
        if rise is not None and not 0 <= rise < result.generation_tokens:
            break
        if time.monotonic() > deadline:
            break
        await asyncio.sleep(_POLL_SECONDS)
    await asyncio.sleep(_POLL_SECONDS)
    readings.append(await read())
    return readings
