"""One simulated engine: what it holds, and the page it serves."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from stanch.core.sample import Lifecycle, Role

BLOCK = 16  # tokens
CHUNK = 8_192  # tokens of one prefill step
SPEED = 25.0  # tokens/s of one running request
MOST_REQUESTS = 64

# usage, running, waiting, deferred, generation, prompt, iterations, finished, failed transfers, notifications
Page = tuple[float, int, int, int, int, int, int, int, int, int]
EMPTY: Page = (0.0, 0, 0, 0, 0, 0, 0, 0, 0, 0)

# Where a request is.
ON_THE_WAY, WAITS, PREFILLING, QUEUED, LIMBO, PARKED, RUNNING, GONE = range(8)


@dataclass(slots=True, eq=False)
class Request:
    """One client's request. leased: the prefill holds its blocks. left: the client has gone."""

    prompt: int
    output: int
    prefill: SimEngine
    decode: SimEngine
    place: int = ON_THE_WAY
    blocks: int = 0
    leased: int = 0
    lease_until: float = 0.0
    lease_last: float = 0.0
    left: bool = False
    resumed: bool = False
    started: float = 0.0
    finish_at: float = 0.0
    shift: float = 0.0


Handler = Callable[[float, Request], None]


@dataclass(frozen=True, slots=True)
class Leak:
    """What was planted: kind and first second. The end is when the engine stops carrying it."""

    kind: str
    engine: str
    start: float


@dataclass(slots=True, eq=False)
class SimEngine:
    """Sums instead of loops: the tokens of n running requests are SPEED * (n * t - sum of their starts)."""

    name: str
    role: Role
    blocks: int
    speed: float  # tokens/s of prefill
    process: int  # engines (ranks) of one process share the number
    queue: deque[Request] = field(default_factory=deque)
    parked: dict[Request, None] = field(default_factory=dict)
    running: dict[Request, None] = field(default_factory=dict)
    leases: dict[Request, None] = field(default_factory=dict)
    busy: Request | None = None  # being prefilled
    limbo: dict[Request, None] = field(default_factory=dict)  # waits for something without blocks
    parked_visible: int = 0
    stuck_waiting: int = 0
    stuck_blocks: int = 0
    pinned: int = 0
    held: int = 0  # every block but those of running requests and of the one being prefilled
    starts: float = 0.0
    prompts: int = 0
    generation: int = 0
    prompt_total: int = 0
    iterations: float = 0.0
    stepping_since: float = 0.0
    finished: int = 0
    failed_transfers: int = 0
    failed_notifications: int = 0
    page: Page = EMPTY
    stale_until: float = 0.0
    frozen: bool = False
    hung: bool = False  # frozen for ever
    frozen_at: float = 0.0
    shift: float = 0.0
    inbox: list[tuple[Handler, Request]] = field(default_factory=list)
    down_until: float = 0.0
    process_start: float = 0.0
    container: int = 0
    lifecycle: Lifecycle | None = None
    deadlocked: bool = False
    leak: Leak | None = None
    dark_until: float = 0.0  # pages fail until then

    def used(self, t: float) -> float:
        """Blocks referenced at t."""
        used = float(self.held)
        n = len(self.running)
        if n:
            used += (self.prompts + SPEED * (n * t - self.starts)) / BLOCK + 0.5 * n
        if self.busy is not None:
            done = int((t - self.busy.started) * self.speed / CHUNK) + 1
            used += min(self.busy.blocks, done * (CHUNK // BLOCK))
        return used

    def look(self, t: float) -> Page:
        """The page at t: the last step's values, counters included."""
        if self.frozen or t < self.stale_until:
            return self.page
        n = len(self.running)
        made = SPEED * (n * t - self.starts) if n else 0.0
        iterations = self.iterations + (SPEED * (t - self.stepping_since) if n else 0.0)
        # A hair is added before the cut: sums of times are not exact, and counters never fall.
        self.page = (
            min(1.0, int(self.used(t)) / self.blocks),
            n + (self.busy is not None),
            len(self.queue) + len(self.limbo) + self.parked_visible + self.stuck_waiting,
            len(self.limbo) + self.parked_visible + self.stuck_waiting,
            max(self.page[4], int(self.generation + made + 1e-6)),
            self.prompt_total,
            max(self.page[6], int(iterations + 1e-6)),
            self.finished,
            self.failed_transfers,
            self.failed_notifications,
        )
        return self.page

    def keep_page(self, t: float, seconds: float) -> None:
        """Nothing steps from t on: the page stays so long. Call before the change that it hides."""
        if not self.frozen and t >= self.stale_until:
            self.look(t)
            self.stale_until = t + seconds

    def idle(self) -> bool:
        return not (self.running or self.queue or self.parked_visible or self.limbo or self.busy)

    def begin(self, t: float, request: Request) -> None:
        """The request runs from now on."""
        self.stale_until = 0.0
        if not self.running:
            self.starts, self.stepping_since = 0.0, t
        request.place, request.started, request.shift = RUNNING, t, self.shift
        request.finish_at = t + request.output / SPEED
        self.running[request] = None
        self.starts += t
        self.prompts += request.prompt

    def end(self, t: float, request: Request) -> int:
        """The request runs no more; returns the tokens that it made."""
        started = request.started + (self.shift - request.shift)
        made = min(request.output, int(SPEED * (t - started) + 1e-6))
        del self.running[request]
        self.starts -= started
        self.prompts -= request.prompt
        self.generation += made
        if not self.running:
            self.iterations += SPEED * (t - self.stepping_since)
            self.starts, self.prompts = 0.0, 0
        return made

    def freeze(self, t: float) -> None:
        self.look(t)
        self.frozen, self.frozen_at = True, t

    def thaw(self, t: float) -> list[tuple[Handler, Request]]:
        """Go on where it stopped; returns what happened meanwhile, to be handled now."""
        away = t - self.frozen_at
        self.frozen = False
        self.shift += away
        self.starts += away * len(self.running)
        self.stepping_since += away
        inbox, self.inbox = self.inbox, []
        return inbox

    def forget(self, t: float, up: float) -> None:
        """The process dies at t and answers again at `up`, with nothing."""
        for request in (*self.queue, *self.parked, *self.running, *self.limbo):
            request.place = GONE
        if self.busy is not None:
            self.busy.place = GONE
        self.queue.clear()
        self.limbo.clear()
        self.parked.clear()
        self.running.clear()
        self.leases.clear()
        self.inbox.clear()
        self.busy = None
        self.parked_visible = self.stuck_waiting = self.stuck_blocks = self.pinned = self.held = 0
        self.prompts = self.generation = self.prompt_total = self.finished = 0
        self.failed_transfers = self.failed_notifications = 0
        self.starts = self.iterations = self.stale_until = self.shift = 0.0
        self.frozen = self.hung = self.deadlocked = False
        self.page, self.lifecycle, self.leak = EMPTY, None, None
        self.down_until = self.process_start = up
        self.container += 1
