"""Whether one engine answers at an address, or several behind a load balancer.

A Service or a router gives each connection to any of its engines, so that one's state, another's list and a
third's answer to an order would be taken for one. The boot ids of some answers, each on a connection of its
own, tell them apart: of two engines that share the traffic evenly one in a hundred times by luck the same.
A balancer that keeps a client with one engine is not noticed; then that one engine is what is asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import aiohttp

from stanch.edge import client, kit
from stanch.edge.kit import Key
from stanch.edge.kit_answers import Facts, KitError, Lists

T = TypeVar("T")

LOOKS = 7
SEVERAL = "several engines (or a restart) answer at this address; give one engine's own URL"


class SeveralError(KitError):
    """The answers are not of one process."""

    def __init__(self, more: str = "") -> None:
        super().__init__(SEVERAL + more)


@dataclass(frozen=True, slots=True)
class Looked:
    """What the kit of one engine said; an error in the place of what it did not say."""

    facts: Facts | KitError
    lists: Lists | KitError


async def look(base: str, key: Key, most_seconds: float | None = None) -> Looked:
    """The state and the list, in at most so many seconds. Raises SeveralError, and nothing else."""
    async with client.session(reuse=False) as session:
        lists, states = await asyncio.gather(
            _told(kit.requests(session, base, key, most_seconds)), _states(session, base, most_seconds)
        )
    _same([lists, *states])
    return Looked(_first(states), lists)


async def state(base: str) -> Facts:
    """The state alone. Raises SeveralError, or KitError where none was told."""
    async with client.session(reuse=False) as session:
        states = await _states(session, base)
    _same(states)
    found = _first(states)
    if isinstance(found, KitError):
        raise found
    return found


async def _states(
    session: aiohttp.ClientSession, base: str, most: float | None = None
) -> list[Facts | KitError]:
    seconds = kit.STATE_SECONDS if most is None else min(most, kit.STATE_SECONDS)
    return await asyncio.gather(*(_told(kit.state(session, base, seconds)) for _ in range(LOOKS)))


async def _told(answer: Awaitable[T]) -> T | KitError:
    try:
        return await answer
    except KitError as error:
        return error


def _same(answers: Sequence[Facts | Lists | KitError]) -> None:
    boots = {one.boot_id for one in answers if not isinstance(one, KitError)}
    without = any(isinstance(one, KitError) and one.absent for one in answers)
    if len(boots) + without > 1:
        raise SeveralError


def _first(states: Sequence[Facts | KitError]) -> Facts | KitError:
    return next((one for one in states if not isinstance(one, KitError)), states[0])
