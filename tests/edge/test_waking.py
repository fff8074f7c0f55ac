"""An event that is waited for, and who cancels the wait."""

from __future__ import annotations

import asyncio

import pytest

from stanch.edge.waking import woken

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
