"""Lets the product's turn judge a simulated day, and counts where it and the truth disagree.

The only file here that knows the detector.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from time import process_time

from stanch.core.policy import Policy
from stanch.core.sample import Role
from stanch.core.turn import Memory, Reading, turn
from stanch.core.verdict import State, Verdict
from tests.sim.engine import Leak
from tests.sim.load import DAY_SECONDS
from tests.sim.scrape import Seen, Setting, build, turns
from tests.sim.truth import Truth, readable


@dataclass(slots=True)
class Case:
    """What became of one leak. met, by: when a condition had first been met for its hold, and which one.
    delays: of each time that one was met anew, the seconds until a fault was said."""

    number: int
    profile: str
    kind: str
    engine: str
    interval: float
    start: float
    met: float | None = None
    by: str = ""
    found: float | None = None
    delays: list[float] = field(default_factory=list)
    missed: int = 0  # times that no fault was said within two intervals while the condition was still met
    lapses: int = 0  # readings after those two intervals that were no fault although the condition was met


@dataclass(slots=True)
class Tally:
    """Counts of one or many days."""

    engines: int = 0
    samples: int = 0
    blind: int = 0
    suspects: int = 0
    seconds: float = 0.0
    detector_seconds: float = 0.0
    false_faults: list[str] = field(default_factory=list)
    cases: list[Case] = field(default_factory=list)
    closest: dict[str, float] = field(
        default_factory=dict
    )  # the longest hold of each condition without a leak

    def add(self, other: Tally) -> None:
        for f in fields(self):
            mine, theirs = getattr(self, f.name), getattr(other, f.name)
            if isinstance(mine, dict):
                for key, value in theirs.items():
                    mine[key] = max(value, mine.get(key, 0.0))
            else:
                setattr(self, f.name, mine + theirs)

    @property
    def violations(self) -> int:
        return len(self.false_faults) + sum(c.missed + c.lapses for c in self.cases)


class _Watched:
    """One engine under judgement."""

    def __init__(self, truth: Truth) -> None:
        self.truth = truth
        self.case: Case | None = None
        self.leak: Leak | None = None
        self.since: float | None = None  # since when any condition is met for its hold
        self.said = False  # whether a fault was said since then
        self.false: float | None = None  # since when a fault is said of nothing


def judge(setting: Setting, seconds: float = DAY_SECONDS, **changed: float) -> Tally:
    """One deployment, one day. changed: fields of the policy that the detector is to have otherwise."""
    begun = process_time()
    tally = Tally()
    deployment = build(setting)
    profile = setting.profile
    policy = replace(
        Policy(interval_seconds=setting.interval, lease_seconds=profile.lease, kv_pin_seconds=profile.pin),
        **changed,  # type: ignore[arg-type]  # only numbers are ever changed
    )
    watched = {
        e.name: _Watched(Truth(e.role, setting.interval, profile.lease, profile.pin))
        for e in deployment.engines
    }
    roles = {e.name: e.role for e in deployment.engines}
    memory = Memory()
    quiet_since: float | None = 0.0
    for seen in turns(deployment, setting.interval, seconds):
        now = seen[-1].sample.t
        before = process_time()
        readings = [Reading(s.sample, roles[s.sample.engine]) for s in seen]
        memory, outcome = turn(memory, readings, policy, now)
        tally.detector_seconds += process_time() - before
        quiet = _decodes_are_quiet(seen, roles)
        quiet_since = (now if quiet_since is None else quiet_since) if quiet else None
        for s, verdict in zip(seen, outcome.verdicts, strict=True):
            w = watched[s.sample.engine]
            w.truth.see(s.sample, 0.0 if quiet_since is None else now - quiet_since)
            _compare(tally, setting, w, s, verdict)
    tally.engines = len(deployment.engines)
    tally.seconds = process_time() - begun
    return tally


def _decodes_are_quiet(seen: list[Seen], roles: dict[str, Role]) -> bool:
    """No decode of the deployment waits or may be parking: to hold for nobody may be that."""
    for s in seen:
        x = s.sample
        if roles[x.engine] is Role.PREFILL:
            continue
        if not readable(x) or x.waiting or (not x.running and (x.usage or 0.0) >= 0.05):
            return False
    return True


def _compare(tally: Tally, setting: Setting, w: _Watched, s: Seen, verdict: Verdict) -> None:
    t = s.sample.t
    tally.samples += 1
    tally.blind += verdict.state is State.BLIND
    tally.suspects += verdict.state is State.SUSPECT
    if s.leak is not w.leak:
        w.leak = s.leak
        w.since, w.said, w.case = None, False, None
        if s.leak is not None:
            w.case = Case(
                setting.number,
                setting.profile.name,
                s.leak.kind,
                s.leak.engine,
                setting.interval,
                s.leak.start,
            )
            tally.cases.append(w.case)
    fault = verdict.state is State.FAULT
    case = w.case
    if case is None:
        truth = w.truth
        pins = "pinning " if setting.profile.pin else ""
        key = f"{pins}{verdict.role.value} {truth.holding}"
        if verdict.state is not State.BLIND and truth.held > tally.closest.get(key, 0.0):
            tally.closest[key] = truth.held
        if fault and w.false is None:
            name = verdict.signature.value if verdict.signature else "?"
            tally.false_faults.append(
                f"deployment {setting.number} ({setting.profile.name}) {s.sample.engine} at {t:.1f} s: "
                f"{name} held {verdict.held_seconds:.0f} s of {verdict.limit_seconds:.0f}; "
                f"truth {truth.holding} {truth.held:.0f} s"
            )
        w.false = t if fault else None
        return
    if fault and case.found is None:
        case.found = t
    grace = 2 * setting.interval
    if w.truth.met:
        if w.since is None:
            w.since, w.said = t, False
            if case.met is None:
                case.met, case.by = t, "+".join(sorted(w.truth.met))
        if fault and not w.said:
            w.said = True
            case.delays.append(t - w.since)
        elif not fault and t > w.since + grace:
            case.lapses += 1
    elif w.since is not None:
        case.missed += not w.said
        w.since = None
