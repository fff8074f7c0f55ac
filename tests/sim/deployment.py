"""A deployment: its engines, the requests that arrive, and the clients that leave."""

from __future__ import annotations

from itertools import count
from random import Random

from stanch.core.sample import Role
from tests.sim.clock import Clock
from tests.sim.decode import DecodeSide
from tests.sim.engine import (
    BLOCK,
    GONE,
    LIMBO,
    PARKED,
    PREFILLING,
    QUEUED,
    RUNNING,
    WAITS,
    Request,
    SimEngine,
)
from tests.sim.load import Load, Profile


class Deployment:
    """Its engines and its clock."""

    def __init__(self, profile: Profile, random: Random) -> None:
        self.profile = profile
        self.random = random
        self.clock = Clock(profile, random)
        self.clock.give_up = self._give_up
        self.serving = DecodeSide(self.clock)
        self.engines: list[SimEngine] = []
        self._load = Load(profile, random)
        process = count()
        for i in range(profile.prefills):
            self._add(f"prefill-{i}", Role.PREFILL, profile.prefill_blocks, next(process))
        rank_process = next(process)
        for i in range(profile.decodes):
            name = f"decode-0/{i}" if profile.ranks else f"decode-{i}"
            own = rank_process if profile.ranks else next(process)
            self._add(name, Role.DECODE, profile.decode_blocks, own)
        for i in range(profile.boths):
            self._add(f"both-{i}", Role.BOTH, profile.decode_blocks, next(process))
        self.clock.at(0.0, self._minute, None)

    def _add(self, name: str, role: Role, blocks: int, process: int) -> None:
        engine = SimEngine(name, role, blocks, self.profile.prefill_speed, process)
        engine.process_start = -self.random.uniform(600, 600_000)
        self.engines.append(engine)

    def _minute(self, t: float, _: None) -> None:
        rate, batch = self._load.minute(t)
        if rate > 0:
            x = t + self.random.expovariate(rate)
            while x < t + 60:
                self.clock.at(x, self._arrive, None)
                x += self.random.expovariate(rate)
        if batch:
            moment = t + self.random.uniform(0, 59)
            for _i in range(batch):
                self.clock.at(moment + self.random.random(), self._arrive, None)
        self.clock.at(t + 60, self._minute, None)

    def _pick(self, t: float, *roles: Role) -> SimEngine | None:
        able = [e for e in self.engines if e.role in roles and e.down_until <= t and e.lifecycle is None]
        return self.random.choice(able) if able else None

    def _arrive(self, t: float, _: None) -> None:
        prefill = self._pick(t, Role.PREFILL, Role.BOTH)
        decode = prefill if self.profile.boths else self._pick(t, Role.DECODE)
        if prefill is None or decode is None:
            return
        request = Request(*self._load.sizes(), prefill, decode)
        request.blocks = -(-request.prompt // BLOCK)
        if self.random.random() < 0.04:
            self.clock.at(t + self.random.expovariate(1 / 12), self.leave, request)
        self.serving.enqueue(t, request)

    def _give_up(self, t: float, request: Request) -> None:
        if request.place in (WAITS, QUEUED, PARKED):
            self.leave(t, request)

    def leave(self, t: float, request: Request) -> None:
        """The client goes away."""
        if request.left or request.place == GONE:
            return
        at_prefill = request.place in (WAITS, PREFILLING)
        engine = request.prefill if at_prefill else request.decode
        if engine.frozen:
            engine.inbox.append((self.leave, request))
            return
        request.left = True
        if request.place in (WAITS, QUEUED):
            engine.queue.remove(request)
            request.place = GONE
        elif request.place == LIMBO:
            del engine.limbo[request]
            request.place = GONE
        elif request.place == PARKED:
            engine.parked_visible -= 1  # its blocks stay held until the transfer ends
        elif request.place == PREFILLING:
            if engine.busy is request:
                engine.busy = None
            request.place = GONE
            engine.finished += 1
        elif request.place == RUNNING:
            if len(engine.running) == 1 and not engine.queue and not engine.parked_visible:
                engine.keep_page(t, self.random.uniform(3, 6))
            engine.end(t, request)
            engine.finished += 1
            request.place = GONE
        self.serving.admit(t, engine)
