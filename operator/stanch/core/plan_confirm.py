"""From a confirmed fault to the first step that acts: what may be done about it, and by which limits."""

from __future__ import annotations

from dataclasses import replace

from stanch.core import plan_budget as budget
from stanch.core.fleet import Unit
from stanch.core.history import (
    Confirmation,
    Ending,
    Evidence,
    Incident,
    Result,
    Step,
    StepName,
    StepOutcome,
    Trigger,
)
from stanch.core.plan_gates import cleared, no_way, peers, standing, unapproved, unheard, way_out
from stanch.core.plan_limits import (
    ASK_AGAIN_SECONDS,
    EVICT_AGAIN_SECONDS,
    PERSON_PATIENCE_SECONDS,
    RELEASE_TRIES,
    UNDECIDED_SECONDS,
    Mode,
    Rung,
)
from stanch.core.plan_open import ask, named
from stanch.core.plan_scene import Scene
from stanch.core.plan_types import Reason, Verb
from stanch.core.plan_would import would
from stanch.core.sample import Role
from stanch.core.verdict import Answer, Signature

# How often what an incident last saw is written down while it waits.
_NOTE_SECONDS = 60.0


def confirm(scene: Scene, incident: Incident, unit: Unit) -> Incident:
    """The first confirmation, or that after a release; from here the ladder begins to act."""
    if (why := standing(scene, unit, incident)) is not None:
        scene.wait(unit.key, *why, incident)
        return incident
    release = _released(incident)
    faults = scene.faults(unit)
    if incident.trigger is Trigger.WATCHDOG and release is None and not faults:
        if (over := cleared(scene, unit, incident)) is not None:
            return incident.close(Ending.RECOVERED, over, scene.now)
        why_not = "the pattern does not show in this reading; nothing is done until it does"
        scene.wait(unit.key, Reason.NO_LONGER_SHOWN, why_not, incident)
        return incident
    # After a release only those that it was for are asked: a rank that leaks since then is another episode.
    if release is None and not set(faults) <= set(incident.engines):
        incident = replace(incident, engines=tuple(dict.fromkeys((*incident.engines, *faults))))
    after = 0.0 if release is None or release.end is None else release.end
    if release is None and incident.evidence.last_seen is None:
        # Somebody came before the watchdog, and was told that it is too early: that no longer counts.
        after = _held_since(scene, faults)
    answer, said = scene.heard(unit, incident.engines, after)
    if release is not None and answer is None:
        # An end does nothing to the engine, so its answer need not be of the last interval.
        answer, said = _denied_since(scene, incident, unit, after)
    if answer is Answer.VETOED:
        return _denied(scene, incident, said)
    others = release is not None and _are_others(incident, said)
    if answer is Answer.CONFIRMED:
        incident = noted(scene, incident, said)
    elif _out_of_patience(scene, incident, unit, answer, after):
        cause = said[0].cause if said else "the engine gave no answer"
        when = "" if release is None else "after the release it "
        return incident.close(
            Ending.GAVE_UP, f"{when}could not be confirmed: {cause}", scene.now, "Unconfirmed"
        )
    if scene.limits.mode is Mode.OBSERVE:
        if answer is Answer.CONFIRMED:
            return would(scene, incident.finish(StepOutcome.DONE, causes(said), scene.now), unit)
        ask(scene, incident, unit, incident.engines, after)
        return incident
    count_recurrence(scene, incident)
    if (why := unapproved(scene, incident)) is not None:
        scene.wait(unit.key, *why, incident)
        return incident
    if release is not None and not scene.answers(unit, incident.engines, after):
        ask(scene, incident, unit, incident.engines, after)  # whether it helped, before anything else
        return incident
    if may_release(scene, incident, unit, others=others):
        if answer is Answer.CONFIRMED and any(stuck.releasable for stuck in incident.stuck):
            done = incident.finish(StepOutcome.DONE, causes(said), scene.now)
            return done.begin(StepName.RELEASE, scene.now)
        recent = scene.answers(unit, incident.engines, max(after, scene.now - ASK_AGAIN_SECONDS))
        if not recent or any(stuck.releasable for one in recent for stuck in one.stuck or ()):
            ask(scene, incident, unit, incident.engines, after)
            return incident
    return _disrupt(scene, incident, unit, answer, said, after)


def _held_since(scene: Scene, faults: tuple[str, ...]) -> float:
    """When the last of these faults had held for long enough; 0 where there is none."""
    shown = (scene.verdicts[engine] for engine in faults)
    return max(
        (v.t - v.held_seconds + v.limit_seconds for v in shown if v.limit_seconds is not None), default=0.0
    )


