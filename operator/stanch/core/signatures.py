"""The conditions of the signatures: what one reading, and the step from the one before, say.

Pure arithmetic. Which of these may become a fault, and when, is decided in detector.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from stanch.core.policy import PIN_MARGIN_SECONDS, Policy
from stanch.core.sample import COUNTERS, Role, Sample, counted
from stanch.core.verdict import Cap, Signature

# A process start is printed to 10 ms and does not move while the process lives.
_START_TOLERANCE_SECONDS = 1.0

_PRODUCERS = (Role.PREFILL, Role.BOTH)


@dataclass(frozen=True, slots=True)
class Owed:
    """What our canaries added to the counters and no reading has shown yet; it never counts as progress."""

    generation_tokens: float = 0.0
    prompt_tokens: float = 0.0
    iterations: float = 0.0
    finished: float = 0.0


NOTHING_OWED = Owed()


def canary_cost(generation_tokens: float, prompt_tokens: float) -> Owed:
    # One step for the prompt, one for each token, one more where the engine schedules ahead.
    return Owed(generation_tokens, prompt_tokens, generation_tokens + 2, 1.0)


@dataclass(frozen=True, slots=True)
class Move:
    """What happened between two valid readings of the same process."""

    seconds: float
    tokens: float | None  # other people's; None: no token counter is on both readings
    iterations: float | None
    finished: float | None
    failed: bool  # a transfer or a notification failed
    usage_same: bool
    freed: bool  # blocks were given back

    @property
    def progressed(self) -> bool:
        """Whether a token moved, or may have."""
        return self.tokens is None or self.tokens > 0


def restarted(last: Sample, now: Sample) -> bool:
    """Whether the engine's process is not the one of the last reading."""
    if (
        last.container_id is not None
        and now.container_id is not None
        and last.container_id != now.container_id
    ):
        return True
    a, b = counted(last.process_start), counted(now.process_start)
    if a is not None and b is not None and abs(a - b) > _START_TOLERANCE_SECONDS:
        return True
    return any(fell(getattr(last, name), getattr(now, name)) for name in COUNTERS)


def fell(before: float | None, after: float | None) -> bool:
    before, after = counted(before), counted(after)
    return before is not None and after is not None and after < before


def _rise(before: float | None, after: float | None, owed: float) -> tuple[float | None, float]:
    """(rise that is not our own, what stays owed); None where either end is missing."""
    before, after = counted(before), counted(after)
    if before is None or after is None:
        return None, owed
    rise = after - before
    own = min(rise, owed)
    return rise - own, owed - own


def movement(last: Sample, now: Sample, owed: Owed) -> tuple[Move, Owed]:
    generation, owed_generation = _rise(last.generation_tokens, now.generation_tokens, owed.generation_tokens)
    prompt, owed_prompt = _rise(last.prompt_tokens, now.prompt_tokens, owed.prompt_tokens)
    iterations, owed_iterations = _rise(last.iterations, now.iterations, owed.iterations)
    finished, owed_finished = _rise(last.finished, now.finished, owed.finished)
    transfers, _ = _rise(last.failed_transfers, now.failed_transfers, 0.0)
    notifications, _ = _rise(last.failed_notifications, now.failed_notifications, 0.0)
    tokens = None if generation is None and prompt is None else (generation or 0.0) + (prompt or 0.0)
    if owed is not NOTHING_OWED:
        owed = Owed(owed_generation, owed_prompt, owed_iterations, owed_finished)
    return (
        Move(
            seconds=now.t - last.t,
            tokens=tokens,
            iterations=iterations,
            finished=finished,
            failed=bool(transfers) or bool(notifications),
            usage_same=now.usage == last.usage,
            freed=(now.usage or 0.0) < (last.usage or 0.0),
        ),
        owed,
    )


def condition(sample: Sample, move: Move | None, policy: Policy, role: Role) -> Signature | None:
    """The signature whose condition this reading meets, but for "no progress", which the hold sees to."""
    assert sample.usage is not None
    assert sample.running is not None
    held = sample.usage >= policy.floor_ratio
    producer = role in _PRODUCERS
    if sample.running > 0:
        # Without iterations a long chunked prefill cannot be told from a hang.
        still = move is not None and move.iterations == 0 and move.usage_same
        return Signature.NO_PROGRESS if still else None
    if sample.waiting == 0:
        if not held:
            return None
        return Signature.PRODUCER_STRANDED if producer else Signature.HELD_IDLE
    deferred = counted(sample.waiting_deferred)
    # Parked requests hold blocks: without the reasons the usage tells the two apart.
    all_deferred = held if deferred is None else deferred >= (sample.waiting or 0.0)
    if not all_deferred:
        return Signature.QUEUE_DEADLOCK
    return None if producer else Signature.DEFERRED_STALL


