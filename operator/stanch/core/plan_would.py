"""What dry run says instead of acting: the same ladder, each step with what it would have met."""

from __future__ import annotations

from stanch.core import plan_budget as budget
from stanch.core.fleet import Unit
from stanch.core.history import Ending, Incident, Step, StepName, StepOutcome
from stanch.core.plan_gates import no_way, peers, way_out
from stanch.core.plan_limits import Rung
from stanch.core.plan_scene import Scene
from stanch.core.sample import Role


def would(scene: Scene, incident: Incident, unit: Unit) -> Incident:
    """The confirmed incident with the steps that Enforce would take now, and its end."""
    steps = _steps(scene, incident, unit)
    for name, detail in steps:
        incident = _with(incident, Step(name, scene.now, scene.now, StepOutcome.WOULD_DO, detail))
    last = steps[-1][0]
    how = {
        StepName.RELEASE: f"would release {_count(incident)} of {unit.key}",
        StepName.ESCALATE: f"would ask for a person: {steps[-1][1]}",
        StepName.EVICT: f"would evict {incident.pod_name}",
    }.get(last, f"would restart {incident.pod_name} in place")
    return incident.close(Ending.WOULD_DO, how, scene.now)


def _with(incident: Incident, step: Step) -> Incident:
    begun = incident.begin(step.name, step.start)
    assert step.outcome is not None
    return begun.finish(step.outcome, step.detail, step.start)


def _count(incident: Incident) -> str:
    count = sum(stuck.releasable for stuck in incident.stuck)
    return f"{count} stuck request{'' if count == 1 else 's'}"


def _steps(scene: Scene, incident: Incident, unit: Unit) -> list[tuple[StepName, str]]:
    steps: list[tuple[StepName, str]] = []
    if Rung.RELEASE in scene.limits.steps and unit.role is not Role.PREFILL and incident.stuck:
        refused = sorted({one.refusal for one in incident.stuck if not one.releasable and one.refusal})
        more = f"; refused for the others: {'; '.join(refused[:3])}" if refused else ""
        if any(one.releasable for one in incident.stuck):
            steps.append((StepName.RELEASE, f"{_count(incident)}{more}"))
        if all(one.releasable for one in incident.stuck):
            return steps
    way = way_out(scene.limits, unit, incident)
    if way is None:
        return [*steps, (StepName.ESCALATE, no_way(scene.limits, unit, incident)[0])]
    hindrance = peers(scene, unit, incident) or budget.against(
        scene.fleet, scene.ledger, unit, incident, scene.limits, (), scene.now
    )
    waits = "" if hindrance is None else f"would wait: {hindrance[1]}"
    if unit.can_cordon:
        steps.append((StepName.CORDON, waits))
        waits = ""
    running = "an unknown number of" if unit.running is None else f"{unit.running:g}"
    drain = f"at most {scene.limits.drain_seconds:.0f} s for {running} running requests"
    steps += [(StepName.DRAIN, f"{waits}; {drain}" if waits else drain), (StepName.CAPTURE, "")]
    if way is Rung.EVICT:
        return [*steps, (StepName.EVICT, unit.way_why)]
    live = ", ".join(scene.live_peers(unit)) or "no live peer"
    return [
        *steps,
        (StepName.RESTART, unit.way_why),
        (StepName.VERIFY, f"through {live}"),
        (StepName.UNCORDON, ""),
    ]
