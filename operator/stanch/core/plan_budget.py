"""The ledger of one watch: claims, repairs begun, failures, and what they still allow. Pure.

Laws kept here:
- A claim is taken before a unit is made unavailable, and counts as unavailable until it ends.
- A unit that is unavailable anyway costs nothing.
- Claims are judged by a list of pods that is newer than they are.
- Only repairs that fail or recur open the breaker; only a person closes it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from stanch.core.fleet import Fleet, Unit
from stanch.core.history import Claim, Failure, Incident, Ledger, Repair
from stanch.core.plan_limits import CLAIM_SECONDS, HOUR, Limits
from stanch.core.plan_types import Reason
from stanch.core.sample import Role


def settled(
    ledger: Ledger, incidents: Iterable[Incident], reset: str | None, limits: Limits, now: float
) -> Ledger:
    """The ledger without what no longer counts. A claim of an incident that nobody knows stays until it
    expires: another operator may have just taken it."""
    over = {incident.name for incident in incidents if not incident.open}
    longest = max(HOUR, limits.cooldown_seconds)
    if reset is not None and reset != ledger.reset_seen:
        closed = replace(ledger, tripped=None, tripped_why="", failures=())
        ledger = replace(closed, reset_seen=reset, reset_at=now)
    settled = replace(
        ledger,
        claims=tuple(c for c in ledger.claims if c.expires > now and c.incident not in over),
        repairs=tuple(r for r in ledger.repairs if (r.ended or r.began) > now - longest),
        failures=tuple(f for f in ledger.failures if f.t > now - limits.breaker_window_seconds),
    )
    return ledger if settled == ledger else settled


def has_claim(ledger: Ledger, incident: str) -> bool:
    return any(claim.incident == incident for claim in ledger.claims)


def claimed(ledger: Ledger, incident: str, unit: str, now: float) -> Ledger:
    """The claim and, for the hour's count and the cooldown, the repair that begins with it."""
    others = tuple(claim for claim in ledger.claims if claim.incident != incident)
    repairs = ledger.repairs
    if not any(repair.incident == incident for repair in repairs):
        repairs = (*repairs, Repair(incident, unit, now))
    return replace(ledger, claims=(*others, Claim(incident, unit, now + CLAIM_SECONDS)), repairs=repairs)


def renewed(ledger: Ledger, incident: str, now: float) -> Ledger:
    """With a claim that lasts; written only when half of it is over."""
    if not any(c.incident == incident and c.expires - now < CLAIM_SECONDS / 2 for c in ledger.claims):
        return ledger
    claims = tuple(
        replace(claim, expires=now + CLAIM_SECONDS) if claim.incident == incident else claim
        for claim in ledger.claims
    )
    return replace(ledger, claims=claims)


def released(ledger: Ledger, incident: str, now: float) -> Ledger:
    """Without the incident's claim; its repair has ended, and the cooldown runs from here."""
    return replace(
        unclaimed(ledger, incident),
        repairs=tuple(
            replace(repair, ended=now) if repair.incident == incident and repair.ended is None else repair
            for repair in ledger.repairs
        ),
    )


def unclaimed(ledger: Ledger, incident: str) -> Ledger:
    """Without the incident's claim, while its repair goes on later."""
    return replace(ledger, claims=tuple(claim for claim in ledger.claims if claim.incident != incident))


def failed(ledger: Ledger, incident: str, why: str, limits: Limits, now: float) -> Ledger:
    """One failure more, counted once per incident and reason; enough of them open the breaker."""
    if any(failure.incident == incident and failure.why == why for failure in ledger.failures):
        return ledger
    ledger = replace(ledger, failures=(*ledger.failures, Failure(incident, now, why)))
    if len(ledger.failures) < limits.breaker_failures:
        return ledger
    window = f"{limits.breaker_window_seconds:.0f} s"
    return tripped(ledger, f"{len(ledger.failures)} repairs failed or recurred within {window}", now)


def tripped(ledger: Ledger, why: str, now: float) -> Ledger:
    if ledger.tripped is not None:
        return ledger
    return replace(ledger, tripped=now, tripped_why=why)


def unavailable(fleet: Fleet, ledger: Ledger, role: Role, reserved: Iterable[str] = ()) -> set[str]:
    """Units of the role that are unavailable, claimed or about to be; a missing one has a name of its own."""
    units = [unit for unit in fleet.units if unit.role is role]
    taken = {claim.unit for claim in ledger.claims} | set(reserved)
    out = {unit.key for unit in units if not unit.available or unit.key in taken}
    missing = fleet.desired.get(role, 0) - len(units)
    return out | {f"(missing {number})" for number in range(1, missing + 1)}


def against(
    fleet: Fleet,
    ledger: Ledger,
    unit: Unit,
    incident: Incident,
    limits: Limits,
    reserved: Iterable[str],
    now: float,
) -> tuple[Reason, str] | None:
    """Why the incident may not make its unit unavailable now; None: it may."""
    if fleet.listed_at < ledger.read_at:
        return Reason.STALE_LIST, "the list of pods is older than the claims"
    if ledger.tripped is not None:
        return (
            Reason.BREAKER,
            f"the breaker is open: {ledger.tripped_why}; annotate the watch with stanch.dev/reset-breaker "
            "(any new value) when the cause is gone",
        )
    others = [repair for repair in ledger.repairs if repair.incident != incident.name]
    hour = [repair for repair in others if repair.began > now - HOUR]
    mine = any(repair.incident == incident.name for repair in ledger.repairs)
    if not mine and len(hour) >= limits.max_per_hour:
        return Reason.PER_HOUR, f"{len(hour)} repairs were begun in the last hour, maxPerHour allows no more"
    if any(r.unit == unit.key and (r.ended or r.began) > now - limits.cooldown_seconds for r in others):
        return (
            Reason.COOLDOWN,
            f"{unit.key} was repaired less than {limits.cooldown_seconds:.0f} s ago (cooldownSeconds)",
        )
    if not unit.available:
        return None
    size = max(fleet.desired.get(unit.role, 0), sum(one.role is unit.role for one in fleet.units))
    allowed = limits.max_unavailable.of(size)
    out = unavailable(fleet, ledger, unit.role, reserved) - {unit.key}
    if len(out) >= allowed:
        return (
            Reason.BUDGET,
            f"{', '.join(sorted(out)[:5])}{' and more' if len(out) > 5 else ''} already unavailable, "
            f"{allowed} of {size} {unit.role.value} units may be (maxUnavailable)",
        )
    return None
