"""ASK: one engine, about the fault that an incident is about, and its answer as a Confirmation."""

from __future__ import annotations

from dataclasses import replace

from stanch.core.history import Confirmation, Incident, Stuck
from stanch.core.kit import Entry, KitReport
from stanch.core.policy import Policy
from stanch.core.sample import Sample
from stanch.core.signatures import limit
from stanch.core.verdict import Answer, Signature, State, Verdict
from stanch.edge.asking import Judged
from stanch.edge.live import Live


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
    policy = live.policy_of(judged.watched)
    verdict = about(judged.verdict, incident, sample, policy)
    said = await live.ask(replace(judged, verdict=verdict), canary=canary, boot_id=boot_id)
    # When the last of what it rests on was read: a canary may have taken longer than an answer counts.
    now = live.clock()
    stuck = None
    if said.canary is None and said.report is not None and said.report.entries is not None:
        stuck = stuck_of(said.report, verdict, policy)
    return Confirmation(engine, now, said.ruling.answer, container_id, said.ruling.cause, stuck)


def about(verdict: Verdict, incident: Incident | None, sample: Sample, policy: Policy) -> Verdict:
    """The verdict to ask about: the last one where it shows a fault, else what the incident was opened for,
    as it would be now. A drained engine is healthy by its gauges, and the question is about its cache."""
    signature = verdict.signature if verdict.state in (State.FAULT, State.SUSPECT) else None
    held: float | None = verdict.held_seconds
    if signature is None:
        evidence = None if incident is None else incident.evidence
        signature = None if evidence is None else evidence.signature
        held = None if evidence is None else evidence.held_seconds
    if signature in (None, Signature.DEFERRED_STALL, Signature.STALE_GAUGE, Signature.BLIND):
        # Of these the list of stuck requests is the only proof.
        signature, held = Signature.PARKED_REMOTE_KV, None
    assert signature is not None
    least = limit(signature, policy, verdict.role, sample)
    read = sample.blind is None
    return replace(
        verdict,
        state=State.FAULT,
        signature=signature,
        held_seconds=max(least, held or 0.0),
        limit_seconds=least,
        usage=sample.usage if read else verdict.usage,
        running=sample.running if read else verdict.running,
        waiting=sample.waiting if read else verdict.waiting,
    )


def stuck_of(report: KitReport, verdict: Verdict, policy: Policy) -> tuple[Stuck, ...]:
    """The requests that have been stuck for long enough to be part of this fault."""
    parked = verdict.signature is Signature.PARKED_REMOTE_KV
    least = verdict.limit_seconds or 0.0 if parked else policy.held_idle_seconds
    return tuple(_stuck(entry) for entry in report.stuck(least))


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
