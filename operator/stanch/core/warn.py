"""The signatures that only warn: Collapse, Creep, TransferFault. They never change a state."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

from stanch.core.policy import Policy
from stanch.core.sample import Sample
from stanch.core.signatures import Move
from stanch.core.verdict import Warn

# The baseline of throughput forgets with this time constant.
_BASELINE_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class Trends:
    """What the warnings remember of one engine; a handful of numbers, whatever the age.

    baseline: tokens/s while requests ran. collapse_held: seconds. collapse_waiting: the queue at its start.
    creep_bucket, creep_low: the current bucket and the lowest idle usage in it. creep_lows: those of the
    last buckets, oldest first. transfer_until: time until which the last failed transfer counts.
    """

    baseline: float | None = None
    collapse_held: float = 0.0
    collapse_waiting: float | None = None
    creep_bucket: int | None = None
    creep_low: float | None = None
    creep_lows: tuple[float, ...] = ()
    transfer_until: float | None = None

    def after(self, sample: Sample, move: Move | None, policy: Policy) -> Trends:
        changed = self._collapse(sample, move, policy) if move is not None else self
        if sample.running == 0 and sample.waiting == 0:
            changed = changed._creep(sample, policy)
        if move is not None and move.failed:
            changed = replace(changed, transfer_until=sample.t + policy.transfer_fault_seconds)
        return changed

    def _collapse(self, sample: Sample, move: Move, policy: Policy) -> Trends:
        if move.tokens is None or move.finished is None or not 0 < move.seconds <= policy.gap_seconds:
            return self if self.collapse_waiting is None else self._no_collapse()
        rate = move.tokens / move.seconds
        waiting = sample.waiting or 0.0
        if (
            self.baseline is not None
            and move.finished == 0
            and waiting > 0
            and rate < policy.collapse_ratio * self.baseline
            and (self.collapse_waiting is None or waiting >= self.collapse_waiting)
        ):
            start = self.collapse_waiting if self.collapse_waiting is not None else waiting
            return replace(self, collapse_held=self.collapse_held + move.seconds, collapse_waiting=start)
        calm = self if self.collapse_waiting is None else self._no_collapse()
        if not sample.running:
            return calm
        weight = min(1.0, move.seconds / _BASELINE_SECONDS)
        old = rate if self.baseline is None else self.baseline
        return replace(calm, baseline=old + weight * (rate - old))

    def _no_collapse(self) -> Trends:
        return replace(self, collapse_held=0.0, collapse_waiting=None)

    def _creep(self, sample: Sample, policy: Policy) -> Trends:
        bucket = int(sample.t // policy.creep_bucket_seconds)
        usage = sample.usage
        if bucket == self.creep_bucket:
            if self.creep_low is None or usage is None or usage >= self.creep_low:
                return self
            return replace(self, creep_low=usage)
        lows: tuple[float, ...] = ()
        # In a row: a bucket without an idle reading starts anew.
        if self.creep_low is not None and self.creep_bucket is not None and bucket == self.creep_bucket + 1:
            lows = (*self.creep_lows, self.creep_low)[-policy.creep_buckets :]
        return replace(self, creep_bucket=bucket, creep_low=usage, creep_lows=lows)

    def warnings(self, sample: Sample, policy: Policy) -> tuple[Warn, ...]:
        found = []
        if (
            self.collapse_waiting is not None
            and self.collapse_held >= policy.collapse_seconds
            and (sample.waiting or 0.0) > self.collapse_waiting
        ):
            found.append(Warn.COLLAPSE)
        lows = self.creep_lows
        newest = self.creep_bucket if self.creep_bucket is not None else -1
        if (
            sample.t // policy.creep_bucket_seconds <= newest + 1
            and len(lows) == policy.creep_buckets
            and all(a < b for a, b in pairwise(lows))
            and lows[-1] - lows[0] >= policy.creep_rise_ratio
        ):
            found.append(Warn.CREEP)
        if self.transfer_until is not None and sample.t < self.transfer_until:
            found.append(Warn.TRANSFER_FAULT)
        return tuple(found)


NO_TRENDS = Trends()
