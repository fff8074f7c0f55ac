"""How long each pattern must hold before it counts: thresholds with their reasons, units in the names."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

# A gauge can lag, and a transfer can be slow, by seconds: no hold is ever shortened below this by arming.
ARMED_LEAST_SECONDS = 30.0
# Added to the time for which a bidirectional decode pins the blocks of a finished turn.
PIN_MARGIN_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Policy:
    """Thresholds of the detector. Seconds unless the name says otherwise; ratios are 0..1."""

    # One reading every so often. A gap of more than three intervals restarts every hold.
    interval_seconds: float = 5.0
    # Usage below this is nothing: a few blocks are always in flight somewhere.
    floor_ratio: float = 0.05
    # A healthy decode frees its blocks in the step in which a request ends; a minute is thousands of steps.
    held_idle_seconds: float = 60.0
    # The leak under traffic: never under the floor in any idle moment of a quarter of an hour ...
    held_floor_window_seconds: float = 900.0
    # ... or of so many readings' time, if that is longer (a slow interval sees few idle moments) ...
    held_floor_window_intervals: int = 30
    # ... and seen idle often enough that chance does not explain it.
    held_floor_readings: int = 20
    # Parked requests wait for a transfer; the slowest honest one takes seconds.
    deferred_stall_seconds: float = 120.0
    # A request at the head of a queue is admitted within a step if it can be; two minutes without is never.
    queue_deadlock_seconds: float = 120.0
    # A long prefill or a slow compile shows nothing for a while, so patience is longest here ...
    no_progress_seconds: float = 300.0
    # ... and longer still until the process has made its first token (kernels compile, graphs are captured).
    no_progress_warmup_seconds: float = 900.0
    # The engine kit lists parked requests by age; beyond this one is stuck.
    parked_remote_kv_seconds: float = 120.0
    # How long a prefill keeps an unread prompt: None means by vLLM version, 30 s from 0.22 on (renewed by the
    # decodes' heartbeats), 480 s before and where the version is unknown.
    lease_seconds: float | None = None
    # How long a bidirectional decode pins a finished turn (decoder_kv_blocks_ttl, 480 s by default); 0 means
    # that the engine certainly is not bidirectional.
    kv_pin_seconds: float = 0.0
    # Throughput under this share of its own baseline, with a growing queue, is a collapse ...
    collapse_ratio: float = 0.1
    # ... if it lasts.
    collapse_seconds: float = 600.0
    # The lowest idle usage of each so long ...
    creep_bucket_seconds: float = 3600.0
    # ... rising through so many of them in a row ...
    creep_buckets: int = 4
    # ... by so much in all is a creep.
    creep_rise_ratio: float = 0.02
    # After a failed transfer, a failed notification or a peer's restart leaks are likelier: for so long the
    # other holds are halved (never below 30 s, a lease or a pin time).
    transfer_fault_seconds: float = 600.0
    # Set by the turn, not by people: the holds above are to be shortened now.
    armed: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        if not self.interval_seconds > 0:
            raise ValueError(f"interval_seconds must be above 0, not {self.interval_seconds}")

    @property
    def gap_seconds(self) -> float:
        """A pause between two readings longer than this restarts every hold."""
        return 3 * self.interval_seconds

    @property
    def lease(self) -> float:
        """The lease to reckon with, in seconds; the longest known one where nothing tells."""
        return OLD_LEASE_SECONDS if self.lease_seconds is None else self.lease_seconds

    @property
    def may_be_bidirectional(self) -> bool:
        return self.kv_pin_seconds > 0

    def hold(self, seconds: float, *least: float) -> float:
        """A hold as it applies now: halved when armed, never below 30 s and the leases or pins in `least`."""
        if self.armed:
            seconds = min(seconds, max(seconds / 2, ARMED_LEAST_SECONDS))
        return max(seconds, *least) if least else seconds

    def with_hold(self, seconds: float) -> Policy:
        """The policy of `--hold-seconds`: every hold is `seconds`; leases, pins, Creep and Collapse stay."""
        return replace(
            self,
            held_idle_seconds=seconds,
            held_floor_window_seconds=seconds,
            held_floor_window_intervals=0,
            held_floor_readings=5,
            deferred_stall_seconds=seconds,
            queue_deadlock_seconds=seconds,
            no_progress_seconds=seconds,
            no_progress_warmup_seconds=seconds,
            parked_remote_kv_seconds=seconds,
        )


# vLLM's kv_lease_duration (0.22 and later) and, before it, VLLM_NIXL_ABORT_REQUEST_TIMEOUT.
NEW_LEASE_SECONDS = 30.0
OLD_LEASE_SECONDS = 480.0


def lease_of_version(version: tuple[int, int] | None) -> float:
    """Seconds for which a prefill of this vLLM (major, minor) keeps an unread prompt by default."""
    return NEW_LEASE_SECONDS if version is not None and version >= (0, 22) else OLD_LEASE_SECONDS
