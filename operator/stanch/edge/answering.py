"""ASK: one engine, about the fault that an incident is about, and its answer as a Confirmation."""

from __future__ import annotations

from dataclasses import replace

from stanch.core.confirm import Ruling
from stanch.core.history import Confirmation, Incident, Stuck, Trigger
from stanch.core.kit import Entry, KitReport
from stanch.core.policy import Policy
from stanch.core.sample import Sample
from stanch.core.signatures import limit
from stanch.core.verdict import Answer, Signature, State, Verdict
from stanch.edge.asking import Judged
from stanch.edge.live import Live

# A request that may be released now has the proof of it; one that has just come may still be reported by
# itself, within a step or two.
_YOUNGER, _LEAST_AGE_SECONDS = 12.0, 1.0


async def answer_of(
    live: Live,
    engine: str,
    judged: Judged | None,
    incident: Incident | None,
    container_id: str | None,
    boot_id: str | None,
    canary: bool,
) -> Confirmation:
    """Ask the engine. Never raises for anything that an engine does; what proves nothing is INCONCLUSIVE.

    judged: its place in the last turn, None where it had none. container_id: of the run that answers.
    """
    if judged is None:
        why = f"{engine} was not read in this turn"
        return Confirmation(engine, live.clock(), Answer.INCONCLUSIVE, container_id, why)
    sample = await live.read(judged)
    person = incident is not None and incident.trigger is Trigger.PERSON
    policy = live.policy_for_a_person(judged.watched) if person else live.policy_of(judged.watched)
    kit = boot_id is not None or live.facts(judged.watched.target.name) is not None
    verdict = about(judged.verdict, incident, sample, policy, kit=kit)
    # That requests are parked for good only the list can prove.
    canary = canary and not (kit and verdict.signature is Signature.PARKED_REMOTE_KV)
    said = await live.ask(replace(judged, verdict=verdict), canary=canary, boot_id=boot_id)
    # When the last of what it rests on was read: a canary may have taken longer than an answer counts.
    now = live.clock()
    stuck, ruling = None, said.ruling
    least = verdict.limit_seconds or 0.0
    if verdict.held_seconds < least and said.canary is not None and ruling.answer is Answer.CONFIRMED:
        why = f"it has not shown for long enough: {verdict.held_seconds:.0f} of {least:.0f} s"
        ruling = Ruling(Answer.INCONCLUSIVE, why)
    if said.report is not None and said.report.entries is not None:
        stuck = stuck_of(said.report, verdict, policy)
        if person and ruling.answer is Answer.INCONCLUSIVE and any(one.releasable for one in stuck):
            ruling = Ruling(
                Answer.CONFIRMED, "every rank says of requests on its list that nothing ends them"
            )
        if incident is not None and over(incident, said.report, verdict):
            ruling = Ruling(Answer.VETOED, "the engine kit lists none of its requests any more")
    return Confirmation(engine, now, ruling.answer, container_id, ruling.cause, stuck, verdict.signature)


def over(incident: Incident, report: KitReport, verdict: Verdict) -> bool:
    """Whether of parked requests none of the incident's is left, and no other has been stuck for so long:
    those that are parked now may be on their way."""
    if verdict.signature is not Signature.PARKED_REMOTE_KV or not incident.stuck:
        return False
    left = {entry.id for entry in report.stuck()}
    return not report.stuck(verdict.limit_seconds or 0.0) and not any(s.id in left for s in incident.stuck)


def about(
    verdict: Verdict, incident: Incident | None, sample: Sample, policy: Policy, *, kit: bool
) -> Verdict:
    """The verdict to ask about: the last one where it shows a fault, else what the incident was opened for,
    as it would be now. A drained engine is healthy by its gauges, and the question is about its cache.

    Where neither is there, or the engine has never confirmed it (a person's incident), the list of stuck
    requests is the proof, and where there is none, what is held by nobody, for as long as that has been seen.
    """
    signature: Signature | None = None
    held = 0.0
    if verdict.state is State.FAULT:
        signature, held = verdict.signature, verdict.held_seconds
    elif incident is not None and incident.evidence.last_seen is not None:
        signature, held = incident.evidence.signature, incident.evidence.held_seconds or 0.0
    proved = signature not in (None, Signature.DEFERRED_STALL, Signature.STALE_GAUGE, Signature.BLIND)
    if not proved:
        signature = Signature.PARKED_REMOTE_KV if kit else Signature.HELD_IDLE
        held = verdict.held_seconds if verdict.signature is Signature.HELD_IDLE else 0.0
    assert signature is not None
    least = limit(signature, policy, verdict.role, sample)
    read = sample.blind is None
    return replace(
        verdict,
        state=State.FAULT,
        signature=signature,
        held_seconds=max(least, held) if proved else held,
        limit_seconds=least,
        usage=sample.usage if read else verdict.usage,
        running=sample.running if read else verdict.running,
        waiting=sample.waiting if read else verdict.waiting,
    )


def stuck_of(report: KitReport, verdict: Verdict, policy: Policy) -> tuple[Stuck, ...]:
    """The requests that have been stuck for long enough to be part of this fault, and with them the younger
    ones of which every rank has said that nothing will end them: they would be the next incident."""
    parked = verdict.signature is Signature.PARKED_REMOTE_KV
    least = verdict.limit_seconds or 0.0 if parked else policy.held_idle_seconds
    young = max(_LEAST_AGE_SECONDS, policy.parked_remote_kv_seconds / _YOUNGER)
    return tuple(
        _stuck(entry)
        for entry in report.stuck(min(young, least))
        if entry.age_seconds >= least or entry.way is not None
    )


def _stuck(entry: Entry) -> Stuck:
    return Stuck(
        entry.id,
        entry.age_seconds,
        entry.blocks,
        entry.client_gone,
        entry.way is not None,
        entry.refusal,
        entry.remote_engine,
    )
