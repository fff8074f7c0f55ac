"""What a plan means for the conditions of a watch and of an incident, as data; Ready always comes first."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from stanch.core.fleet import Fleet
from stanch.core.history import Ending, Incident, Ledger
from stanch.core.plan_limits import Limits, Mode
from stanch.core.plan_types import Deferral, Plan, Reason
from stanch.core.sample import Role
from stanch.core.verdict import State, Verdict

_WELL = (Ending.RESOLVED, Ending.RECOVERED)
_STARVED = (Reason.BUDGET, Reason.PER_HOUR)
_SHOWN = 3
# Of a watch whose process has begun, and has not had a reading yet.
NOT_READ_YET = "NotReadYet"


@dataclass(frozen=True, slots=True)
class Said:
    """One condition: true or not, why in one word, and why in a sentence."""

    type: str
    true: bool
    reason: str
    message: str = ""


@dataclass(frozen=True, slots=True)
class Why:
    """reason: one word in CamelCase. message: a sentence that says what to do."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Readings:
    """What is to be said of where the readings come from, where that is not the engines themselves.

    trouble: why none comes. notice: what is not as it should be, although they come.
    """

    trouble: Why | None = None
    notice: Why | None = None


_NOTHING_SAID = Readings()


def of_watch(
    fleet: Fleet,
    verdicts: Iterable[Verdict],
    made: Plan,
    incidents: Iterable[Incident],
    ledger: Ledger,
    limits: Limits,
    readings: Readings | None = None,
) -> tuple[Said, ...]:
    """Of the watch after a plan. incidents, ledger: as the plan left them. A leak does not clear Ready.
    readings: None where the engines themselves are read."""
    source = readings or _NOTHING_SAID
    read = list(verdicts)
    blind = [verdict for verdict in read if verdict.state is State.BLIND]
    known = list(incidents)
    open_ = [incident for incident in known if incident.open]
    return (
        _ready(fleet, read, blind, limits, source.trouble),
        _degraded(fleet, read, blind, known, ledger, source.notice),
        _leaking(open_, read),
        _of(made.deferred, "BudgetStarved", _STARVED, "NothingWaits"),
        _of(made.deferred, "Conflict", (Reason.CONFLICT,), "NoConflict"),
        _not_injected(fleet),
        role_unknown(fleet),
    )


def of_incident(incident: Incident) -> tuple[Said, ...]:
    """Ready: it ended well. Waiting: why its next step does not begin. Escalated: a person has to look."""
    ending = incident.ending
    waiting, _, why = incident.wait.partition(": ")
    step = incident.current
    reason = incident.code or ("Pending" if step is None else step.name.value)
    return (
        Said("Ready", ending in _WELL, reason, incident.detail),
        Said("Waiting", bool(waiting), waiting or "NothingInTheWay", why),
        Said(
            "Escalated",
            ending in (Ending.ESCALATED, Ending.FAILED),
            incident.code or "NotEscalated",
            incident.detail if ending in (Ending.ESCALATED, Ending.FAILED) else "",
        ),
    )


def _ready(
    fleet: Fleet, read: list[Verdict], blind: list[Verdict], limits: Limits, trouble: Why | None
) -> Said:
    if limits.mode is Mode.DISABLED:
        return Said("Ready", False, "Disabled", "spec.mode is Disabled")
    if not fleet.units:
        return Said("Ready", False, "NoEngines", "no pod is selected: see spec.roles")
    if trouble is not None:
        return Said("Ready", False, trouble.reason, trouble.message)
    if not read:
        return Said("Ready", False, NOT_READ_YET, "no engine has been read yet")
    if len(blind) == len(read):
        return Said("Ready", False, "AllBlind", f"no engine can be read: {blind[0].cause}")
    return Said("Ready", True, "Watching", f"{len(read) - len(blind)} of {len(read)} engines are read")


def _degraded(
    fleet: Fleet,
    read: list[Verdict],
    blind: list[Verdict],
    incidents: list[Incident],
    ledger: Ledger,
    notice: Why | None,
) -> Said:
    if ledger.tripped is not None:
        return Said("Degraded", True, "BreakerOpen", ledger.tripped_why)
    runs = {(pod.uid, pod.container_id) for unit in fleet.units for pod in unit.pods}
    escalated = sorted(
        incident.name
        for incident in incidents
        if incident.ending is Ending.ESCALATED and (incident.pod_uid, incident.container_id) in runs
    )
    if escalated:
        return Said("Degraded", True, "Escalated", f"a person has to look at {_some(escalated)}")
    if len(blind) * 2 > len(read):
        return Said("Degraded", True, "BlindFleet", f"{len(blind)} of {len(read)} engines cannot be read")
    if notice is not None:
        return Said("Degraded", True, notice.reason, notice.message)
    return Said("Degraded", False, "AsExpected")


def _leaking(open_: list[Incident], read: list[Verdict]) -> Said:
    if open_:
        return Said("Leaking", True, "IncidentOpen", _some(sorted(i.name for i in open_)))
    faults = sorted(verdict.engine for verdict in read if verdict.state is State.FAULT)
    if faults:
        return Said("Leaking", True, "FaultSeen", _some(faults))
    return Said("Leaking", False, "NoFault")


def _of(deferred: Iterable[Deferral], name: str, reasons: tuple[Reason, ...], none: str) -> Said:
    found = [one for one in deferred if one.reason in reasons]
    if not found:
        return Said(name, False, none)
    return Said(
        name, True, found[0].reason.value, "; ".join(dict.fromkeys(f.message for f in found[:_SHOWN]))
    )


def role_unknown(fleet: Fleet) -> Said:
    units = sorted(unit.key for unit in fleet.units if unit.role is Role.UNKNOWN and unit.conflict is None)
    if not units:
        return Said("RoleUnknown", False, "EveryRoleKnown")
    return Said(
        "RoleUnknown",
        True,
        "NothingTells",
        f"nothing tells whether these prefill or decode, so what shows there stays a suspicion: "
        f"{_some(units)}; name the roles in spec.roles, or label the pods stanch.dev/role: prefill or decode",
    )


def _not_injected(fleet: Fleet) -> Said:
    """Pods whose label asks for the engine kit, and which have none."""
    left = sorted(
        (pod.name, pod.not_injected) for unit in fleet.units for pod in unit.pods if pod.not_injected
    )
    if not left:
        return Said("NotInjected", False, "NoneLeftOut")
    # Most have the same reason.
    by_reason: dict[str, list[str]] = {}
    for name, why in left:
        by_reason.setdefault(why, []).append(name)
    words = [f"{_some(names)}: {why}" for why, names in list(by_reason.items())[:_SHOWN]]
    return Said("NotInjected", True, "KitMissing", "; ".join(words))


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
