"""An event that is waited for, and who cancels the wait; what runs beside us, and its end."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress

import aiohttp
import pytest
from yarl import URL

from stanch.edge.fetch import fetch
from stanch.edge.waking import ended, woken

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(("set_first", "says"), [(True, True), (False, False)])
def test_set_or_not_in_time(set_first: bool, says: bool) -> None:
    async def scene() -> bool:
        event = asyncio.Event()
        if set_first:
            event.set()
        return await woken(event, 0.01)

    assert asyncio.run(scene()) is says


@pytest.mark.parametrize("set_before", [True, False])
def test_cancelled_in_the_moment_of_the_event(set_before: bool) -> None:
    """The wait of a loop that must end when it is told to."""

    async def scene() -> bool:
        event = asyncio.Event()

        async def rounds() -> None:
            while True:
                await woken(event, 10)
                event.clear()

        task = asyncio.create_task(rounds())
        await asyncio.sleep(0.01)
        if set_before:
            event.set()
            # The wait within is done now, the one around it has not run yet.
            await asyncio.sleep(0)
            task.cancel()
        else:
            task.cancel()
            event.set()
        await asyncio.wait((task,), timeout=1)
        return task.cancelled()

    assert asyncio.run(scene())


def test_a_loop_that_loses_a_cancellation_ends_all_the_same() -> None:
    """A request to a server that says nothing is cancelled in the same pass of the loop in which its time is
    over; the loop around it then went on for ever, and who waited for its end hung."""

    async def mute(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(60)
        writer.close()

    async def scene() -> bool:
        server = await asyncio.start_server(mute, "127.0.0.1", 0)
        url = URL(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/metrics")
        async with server, aiohttp.ClientSession() as session:

            async def rounds() -> None:
                while True:
                    await fetch(session, url, 0.05)

            task = asyncio.create_task(rounds())
            await asyncio.sleep(0.02)
            time.sleep(0.1)  # noqa: ASYNC251  (its time is over in the next pass, in which we cancel it)
            await asyncio.sleep(0)
            await ended(task, again=0.01)
            return task.cancelled()

    assert asyncio.run(asyncio.wait_for(scene(), 10))


def test_all_end_whatever_comes_of_them() -> None:
    async def fails() -> None:
        raise ValueError

    async def scene() -> list[bool]:
        failed, done = asyncio.ensure_future(fails()), asyncio.ensure_future(asyncio.sleep(0))
        await asyncio.sleep(0.01)
        runs = asyncio.ensure_future(asyncio.sleep(60))
        await ended(failed, done, runs)
        await ended()
        return [one.done() for one in (failed, done, runs)]

    assert asyncio.run(scene()) == [True, True, True]
