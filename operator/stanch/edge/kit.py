"""Asking the engine kit over HTTP; what its answers say: kit_answers.py."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import aiohttp

from stanch.edge.engine import trouble
from stanch.edge.errors import FileError
from stanch.edge.kit_answers import Facts, KitError, Lists, Reply, checked, facts_of, json_of, lists_of
from stanch_connector import contract

# The kit itself waits 5 s for a rank and 1 s for the state; a hung engine gets its answer from it then.
LIST_SECONDS = 8.0
STATE_SECONDS = 4.0
# A list has at most 20,000 requests of some 400 bytes.
_MOST_BYTES = 16 << 20

# The key that a server wants, read anew at each use because it may rotate. Raises FileError.
Key = Callable[[], str | None]


def no_key() -> str | None:
    return None


async def state(
    session: aiohttp.ClientSession, base: str, seconds: float = STATE_SECONDS, token: str | None = None
) -> Facts:
    """Raises KitError. token: the one that commands, or the API key: the outcomes name ids only to those."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    reply = await exchange(session, "GET", base + contract.ROUTE_STATE, seconds, headers=headers)
    return facts_of(checked(reply, contract.SCHEMA_STATE, key_given=False))


async def requests(
    session: aiohttp.ClientSession, base: str, key: Key = no_key, seconds: float | None = None
) -> Lists:
    """Raises KitError."""
    try:
        given = key()
    except FileError as error:
        raise KitError(f"its kit was not asked: {error}") from None
    headers = {"Authorization": f"Bearer {given}"} if given else {}
    reply = await exchange(
        session, "GET", base + contract.ROUTE_REQUESTS, seconds or LIST_SECONDS, headers=headers
    )
    return lists_of(checked(reply, contract.SCHEMA_REQUESTS, key_given=given is not None))


async def exchange(
    session: aiohttp.ClientSession,
    method: str,
    url: str,
    seconds: float,
    *,
    headers: Mapping[str, str] | None = None,
    body: object = None,
) -> Reply:
    """One request to the kit; `seconds` is for all of it. Raises KitError where there is no answer."""
    try:
        async with session.request(
            method,
            url,
            json=body,
            headers=headers,
            timeout=aiohttp.ClientTimeout(total=seconds),
            allow_redirects=False,
        ) as response:
            got = bytearray()
            while chunk := await response.content.readany():
                got += chunk
                if len(got) > _MOST_BYTES:
                    raise KitError(f"its kit's answer is longer than {_MOST_BYTES >> 20} MB", lasting=True)
            return Reply(response.status, json_of(bytes(got)))
    except asyncio.TimeoutError:
        raise KitError(f"its kit did not answer within {seconds:g} s") from None
    except (aiohttp.ClientError, OSError, ValueError) as error:
        unsent = isinstance(error, aiohttp.ClientConnectorError)
        raise KitError(f"its kit could not be asked: {trouble(error)}", unsent=unsent) from None
