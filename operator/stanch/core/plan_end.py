"""The rungs from the end of the process to the end of the incident: restart or evict, verify, uncordon."""

from __future__ import annotations

from dataclasses import replace

from stanch.core import plan_budget as budget
from stanch.core.fleet import Unit, Way
from stanch.core.history import Ending, Incident, Result, StepName, StepOutcome
from stanch.core.plan_confirm import causes, escalated
from stanch.core.plan_gates import no_way, standing, switched_off, way_out
from stanch.core.plan_ladder import held_out, order, second
from stanch.core.plan_limits import (
    COME_BACK_SECONDS,
    EVICT_AGAIN_SECONDS,
    EVICT_PATIENCE_SECONDS,
    GROUP_REPLACED_SECONDS,
    ORDER_LOST_SECONDS,
    RESTART_ORDER_SECONDS,
    UNCORDON_SECONDS,
    VERIFY_AGAIN_SECONDS,
    VERIFY_SECONDS,
    VERIFY_TRIES,
    Rung,
)
from stanch.core.plan_scene import Scene, another_run, boot_id, told
from stanch.core.plan_types import Reason, Verb
from stanch.core.sample import Role


def confirm_again(scene: Scene, incident: Incident, unit: Unit) -> Incident:
    """The second confirmation, and with it the way the process ends."""
    if (out := held_out(scene, incident, unit)) is not None:
        return out
    way = way_out(scene.limits, unit, incident)
    if way is None:
        return escalated(scene, incident, *no_way(scene.limits, unit, incident))
    sure, incident = second(scene, incident, unit)
    if not sure:
        return incident
    after = 0.0 if (last := incident.last(StepName.DRAIN)) is None else last.end or 0.0
    _, said = scene.heard(unit, incident.engines, after)
    done = incident.finish(StepOutcome.DONE, causes(said), scene.now)
    return done.begin(StepName.RESTART if way is Rung.RESTART else StepName.EVICT, scene.now)


def restart(scene: Scene, incident: Incident, unit: Unit) -> Incident:
    """From the order to another process that answers /health."""
    if another_run(unit, incident):
        return _come_back(scene, incident, unit)
    command = incident.command_id(StepName.RESTART)
    said = told(unit, command)
    step = incident.current
    assert step is not None
    if said is None and unit.lead.command != command:
        if (out := held_out(scene, incident, unit)) is not None:
            return out
        sure, incident = second(scene, incident, unit)
        if sure:
            scene.keep_cordon(incident, unit)
            order(scene, Verb.RESTART, incident, unit, StepName.RESTART, RESTART_ORDER_SECONDS)
            scene.wait(unit.key, Reason.UNDER_WAY, "it is told to restart", incident)
        return incident
    if (why := standing(scene, unit, incident, restarting=True)) is not None:
        scene.wait(unit.key, *why, incident)
        return incident
    lost = scene.now - step.start > ORDER_LOST_SECONDS
    if (said is not None and said.state in ("failed", "refused", "ignored")) or lost:
        why_not = "no restart came of the order" if said is None or lost else said.reason or said.state
        return incident.finish(StepOutcome.FAILED, why_not, scene.now).begin(StepName.CONFIRM, scene.now)
    _keep_while_it_runs(scene, incident, unit, command)
    scene.wait(unit.key, Reason.UNDER_WAY, "it restarts", incident)
    return incident


