"""One prefill/decode request, as a router makes it: the prompt to a prefill engine, then to a decode."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import aiohttp

# What a router asks of the prefill engine (vLLM's NIXL connector, 0.29.0).
_COMPUTE_ONLY = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}


@dataclass(frozen=True, slots=True)
class PdRequest:
    """One request; X-Request-Id and prompt are the same on both sides. patience_seconds: of its client."""

    request_id: str
    prompt: str
    max_tokens: int
    patience_seconds: float


class RequestFailedError(Exception):
    """An engine refused, failed or could not be reached; the text names which and how."""


class GaveUpError(RequestFailedError):
    """The client's patience ended: it left, and the engine saw it leave."""


async def pd_request(session: aiohttp.ClientSession, prefill: str, decode: str, ask: PdRequest) -> None:
    """Send one request through a pair of engines (URLs). Raises RequestFailedError or GaveUpError."""
    try:
        await asyncio.wait_for(_through(session, prefill, decode, ask), ask.patience_seconds)
    except asyncio.TimeoutError:
        raise GaveUpError(f"no answer in {ask.patience_seconds:g} s") from None


async def _through(session: aiohttp.ClientSession, prefill: str, decode: str, ask: PdRequest) -> None:
    # No model: vLLM takes the one that it serves.
    payload = {"prompt": ask.prompt, "temperature": 0, "ignore_eos": True}
    headers = {"X-Request-Id": ask.request_id}
    first = {**payload, "max_tokens": 1, "kv_transfer_params": _COMPUTE_ONLY}
    params = (await _post(session, prefill, first, headers)).get("kv_transfer_params")
    if not params:
        raise RequestFailedError(f"{prefill} computed the prompt but holds nothing to be read")
    second = {**payload, "max_tokens": ask.max_tokens, "kv_transfer_params": params}
    await _post(session, decode, second, headers)


async def _post(
    session: aiohttp.ClientSession, url: str, payload: dict[str, Any], headers: dict[str, str]
) -> dict[str, Any]:
    try:
        async with session.post(f"{url}/v1/completions", json=payload, headers=headers) as answer:
            if answer.status != 200:
                raise RequestFailedError(f"{url} answered {answer.status}")
            body: dict[str, Any] = await answer.json()
            return body
    except (aiohttp.ClientError, ValueError) as error:
        raise RequestFailedError(f"{url}: {error}") from error
