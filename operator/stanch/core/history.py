"""What happened before this turn: incidents with their steps, what engines and the API answered, the ledger.

An incident is the memory of its state machine: it is written to LeakIncident.status before anything of a
step is done, and read from there by the next turn, in whatever process that runs. Times are Unix seconds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from hashlib import blake2s

from stanch.core.fleet import Way
from stanch.core.verdict import Answer, Signature

# The kit takes ids of at most 128 characters; the name of an object may have 253.
_NAME_IN_COMMAND = 100


class StepName(str, Enum):
    """The rungs of the ladder, in order."""

    OBSERVE = "Observe"
    CONFIRM = "Confirm"
    RELEASE = "Release"
    CORDON = "Cordon"
    DRAIN = "Drain"
    CAPTURE = "Capture"
    RESTART = "Restart"
    EVICT = "Evict"
    VERIFY = "Verify"
    UNCORDON = "Uncordon"
    ESCALATE = "Escalate"


class StepOutcome(str, Enum):
    DONE = "Done"
    FAILED = "Failed"
    INTERRUPTED = "Interrupted"  # held for longer than its cordon lives, or overtaken by another try
    WOULD_DO = "WouldDo"  # dry run


class Ending(str, Enum):
    """How an incident ended."""

    RESOLVED = "Resolved"  # released, restarted or evicted, and well again
    RECOVERED = "Recovered"  # the engine itself says that nothing is stuck, or its process is another one
    WOULD_DO = "WouldDo"
    GAVE_UP = "GaveUp"  # nothing was harmed; another episode may try again
    ESCALATED = "Escalated"  # a person has to look; nothing more is tried on this container run
    FAILED = "Failed"  # it was restarted, and is not well
    DUPLICATE = "Duplicate"
    NOT_WATCHED = "NotWatched"
    POD_GONE = "PodGone"


class Trigger(str, Enum):
    WATCHDOG = "Watchdog"
    PERSON = "Person"
    ALERT = "Alert"


@dataclass(frozen=True, slots=True)
class Stuck:
    """One stuck request as the kit lists it. peer: the unit whose engine it pulls from, where that is known.
    releasable: a release would free it now."""

    id: str
    age_seconds: float
    blocks: int
    client_gone: bool = False
    releasable: bool = False
    refusal: str | None = None
    remote_engine: str | None = None
    peer: str | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """One try of one rung. end, outcome: None while it is under way. detail: one sentence."""

    name: StepName
    start: float
    end: float | None = None
    outcome: StepOutcome | None = None
    detail: str = ""

    @property
    def open(self) -> bool:
        return self.outcome is None


@dataclass(frozen=True, slots=True)
class Evidence:
    """Why the incident was opened. usage: 0..1. last_seen: when the fault was last seen or confirmed."""

    signature: Signature | None = None
    usage: float | None = None
    held_seconds: float | None = None
    last_seen: float | None = None
    cause: str = ""


@dataclass(frozen=True, slots=True)
class Incident:
    """One fault of one container run.

    unit, pod_uid, container_id, boot_id: empty or None until the first turn that sees a person's incident.
    way: how its process is ended, once that was begun. version: of the object as read, "" where it is not
    written yet. wait: why the next step does not begin, as last written, "" where nothing is in the way.
    code, detail: why it ended, as one word and as a sentence. peer_unknown: no live peer could prove the
    repair.
    """

    name: str
    pod_name: str
    pod_uid: str
    created: float
    trigger: Trigger = Trigger.WATCHDOG
    unit: str = ""
    container_id: str | None = None
    boot_id: str | None = None
    episode: int = 1
    way: Way | None = None
    engines: tuple[str, ...] = ()
    evidence: Evidence = Evidence()
    stuck: tuple[Stuck, ...] = ()
    steps: tuple[Step, ...] = ()
    ending: Ending | None = None
    ended: float | None = None
    code: str = ""
    detail: str = ""
    wait: str = ""
    peer_unknown: bool = False
    approved: bool = False
    version: str = ""

    @property
    def open(self) -> bool:
        return self.ending is None

    @property
    def current(self) -> Step | None:
        """The step under way; None before the first, between two and after the last."""
        return self.steps[-1] if self.steps and self.steps[-1].open else None

    def last(self, name: StepName) -> Step | None:
        return next((step for step in reversed(self.steps) if step.name is name), None)

    def tries(self, name: StepName) -> int:
        return sum(step.name is name for step in self.steps)

    def begin(self, name: StepName, now: float) -> Incident:
        assert self.current is None, f"{self.name} is still at {self.steps[-1].name.value}"
        return replace(self, steps=(*self.steps, Step(name, now)))

    def finish(self, outcome: StepOutcome, detail: str, now: float) -> Incident:
        step = self.current
        assert step is not None, f"{self.name} is at no step"
        done = replace(step, end=now, outcome=outcome, detail=detail)
        return replace(self, steps=(*self.steps[:-1], done))

    def close(self, ending: Ending, detail: str, now: float, code: str = "") -> Incident:
        """The end; a step under way is interrupted by it. code: the ending's own name where not given."""
        closed = self
        if self.current is not None:
            closed = self.finish(StepOutcome.INTERRUPTED, detail, now)
        return replace(closed, ending=ending, ended=now, code=code or ending.value, detail=detail, wait="")

    def command_id(self, step: StepName) -> str:
        """The id of the command of the latest try of that step: the same in every process, so that the kit
        carries it out once."""
        name = self.name
        if len(name) > _NAME_IN_COMMAND:
            name = f"{name[: _NAME_IN_COMMAND - 17]}-{blake2s(name.encode(), digest_size=8).hexdigest()}"
        return f"{name}/{step.value.lower()}-{self.tries(step)}"


