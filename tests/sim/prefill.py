"""The prefill side: a queue, one prompt at a time, and blocks leased until the decode has pulled them."""

from __future__ import annotations

from stanch.core.sample import Role
from tests.sim.clock import Clock
from tests.sim.engine import (
    BLOCK,
    LIMBO,
    MOST_REQUESTS,
    ON_THE_WAY,
    PARKED,
    PREFILLING,
    QUEUED,
    WAITS,
    Handler,
    Request,
    SimEngine,
)

ROUTER_SECONDS = 0.05
HEARTBEAT_SECONDS = 5.0
LONGEST_LEASE_SECONDS = 480.0
# The router or its client is gone before the decode hears of it: the lease has to run out.
NEVER_FETCHED = 0.01


class PrefillSide:
    """to_decode: what becomes of a request whose prompt is done."""

    def __init__(self, clock: Clock, to_decode: Handler) -> None:
        self._clock = clock
        self._to_decode = to_decode

    def enqueue(self, t: float, request: Request) -> None:
        engine = request.prefill
        if engine.frozen:
            engine.inbox.append((self.enqueue, request))
            return
        request.place = WAITS
        engine.queue.append(request)
        self.start(t, engine)
        if request.place == WAITS:
            self._clock.patience(t, request)

    def start(self, t: float, engine: SimEngine) -> None:
        if engine.busy is not None or engine.frozen or engine.deadlocked or not engine.queue:
            return
        request = engine.queue[0]
        # A both engine keeps room for the output too, so that it never preempts.
        need = request.blocks + (request.output // BLOCK + 2 if engine.role is Role.BOTH else 0)
        reserved = sum(r.output for r in engine.running) // BLOCK if engine.role is Role.BOTH else 0
        if engine.used(t) + need + reserved > engine.blocks or len(engine.running) >= MOST_REQUESTS:
            return
        engine.queue.popleft()
        engine.stale_until = 0.0
        engine.busy, request.place, request.started = request, PREFILLING, t
        self._clock.at(t + 0.02 + request.prompt / engine.speed, self._prefilled, request)

    def _prefilled(self, t: float, request: Request) -> None:
        engine = request.prefill
        if engine.busy is not request:
            return
        if engine.frozen:
            engine.inbox.append((self._prefilled, request))
            return
        engine.busy = None
        engine.prompt_total += request.prompt
        engine.iterations += 1
        if engine.role is Role.BOTH:
            self._to_decode(t, request)
        else:
            engine.generation += 1
            engine.finished += 1
            engine.held += request.blocks
            engine.leases[request] = None
            request.leased, request.place = request.blocks, ON_THE_WAY
            request.lease_until = t + self._clock.profile.lease
            request.lease_last = t + max(LONGEST_LEASE_SECONDS, self._clock.profile.lease)
            self._clock.at(t + HEARTBEAT_SECONDS, self._heartbeat, request)
            if not request.left and self._clock.random.random() >= NEVER_FETCHED:
                self._clock.at(t + ROUTER_SECONDS, self._to_decode, request)
        self.start(t, engine)

    def _heartbeat(self, t: float, request: Request) -> None:
        if not request.leased:
            return
        decode = request.decode
        waits = request.place in (QUEUED, LIMBO, PARKED) and decode.down_until <= t and not decode.frozen
        if waits and not request.left and self._clock.profile.heartbeats:
            request.lease_until = min(t + self._clock.profile.lease, request.lease_last)
        if t < request.lease_until:
            self._clock.at(t + HEARTBEAT_SECONDS, self._heartbeat, request)
        else:
            self.unlease(t, request)

    def unlease(self, t: float, request: Request) -> None:
        engine = request.prefill
        if request not in engine.leases:
            return
        if engine.frozen:
            engine.inbox.append((self.unlease, request))
            return
        del engine.leases[request]
        engine.held -= request.leased
        request.leased = 0
        self.start(t, engine)