def _come_back(scene: Scene, incident: Incident, unit: Unit) -> Incident:
    if (why := standing(scene, unit, incident, restarting=True)) is not None:
        scene.wait(unit.key, *why, incident)
        return incident
    assert incident.current is not None
    past = scene.now - incident.current.start
    same_pods = incident.way is Way.GROUP and unit.lead.uid == incident.pod_uid
    if same_pods and past <= GROUP_REPLACED_SECONDS:
        # Well or not, it is about to be deleted.
        scene.wait(unit.key, Reason.UNDER_WAY, "its group is to be made anew", incident)
        return incident
    if all(pod.healthy and not pod.terminating for pod in unit.pods):
        done = incident.finish(StepOutcome.DONE, "another process answers /health", scene.now)
        return _of_this_run(done, unit).begin(StepName.VERIFY, scene.now)
    if past > COME_BACK_SECONDS:
        return _failed(scene, incident, f"it did not come back within {COME_BACK_SECONDS:.0f} s")
    _keep_claim(scene, incident)
    scene.wait(unit.key, Reason.UNDER_WAY, "it starts", incident)
    return incident


def gone_for_good(scene: Scene, incident: Incident) -> Incident:
    """A group whose pods are all gone is being made anew; not for ever."""
    assert incident.current is not None
    if scene.now - incident.current.start > COME_BACK_SECONDS:
        return _failed(scene, incident, f"it did not come back within {COME_BACK_SECONDS:.0f} s")
    scene.wait(incident.unit, Reason.UNDER_WAY, "its pods are made anew", incident)
    return incident


def _of_this_run(incident: Incident, unit: Unit) -> Incident:
    pod = unit.lead
    return replace(incident, pod_uid=pod.uid, container_id=pod.container_id, boot_id=boot_id(pod, None))


def _keep_while_it_runs(scene: Scene, incident: Incident, unit: Unit, order_id: str) -> None:
    """Renew the cordon of a process that has not taken the order to end. One that has takes no requests, and
    a cordon that has run out is not put again."""
    _keep_claim(scene, incident)
    runs = any(pod.healthy and (pod.kit is None or order_id not in pod.kit.outcomes) for pod in unit.pods)
    if runs and scene.cordon_lives(incident, unit):
        scene.keep_cordon(incident, unit)


def _keep_claim(scene: Scene, incident: Incident) -> None:
    """Of a process that has just started the cordon is not renewed: its kit counts only a beat that changes
    (docs/engine-kit.md), so it serves since it is well, and would be taken out once more."""
    scene.ledger = budget.renewed(scene.ledger, incident.name, scene.now)


def _failed(scene: Scene, incident: Incident, why: str, code: str = "") -> Incident:
    scene.ledger = budget.failed(scene.ledger, incident.name, code or "failed", scene.limits, scene.now)
    if incident.current is not None:
        incident = incident.finish(StepOutcome.FAILED, why, scene.now)
    return incident.close(Ending.FAILED, why, scene.now, code)


def evict(scene: Scene, incident: Incident, unit: Unit) -> Incident:
    step = incident.current
    assert step is not None
    if unit.lead.uid != incident.pod_uid:
        return evicted(scene, incident)
    if unit.lead.terminating:
        if (off := switched_off(scene)) is not None:
            scene.wait(unit.key, *off, incident)
        elif scene.now - step.start > COME_BACK_SECONDS:
            return _failed(
                scene, incident, f"it is being deleted for {COME_BACK_SECONDS:.0f} s", "NotDeleted"
            )
        else:
            scene.wait(unit.key, Reason.UNDER_WAY, "it is being deleted", incident)
        return incident
    if (out := held_out(scene, incident, unit)) is not None:
        return out
    if unit.not_remade:
        return escalated(scene, incident, *no_way(scene.limits, unit, incident))
    key = incident.command_id(StepName.EVICT)
    tried = scene.outcomes.get(key)
    if scene.now - step.start > EVICT_PATIENCE_SECONDS:
        why = "its eviction has no effect" if tried is None else f"its eviction is refused: {tried.detail}"
        return incident.finish(StepOutcome.FAILED, why, scene.now).close(
            Ending.GAVE_UP, why, scene.now, "DisruptionBudget"
        )
    refused = tried is not None and tried.result is not Result.OK
    if tried is not None and refused and scene.now - tried.t < EVICT_AGAIN_SECONDS:
        if unit.can_cordon:
            scene.keep_cordon(incident, unit)
        scene.wait(unit.key, Reason.DISRUPTION_BUDGET, f"its eviction is refused: {tried.detail}", incident)
        return incident
    sure, incident = second(scene, incident, unit)
    if sure:
        if unit.can_cordon:
            scene.keep_cordon(incident, unit)
        scene.act(Verb.EVICT, incident, unit, key)
        scene.wait(unit.key, Reason.UNDER_WAY, "it is being evicted", incident)
    return incident


