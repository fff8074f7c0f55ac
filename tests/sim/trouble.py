"""Honest trouble, planned for the whole day: restarts, stalls, sleep, pauses, and pages that fail."""

from __future__ import annotations

from math import inf

from stanch.core.sample import Lifecycle, Role
from tests.sim.deployment import Deployment
from tests.sim.engine import SimEngine
from tests.sim.load import DAY_SECONDS


def plan(deployment: Deployment) -> None:
    """Put the day's trouble on the deployment's clock."""
    random, clock = deployment.random, deployment.clock
    trouble = Trouble(deployment)
    for process in sorted({e.process for e in deployment.engines}):
        if random.random() < 1 / 3:
            clock.at(random.uniform(0, DAY_SECONDS), trouble.restart, process)
    for engine in deployment.engines:
        for _ in range(3):
            clock.at(random.uniform(0, DAY_SECONDS), trouble.stall, engine)
        if random.random() < 0.5:
            clock.at(random.uniform(0, DAY_SECONDS), trouble.go_dark, engine)
        if engine.role is Role.BOTH:
            clock.at(random.uniform(0, DAY_SECONDS), trouble.pause, engine)
    if random.random() < 1 / 3:
        clock.at(random.uniform(0, DAY_SECONDS), trouble.slow_network, None)
    if deployment.profile.sleeper:
        clock.at(3_600.0, trouble.sleep, next(e for e in deployment.engines if e.role is Role.DECODE))


class Trouble:
    def __init__(self, deployment: Deployment) -> None:
        self._deployment = deployment
        self._clock = deployment.clock
        self._random = deployment.random

    def restart(self, t: float, process: int) -> None:
        """Every engine of the process dies, and answers again a minute later."""
        up = t + self._random.uniform(45, 90)
        for engine in self._deployment.engines:
            if engine.process == process and engine.down_until <= t:
                engine.forget(t, up)
                for other in self._deployment.engines:
                    self._lose_peer(t, other, engine)

    def _lose_peer(self, t: float, decode: SimEngine, dead: SimEngine) -> None:
        """Transfers from a dead prefill fail at once; their requests end with an error."""
        lost = [r for r in decode.parked if r.prefill is dead]
        if decode.frozen or not lost:
            return
        for request in lost:
            self._deployment.serving.fail(t, request)
        self._deployment.serving.admit(t, decode)

    def stall(self, t: float, engine: SimEngine) -> None:
        """Nothing moves for a moment: a collection, a hiccup of the device."""
        if not engine.frozen and engine.down_until <= t:
            engine.freeze(t)
            self._clock.at(t + self._random.uniform(2, 25), self._thaw, (engine, engine.container))

    def pause(self, t: float, engine: SimEngine) -> None:
        """/pause: requests stay where they are, and the engine says so."""
        if not engine.frozen and engine.down_until <= t:
            engine.freeze(t)
            engine.lifecycle = Lifecycle.PAUSED
            self._clock.at(t + self._random.uniform(120, 720), self._thaw, (engine, engine.container))

    def _thaw(self, t: float, what: tuple[SimEngine, int]) -> None:
        engine, container = what
        if engine.container != container or engine.hung or not engine.frozen:
            return
        if engine.lifecycle is Lifecycle.PAUSED:
            engine.lifecycle = None
        for handler, request in engine.thaw(t):
            handler(t, request)
        self._deployment.serving.admit(t, engine)

    def sleep(self, t: float, engine: SimEngine) -> None:
        """Asleep until five, once it has nothing to do; the last page shows a usage that is not true."""
        if t > 4 * 3_600 or engine.leak is not None:
            return
        if engine.frozen or engine.down_until > t or not engine.idle():
            self._clock.at(t + 30, self.sleep, engine)
            return
        engine.lifecycle = Lifecycle.ASLEEP
        page = engine.look(t)
        engine.page = (0.3, *page[1:])
        engine.stale_until = inf
        self._clock.at(5 * 3_600.0, self._wake, (engine, engine.container))

    def _wake(self, t: float, what: tuple[SimEngine, int]) -> None:
        engine, container = what
        if engine.container == container:
            engine.lifecycle = None
            engine.stale_until = 0.0

    def go_dark(self, t: float, engine: SimEngine) -> None:
        """Its pages fail for minutes, while it serves on."""
        engine.dark_until = t + self._random.uniform(60, 600)

    def slow_network(self, t: float, _: None) -> None:
        """Every transfer of the deployment takes long for a while, and some fail."""
        self._clock.slow_until = t + self._random.uniform(600, 1_800)
