"""Asking the engine kit over HTTP; what its answers say: kit_answers.py."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import aiohttp

from stanch.edge.engine import trouble
from stanch.edge.errors import FileError
from stanch.edge.kit_answers import Facts, KitError, Lists, Reply, checked, facts_of, json_of, lists_of
from stanch_connector import contract

# The kit itself waits 5 s for a rank and 1 s for the state; a hung engine gets its answer from it then.
LIST_SECONDS = 8.0
STATE_SECONDS = 4.0
# A list has at most 20,000 requests of some 400 bytes; everything else that a kit says is short.
_MOST_BYTES, _MOST_LIST_BYTES = 1 << 20, 16 << 20
# What is longer is understood beside the event loop, which has a Lease to renew: 10 MB take 0.2 s on a core
# of one's own. By one thread, so that the loop has half of the interpreter's time.
_LONG_BYTES = 256 << 10
_ASIDE = ThreadPoolExecutor(1, "long answers of kits")

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
    session: aiohttp.ClientSession,
    base: str,
    key: Key = no_key,
    seconds: float | None = None,
    room: Room | None = None,
) -> Lists:
    """room: what it has in common with others that are asked now. Raises KitError."""
    try:
        given = key()
    except FileError as error:
        raise KitError(f"its kit was not asked: {error}") from None
    headers = {"Authorization": f"Bearer {given}"} if given else {}
    url = base + contract.ROUTE_REQUESTS
    place = object()
    room = room or Room(_MOST_LIST_BYTES)
    try:
        status, body = await _received(
            session,
            "GET",
            url,
            seconds or LIST_SECONDS,
            _MOST_LIST_BYTES,
            headers=headers,
            comes=lambda size: room.take(place, size),
        )

        def understood() -> Lists:
            reply = Reply(status, json_of(body))
            lists = lists_of(checked(reply, contract.SCHEMA_REQUESTS, key_given=given is not None))
            return replace(lists, size=len(body))

        if len(body) <= _LONG_BYTES:
            return understood()
        return await asyncio.get_running_loop().run_in_executor(_ASIDE, understood)
    finally:
        room.leave(place)


class Room:
    """For lists that come at the same time and are not understood yet: so many bytes together. Where there
    are more, the longest is given up, so that a short one waits for nobody."""

    def __init__(self, most_bytes: int) -> None:
        self._most = most_bytes
        self._held: dict[object, int] = {}

    def take(self, place: object, size: int) -> None:
        """So long is this one by now. Raises KitError."""
        self._held[place] = size
        if sum(self._held.values()) > self._most and size == max(self._held.values()):
            raise KitError("its kit's list is too long beside others that come now")

    def leave(self, place: object) -> None:
        self._held.pop(place, None)


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
    status, got = await _received(session, method, url, seconds, _MOST_BYTES, headers=headers, body=body)
    return Reply(status, json_of(got))


async def _received(
    session: aiohttp.ClientSession,
    method: str,
    url: str,
    seconds: float,
    most: int,
    *,
    headers: Mapping[str, str] | None = None,
    body: object = None,
    comes: Callable[[int], None] = lambda size: None,
) -> tuple[int, bytes]:
    """HTTP's code and the answer, of at most so many bytes. comes: told how many there are by now. Raises
    KitError, also what `comes` raises."""
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
                if len(got) > most:
                    raise KitError(f"its kit's answer is longer than {most >> 20} MB", lasting=True)
                comes(len(got))
            return response.status, bytes(got)
    except asyncio.TimeoutError:
        raise KitError(f"its kit did not answer within {seconds:g} s") from None
    except (aiohttp.ClientError, OSError, ValueError) as error:
        unsent = isinstance(error, aiohttp.ClientConnectorError)
        raise KitError(f"its kit could not be asked: {trouble(error)}", unsent=unsent) from None