def evicted(scene: Scene, incident: Incident) -> Incident:
    done = incident.finish(StepOutcome.DONE, f"{incident.pod_name} is gone", scene.now)
    return done.close(Ending.RESOLVED, f"{incident.pod_name} was evicted", scene.now, "Evicted")


def verify(scene: Scene, incident: Incident, unit: Unit) -> Incident:
    """A canary, the usage and one P/D request through each live peer, up to three times."""
    if another_run(unit, incident):
        return _failed(scene, incident, "it restarted once more while it was verified", "RestartsAgain")
    if (why := standing(scene, unit, incident, restarting=True)) is not None:
        scene.wait(unit.key, *why, incident)
        return incident
    step = incident.current
    assert step is not None
    past = scene.now - step.start
    key = incident.command_id(StepName.VERIFY)
    found = scene.outcomes.get(key)
    number = incident.tries(StepName.VERIFY)
    if found is not None and found.result is not Result.FAILED:
        known = replace(incident, peer_unknown=found.result is Result.NO_PEER)
        return known.finish(StepOutcome.DONE, found.detail, scene.now).begin(StepName.UNCORDON, scene.now)
    pause = VERIFY_AGAIN_SECONDS if number > 1 else 0.0
    if found is not None or past > VERIFY_SECONDS + pause:
        why_not = "no answer" if found is None else found.detail
        tried = incident.finish(StepOutcome.FAILED, why_not, scene.now)
        if number < VERIFY_TRIES:
            return tried.begin(StepName.VERIFY, scene.now)
        why_end = f"after the restart it is not well, tried {VERIFY_TRIES} times: {why_not}"
        scene.ledger = budget.tripped(scene.ledger, f"{incident.name}: {why_end}", scene.now)
        return _failed(scene, tried, why_end, "NotVerified")
    _keep_claim(scene, incident)
    if past >= pause:
        scene.act(Verb.VERIFY, incident, unit, key, engines=unit.engines, peers=scene.live_peers(unit))
    scene.wait(unit.key, Reason.UNDER_WAY, "it is verified", incident)
    return incident


def uncordon(scene: Scene, incident: Incident, unit: Unit) -> Incident:
    """Until the annotations are gone and it serves; one that does not is not held for it."""
    if (off := switched_off(scene)) is not None:
        scene.wait(unit.key, *off, incident)
        return incident
    step = incident.current
    assert step is not None
    marked = any(mine(incident, pod.cordon, pod.lock) for pod in unit.pods)
    late = scene.now - step.start > UNCORDON_SECONDS
    if (not marked and unit.available) or late:
        if unit.role is not Role.DECODE:
            scene.arm.add(unit.deployment)
        detail = "it serves again" if unit.available else "it is given back, and not ready yet"
        done = incident.finish(StepOutcome.DONE, detail, scene.now)
        return done.close(Ending.RESOLVED, f"{incident.pod_name} was restarted", scene.now, "Restarted")
    if marked:
        lift(scene, incident, unit)
    scene.wait(unit.key, Reason.UNDER_WAY, "it is given back to its Services", incident)
    return incident


def mine(incident: Incident, mark: object, lock: str | None) -> bool:
    return lock == incident.name or (getattr(mark, "incident", None) == incident.name)


def lift(scene: Scene, incident: Incident, unit: Unit) -> None:
    scene.act(Verb.LIFT, incident, unit, f"{incident.name}/lift")
