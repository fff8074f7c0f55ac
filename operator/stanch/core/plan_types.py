"""What a plan is made of: actions to carry out, what waits and why, what to write first.

How to carry a plan out, so that a crash anywhere does no harm:

1. If `ledger` is not None, write it under the version it was read with. Refused: throw the plan away.
2. Write each of `incidents` (create those without a version). Refused: leave out the actions of that one.
3. Carry out `actions` in order; each checks its preconditions in the same write, and those on one pod may
   be one write. What fails is not retried: the next turn plans it again as long as the fleet does not show
   it.
4. Give what came back to the next turn: as Confirmation, as Outcome under the action's key, or as the fleet.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from stanch.core.history import Incident, Ledger


class Verb(str, Enum):
    """Asking and looking touch nothing; the others change a pod or an engine."""

    ASK = "ask"  # confirm: the kit's list, else a canary; answer: Confirmation of each engine
    TRY_EVICT = "try evict"  # the eviction with dryRun; answer: Outcome
    RELEASE = "release"  # command; answer: the kit's outcome of `command`
    CORDON = "cordon"  # the annotation with this beat; answer: the fleet
    DRAIN = "drain"  # command
    CAPTURE = "capture"  # log tail, last samples; answer: Outcome
    RESTART = "restart"  # command; answer: another container id
    EVICT = "evict"  # answer: the pod is gone; refused: Outcome
    VERIFY = "verify"  # canary, usage, one P/D request through each live peer; answer: Outcome
    LIFT = "lift"  # remove cordon, command and lock, end the drain; answer: the fleet


HARMLESS = frozenset({Verb.ASK, Verb.TRY_EVICT})
DISRUPTIVE = frozenset({Verb.CORDON, Verb.DRAIN, Verb.RESTART, Verb.EVICT})


@dataclass(frozen=True, slots=True)
class Precondition:
    """What a pod must still be when it is written to: the same life of it, as it was listed. Its lock
    (stanch.dev/incident) must be absent or this incident's, or an ended one's, and is set in the same
    write. boot_id: what the command is for; None where no kit answers. version: as listed, or as an earlier
    action of the same plan left it."""

    pod: str
    uid: str
    container_id: str | None
    boot_id: str | None
    version: str


@dataclass(frozen=True, slots=True)
class Action:
    """One thing to do to one unit. incident: "" for a first question, before there is one. key: names this
    try of it; the same action planned twice has the same key. args by verb:
    engines: who is asked. ids: the requests to release. beat, lease_seconds: of the cordon.
    deadline_seconds: of the command. peers: units to verify through."""

    verb: Verb
    incident: str
    unit: str
    key: str
    pods: tuple[Precondition, ...]
    engines: tuple[str, ...] = ()
    ids: tuple[str, ...] = ()
    beat: int = 0
    lease_seconds: float = 0.0
    deadline_seconds: float = 0.0
    peers: tuple[str, ...] = ()


class Reason(str, Enum):
    """Why something is not done now."""

    NOT_HELD = "NotHeld"  # a pattern that has not held long enough
    ONLY_SUSPECT = "OnlySuspect"  # held long enough, but something speaks against a fault
    NEEDS_KIT = "NeedsKit"  # only the kit's list could confirm it
    CANNOT_ASK = "CannotAsk"
    ASKED = "Asked"  # the engine is being asked
    INCONCLUSIVE = "Inconclusive"
    NO_LONGER_SHOWN = "NoLongerShown"
    BLIND = "Blind"
    BLIND_FLEET = "BlindFleet"
    STOPPED = "Stopped"
    DISABLED = "Disabled"
    PAUSED = "Paused"
    OBSERVED = "Observed"  # dry run has said what it would do
    CONFLICT = "Conflict"
    LEAVING = "Leaving"
    NOT_RUNNING = "NotRunning"
    KIT_SILENT = "KitSilent"
    HAND_CORDON = "HandCordon"
    STALE_LIST = "StaleList"
    BREAKER = "BreakerOpen"
    APPROVAL = "ApprovalNeeded"
    PER_HOUR = "MaxPerHour"
    COOLDOWN = "Cooldown"
    BUDGET = "BudgetStarved"
    DISRUPTION_BUDGET = "DisruptionBudget"
    PEER_FROZEN = "PeerFrozen"
    PEER_WAITS = "PeerWaits"
    ESCALATED = "Escalated"
    UNDER_WAY = "UnderWay"  # a step's effect is awaited


@dataclass(frozen=True, slots=True)
class Deferral:
    """recheck_after: seconds until this may look different; None: at the next turn."""

    unit: str
    reason: Reason
    message: str
    incident: str = ""
    recheck_after: float | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """ledger: None where it has not changed. incidents: those that are new or changed. arm: deployments whose
    prefill was restarted or has failed, so that their decodes' holds are to be shortened."""

    actions: tuple[Action, ...] = ()
    deferred: tuple[Deferral, ...] = ()
    incidents: tuple[Incident, ...] = ()
    ledger: Ledger | None = None
    arm: tuple[str, ...] = ()
    recheck_after: float = 5.0
