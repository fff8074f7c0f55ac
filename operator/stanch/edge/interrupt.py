"""Ctrl-C, from the first line on. Standard library only.

Until a command does something there is nothing to tidy up, and an interrupt amid an import is a traceback, an
error of another name, or (in code that dataclasses make, CPython 3.11) an end by signal: so it ends the
process at once. From then on the first one is a cancellation, so that connections are closed; whoever does
not want to wait for that says so by a second one, which ends the process at once, too.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Coroutine
from typing import Any, TypeVar

from stanch.edge.errors import EXIT_INTERRUPTED

T = TypeVar("T")


def _leave(*_: object) -> None:
    os._exit(EXIT_INTERRUPTED)


def at_once() -> None:
    """From now on an interrupt ends the process. Where it is ignored (`nohup`, a job) it stays so."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _leave)


def tidily() -> None:
    """From now on an interrupt is a KeyboardInterrupt again: to be called after the imports, and before there
    is something to tidy up."""
    if signal.getsignal(signal.SIGINT) is _leave:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def run(work: Coroutine[Any, Any, T]) -> T:
    """asyncio.run of a command's work. asyncio's own way with a second interrupt (CPython 3.11) leaves a loop
    that is not closed, and a traceback for whoever pressed the key."""
    import asyncio  # an import that takes its time

    if signal.getsignal(signal.SIGINT) is not _leave:
        return asyncio.run(work)
    asked = False

    async def whole() -> T:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None

        def interrupted(*_: object) -> None:
            nonlocal asked
            if asked or loop.is_closed():
                _leave()
            asked = True
            loop.call_soon_threadsafe(task.cancel)

        signal.signal(signal.SIGINT, interrupted)
        return await work

    try:
        return asyncio.run(whole())
    except asyncio.CancelledError:
        if asked:
            raise KeyboardInterrupt from None
        raise
    finally:
        signal.signal(signal.SIGINT, _leave)
