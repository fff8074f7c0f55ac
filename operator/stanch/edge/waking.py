"""Waiting for an event, but not for ever; ending what runs beside us, for certain."""

from __future__ import annotations

import asyncio
from typing import Any, Final

# Longer than what a task of one request or one look has to tidy up.
AGAIN_SECONDS: Final = 2.0


async def woken(event: asyncio.Event, seconds: float | None) -> bool:
    """Whether the event was set within so many seconds (None: without limit).

    Cancelled, it always ends with CancelledError. asyncio.wait_for does not, up to Python 3.11: where the
    event is set in the same moment it returns, and a loop around it goes on as if nobody had cancelled it.
    """
    waiting = asyncio.ensure_future(event.wait())
    try:
        await asyncio.wait((waiting,), timeout=seconds)
    finally:
        waiting.cancel()
    return event.is_set()


async def ended(*tasks: asyncio.Future[Any], again: float = AGAIN_SECONDS) -> None:
    """Cancel these, and wait until they have ended, whatever comes of them.

    Once is not enough: aiohttp (3.14) loses a cancellation that comes in the same pass of the loop as its own
    time-out (its two timers around one request each take a cancellation back), and a loop around the request
    goes on. again: seconds after which one that goes on is cancelled again; longer than its tidying up takes.
    """
    left = {task for task in tasks if not task.done()}
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=again)
    for task in tasks:
        if not task.cancelled():
            task.exception()  # seen: nobody is to complain that it was not
