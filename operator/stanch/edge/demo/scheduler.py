"""The simulated engine's scheduler: who holds which blocks, and what the gauges say. Pure: no I/O, no clock.

Laws, as read off vLLM 0.29.0 (scheduler and NIXL connector) and measured on it:
- A request that nobody runs any more gives its blocks back, unless a reader is still to come (a prefill
  engine holds them until they are read or their lease ends) or a read into them was never reported.
- A request whose KV is to be read from a prefill engine is parked until the worker reports the read. There
  is no time-out. If its client leaves meanwhile, it is in no queue and in no gauge, but its blocks stay held:
  an orphan.
- The defect (up to 0.29.0): with nothing to read, the worker only notifies the producer and never reports.
- Gauges are set by a step, and only by a step.
- Requests that fit pass a waiting one that does not.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum
from math import inf


class Phase(str, Enum):
    """Where a request is. The values are vLLM's names of the status where it has one."""

    WAITING = "WAITING"
    PARKED = "WAITING_FOR_REMOTE_KVS"
    RUNNING = "RUNNING"
    LEASED = "FINISHED_LENGTH_CAPPED"
    ORPHAN = "FINISHED_ABORTED"
    GONE = "GONE"


# Every move there is: into GONE frees the blocks, all others keep them.
MOVES: dict[Phase, frozenset[Phase]] = {
    Phase.WAITING: frozenset({Phase.PARKED, Phase.RUNNING, Phase.GONE}),
    Phase.PARKED: frozenset({Phase.RUNNING, Phase.ORPHAN, Phase.GONE}),
    Phase.RUNNING: frozenset({Phase.WAITING, Phase.LEASED, Phase.GONE}),
    Phase.LEASED: frozenset({Phase.GONE}),
    Phase.ORPHAN: frozenset({Phase.GONE}),
    Phase.GONE: frozenset(),
}


class IllegalMoveError(Exception):
    """A move that is not in MOVES; nothing was changed."""


@dataclass(frozen=True, slots=True)
class Remote:
    """Where the KV of a prompt can be read."""

    engine_id: str
    request_id: str
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class Ask:
    """What a client wants. keep: hold the blocks for a reader afterwards; remote: read the KV from there."""

    id: str
    prompt_tokens: int
    max_tokens: int
    keep: bool = False
    remote: Remote | None = None


@dataclass(frozen=True, slots=True)
class Request:
    """One request and what it holds. since: when it came into its phase; times are the caller's `now`."""

    ask: Ask
    phase: Phase
    since: float
    arrived: float
    blocks: int = 0
    tokens: int = 0
    admitted: float = 0.0
    first_token: float = 0.0
    pulled: bool = False


@dataclass(frozen=True, slots=True)
class Pull:
    """Work for the worker: read so many blocks of a request from its prefill; none is the defect's case."""

    ask: Ask
    remote: Remote
    blocks: int


@dataclass(frozen=True, slots=True)
class Gauges:
    """What /metrics shows of the scheduler's state, as of the last step."""

    running: int = 0
    capacity: int = 0
    deferred: int = 0
    usage: float = 0.0


@dataclass(frozen=True, slots=True)
class Step:
    """What one step did. admitted: left the queue; first: made their first token; done: have all tokens."""

    now: float
    gauges: Gauges
    admitted: tuple[Request, ...] = ()
    pulls: tuple[Pull, ...] = ()
    first: tuple[Request, ...] = ()
    tokens: int = 0
    done: tuple[Request, ...] = ()
    preempted: int = 0
    expired: int = 0


