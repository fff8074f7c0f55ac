"""Looks up host names so that one dead name delays nobody else, not even the end of the program."""

from __future__ import annotations

import asyncio
import socket
import threading

from aiohttp.abc import AbstractResolver, ResolveResult

_Lookup = tuple[str, int, int]
_Answer = list[ResolveResult] | OSError

# Lookups at once, each a thread; beyond it a lookup fails.
MOST_LOOKUPS = 512


class Resolver(AbstractResolver):
    """getaddrinfo in a daemon thread of its own per lookup, and at most one running lookup per name.

    A pool as asyncio has it (a handful of threads) fills up with the lookups of a few dead names, each of
    which lasts much longer than a deadline and cannot be cancelled; and it is waited for when the loop ends.
    """

    def __init__(self) -> None:
        self._running: dict[_Lookup, asyncio.Future[_Answer]] = {}

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """The addresses of the host. Raises OSError where there are none."""
        key = (host, port, int(family))
        if key not in self._running:
            if len(self._running) >= MOST_LOOKUPS:
                raise OSError(None, f"{MOST_LOOKUPS} host names are being looked up already")
            self._start(key)
        answer = await asyncio.shield(self._running[key])
        if isinstance(answer, OSError):
            raise answer
        return answer

    async def close(self) -> None:
        """Nothing to close: lookups still running end by themselves, and nobody waits for them."""

    def _start(self, key: _Lookup) -> None:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[_Answer] = loop.create_future()
        self._running[key] = future

        def done(answer: _Answer) -> None:
            self._running.pop(key, None)
            if not future.done():
                future.set_result(answer)

        def look_up() -> None:
            answer = _look_up(key)
            if not loop.is_closed():
                loop.call_soon_threadsafe(done, answer)

        threading.Thread(target=look_up, name=f"resolve {key[0]}", daemon=True).start()


def _look_up(key: _Lookup) -> _Answer:
    host, port, family = key
    try:
        found = socket.getaddrinfo(
            host, port, family=family, type=socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG
        )
    except OSError as error:
        return error
    except UnicodeError as error:
        return OSError(None, f"not a host name: {error}")
    return [
        ResolveResult(
            hostname=host,
            host=str(address[0]),
            port=port,
            family=kind,
            proto=proto,
            flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
        )
        for kind, _, proto, _, address in found
        if kind in (socket.AF_INET, socket.AF_INET6)
    ]
