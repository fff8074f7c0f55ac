"""What the detector says of one engine: a state, the signature that explains it, and the reason as data."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from stanch.core.kit import Stuck
from stanch.core.sample import Lifecycle, Role


class State(str, Enum):
    HEALTHY = "healthy"
    SUSPECT = "suspect"
    FAULT = "fault"
    BLIND = "blind"


class Signature(str, Enum):
    """A pattern over samples. The order is the precedence among verdicts of the same state."""

    PARKED_REMOTE_KV = "ParkedRemoteKV"
    HELD_IDLE = "HeldIdle"
    DEFERRED_STALL = "DeferredStall"
    QUEUE_DEADLOCK = "QueueDeadlock"
    NO_PROGRESS = "NoProgress"
    PRODUCER_STRANDED = "ProducerStranded"
    HELD_FLOOR = "HeldFloor"
    STALE_GAUGE = "StaleGauge"
    BLIND = "Blind"


class Warn(str, Enum):
    """Signatures that only warn; they never change the state."""

    COLLAPSE = "Collapse"
    CREEP = "Creep"
    TRANSFER_FAULT = "TransferFault"


class Answer(str, Enum):
    """What the engine itself said when it was asked."""

    CONFIRMED = "confirmed"
    VETOED = "vetoed"
    INCONCLUSIVE = "inconclusive"


class Cap(str, Enum):
    """Why a pattern that has held long enough is no more than suspect."""

    NO_FLEET = "no-fleet"  # what a prefill may hold depends on its decodes, and they are not known
    DECODE_WAITS = "decode-waits"  # a decode of the deployment waits or parks, or did a moment ago
    MAY_BE_PINNED = "may-be-pinned"  # a bidirectional decode pins finished turns
    ROLE_UNKNOWN = "role-unknown"  # the same page is a leak on a decode and a lease on a prefill


@dataclass(frozen=True, slots=True)
class Verdict:
    """One engine at one time.

    held_seconds: for how long the signature's condition has held (0 when healthy or blind); limit_seconds:
    from when on it is a fault. idle_seconds: since the last token that was not our own, as far as it was
    watched. floor_usage: the lowest usage in any idle reading of the window (HeldFloor). cause: why blind, or
    what the engine answered. cap: why it is not a fault although it has held. lifecycle: why it is healthy.
    spared: this reading does not show the pattern, but nothing moved either, so the next one decides.
    stuck: the requests that the engine kit's list names for it. unlisted: why there was no list although the
    kit was asked, as a sentence's end; no_kit: because the engine has none.
    """

    t: float
    engine: str
    role: Role
    state: State
    signature: Signature | None = None
    held_seconds: float = 0.0
    limit_seconds: float | None = None
    idle_seconds: float | None = None
    usage: float | None = None
    running: float | None = None
    waiting: float | None = None
    deferred: float | None = None
    floor_usage: float | None = None
    readings: int | None = None
    warnings: tuple[Warn, ...] = ()
    confirmation: Answer | None = None
    cause: str | None = None
    cap: Cap | None = None
    lifecycle: Lifecycle | None = None
    spared: bool = False
    stuck: Stuck | None = None
    unlisted: str | None = None
    no_kit: bool = False

    @property
    def signature_name(self) -> str:
        return "nothing" if self.signature is None else self.signature.value
