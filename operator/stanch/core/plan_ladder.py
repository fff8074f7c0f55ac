"""The rungs that act, each as a function of what the fleet shows now: finished, still awaited, or given up.

A step's command has one id for all time, and what it does shows in the fleet; so a step may be looked at by
any process, any number of times, after any crash, and nothing is done twice.
"""

from __future__ import annotations

from stanch.core import plan_budget as budget
from stanch.core.fleet import Unit
from stanch.core.history import Ending, Incident, StepName, StepOutcome
from stanch.core.plan_confirm import causes, escalated, noted
from stanch.core.plan_gates import standing
from stanch.core.plan_limits import (
    CAPTURE_SECONDS,
    CORDON_EFFECT_SECONDS,
    CORDON_LEASE_SECONDS,
    DRAIN_GRACE_SECONDS,
    DRAINED_PATIENCE_SECONDS,
    RELEASE_SECONDS,
)
from stanch.core.plan_open import ask
from stanch.core.plan_scene import Scene, told
from stanch.core.plan_types import Reason, Verb
from stanch.core.verdict import Answer


def release(scene: Scene, incident: Incident, unit: Unit) -> Incident:
    """Free exactly the requests that the list called releasable; then the engine is asked again."""
    if (why := standing(scene, unit, incident)) is not None:
        scene.wait(unit.key, *why, incident)
        return incident
    command = incident.command_id(StepName.RELEASE)
    said = told(unit, command)
    assert incident.current is not None
    unsent = said is None and any(pod.command != command for pod in unit.pods)
    if unsent and scene.heard(unit, incident.engines, 0.0)[0] is not Answer.CONFIRMED:
        return _back(scene, incident, "it was not ordered in time")
    late = scene.now - incident.current.start > RELEASE_SECONDS
    if said is not None and not said.open:
        outcome = StepOutcome.DONE if said.state == "done" else StepOutcome.FAILED
        detail = said.reason or f"{_ordered(incident)}: the engine says {said.state}"
    elif late:
        outcome, detail = StepOutcome.FAILED, f"no outcome within {RELEASE_SECONDS:.0f} s"
    else:
        ids = tuple(stuck.id for stuck in incident.stuck if stuck.releasable)
        order(scene, Verb.RELEASE, incident, unit, StepName.RELEASE, RELEASE_SECONDS, ids=ids)
        scene.wait(unit.key, Reason.UNDER_WAY, "its stuck requests are being released", incident)
        return incident
    return incident.finish(outcome, detail, scene.now).begin(StepName.CONFIRM, scene.now)


def _ordered(incident: Incident) -> str:
    """ "3 stuck requests, 28 blocks"."""
    blocks = [stuck.blocks for stuck in incident.stuck if stuck.releasable]
    return f"{len(blocks)} stuck request{'' if len(blocks) == 1 else 's'}, {sum(blocks)} blocks"


def order(
    scene: Scene,
    verb: Verb,
    incident: Incident,
    unit: Unit,
    step: StepName,
    deadline_seconds: float,
    ids: tuple[str, ...] = (),
) -> None:
    """Put the command on the pods that neither carry it nor have answered it."""
    command = incident.command_id(step)
    if told(unit, command) is None and any(pod.command != command for pod in unit.pods):
        scene.act(verb, incident, unit, command, deadline_seconds=deadline_seconds, ids=ids)


def held_out(scene: Scene, incident: Incident, unit: Unit) -> Incident | None:
    """None where the unit is ours and out of service as it should be; else where that leads: a hold lets the
    incident stay where it is, a cordon that has run out sends it back to its confirmation."""
    if (why := standing(scene, unit, incident)) is not None:
        scene.wait(unit.key, *why, incident)
        return incident
    step = incident.current
    assert step is not None
    young = step.name is StepName.CORDON and scene.now - step.start <= CORDON_LEASE_SECONDS
    lapsed = unit.can_cordon and not young and not scene.cordon_lives(incident, unit)
    if not lapsed and budget.has_claim(scene.ledger, incident.name):
        scene.ledger = budget.renewed(scene.ledger, incident.name, scene.now)
        return None
    return _back(scene, incident, "its cordon ran out" if lapsed else "its claim ran out")


def _back(scene: Scene, incident: Incident, why: str) -> Incident:
    """To the first confirmation, without the claim."""
    scene.ledger = budget.unclaimed(scene.ledger, incident.name)
    return incident.finish(StepOutcome.INTERRUPTED, why, scene.now).begin(StepName.CONFIRM, scene.now)


def cordon(scene: Scene, incident: Incident, unit: Unit) -> Incident:
    if (out := held_out(scene, incident, unit)) is not None:
        return out
    assert incident.current is not None
    # One that ran out shows for a while, by the kit's own clock; what follows needs one that lives.
    marked = scene.cordon_lives(incident, unit)
    seen = all(pod.kit is None or pod.kit.cordoned_by == incident.name for pod in unit.pods)
    if marked and seen and all(pod.routed is False and pod.arriving is False for pod in unit.pods):
        done = incident.finish(StepOutcome.DONE, "no endpoint points at it, no request arrives", scene.now)
        return done.begin(StepName.DRAIN, scene.now)
    if not marked and scene.heard(unit, incident.engines, 0.0)[0] is not Answer.CONFIRMED:
        # Planned before, and never carried out: what the engine said then is too old to act upon now.
        return _back(scene, incident, "its cordon was not written in time")
    if scene.now - incident.current.start > CORDON_EFFECT_SECONDS:
        why = f"its cordon had no effect within {CORDON_EFFECT_SECONDS:.0f} s: {_still(unit)}"
        scene.ledger = budget.failed(
            scene.ledger, incident.name, "CordonIneffective", scene.limits, scene.now
        )
        return escalated(scene, incident, why, "CordonIneffective")
    scene.keep_cordon(incident, unit)
    scene.wait(unit.key, Reason.UNDER_WAY, "its cordon is to show in the endpoints", incident)
    return incident


