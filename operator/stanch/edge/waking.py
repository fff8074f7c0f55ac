"""Waiting for an event, but not for ever."""

from __future__ import annotations

import asyncio


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
