"""What speaks against an engine after a reading, and which of it the verdict names."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil

from stanch.core.kit import KitReport, Stuck, share, summary
from stanch.core.policy import Policy
from stanch.core.sample import Role, Sample
from stanch.core.signatures import Floor, cap, limit
from stanch.core.verdict import Cap, Signature, State, Verdict

_ORDINARY_AT_FIRST = (Signature.NO_PROGRESS, Signature.PRODUCER_STRANDED)


@dataclass(frozen=True, slots=True)
class Candidate:
    signature: Signature
    held: float
    limit: float
    cap: Cap | None
    due: bool  # nothing but the cap speaks against a fault
    low: float | None = None
    readings: int | None = None
    stuck: Stuck | None = None

    @property
    def fault(self) -> bool:
        return self.due and self.cap is None


def candidates(
    sample: Sample,
    policy: Policy,
    role: Role,
    quiet: float | None,
    holding: Signature | None,
    held: float,
    floor: Floor,
    report: KitReport | None = None,
    silent_t: float | None = None,
) -> list[Candidate]:
    """What speaks against this engine now. holding: the condition that holds, for `held` seconds; or None.

    report: the engine kit's, as usable() lets it pass. silent_t: when an idle canary was sent that got no
    answer."""
    found, named = [], None
    if report is not None and report.entries is not None:
        named, found = summary(report.stuck()), _parked(sample, policy, role, report)
    if holding is not None:
        most = limit(holding, policy, role, sample, pins=report is None or report.pins)
        # Two equal readings of a busy engine are ordinary, and so is a prefill within its lease: no word of
        # either before half its limit.
        if holding not in _ORDINARY_AT_FIRST or held >= most / 2:
            why = cap(holding, policy, role, quiet)
            found.append(Candidate(holding, held, most, why, 0 < most <= held, stuck=named))
    if role in (Role.DECODE, Role.UNKNOWN) and floor.times:
        most = limit(Signature.HELD_FLOOR, policy, role, sample)
        readings, least = floor.readings(sample.t, policy), policy.held_floor_readings
        if floor.held >= most / 2 and readings >= ceil(least / 2):
            due = floor.held >= most and readings >= least
            why = cap(Signature.HELD_FLOOR, policy, role, quiet)
            if why is Cap.MAY_BE_PINNED and report is not None and _left_behind(policy, report):
                why = None
            low, count = floor.low, floor.count
            found.append(Candidate(Signature.HELD_FLOOR, floor.held, most, why, due, low, count, named))
    if silent_t is not None:
        silence = max(sample.t - silent_t, policy.canary_seconds)
        found.append(Candidate(Signature.NO_PROGRESS, silence, policy.canary_seconds, None, True))
    return found


def _parked(sample: Sample, policy: Policy, role: Role, report: KitReport) -> list[Candidate]:
    """ParkedRemoteKV, on every role: the list has the ages, so one look at it tells."""
    most = limit(Signature.PARKED_REMOTE_KV, policy, role, sample)
    stuck = report.stuck(most) or report.stuck(most / 2)
    if not stuck:
        return []
    age = stuck[0].age_seconds
    return [
        Candidate(Signature.PARKED_REMOTE_KV, age, most, None, age >= most, stuck=summary(stuck)),
    ]


def _left_behind(policy: Policy, report: KitReport) -> bool:
    """Whether the list names requests, none of them pinned, that alone hold the floor."""
    return share(report.stuck(policy.held_idle_seconds)) >= policy.floor_ratio


_PRECEDENCE = {signature: place for place, signature in enumerate(Signature)}


def choose(blank: Verdict, found: list[Candidate]) -> Verdict:
    """One verdict names one signature: a fault before a suspect, then by the order of the signatures."""
    if not found:
        return blank
    best = min(found, key=lambda c: (not c.fault, _PRECEDENCE[c.signature]))
    return replace(
        blank,
        state=State.FAULT if best.fault else State.SUSPECT,
        signature=best.signature,
        held_seconds=best.held,
        limit_seconds=best.limit,
        floor_usage=best.low,
        readings=best.readings,
        cap=best.cap if best.due else None,
        stuck=best.stuck,
    )