def _denied_since(
    scene: Scene, incident: Incident, unit: Unit, after: float
) -> tuple[Answer | None, list[Confirmation]]:
    """VETOED where that is the last word since then of each of its engines; else no answer."""
    said = scene.answers(unit, incident.engines, after)
    denied = len(said) == len(incident.engines) and all(one.answer is Answer.VETOED for one in said)
    return (Answer.VETOED, said) if denied else (None, [])


def _are_others(incident: Incident, said: list[Confirmation]) -> bool:
    """Whether what is stuck now are none of the requests that the release was for: another rank's, whose list
    was too old then, or new ones."""
    stuck = {request.id for one in said for request in one.stuck or ()}
    return bool(stuck) and stuck.isdisjoint(request.id for request in incident.stuck)


def _denied(scene: Scene, incident: Incident, said: list[Confirmation]) -> Incident:
    """The engine says that nothing is stuck: by our release, or by itself."""
    release = _released(incident)
    freed = release is not None and release.outcome is StepOutcome.DONE
    cause = causes(said) or "the engine says that nothing is stuck"
    ending, code = (Ending.RESOLVED, "Released") if freed else (Ending.RECOVERED, "")
    return incident.finish(StepOutcome.DONE, cause, scene.now).close(ending, cause, scene.now, code)


def _disrupt(
    scene: Scene,
    incident: Incident,
    unit: Unit,
    answer: Answer | None,
    said: list[Confirmation],
    after: float,
) -> Incident:
    """Begin to make the unit unavailable, if everything allows it."""
    way = way_out(scene.limits, unit, incident)
    if (end := _hopeless(scene, incident, unit, way)) is not None:
        if answer is Answer.CONFIRMED:
            return escalated(scene, incident, *end)
        ask(scene, incident, unit, incident.engines, after)  # a person is called for a fault, not for a doubt
        return incident
    assert way is not None
    hindrance = peers(scene, unit, incident) or budget.against(
        scene.fleet, scene.ledger, unit, incident, scene.limits, scene.reserved, scene.now
    )
    if hindrance is None and unit.can_cordon:
        hindrance = unheard(unit, incident)
    if hindrance is not None:
        scene.wait(unit.key, *hindrance, incident)
        return incident
    if answer is not Answer.INCONCLUSIVE:
        scene.reserved.add(unit.key)  # the worst comes first, also while it is still being asked
    if way is Rung.EVICT and not _evictable(scene, incident, unit):
        return incident
    if answer is not Answer.CONFIRMED:
        ask(scene, incident, unit, incident.engines, after)
        return incident
    scene.ledger = budget.claimed(scene.ledger, incident.name, unit.key, scene.now)
    begun = replace(incident, way=unit.way).finish(StepOutcome.DONE, causes(said), scene.now)
    return begun.begin(StepName.CORDON if unit.can_cordon else StepName.DRAIN, scene.now)


def _hopeless(scene: Scene, incident: Incident, unit: Unit, way: Rung | None) -> tuple[str, str] | None:
    """Why a person has to look, in a sentence and a word; None: there is a step to take."""
    if way is None:
        return no_way(scene.limits, unit, incident)
    poison = _poisoned(scene, incident)
    return None if poison is None else (poison, "Recurrence")


def _evictable(scene: Scene, incident: Incident, unit: Unit) -> bool:
    """Whether the API server would evict it: tried before anything is cordoned."""
    key = f"{incident.name}/try-evict"
    tried = scene.outcomes.get(key)
    if tried is not None and tried.result is Result.OK and scene.now - tried.t < ASK_AGAIN_SECONDS:
        return True
    if tried is not None and tried.result is not Result.OK and scene.now - tried.t < EVICT_AGAIN_SECONDS:
        scene.reserved.discard(unit.key)
        scene.wait(unit.key, Reason.DISRUPTION_BUDGET, f"its eviction is refused: {tried.detail}", incident)
        return False
    scene.act(Verb.TRY_EVICT, incident, unit, key)
    scene.wait(unit.key, Reason.ASKED, "its eviction is tried without doing it", incident)
    return False


def may_release(scene: Scene, incident: Incident, unit: Unit, *, others: bool = False) -> bool:
    """Whether a release is still to be tried: once for the same requests, never on a prefill, by the kit
    only. others: other requests are stuck now than those of the last one."""
    again = others and incident.tries(StepName.RELEASE) < RELEASE_TRIES
    return (
        Rung.RELEASE in scene.limits.steps
        and unit.role is not Role.PREFILL
        and all(pod.kit is not None for pod in unit.pods)
        and (again or _released(incident) is None)
    )


