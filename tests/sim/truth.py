"""Whether a signature's condition has been met for its hold: the design's table, read alone.

Written from the table's words with its defaults, apart from the detector. Where the words leave room: a
failed page voids the time between its neighbours, a gap over three intervals restarts HeldFloor's history as
well as a hold, and a hold begins with the first reading that shows the gauges, if nothing has moved since;
freed blocks are a movement.
"""

from __future__ import annotations

from collections import deque
from math import isfinite

from stanch.core.sample import Role, Sample

FLOOR = 0.05
HELD_IDLE, DEFERRED_STALL, QUEUE_DEADLOCK, NO_PROGRESS, NO_PROGRESS_WARMING_UP = (
    60.0,
    120.0,
    120.0,
    300.0,
    900.0,
)
PIN_MARGIN = 30.0
WINDOW, WINDOW_READINGS = 900.0, 20


def readable(sample: Sample) -> bool:
    """Law 1: usage, running, waiting and one token counter, each of them a number that can be true."""
    if sample.blind is not None:
        return False
    for value in (sample.usage, sample.running, sample.waiting):
        if value is None or not isfinite(value) or value < 0:
            return False
    return sample.usage is not None and sample.usage <= 1.001 and sample.generation_tokens is not None


class Truth:
    """One engine. met: the signatures whose condition has been met for their hold at the last reading (none
    while blind). holding, held: the row whose gauges it shows, and for how many seconds that counts."""

    def __init__(self, role: Role, interval: float, lease: float, pin: float) -> None:
        self._role = role
        self._gap = 3 * interval
        self._window = max(WINDOW, 30 * interval)
        self._lease = lease
        self._pin = pin
        self._last: Sample | None = None
        self._void = False
        self._history = 0.0  # countable seconds since the last reset or idle reading under the floor
        self._idle: deque[float] = deque()  # idle readings at the floor or above, since the last one under it
        self.holding: str | None = None
        self.held = 0.0
        self.met: frozenset[str] = frozenset()

    def see(self, sample: Sample, decodes_quiet: float = 0.0) -> None:
        """decodes_quiet: for how long no decode of the deployment has waited."""
        if not readable(sample):
            self._void = True
            self.met = frozenset()
            return
        last = self._last
        if last is not None and _another_process(last, sample):
            last = None
            self._forget()
        seconds, moved = 0.0, True
        if last is not None:
            seconds = sample.t - last.t
            moved = _moved(last, sample)
            if seconds > self._gap:
                self._forget()
                seconds, moved = 0.0, True
            elif self._void:
                seconds = 0.0
        same = not moved and last is not None and sample.usage == last.usage
        self._void = False
        self._last = sample
        freed = last is not None and (sample.usage or 0.0) < (last.usage or 0.0)
        self._hold(sample, seconds, moved, same, freed)
        self._floor(sample, seconds)
        self._judge(sample, decodes_quiet)

    def _forget(self) -> None:
        self.holding, self.held, self._history = None, 0.0, 0.0
        self._idle.clear()
        self.met = frozenset()

    def _hold(self, sample: Sample, seconds: float, moved: bool, same: bool, freed: bool) -> None:
        name = _gauges(sample)
        if name == "NoProgress" and not same:
            # Restarted by whatever moved; it may begin with this very reading.
            self.holding, self.held = name, 0.0
        elif freed:
            # Blocks came free, so something does not stand still: a transfer ended one way or another.
            self.holding, self.held = name, 0.0
        elif name is not None and name == self.holding and not moved:
            self.held += seconds
        else:
            self.holding, self.held = name, 0.0

    def _floor(self, sample: Sample, seconds: float) -> None:
        self._history += seconds
        if sample.lifecycle is not None:
            self._history = 0.0
            self._idle.clear()
        elif sample.running == 0 and sample.waiting == 0:
            if (sample.usage or 0.0) < FLOOR:
                self._history = 0.0
                self._idle.clear()
            else:
                self._idle.append(sample.t)
        while self._idle and self._idle[0] < sample.t - self._window:
            self._idle.popleft()

    def _judge(self, sample: Sample, decodes_quiet: float) -> None:
        met = set()
        if (
            self.holding is not None
            and self.held > 0
            and self.held >= self._due(self.holding, sample, decodes_quiet)
        ):
            stranded = self.holding == "HeldIdle" and self._role is not Role.DECODE
            met.add("ProducerStranded" if stranded else self.holding)
        if (
            self._role is Role.DECODE
            and not self._pin
            and sample.lifecycle is None
            and self._history >= self._window
            and len(self._idle) >= WINDOW_READINGS
        ):
            met.add("HeldFloor")
        self.met = frozenset(met)

    def _due(self, name: str, sample: Sample, decodes_quiet: float) -> float:
        never = float("inf")
        if name == "NoProgress":
            # Needs the optional iterations; warming up until the first token.
            if sample.iterations is None:
                return never
            return NO_PROGRESS if sample.generation_tokens else NO_PROGRESS_WARMING_UP
        if self._role is Role.DECODE:
            if name == "HeldIdle":
                return max(HELD_IDLE, self._pin + PIN_MARGIN if self._pin else 0.0)
            if name == "QueueDeadlock" and self._pin and (sample.usage or 0.0) >= FLOOR:
                # The table has no word for it, but a head that does not fit waits for pins to run out.
                return max(QUEUE_DEADLOCK, self._pin + PIN_MARGIN)
            return DEFERRED_STALL if name == "DeferredStall" else QUEUE_DEADLOCK
        if name == "DeferredStall" or decodes_quiet < 2 * self._lease:
            return never
        # HeldIdle on a prefill is ProducerStranded.
        return 2 * self._lease if name == "HeldIdle" else max(QUEUE_DEADLOCK, 2 * self._lease)


def _gauges(sample: Sample) -> str | None:
    """The row of the table that the gauges of one reading fit, but for what has to stand still."""
    if sample.lifecycle is not None:
        return None
    if sample.running:
        return "NoProgress"
    usage = sample.usage or 0.0
    if not sample.waiting:
        return "HeldIdle" if usage >= FLOOR else None
    if sample.waiting_deferred is None:
        return "DeferredStall" if usage >= FLOOR else "QueueDeadlock"
    return "DeferredStall" if sample.waiting_deferred >= sample.waiting else "QueueDeadlock"


def _moved(last: Sample, sample: Sample) -> bool:
    return (
        sample.generation_tokens != last.generation_tokens
        or sample.prompt_tokens != last.prompt_tokens
        or sample.iterations != last.iterations
    )


def _another_process(last: Sample, sample: Sample) -> bool:
    if last.process_start != sample.process_start or last.container_id != sample.container_id:
        return True
    return any(
        b is not None and a is not None and a < b
        for a, b in (
            (sample.generation_tokens, last.generation_tokens),
            (sample.prompt_tokens, last.prompt_tokens),
            (sample.finished, last.finished),
        )
    )
