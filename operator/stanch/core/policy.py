"""How long each pattern must hold before it counts: thresholds with their reasons, units in the names."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

# What arms an engine also slows its transfers: arming shortens no hold below this (docs/adr/0005).
ARMED_LEAST_SECONDS = 90.0
# A person who suspects an engine need not wait for the watch's own holds, but no honest transfer takes longer
# than this (docs/adr/0005).
PERSON_MOST_SECONDS = 90.0
# Added to the time for which a bidirectional decode pins the blocks of a finished turn.
PIN_MARGIN_SECONDS = 30.0

DAY = 86_400.0


def setting(default: float | None, why: str, *, least: float, most: float, above: bool = False) -> Any:
    """A threshold with its reason and its allowed range; `above`: `least` itself is not allowed."""
    return field(default=default, metadata={"why": why, "least": least, "most": most, "above": above})


@dataclass(frozen=True, slots=True)
class Policy:
    """Thresholds of the detector. Seconds unless the name says otherwise; ratios are 0..1.

    The field's metadata hold its reason and range: the YAML form, its errors and its documentation are made
    from them.
    """

    interval_seconds: float = setting(
        5.0,
        "One reading every so often. A gap of more than three intervals restarts every hold.",
        least=0.1,
        most=600.0,
    )
    floor_ratio: float = setting(
        0.05,
        "KV-cache usage below this is nothing: a few blocks are always in flight somewhere.",
        least=0.0,
        most=1.0,
        above=True,
    )
    held_idle_seconds: float = setting(
        60.0,
        "A healthy decode frees blocks in the step in which a request ends; a minute is thousands of steps.",
        least=1.0,
        most=DAY,
    )
    held_floor_window_seconds: float = setting(
        900.0,
        "A leak under traffic: never under the floor in any idle moment of so long.",
        least=1.0,
        most=DAY,
    )
    held_floor_window_intervals: int = setting(
        30,
        "The window is never shorter than so many intervals (nor than heldFloorReadings of them): slow "
        "readings see few idle moments.",
        least=0,
        most=10_000,
    )
    held_floor_readings: int = setting(
        20,
        "Idle readings that the window must hold, so that chance does not explain it.",
        least=1,
        most=1_000,
    )
    deferred_stall_seconds: float = setting(
        120.0,
        "Parked requests wait for a transfer, and the slowest honest one takes seconds, not minutes.",
        least=1.0,
        most=DAY,
    )
    queue_deadlock_seconds: float = setting(
        120.0,
        "The head of a queue is admitted within a step if it can be; two minutes without a token is never.",
        least=1.0,
        most=DAY,
    )
    no_progress_seconds: float = setting(
        300.0,
        "A long prefill or a slow compile moves nothing for a while, so patience is longest here.",
        least=1.0,
        most=DAY,
    )
    no_progress_warmup_seconds: float = setting(
        900.0,
        "The same until the process has made its first token: kernels compile and graphs are captured then.",
        least=1.0,
        most=DAY,
    )
    parked_remote_kv_seconds: float = setting(
        120.0,
        "The engine kit lists parked requests by age; one older than this is stuck.",
        least=1.0,
        most=DAY,
    )
    lease_seconds: float | None = setting(
        None,
        "How long a prefill keeps a prompt that nobody reads. null: by vLLM version, 30 s from 0.22 on "
        "(renewed by the decodes' heartbeats), 480 s before and where the version is unknown.",
        least=1.0,
        most=DAY,
    )
    kv_pin_seconds: float = setting(
        0.0,
        "How long a bidirectional decode pins a finished turn (decoder_kv_blocks_ttl, 480 s by default). "
        "0: the decode certainly is not bidirectional.",
        least=0.0,
        most=DAY,
    )
    canary_seconds: float = setting(
        30.0, "How long the one-token request that confirms a fault may take.", least=1.0, most=600.0
    )
    collapse_ratio: float = setting(
        0.1,
        "Tokens per second under this share of their own baseline, with a growing queue, are a collapse.",
        least=0.0,
        most=1.0,
        above=True,
    )
    collapse_seconds: float = setting(600.0, "How long that must last before it warns.", least=1.0, most=DAY)
    creep_bucket_seconds: float = setting(
        3600.0, "A creep is judged by the lowest idle usage of each so long.", least=60.0, most=DAY
    )
    creep_buckets: int = setting(4, "How many of them in a row must rise.", least=2, most=48)
    creep_rise_ratio: float = setting(
        0.02, "By how much of the cache they must rise in all.", least=0.0, most=1.0, above=True
    )
    transfer_fault_seconds: float = setting(
        600.0,
        "After a failed transfer or notification, or a peer's restart, leaks are likelier: for so long the "
        "other holds are halved, never below 90 s, a lease or a pin time.",
        least=0.0,
        most=DAY,
    )
    # Set by the turn, not by people: the holds above are to be shortened now.
    armed: bool = field(default=False, kw_only=True)

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
        """A hold as it applies now: halved when armed, never below 90 s and the leases or pins in `least`."""
        if self.armed:
            seconds = min(seconds, max(seconds / 2, ARMED_LEAST_SECONDS))
        return max(seconds, *least) if least else seconds

    def for_a_person(self) -> Policy:
        """What a person suspects is asked about under the watch's holds, but none of them above 90 s."""
        return replace(
            self,
            held_idle_seconds=min(self.held_idle_seconds, PERSON_MOST_SECONDS),
            parked_remote_kv_seconds=min(self.parked_remote_kv_seconds, PERSON_MOST_SECONDS),
        )

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
