"""The limits that a watch puts on repairs, and how long each step may take."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final


class Mode(str, Enum):
    DISABLED = "Disabled"
    OBSERVE = "Observe"
    ENFORCE = "Enforce"


class Approval(str, Enum):
    AUTO = "Auto"
    MANUAL = "Manual"


class Rung(str, Enum):
    """What a watch may allow or forbid; cordon and drain come with the last two."""

    RELEASE = "Release"
    RESTART = "Restart"
    EVICT = "Evict"


@dataclass(frozen=True, slots=True)
class MaxUnavailable:
    """Units of one role that may be unavailable at once. percent: of the role's units."""

    count: int = 1
    percent: int | None = None

    def of(self, units: int) -> int:
        """A percentage rounds down, and is at least 1."""
        return self.count if self.percent is None else max(1, units * self.percent // 100)


@dataclass(frozen=True, slots=True)
class Limits:
    """A watch's spec as far as the planner needs it. Seconds in the names; floor_ratio: usage below it is
    nothing. canary: whether one may be sent where there is no kit. idle_every_seconds: how often an idle
    engine is asked whether it would answer; None: never."""

    mode: Mode = Mode.OBSERVE
    steps: frozenset[Rung] = frozenset(Rung)
    drain_seconds: float = 60.0
    max_unavailable: MaxUnavailable = MaxUnavailable()
    max_per_hour: int = 6
    cooldown_seconds: float = 600.0
    breaker_failures: int = 3
    breaker_window_seconds: float = 3600.0
    approval: Approval = Approval.AUTO
    paused: bool = False
    canary: bool = True
    interval_seconds: float = 5.0
    floor_ratio: float = 0.05
    idle_every_seconds: float | None = None


HOUR: Final = 3600.0

# The contract's cordon: a lease of 30 s, renewed every 10 (stanch_connector.contract, which core must not
# import; tests/core/test_planner_words.py compares them).
CORDON_LEASE_SECONDS: Final = 30.0
CORDON_RENEW_SECONDS: Final = 10.0
# A cordon shows in the endpoints within a second (measured); one that does not within its own lease never
# will.
CORDON_EFFECT_SECONDS: Final = 30.0
# A claim outlives the cordon that it stands for.
CLAIM_SECONDS: Final = 120.0
# An engine that could not be asked is asked again, but not at every turn.
ASK_AGAIN_SECONDS: Final = 60.0
# How long an incident that nobody's watchdog stands behind may fail to be confirmed.
PERSON_PATIENCE_SECONDS: Final = 600.0
# How long one that was confirmed may be asked in vain.
UNDECIDED_SECONDS: Final = 600.0
# The same after the drain, while the engine is out of service.
DRAINED_PATIENCE_SECONDS: Final = 120.0
# A fault that was not seen for so long is over, whatever ended it.
FORGOTTEN_SECONDS: Final = 3600.0
RELEASE_SECONDS: Final = 30.0
# How often a release is planned whose order cannot be written, or after which other requests are stuck; then
# the ladder goes on without it.
RELEASE_TRIES: Final = 3
# What the kit may need beyond a drain's own deadline to say how it ended.
DRAIN_GRACE_SECONDS: Final = 30.0
CAPTURE_SECONDS: Final = 30.0
# The restart command's own drain, SIGTERM and SIGKILL.
RESTART_ORDER_SECONDS: Final = 60.0
# A restart that was ordered and of which the kit says nothing for so long was not taken.
ORDER_LOST_SECONDS: Final = 180.0
# From the order to a container that answers /health: image, weights, graph capture of a large model.
COME_BACK_SECONDS: Final = 1800.0
# How soon after a container of a group has restarted its controller deletes the group: a status update and a
# reconcile. One that does not has let it be.
GROUP_REPLACED_SECONDS: Final = 60.0
# Between two turns while a step is under way whose effect only the fleet shows, and for how long it is looked
# at so often: an engine that is out of service is not to wait for a whole interval at every rung.
UNDER_WAY_SECONDS: Final = 0.25
HASTE_SECONDS: Final = 120.0
# Of a restart: then the engine starts, and serves as soon as it is well, whoever looks at it.
RESTART_HASTE_SECONDS: Final = 30.0
EVICT_PATIENCE_SECONDS: Final = 120.0
# Between two tries of the same eviction: a disruption budget changes when a pod becomes ready.
EVICT_AGAIN_SECONDS: Final = 15.0
VERIFY_TRIES: Final = 3
VERIFY_AGAIN_SECONDS: Final = 20.0
VERIFY_SECONDS: Final = 120.0
UNCORDON_SECONDS: Final = 60.0
# How long a decode waits for a frozen peer before it is repaired all the same.
PEER_WAIT_SECONDS: Final = 600.0
# How often a repair may be thrown back (its writes refused, or held by people) before a person is asked.
MOST_INTERRUPTIONS: Final = 8
# More steps than any honest repair has: whatever happens, an incident ends.
MOST_STEPS: Final = 48
