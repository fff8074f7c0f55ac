"""A small HTTP server as a process of its own that never outlives the one that started it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable, Mapping

from aiohttp import web

# How long open requests may take to end after SIGTERM. Parked ones never would.
_GRACE_SECONDS = 0.1


async def serve(app: web.Application, host: str, port: int, ready: Mapping[str, object], leash: bool) -> bool:
    """Serve until SIGTERM, SIGINT or (leash) the end of standard input; `ready` and the port go out in JSON.
    Whether it was the latter: then whoever started it may have left something behind.

    leash: the starter holds the other end of standard input. The kernel closes it whatever becomes of the
    starter, also on SIGKILL; prctl(PR_SET_PDEATHSIG) would do the same on Linux only. Without a leash
    standard input is not looked at: in a container it is at its end from the start.
    """
    stop, alone = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    # A client that leaves cancels its handler: this is how an engine notices.
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=_GRACE_SECONDS)
    await runner.setup()
    try:
        site = web.TCPSite(runner, host, port)
        await site.start()
        if leash:
            loop.add_reader(sys.stdin.fileno(), _at_end, alone.set, stop.set)
        sys.stdout.write(json.dumps({**ready, "port": runner.addresses[0][1]}) + "\n")
        sys.stdout.flush()
        await stop.wait()
        return alone.is_set()
    finally:
        if leash:
            loop.remove_reader(sys.stdin.fileno())
        await runner.cleanup()


def _at_end(*then: Callable[[], None]) -> None:
    if not os.read(sys.stdin.fileno(), 1):
        for do in then:
            do()
