"""The decode side: a queue, transfers, running requests, pins."""

from __future__ import annotations

from stanch.core.sample import Role
from tests.sim.clock import Clock
from tests.sim.engine import BLOCK, GONE, LIMBO, MOST_REQUESTS, PARKED, QUEUED, Request, SimEngine
from tests.sim.prefill import PrefillSide

# The first transfers from a fresh prefill take long: hand-shakes.
FRESH_SECONDS = 60.0


class DecodeSide:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._prefill = PrefillSide(clock, self.arrive)
        self.enqueue = self._prefill.enqueue

    def arrive(self, t: float, request: Request) -> None:
        engine = request.decode
        if request.left or request.place == GONE:
            return
        if engine.down_until > t:
            request.place = GONE
            return
        if engine.frozen:
            engine.inbox.append((self.arrive, request))
            return
        engine.stale_until = 0.0
        if engine.role is Role.BOTH:
            self._run(t, request)
            return
        if self._clock.random.random() < 0.02:
            request.place = LIMBO
            engine.limbo[request] = None
            self._clock.at(t + self._clock.random.uniform(0.5, 8), self._ready, request)
            return
        self._queue(t, request)

    def _ready(self, t: float, request: Request) -> None:
        engine = request.decode
        if request not in engine.limbo:
            return
        if engine.frozen:
            engine.inbox.append((self._ready, request))
            return
        del engine.limbo[request]
        self._queue(t, request)

    def _queue(self, t: float, request: Request) -> None:
        request.place = QUEUED
        request.decode.queue.append(request)
        self.admit(t, request.decode)
        if request.place == QUEUED:
            self._clock.patience(t, request)

    def admit(self, t: float, engine: SimEngine) -> None:
        """Let heads of the queue in as long as they fit."""
        if engine.role is not Role.DECODE:
            self._prefill.start(t, engine)
            return
        while engine.queue and not (engine.deadlocked or engine.frozen):
            request = engine.queue[0]
            if len(engine.running) + len(engine.parked) >= MOST_REQUESTS:
                return
            if engine.used(t) + request.blocks + 4 > engine.blocks:
                return
            engine.queue.popleft()
            if request.resumed:
                self._run(t, request)
                continue
            request.place = PARKED
            engine.parked[request] = None
            engine.parked_visible += 1
            engine.held += request.blocks
            seconds = self._transfer_seconds(t, request)
            self._clock.at(t + seconds, self._pulled, request)
            if seconds > 10 and self._clock.random.random() < 0.3:
                # Nobody likes to wait for a first token.
                self._clock.at(t + self._clock.random.uniform(1, seconds), self._clock.give_up, request)

    def _transfer_seconds(self, t: float, request: Request) -> float:
        random = self._clock.random
        if t < self._clock.slow_until:
            return random.uniform(2, 58)
        if t < request.prefill.down_until + FRESH_SECONDS:
            return random.uniform(1.5, 25)
        if random.random() < 0.003:
            return random.uniform(20, 58)
        return min(30.0, max(0.05, 0.25 * random.lognormvariate(0, 1.1)))

    def fail(self, t: float, request: Request) -> None:
        """The transfer fails, is counted, and its request ends with an error."""
        engine = request.decode
        del engine.parked[request]
        engine.held -= request.blocks
        engine.parked_visible -= not request.left
        engine.failed_transfers += 1
        engine.failed_notifications += self._clock.random.random() < 0.5
        request.left, request.place = True, GONE
        engine.stale_until = 0.0

    def _pulled(self, t: float, request: Request) -> None:
        engine = request.decode
        if request not in engine.parked:
            return
        if engine.frozen:
            engine.inbox.append((self._pulled, request))
            return
        if t < self._clock.slow_until and self._clock.random.random() < 0.02:
            self.fail(t, request)
            self.admit(t, engine)
            return
        del engine.parked[request]
        if request.left and engine.idle():
            engine.keep_page(t, self._clock.random.uniform(3, 6))
        engine.held -= request.blocks
        self._prefill.unlease(t, request)
        if request.left:
            request.place = GONE
        else:
            engine.parked_visible -= 1
            engine.prompt_total += request.prompt
            self._run(t, request)
        self.admit(t, engine)

    def _run(self, t: float, request: Request) -> None:
        request.decode.begin(t, request)
        self._clock.at(request.finish_at, self._finish, request)

    def _finish(self, t: float, request: Request) -> None:
        engine = request.decode
        if request not in engine.running:
            return
        if engine.frozen:
            engine.inbox.append((self._finish, request))
            return
        if request.shift != engine.shift:
            # Time stood still for a while.
            away = engine.shift - request.shift
            request.finish_at += away
            request.started += away
            request.shift = engine.shift
        if request.finish_at > t + 1e-9:
            self._clock.at(request.finish_at, self._finish, request)
            return
        made = engine.end(t, request)
        engine.generation += request.output - made
        engine.finished += 1
        request.place = GONE
        if self._clock.profile.pin and self._clock.random.random() < 0.3:
            self._pin(t, engine, request.blocks + request.output // BLOCK)
        self.admit(t, engine)

    def _pin(self, t: float, engine: SimEngine, blocks: int) -> None:
        if engine.pinned + blocks > 0.4 * engine.blocks:
            return
        engine.pinned += blocks
        engine.held += blocks
        self._clock.at(t + self._clock.profile.pin, self._unpin, (engine, engine.container, blocks))

    def _unpin(self, t: float, what: tuple[SimEngine, int, int]) -> None:
        engine, container, blocks = what
        if engine.container == container:
            engine.pinned -= blocks
            engine.held -= blocks
            self.admit(t, engine)

    def preempt(self, t: float, engine: SimEngine) -> None:
        """Out of blocks: the youngest running requests go back to the head of the queue."""
        while engine.running and engine.used(t) > engine.blocks:
            request = next(reversed(engine.running))
            made = engine.end(t, request)
            request.prompt += made
            request.output = max(1, request.output - made)
            request.blocks = -(-request.prompt // BLOCK)
            request.place, request.resumed = QUEUED, True
            engine.queue.appendleft(request)
            self._clock.patience(t, request)
