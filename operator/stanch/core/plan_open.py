"""Whom a verdict makes a case of: asking the engine, and the incident that its yes opens."""

from __future__ import annotations

from dataclasses import replace
from hashlib import blake2s

from stanch.core.fleet import Unit
from stanch.core.history import (
    Confirmation,
    Ending,
    Evidence,
    Incident,
    Step,
    StepName,
    StepOutcome,
)
from stanch.core.plan_gates import standing, switched_off
from stanch.core.plan_limits import ASK_AGAIN_SECONDS, Mode
from stanch.core.plan_scene import Scene, boot_id
from stanch.core.plan_types import Reason, Verb
from stanch.core.verdict import Answer, Signature, State, Verdict


def ask(scene: Scene, incident: Incident | None, unit: Unit, engines: tuple[str, ...], after: float) -> None:
    """Ask the engines, or say why they are not asked just now."""
    answer, said = scene.heard(unit, engines, after)
    if answer is Answer.INCONCLUSIVE:
        again = min(one.t for one in said) + ASK_AGAIN_SECONDS - scene.now
        why = "; ".join(sorted({one.cause for one in said if one.cause})) or "no reason given"
        scene.wait(unit.key, Reason.INCONCLUSIVE, f"asked, and it proves nothing: {why}", incident, again)
    elif all(pod.kit is None for pod in unit.pods) and not scene.limits.canary:
        why = "it has no kit that lists its requests, and spec.canary.enabled is false"
        scene.wait(unit.key, Reason.CANNOT_ASK, why, incident)
    else:
        scene.act(Verb.ASK, incident, unit, f"{unit.key}/ask", engines=engines)
        scene.wait(unit.key, Reason.ASKED, "the engine itself is asked", incident)


def opened(scene: Scene, unit: Unit) -> Incident | None:
    """A new incident for a unit whose fault its engine has confirmed; None: not now, and why is said."""
    verdict = scene.worst(unit)
    if verdict is None or verdict.state not in (State.SUSPECT, State.FAULT):
        return None
    if (off := switched_off(scene)) is not None:
        scene.wait(unit.key, *off)
        return None
    if verdict.state is State.SUSPECT:
        _suspect(scene, unit, verdict)
        return None
    if (why := standing(scene, unit, None)) is not None:
        scene.wait(unit.key, *why)
        return None
    if (old := _settled_already(scene, unit, verdict)) is not None:
        reason = Reason.OBSERVED if old.ending is Ending.WOULD_DO else Reason.ESCALATED
        scene.wait(unit.key, reason, f"{old.name} ended as {old.code}: {old.detail}", old)
        return None
    only_kit = verdict.signature is Signature.DEFERRED_STALL
    if only_kit and all(pod.kit is None for pod in unit.pods):
        why_kit = "requests that wait for a transfer are proved stuck by the kit's list only"
        scene.wait(unit.key, Reason.NEEDS_KIT, why_kit)
        return None
    engines = scene.faults(unit)
    answer, said = scene.heard(unit, engines, 0.0)
    listed = [one for one in said if one.answer is Answer.CONFIRMED and one.stuck]
    if answer is not Answer.CONFIRMED or (only_kit and not listed):
        ask(scene, None, unit, engines, 0.0)
        return None
    return _incident(scene, unit, verdict, engines, said)


def _suspect(scene: Scene, unit: Unit, verdict: Verdict) -> None:
    if verdict.cap is not None:
        why = f"{verdict.signature_name} has held long enough, but: {verdict.cap.value}"
        scene.wait(unit.key, Reason.ONLY_SUSPECT, why)
        return
    left = None
    if verdict.limit_seconds is not None:
        left = max(0.0, verdict.limit_seconds - verdict.held_seconds)
    scene.wait(unit.key, Reason.NOT_HELD, f"{verdict.signature_name} has not held long enough", None, left)


def _settled_already(scene: Scene, unit: Unit, verdict: Verdict) -> Incident | None:
    """The incident that has said all there is to say of this container run."""
    for old in scene.past.get(unit.key, ()):
        if old.open or not _same_run(old, unit):
            continue
        if old.ending is Ending.ESCALATED:
            return old
        same = old.evidence.signature is named(verdict)
        if old.ending is Ending.WOULD_DO and scene.limits.mode is Mode.OBSERVE and same:
            return old
    return None


def _same_run(incident: Incident, unit: Unit) -> bool:
    return incident.pod_uid == unit.lead.uid and incident.container_id == unit.lead.container_id


def named(verdict: Verdict) -> Signature | None:
    """A stall of deferred requests that the kit has proved is parked requests."""
    stall = verdict.signature is Signature.DEFERRED_STALL
    return Signature.PARKED_REMOTE_KV if stall else verdict.signature


def incident_name(pod_name: str, pod_uid: str, container_id: str | None, episode: int) -> str:
    """The same in every process for one episode of one container run; a DNS label."""
    run = blake2s(f"{pod_uid}/{container_id}".encode(), digest_size=4).hexdigest()
    return f"{pod_name[:44].rstrip('-.')}-{run}-{episode}"


def _incident(
    scene: Scene, unit: Unit, verdict: Verdict, engines: tuple[str, ...], said: list[Confirmation]
) -> Incident:
    pod, now = unit.lead, scene.now
    known = [i.episode for i in scene.past.get(unit.key, ()) if _same_run(i, unit)]
    episode = max(known, default=0) + 1
    evidence = Evidence(
        named(verdict),
        verdict.usage,
        verdict.held_seconds,
        now,
        "; ".join(sorted({one.cause for one in said if one.cause})),
    )
    since = verdict.t - verdict.held_seconds
    return Incident(
        name=incident_name(pod.name, pod.uid, pod.container_id, episode),
        pod_name=pod.name,
        pod_uid=pod.uid,
        created=now,
        unit=unit.key,
        container_id=pod.container_id,
        boot_id=boot_id(pod, None),
        episode=episode,
        engines=engines,
        evidence=evidence,
        steps=(
            Step(StepName.OBSERVE, since, verdict.t, StepOutcome.DONE, verdict.signature_name),
            Step(StepName.CONFIRM, now),
        ),
    )


def adopted(scene: Scene, incident: Incident, unit: Unit) -> Incident:
    """A person's or an alert's incident, or one whose status was never written, at its first turn."""
    pod = unit.lead
    known = [i.episode for i in scene.past.get(unit.key, ()) if _same_run(i, unit)]
    verdict = scene.worst(unit)
    shown = verdict if verdict is not None and verdict.state in (State.FAULT, State.SUSPECT) else None
    return replace(
        incident,
        pod_uid=pod.uid,
        unit=unit.key,
        container_id=pod.container_id,
        boot_id=boot_id(pod, None),
        episode=max(known, default=0) + 1,
        engines=scene.faults(unit) or unit.engines,
        evidence=Evidence(
            None if shown is None else named(shown),
            None if verdict is None else verdict.usage,
            None if shown is None else shown.held_seconds,
        ),
    ).begin(StepName.CONFIRM, scene.now)
