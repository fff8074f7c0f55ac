"""The planner: facts, verdicts, history and limits in; what to do next, and why the rest waits, out. Pure.

Laws kept here, each with a test in tests/core/test_planner_*.py:
- Nothing disruptive without the engine's own confirmation, nor while the fleet or the engine is blind.
- Never over budget; the claim is in the plan's ledger before the first step that needs it.
- The worst first; one incident per unit; every suspect is acted on or deferred with a reason.
- Dry run is an outcome: under Observe a plan asks engines and writes incidents, and nothing else.
- Whatever comes back, or never comes back, an incident has a bounded number of steps.
The ladder is in plan_open (whom), plan_confirm (whether), plan_ladder and plan_end (how).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from stanch.core import plan_budget as budget
from stanch.core.fleet import Fleet, Unit, Way
from stanch.core.history import Ending, History, Incident, StepName, StepOutcome
from stanch.core.plan_confirm import confirm, escalated
from stanch.core.plan_end import (
    confirm_again,
    evict,
    evicted,
    gone_for_good,
    lift,
    mine,
    restart,
    uncordon,
    verify,
)
from stanch.core.plan_gates import switched_off, vanished
from stanch.core.plan_ladder import capture, cordon, drain, drained, release
from stanch.core.plan_limits import (
    HASTE_SECONDS,
    MOST_INTERRUPTIONS,
    MOST_STEPS,
    RESTART_HASTE_SECONDS,
    UNDER_WAY_SECONDS,
    Limits,
    Mode,
)
from stanch.core.plan_open import adopted, opened
from stanch.core.plan_scene import Scene, preconditions
from stanch.core.plan_types import Action, Plan, Reason, Verb
from stanch.core.verdict import Verdict

_RUNGS = {
    StepName.RELEASE: release,
    StepName.CORDON: cordon,
    StepName.DRAIN: drain,
    StepName.CAPTURE: capture,
    StepName.RESTART: restart,
    StepName.EVICT: evict,
    StepName.VERIFY: verify,
    StepName.UNCORDON: uncordon,
}
# Until one of these was begun, nothing was done to the engine.
_ACTING = frozenset(_RUNGS)


def plan(fleet: Fleet, verdicts: Iterable[Verdict], history: History, limits: Limits, now: float) -> Plan:
    """One turn of one watch. history.incidents: those of the pods that this watch selects, ended ones too."""
    ledger = budget.settled(history.ledger, history.incidents, fleet.reset, limits, now)
    scene = Scene(fleet, verdicts, history, limits, now, ledger)
    changed: list[Incident] = []
    waits = [limits.interval_seconds]
    for unit, before in _in_order(scene, _without_duplicates(scene, changed)):
        after = before if before is not None else opened(scene, unit) if unit is not None else None
        if after is not None:
            if unit is not None and not after.unit:
                after = replace(after, unit=unit.key)
            after = _waiting(scene, _settled(scene, _climbed(scene, after, unit), unit))
            if after != before:
                changed.append(after)
            if _under_way(after, now):
                waits.append(UNDER_WAY_SECONDS)
    waits += [one.recheck_after for one in scene.deferred if one.recheck_after is not None]
    return Plan(
        tuple(scene.actions),
        tuple(scene.deferred),
        tuple(changed),
        scene.ledger if scene.ledger != history.ledger else None,
        tuple(sorted(scene.arm)),
        max(0.0, min(waits)),
    )


def _under_way(incident: Incident, now: float) -> bool:
    """Whether it is in a step that something is done in, and has not been for long."""
    step = incident.current
    if step is None or not incident.open or step.name not in _ACTING:
        return False
    return now - step.start < (RESTART_HASTE_SECONDS if step.name is StepName.RESTART else HASTE_SECONDS)


def unwatched(incidents: Iterable[Incident], now: float) -> tuple[Incident, ...]:
    """The open ones of these, whose pods no watch selects, as they end. Their cordons run out."""
    return tuple(
        incident.close(Ending.NOT_WATCHED, f"no LeakWatch selects {incident.pod_name}", now)
        for incident in incidents
        if incident.open
    )


def sweep(fleet: Fleet, open_incidents: Iterable[str]) -> tuple[Action, ...]:
    """Lift what no open incident stands behind. A cordon without our lock beside it is a person's."""
    if fleet.stop is not None:
        return ()
    alive = set(open_incidents)
    return tuple(
        Action(Verb.LIFT, pod.lock, unit.key, f"{pod.lock}/lift", preconditions([pod], None))
        for unit in fleet.units
        for pod in unit.pods
        if pod.lock is not None and pod.lock not in alive
    )


def _unit_of(scene: Scene, incident: Incident) -> Unit | None:
    if incident.unit:
        return scene.units.get(incident.unit)
    for unit in scene.fleet.units:
        for pod in unit.pods:
            if pod.name == incident.pod_name and incident.pod_uid in ("", pod.uid):
                return unit
    return None