def _still(unit: Unit) -> str:
    for pod in unit.pods:
        if pod.kit is not None and pod.kit.cordoned_by is None:
            return f"the kit in {pod.name} does not see it (downward-API volume?)"
        if pod.routed is not False:
            return f"an endpoint still points at {pod.name} (readiness probe on /stanch/v1/ready?)"
        if pod.arriving is not False:
            return f"requests still arrive at {pod.name} (a router that picks pods by itself?)"
    return "a pod is not cordoned"


def drain(scene: Scene, incident: Incident, unit: Unit) -> Incident:
    """Until nothing runs, or the deadline; what is stuck or slower than that is lost with the process."""
    if (out := held_out(scene, incident, unit)) is not None:
        return out
    assert incident.current is not None
    past = scene.now - incident.current.start
    running = "unknown" if unit.running is None else f"{unit.running:g}"
    if unit.can_cordon:
        said = told(unit, incident.command_id(StepName.DRAIN))
        if said is not None and said.state == "done":
            return _captured_next(scene, incident, said.reason or "nothing runs")
        if (said is not None and not said.open) or past > scene.limits.drain_seconds + DRAIN_GRACE_SECONDS:
            why = "the deadline passed" if said is None else said.reason or said.state
            return _captured_next(scene, incident, f"{why}, {running} requests still run")
        order(scene, Verb.DRAIN, incident, unit, StepName.DRAIN, scene.limits.drain_seconds)
        scene.keep_cordon(incident, unit)
    elif unit.running == 0:
        return _captured_next(scene, incident, "nothing runs")
    elif past > scene.limits.drain_seconds:
        return _captured_next(scene, incident, f"the deadline passed, {running} requests may be lost")
    scene.wait(unit.key, Reason.UNDER_WAY, "it drains", incident)
    return incident


def _captured_next(scene: Scene, incident: Incident, detail: str) -> Incident:
    return incident.finish(StepOutcome.DONE, detail, scene.now).begin(StepName.CAPTURE, scene.now)


def capture(scene: Scene, incident: Incident, unit: Unit) -> Incident:
    """What the process takes with it. A capture that fails holds nothing up."""
    if (out := held_out(scene, incident, unit)) is not None:
        return out
    assert incident.current is not None
    key = incident.command_id(StepName.CAPTURE)
    done = scene.outcomes.get(key)
    if done is not None:
        outcome = StepOutcome.DONE if done.result.value == "ok" else StepOutcome.FAILED
        return incident.finish(outcome, done.detail, scene.now).begin(StepName.CONFIRM, scene.now)
    if scene.now - incident.current.start > CAPTURE_SECONDS:
        none = incident.finish(StepOutcome.FAILED, "nothing came of it", scene.now)
        return none.begin(StepName.CONFIRM, scene.now)
    scene.act(Verb.CAPTURE, incident, unit, key)
    # The question of the second confirmation goes out with it: the engine is out of service meanwhile.
    drained_at = _drained_at(incident)
    if scene.heard(unit, incident.engines, drained_at)[0] is None:
        ask(scene, incident, unit, incident.engines, drained_at)
    else:
        scene.wait(unit.key, Reason.UNDER_WAY, "its state is captured", incident)
    if unit.can_cordon:
        scene.keep_cordon(incident, unit)
    return incident


def _drained_at(incident: Incident) -> float:
    """When its drain ended; there was one."""
    step = incident.last(StepName.DRAIN)
    assert step is not None
    assert step.end is not None
    return step.end


def drained(incident: Incident) -> bool:
    """Whether the confirmation under way is the second one, which the end of the process needs."""
    before = incident.steps[-2] if len(incident.steps) > 1 else None
    if before is None or before.outcome is StepOutcome.INTERRUPTED:
        return False
    return before.name in (StepName.CAPTURE, StepName.RESTART)


def second(scene: Scene, incident: Incident, unit: Unit) -> tuple[bool, Incident]:
    """Whether the engine has said again, after the drain and within the last interval, that it is stuck; and
    the incident as that leaves it: asked, or at its end."""
    step, drained_at = incident.current, _drained_at(incident)
    assert step is not None
    answer, said = scene.heard(unit, incident.engines, drained_at)
    if answer is Answer.CONFIRMED:
        return True, noted(scene, incident, said)
    if answer is Answer.VETOED:
        cause = causes(said) or "the engine says that nothing is stuck"
        done = incident.finish(StepOutcome.DONE, cause, scene.now)
        return False, done.close(Ending.RECOVERED, cause, scene.now)
    if scene.now - step.start > DRAINED_PATIENCE_SECONDS:
        why = f"after the drain it could not be confirmed: {causes(said) or 'the engine gave no answer'}"
        return False, incident.close(Ending.GAVE_UP, why, scene.now, "Unconfirmed")
    ask(scene, incident, unit, incident.engines, drained_at)
    if unit.can_cordon:
        scene.keep_cordon(incident, unit)
    return False, incident
