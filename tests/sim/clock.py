"""The clock of a deployment: events in order of time, one source of chance, one profile."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from random import Random
from typing import Any

from tests.sim.engine import Handler, Request
from tests.sim.load import Profile


class Clock:
    """Handlers are called with (time, their argument). give_up: what a client does whose patience is over;
    set by the deployment. slow_until: until when the network of the deployment is slow."""

    give_up: Handler
    slow_until: float = 0.0

    def __init__(self, profile: Profile, random: Random) -> None:
        self.profile = profile
        self.random = random
        self._events: list[tuple[float, int, Callable[[float, Any], None], Any]] = []
        self._number = count()

    def at(self, t: float, handler: Callable[[float, Any], None], argument: Any) -> None:
        heappush(self._events, (t, next(self._number), handler, argument))

    def advance(self, t: float) -> None:
        """Let everything happen up to t."""
        events = self._events
        while events and events[0][0] <= t:
            when, _, handler, argument = heappop(events)
            handler(when, argument)

    def patience(self, t: float, request: Request) -> None:
        """The request could not be admitted at once: its client waits for so long and no longer."""
        self.at(t + self.random.uniform(60, 300), self.give_up, request)