def _released(incident: Incident) -> Step | None:
    """The release that was tried; one that was never ordered is none, unless it never can be."""
    last = incident.last(StepName.RELEASE)
    never = last is not None and last.outcome is StepOutcome.INTERRUPTED
    return None if never and incident.tries(StepName.RELEASE) < RELEASE_TRIES else last


def noted(scene: Scene, incident: Incident, said: list[Confirmation]) -> Incident:
    """With what a confirmation brought: that it was seen, and which requests are stuck. The first one also
    says what the incident is about, where that was only suspected or not written yet."""
    listed = (request for one in said for request in one.stuck or ())
    stuck = scene.with_peers(listed, incident.stuck)
    evidence = incident.evidence
    seen = evidence.last_seen
    if seen is None:
        evidence = _proved(scene, incident, said)
    if seen is None or scene.now - seen >= _NOTE_SECONDS:
        evidence = replace(evidence, last_seen=scene.now)
    if stuck and evidence.signature in (None, Signature.DEFERRED_STALL):
        evidence = replace(evidence, signature=Signature.PARKED_REMOTE_KV)
    return replace(incident, evidence=evidence, stuck=stuck or incident.stuck)


def _proved(scene: Scene, incident: Incident, said: list[Confirmation]) -> Evidence:
    """The incident's evidence as the engine confirmed it."""
    evidence = incident.evidence
    yes = next((one for one in said if one.answer is Answer.CONFIRMED), None)
    if yes is None or yes.signature is None:
        return evidence
    shown = scene.verdicts.get(yes.engine)
    same = shown is not None and named(shown) is yes.signature
    return Evidence(
        yes.signature,
        evidence.usage if shown is None or shown.usage is None else shown.usage,
        shown.held_seconds if shown is not None and same else evidence.held_seconds,
        cause=yes.cause,
    )


def causes(said: list[Confirmation]) -> str:
    return "; ".join(dict.fromkeys(one.cause for one in said if one.cause))


def escalated(scene: Scene, incident: Incident, why: str, code: str) -> Incident:
    """Stop, and say so: a step of its own, so that it shows where people read the others."""
    if incident.current is not None:
        incident = incident.finish(StepOutcome.FAILED, why, scene.now)
    said = incident.begin(StepName.ESCALATE, scene.now).finish(StepOutcome.DONE, why, scene.now)
    return said.close(Ending.ESCALATED, why, scene.now, code)


def count_recurrence(scene: Scene, incident: Incident) -> None:
    """A leak that comes back within the breaker's window is a failure, whatever had healed it."""
    if (old := recurred(scene, incident)) is not None:
        scene.ledger = budget.failed(
            scene.ledger, incident.name, f"came back after {old.name}", scene.limits, scene.now
        )


def recurred(scene: Scene, incident: Incident) -> Incident | None:
    """The last repair of the same unit that had healed it, within the breaker's window and since a person
    last closed the breaker."""
    since = max(scene.now - scene.limits.breaker_window_seconds, scene.ledger.reset_at or 0.0)
    healed = [
        old
        for old in scene.past.get(incident.unit, ())
        if old.name != incident.name
        and old.ending is Ending.RESOLVED
        and old.ended is not None
        and since < old.ended <= incident.created
    ]
    return max(healed, key=lambda old: old.ended or 0.0, default=None)


def _poisoned(scene: Scene, incident: Incident) -> str | None:
    """A queue that stands again after its process was ended: a request in it may be what does it."""
    if incident.evidence.signature is not Signature.QUEUE_DEADLOCK:
        return None
    old = recurred(scene, incident)
    if old is None or old.evidence.signature is not Signature.QUEUE_DEADLOCK:
        return None
    if not any(old.last(name) for name in (StepName.RESTART, StepName.EVICT)):
        return None
    return f"its queue stands again after {old.name} restarted it: one of its requests may be what does it"


def _out_of_patience(
    scene: Scene, incident: Incident, unit: Unit, answer: Answer | None, after: float
) -> bool:
    """Nobody asks in vain for ever: neither about what no engine has ever confirmed on a person's word, nor
    about what can no longer be confirmed."""
    if answer is Answer.INCONCLUSIVE:
        since = scene.undecided_since(unit, incident.engines, after)
        if since is not None and scene.now - since > UNDECIDED_SECONDS:
            return True
    return (
        incident.trigger is not Trigger.WATCHDOG
        and incident.evidence.last_seen is None
        and incident.current is not None
        and scene.now - incident.current.start > PERSON_PATIENCE_SECONDS
    )
