"""The HTTP session of a command that talks to few engines: bounded, direct, without memory."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp

from stanch.edge.fetch import HEADERS
from stanch.edge.resolver import Resolver


@asynccontextmanager
async def session(
    connections: int = 0, *, reuse: bool = True, verify: bool = True
) -> AsyncIterator[aiohttp.ClientSession]:
    """connections: at most so many at once, 0 is any number. reuse: else each request has one of its own.
    verify: certificates of https; not of pods, which are asked by address (adr/0009)."""
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(
            limit=connections, resolver=Resolver(), force_close=not reuse, ssl=verify
        ),
        cookie_jar=aiohttp.DummyCookieJar(),
        headers=HEADERS,
        auto_decompress=False,
        trust_env=False,
    ) as made:
        yield made