@dataclass(frozen=True, slots=True)
class Confirmation:
    """What an engine said at `t`, when it was asked. container_id: of the run that answered. stuck: the kit's
    list, None where a canary was asked. signature: what it was asked about."""

    engine: str
    t: float
    answer: Answer
    container_id: str | None
    cause: str = ""
    stuck: tuple[Stuck, ...] | None = None
    signature: Signature | None = None


class Result(str, Enum):
    OK = "ok"
    FAILED = "failed"
    NO_PEER = "no peer"  # Verify: well, but there was no live peer to prove a transfer with


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of an action whose end does not show in the fleet: an eviction or its trial, a capture, a
    verification. key: the action's own. detail: names the disruption budget or the peers."""

    key: str
    t: float
    result: Result
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Claim:
    """A unit that an incident may make unavailable until `expires`."""

    incident: str
    unit: str
    expires: float


@dataclass(frozen=True, slots=True)
class Repair:
    """One disruptive repair that was begun, for maxPerHour and the cooldown. ended: None while under way."""

    incident: str
    unit: str
    began: float
    ended: float | None = None


@dataclass(frozen=True, slots=True)
class Failure:
    """A repair that failed, or a leak that came back: what the breaker counts."""

    incident: str
    t: float
    why: str


@dataclass(frozen=True, slots=True)
class Ledger:
    """The one object per watch, written under its resourceVersion before anything else of a turn.

    read_at: when it was read. tripped: since when the breaker is open. reset_seen: the last value of the
    annotation that reset it. reset_at: when that was first seen; what had healed before it recurs no more.
    """

    claims: tuple[Claim, ...] = ()
    repairs: tuple[Repair, ...] = ()
    failures: tuple[Failure, ...] = ()
    tripped: float | None = None
    tripped_why: str = ""
    reset_seen: str | None = None
    reset_at: float | None = None
    read_at: float = 0.0
    version: str = ""


@dataclass(frozen=True, slots=True)
class History:
    """incidents: of this watch, open and ended, as far as they still exist. confirmations, outcomes: what
    this process was told; a process that has just started has none, and asks again."""

    incidents: tuple[Incident, ...] = ()
    ledger: Ledger = Ledger()
    confirmations: tuple[Confirmation, ...] = ()
    outcomes: tuple[Outcome, ...] = ()