def limit(signature: Signature, policy: Policy, role: Role, sample: Sample, *, pins: bool = True) -> float:
    """From how many seconds on this signature is a fault. pins: whether anything may be pinned."""
    producer = role in _PRODUCERS
    lease = policy.lease
    pin = policy.kv_pin_seconds + PIN_MARGIN_SECONDS if policy.may_be_bidirectional and pins else 0.0
    if signature is Signature.PARKED_REMOTE_KV:
        return policy.hold(policy.parked_remote_kv_seconds)
    if signature is Signature.HELD_IDLE:
        return policy.hold(policy.held_idle_seconds, pin)
    if signature is Signature.DEFERRED_STALL:
        return policy.hold(policy.deferred_stall_seconds)
    if signature is Signature.QUEUE_DEADLOCK:
        # A prompt that does not fit beside pinned turns waits honestly until they run out.
        pinned = pin if (sample.usage or 0.0) >= policy.floor_ratio else 0.0
        return policy.hold(policy.queue_deadlock_seconds, 2 * lease if producer else pinned)
    if signature is Signature.NO_PROGRESS:
        warming_up = counted(sample.generation_tokens) == 0
        return policy.hold(policy.no_progress_warmup_seconds if warming_up else policy.no_progress_seconds)
    if signature is Signature.PRODUCER_STRANDED:
        return 2 * lease
    if signature is Signature.HELD_FLOOR:
        return floor_window(policy)
    raise ValueError(f"{signature.value} has no hold here")


def cap(signature: Signature, policy: Policy, role: Role, decodes_quiet_seconds: float | None) -> Cap | None:
    """Why this signature stays suspect on this engine however long it holds; None where it may be a fault."""
    if signature in (Signature.NO_PROGRESS, Signature.PARKED_REMOTE_KV):
        return None
    if role is Role.UNKNOWN:
        return Cap.ROLE_UNKNOWN
    if role in _PRODUCERS:
        if decodes_quiet_seconds is None:
            return Cap.NO_FLEET
        return Cap.DECODE_WAITS if decodes_quiet_seconds < 2 * policy.lease else None
    if signature is Signature.HELD_FLOOR and policy.may_be_bidirectional:
        # Finished turns are pinned anew with every request, so an idle moment under the floor is never due.
        return Cap.MAY_BE_PINNED
    return None


def floor_window(policy: Policy) -> float:
    """Seconds over which no idle reading may be under the floor (HeldFloor).

    Never shorter than the readings that it must hold: a window that cannot be filled would find nothing.
    """
    intervals = max(policy.held_floor_window_intervals, policy.held_floor_readings)
    return max(policy.held_floor_window_seconds, intervals * policy.interval_seconds)


@dataclass(frozen=True, slots=True)
class Floor:
    """The idle readings since the last reset or the last one under the floor.

    held: valid seconds since then. count, low: how many there were, and their lowest usage. times: of the
    newest, as many as the window must hold, oldest first.
    """

    held: float = 0.0
    count: int = 0
    low: float = 1.0
    times: tuple[float, ...] = ()

    def after(self, sample: Sample, seconds: float, policy: Policy) -> Floor:
        """With one more valid reading, `seconds` of countable time after the last."""
        assert sample.usage is not None
        held = self.held + seconds
        if sample.running != 0 or sample.waiting != 0:
            return Floor(held, self.count, self.low, self.times)
        if sample.usage < policy.floor_ratio:
            return NO_FLOOR
        times = (*self.times, sample.t)[-policy.held_floor_readings :]
        return Floor(held, self.count + 1, min(self.low, sample.usage), times)

    def readings(self, t: float, policy: Policy) -> int:
        """Idle readings within the window before t, counted up to as many as it must hold."""
        start = t - floor_window(policy)
        return sum(time >= start for time in self.times)


NO_FLOOR = Floor()