def _without_duplicates(scene: Scene, changed: list[Incident]) -> list[tuple[Unit | None, Incident]]:
    """The open incidents with their units, one per unit: the one whose lock the pod carries, else the one
    that has done most, else the oldest. The others end."""
    kept: dict[str, tuple[Unit | None, Incident]] = {}

    def first(incident: Incident) -> tuple[bool, int, float, str]:
        unit = _unit_of(scene, incident)
        locked = unit is not None and any(pod.lock == incident.name for pod in unit.pods)
        return not locked, -len(incident.steps), incident.created, incident.name

    for incident in sorted((i for i in scene.history.incidents if i.open), key=first):
        unit = _unit_of(scene, incident)
        key = unit.key if unit is not None else incident.unit or f"({incident.pod_name})"
        if key in kept:
            why = f"{kept[key][1].name} is open for the same unit"
            named = replace(incident, unit=key) if unit is not None else incident
            changed.append(named.close(Ending.DUPLICATE, why, scene.now))
        else:
            kept[key] = (unit, incident)
    return list(kept.values())


def _in_order(
    scene: Scene, open_: list[tuple[Unit | None, Incident]]
) -> list[tuple[Unit | None, Incident | None]]:
    """What holds a claim first, then the worst: the fullest, then the longest held."""
    busy = {unit.key for unit, _ in open_ if unit is not None}
    work: list[tuple[Unit | None, Incident | None]] = [*open_]
    work += [(unit, None) for unit in scene.fleet.units if unit.key not in busy]

    def order(one: tuple[Unit | None, Incident | None]) -> tuple[bool, float, float, str]:
        unit, incident = one
        name = "" if incident is None else incident.name
        claims = bool(name) and budget.has_claim(scene.ledger, name)
        worst = None if unit is None else scene.worst(unit)
        usage = 0.0 if worst is None else worst.usage or 0.0
        held = 0.0 if worst is None else worst.held_seconds
        return not claims, -usage, -held, name or (unit.key if unit is not None else "")

    return sorted(work, key=order)


def _climbed(scene: Scene, incident: Incident, unit: Unit | None) -> Incident:
    """As far up the ladder as the facts carry it this turn. Actions are planned for where it stays only."""
    while incident.open:
        before = (len(incident.steps), incident.current)
        incident = _rung(scene, incident, unit)
        if (len(incident.steps), incident.current) == before:
            break
    return incident


def _rung(scene: Scene, incident: Incident, unit: Unit | None) -> Incident:
    acted = any(step.name in _ACTING for step in incident.steps)
    if scene.limits.mode is Mode.DISABLED:
        return incident.close(Ending.GAVE_UP, "the watch's mode is Disabled", scene.now, "Disabled")
    if scene.limits.mode is Mode.OBSERVE and acted:
        why = "the watch went to Observe on the way; nothing more is done"
        return incident.close(Ending.WOULD_DO, why, scene.now)
    step = incident.current
    if step is not None and step.name is StepName.EVICT and unit is None:
        return evicted(scene, incident)
    if step is not None and step.name is StepName.RESTART and unit is None and incident.way is Way.GROUP:
        return gone_for_good(scene, incident)
    ending = step is not None and step.name in (StepName.RESTART, StepName.EVICT, StepName.VERIFY)
    looked_at = unit is None or (incident.steps and not ending)
    if looked_at and (end := vanished(scene, incident, unit)) is not None:
        return end
    assert unit is not None
    back = sum(one.outcome is StepOutcome.INTERRUPTED for one in incident.steps)
    if back >= MOST_INTERRUPTIONS:
        why = f"it was interrupted {back} times, last because {_last_detail(incident)}"
        return escalated(scene, incident, why, "Interrupted")
    if len(incident.steps) >= MOST_STEPS:
        return escalated(scene, incident, f"it has had {MOST_STEPS} steps and no end", "TooManySteps")
    if step is None:
        return adopted(scene, incident, unit)
    if step.name is StepName.CONFIRM:
        return confirm_again(scene, incident, unit) if drained(incident) else confirm(scene, incident, unit)
    return _RUNGS[step.name](scene, incident, unit)


def _last_detail(incident: Incident) -> str:
    return next(s.detail for s in reversed(incident.steps) if s.outcome is StepOutcome.INTERRUPTED)


def _settled(scene: Scene, incident: Incident, unit: Unit | None) -> Incident:
    """What an end brings with it: the claim goes back, and what is still on the pods is taken off."""
    if incident.open:
        return incident
    scene.ledger = budget.released(scene.ledger, incident.name, scene.now)
    marked = unit is not None and any(mine(incident, pod.cordon, pod.lock) for pod in unit.pods)
    if unit is not None and marked and scene.limits.mode is Mode.ENFORCE and switched_off(scene) is None:
        lift(scene, incident, unit)
    return incident


def _waiting(scene: Scene, incident: Incident) -> Incident:
    """With the reason why it waits, for people; a step that is just under way is no reason."""
    if not incident.open:
        return incident
    said = [one for one in scene.deferred if one.incident == incident.name]
    passing = (Reason.UNDER_WAY, Reason.ASKED)
    wait = f"{said[-1].reason.value}: {said[-1].message}" if said and said[-1].reason not in passing else ""
    return incident if wait == incident.wait else replace(incident, wait=wait)
