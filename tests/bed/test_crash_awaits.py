"""Code whose awaits are wrapped does what it did; each has one name."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

import pytest

from tests.cluster.crash_awaits import LOOPS, every_place, wrapped
from tests.cluster.crash_full import awaits, passes
from tests.cluster.crash_matrix import everything
from tests.cluster.installed import TOP

pytestmark = pytest.mark.unit

CODE = """
from __future__ import annotations
import asyncio

class Loop:
    async def turn(self, n: int) -> int:
        one = await self.twice(n)
        return one + await self.twice(await self.twice(1))

    async def twice(self, n: Unknown) -> int:
        await asyncio.sleep(0)
        if n < 0:
            raise ValueError(n)
        return 2 * n
"""


def run(number: int) -> tuple[list[str], list[str], Any]:
    """The places, those passed, and what came of it."""
    tree, places = wrapped("stanch.edge.loop", CODE)
    met: list[str] = []

    async def passed(place: str, work: Awaitable[Any]) -> Any:
        try:
            return await work
        finally:
            met.append(place)

    space: dict[str, Any] = {"_passed_an_await": passed}
    exec(compile(tree, "loop.py", "exec", dont_inherit=True), space)
    try:
        return places, met, asyncio.run(space["Loop"]().turn(number))
    except ValueError as error:
        return places, met, error


def test_it_does_what_it_did_and_tells_each_await() -> None:
    places, met, result = run(3)
    assert result == 10
    turn = ["loop.turn: twice", "loop.turn: twice 2", "loop.turn: twice 3"]
    assert places == [*turn, "loop.twice: asyncio.sleep"]
    # An await that is inside another's argument is over before it.
    assert [place for place in met if "turn" in place] == [turn[0], turn[2], turn[1]]
    assert met.count("loop.twice: asyncio.sleep") == 3


def test_an_error_goes_through() -> None:
    _, met, result = run(-1)
    assert isinstance(result, ValueError)
    assert met == ["loop.twice: asyncio.sleep", "loop.turn: twice"]


def test_each_await_of_the_loops_has_a_name_of_its_own() -> None:
    found = every_place(TOP / "operator")
    assert len(found) == len(set(found))
    for module in LOOPS:
        assert any(place.startswith(module.removeprefix("stanch.edge.")) for place in found), module


def test_stages_take_turns_and_those_of_a_remediation_come_first() -> None:
    met = {"restart": ["event", "await a: x at idle", "await a: x at Drain", "await a: x at Verify"],
           "release": ["await a: x at Release", "await b: y at idle", "await c: z at the end"],
           "evict": ["await d: w at Evict"]}  # fmt: skip
    found = {run.at: run.ladder for run in awaits(met)}  # type: ignore[arg-type]
    assert found == {
        "after await a: x at Drain": "restart",
        "after await b: y at idle": "release",
        "after await c: z at the end": "release",
        "after await d: w at Evict": "evict",
    }


def test_each_run_of_crash_full_has_a_name_of_its_own() -> None:
    runs = [*everything(), *passes(), *awaits({"restart": ["await a: x at Drain"]})]
    assert len({run.name for run in runs}) == len(runs)