@dataclass(slots=True)
class Scheduler:
    """One engine's scheduler. Mutable, bounded by its blocks and its clients; `now` is always an argument."""

    blocks: int = 100
    block_tokens: int = 32
    max_running: int = 16
    lease_seconds: float = 30.0
    gauges: Gauges = field(default_factory=Gauges)
    planted: int = 0
    _planted_seconds: float = inf
    _planted_until: float = inf
    _requests: dict[str, Request] = field(default_factory=dict)
    # Something changed that a step must show: vLLM makes one more step after an abort or a late report, too.
    _dirty: bool = False

    @property
    def free(self) -> int:
        return self.blocks - sum(r.blocks for r in self._requests.values())

    @property
    def busy(self) -> bool:
        """Whether a step would do anything; without it the engine sleeps and the gauges stay as they are."""
        return self._dirty or any(r.phase is Phase.RUNNING for r in self._requests.values())

    @property
    def next_expiry(self) -> float | None:
        """When the next lease ends, if none of its blocks is read before."""
        ends = [r.since + self.lease_seconds for r in self._requests.values() if r.phase is Phase.LEASED]
        return min(ends, default=None)

    def of(self, *phases: Phase) -> list[Request]:
        """The requests in these phases, oldest first."""
        return [r for r in self._requests.values() if r.phase in phases]

    def blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.block_tokens)

    def plant(self, requests: int, seconds: float = inf) -> None:
        """The next so many requests with remote KV find all of it in the local prefix cache: no reads. Within
        that time of the first of them."""
        self.planted, self._planted_seconds, self._planted_until = requests, seconds, inf

    def submit(self, ask: Ask, now: float) -> None:
        if ask.id in self._requests:
            raise ValueError(f"request {ask.id} exists")
        self._requests[ask.id] = Request(ask, Phase.WAITING, since=now, arrived=now)
        self._dirty = True

    def abort(self, request_id: str, now: float) -> None:
        """The client left. What is finished already is not the client's any more."""
        request = self._requests.get(request_id)
        if request is None or request.phase in (Phase.LEASED, Phase.ORPHAN):
            return
        self._move(
            request, Phase.ORPHAN if request.phase is Phase.PARKED and not request.pulled else Phase.GONE, now
        )

    def pulled(self, request_id: str, now: float) -> None:
        """The worker reports a read as done: a parked request may run, an orphan's blocks are free."""
        request = self._requests.get(request_id)
        if request is None:
            return
        if request.phase is Phase.ORPHAN:
            self._move(request, Phase.GONE, now)
        elif request.phase is Phase.PARKED:
            self._requests[request_id] = replace(request, pulled=True)
            self._dirty = True

    def pull_failed(self, request_id: str, now: float) -> None:
        """The worker reports a read as failed: the request ends, nothing is held."""
        request = self._requests.get(request_id)
        if request is not None and request.phase in (Phase.PARKED, Phase.ORPHAN):
            self._move(request, Phase.GONE, now)

    def read(self, request_id: str, now: float) -> bool:
        """A decode has read (or says that it need not read) what is held for it; False where nothing is."""
        request = self._requests.get(request_id)
        if request is None or request.phase is not Phase.LEASED:
            return False
        self._move(request, Phase.GONE, now)
        return True

    def step(self, now: float) -> Step:
        """One engine step: leases, admission, one token for each running request, then the gauges."""
        self._dirty = False
        expired = [r for r in self.of(Phase.LEASED) if r.since + self.lease_seconds <= now]
        for request in expired:
            self._move(request, Phase.GONE, now)
        for request in self.of(Phase.PARKED):
            if request.pulled:
                self._move(request, Phase.RUNNING, now)
        admitted, pulls = self._admit(now)
        first, done, tokens, preempted = self._run(now)
        # A finished request made room: the one that waits for it is looked at in the next step.
        self._dirty = bool(self.of(Phase.WAITING)) and bool(done)
        self.gauges = Gauges(
            running=len(self.of(Phase.RUNNING)),
            capacity=len(self.of(Phase.WAITING)),
            deferred=len(self.of(Phase.PARKED)),
            usage=1.0 - self.free / self.blocks,
        )
        return Step(
            now,
            self.gauges,
            tuple(admitted),
            tuple(pulls),
            tuple(first),
            tokens,
            tuple(done),
            preempted,
            len(expired),
        )

    def _admit(self, now: float) -> tuple[list[Request], list[Pull]]:
        admitted: list[Request] = []
        pulls: list[Pull] = []
        for request in self.of(Phase.WAITING):
            need = self.blocks_for(request.ask.prompt_tokens + request.tokens)
            if need > self.free:
                continue
            remote = request.ask.remote if not request.pulled else None
            if remote is None and len(self.of(Phase.RUNNING)) >= self.max_running:
                continue
            held = replace(request, blocks=need, admitted=now)
            if remote is None:
                admitted.append(self._move(held, Phase.RUNNING, now))
                continue
            admitted.append(self._move(held, Phase.PARKED, now))
            pulls.append(Pull(request.ask, remote, 0 if self._meets_the_defect(now) else need))
        return admitted, pulls

    def _meets_the_defect(self, now: float) -> bool:
        if not self.planted:
            return False
        self._planted_until = min(self._planted_until, now + self._planted_seconds)
        meets = now <= self._planted_until
        self.planted = self.planted - 1 if meets else 0
        return meets

    def _run(self, now: float) -> tuple[list[Request], list[Request], int, int]:
        first: list[Request] = []
        done: list[Request] = []
        tokens = preempted = 0
        for request in self.of(Phase.RUNNING):
            need = self.blocks_for(request.ask.prompt_tokens + request.tokens)
            if need - request.blocks > self.free:
                # Its KV is computed anew later, here, from the prompt and what it has said so far.
                self._move(replace(request, blocks=0, pulled=True), Phase.WAITING, now)
                preempted += 1
                continue
            tokens += 1
            request = replace(request, blocks=max(need, request.blocks), tokens=request.tokens + 1)
            if request.tokens == 1:
                request = replace(request, first_token=now)
                first.append(request)
            self._requests[request.ask.id] = request
            if request.tokens >= request.ask.max_tokens:
                done.append(self._move(request, Phase.LEASED if request.ask.keep else Phase.GONE, now))
        return first, done, tokens, preempted

    def _move(self, request: Request, phase: Phase, now: float) -> Request:
        if phase not in MOVES[request.phase]:
            raise IllegalMoveError(f"{request.ask.id}: {request.phase.value} -> {phase.value}")
        moved = replace(request, phase=phase, since=now)
        if phase is Phase.GONE:
            del self._requests[request.ask.id]
        else:
            self._requests[request.ask.id] = moved
        self._dirty = True
        return moved
