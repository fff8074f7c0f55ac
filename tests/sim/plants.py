"""The leaks that are planted, one engine at a time, each with its kind and its first second."""

from __future__ import annotations

from stanch.core.sample import Role
from tests.sim.deployment import Deployment
from tests.sim.engine import Leak, SimEngine
from tests.sim.trouble import Trouble

KINDS_OF_DECODE = ("parked", "growing", "waiting", "deadlock", "frozen")
HOUR = 3_600.0


def plan(deployment: Deployment, turn: int) -> None:
    """Plant on about one engine in four; `turn` makes the kinds take turns from deployment to deployment."""
    random = deployment.random
    plants = Plants(deployment)
    decodes = [e for e in deployment.engines if e.role is Role.DECODE]
    kinds = (KINDS_OF_DECODE[turn % 5], KINDS_OF_DECODE[(turn // 5 + turn + 2) % 5])
    for engine, kind in zip(random.sample(decodes, min(len(decodes), 2)), kinds, strict=False):
        if engine is decodes[0] or random.random() < 0.6:
            plants.at(random.uniform(HOUR, 20 * HOUR), kind, engine)
    others = [e for e in deployment.engines if e.role is not Role.DECODE]
    if decodes and turn % 4 == 0:
        plants.at(random.uniform(HOUR, 20 * HOUR), "stranded", random.choice(others))
    elif turn % 4 == 1:
        plants.at(random.uniform(HOUR, 20 * HOUR), "frozen", random.choice(others))


class Plants:
    def __init__(self, deployment: Deployment) -> None:
        self._deployment = deployment
        self._clock = deployment.clock
        self._random = deployment.random

    def at(self, t: float, kind: str, engine: SimEngine) -> None:
        self._clock.at(t, getattr(self, f"_{kind}"), engine)

    def _begin(self, t: float, kind: str, engine: SimEngine) -> bool:
        """Mark the engine; False where it is in no state for it now."""
        if engine.leak is not None or engine.frozen or engine.down_until > t or engine.lifecycle is not None:
            return False
        engine.leak = Leak(kind, engine.name, t)
        if self._random.random() < 0.5:
            end = t + self._random.uniform(1, 6) * HOUR
            self._clock.at(end, Trouble(self._deployment).restart, engine.process)
        return True

    def _park(self, t: float, engine: SimEngine, low: float, high: float, patience: float) -> None:
        """One request parks for ever, if there is room for it."""
        blocks = int(engine.blocks * self._random.uniform(low, high))
        if engine.used(t) + blocks > 0.95 * engine.blocks or engine.frozen or engine.down_until > t:
            return
        engine.stale_until = 0.0
        engine.held += blocks
        engine.stuck_waiting += 1
        self._clock.at(t + patience, self._client_leaves, (engine, engine.container))

    def _client_leaves(self, t: float, what: tuple[SimEngine, int]) -> None:
        engine, container = what
        if engine.container == container:
            engine.stuck_waiting -= 1

    def _parked(self, t: float, engine: SimEngine) -> None:
        self._some(t, "parked", engine, 30, 300)

    def _waiting(self, t: float, engine: SimEngine) -> None:
        self._some(t, "waiting", engine, 900, 5_400)

    def _some(self, t: float, kind: str, engine: SimEngine, low: float, high: float) -> None:
        if not self._begin(t, kind, engine):
            self._clock.at(t + 60, getattr(self, f"_{kind}"), engine)
            return
        for _ in range(self._random.randint(1, 3)):
            self._park(t, engine, 0.01, 0.2, self._random.uniform(low, high))

    def _growing(self, t: float, engine: SimEngine) -> None:
        if not self._begin(t, "growing", engine):
            self._clock.at(t + 60, self._growing, engine)
            return
        self._grow(t, (engine, engine.container))

    def _grow(self, t: float, what: tuple[SimEngine, int]) -> None:
        engine, container = what
        if engine.container == container:
            self._park(t, engine, 0.01, 0.06, self._random.uniform(30, 300))
            self._clock.at(t + self._random.uniform(300, 2_400), self._grow, what)

    def _deadlock(self, t: float, engine: SimEngine) -> None:
        if not self._begin(t, "deadlock", engine):
            self._clock.at(t + 60, self._deadlock, engine)
            return
        engine.deadlocked = True

    def _frozen(self, t: float, engine: SimEngine) -> None:
        """The worker hangs the next time that a request runs."""
        if not (engine.running or engine.busy) or not self._begin(t, "frozen", engine):
            self._clock.at(t + 1, self._frozen, engine)
            return
        engine.freeze(t)
        engine.hung = True

    def _stranded(self, t: float, engine: SimEngine) -> None:
        if not self._begin(t, "stranded", engine):
            self._clock.at(t + 60, self._stranded, engine)
            return
        blocks = int(engine.blocks * self._random.uniform(0.06, 0.5))
        engine.held += min(blocks, int(0.95 * engine.blocks - engine.used(t)))
