"""Between the kinds and what the core works with. Pure; what is written and read back is the same.

But for what the schema bounds: texts are cut, the longest stuck 100 requests are kept, and times are to the
microsecond.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from stanch.api.common import moment, unix
from stanch.api.incident import (
    EngineStatus,
    EvidenceStatus,
    LeakIncident,
    LeakIncidentStatus,
    StepStatus,
    StuckStatus,
)
from stanch.api.names import ANNOTATION_APPROVE
from stanch.api.thresholds import thresholds
from stanch.api.watch import LeakWatch
from stanch.api.watch_status import (
    BreakerStatus,
    ClaimStatus,
    FailureStatus,
    LeakWatchStatus,
    RepairStatus,
)
from stanch.core.history import Claim, Evidence, Failure, Incident, Ledger, Repair, Step, Stuck
from stanch.core.plan_limits import Limits, MaxUnavailable
from stanch.core.policy import Policy

_TEXT = 1024
_ID = 253
_MOST_ENGINES = 256
MOST_STUCK = 100


def limits_of(watch: LeakWatch) -> Limits:
    spec, may = watch.spec, watch.spec.remediation
    floor = policy_of(watch).floor_ratio
    return Limits(
        mode=spec.mode,
        steps=frozenset(may.steps),
        drain_seconds=may.drain_seconds,
        max_unavailable=_amount(may.max_unavailable),
        max_per_hour=may.max_per_hour,
        cooldown_seconds=may.cooldown_seconds,
        breaker_failures=may.breaker.failures,
        breaker_window_seconds=may.breaker.window_seconds,
        approval=may.approval,
        paused=may.paused,
        canary=spec.canary.enabled,
        idle_every_seconds=spec.canary.idle_every_seconds,
        interval_seconds=spec.interval_seconds,
        floor_ratio=floor,
    )


def _amount(value: int | str) -> MaxUnavailable:
    if isinstance(value, int):
        return MaxUnavailable(value)
    return MaxUnavailable(percent=int(value.removesuffix("%")))


def policy_of(watch: LeakWatch) -> Policy:
    """The detector's thresholds: those that the watch sets, and the defaults."""
    given: dict[str, Any] = {}
    for setting in thresholds():
        value = getattr(watch.spec.signatures, setting.name)
        if value is not None:
            given[setting.name] = value
    return Policy(
        interval_seconds=watch.spec.interval_seconds,
        canary_seconds=watch.spec.canary.timeout_seconds,
        **given,
    )


def incident_of(found: LeakIncident) -> Incident:
    """The incident with what its status remembers; one without a status has not been seen yet."""
    meta, spec, status = found.metadata, found.spec, found.status
    created = status.created or meta.creation_timestamp
    return Incident(
        name=meta.name,
        pod_name=spec.pod_ref.name,
        pod_uid=status.pod_uid or spec.pod_ref.uid,
        created=0.0 if created is None else unix(created),
        trigger=spec.trigger.type,
        unit=status.unit,
        container_id=status.container_id,
        boot_id=status.boot_id,
        episode=status.episode,
        way=status.way,
        engines=tuple(engine.name for engine in status.engines),
        evidence=Evidence(
            status.evidence.signature,
            status.evidence.usage,
            status.evidence.held_seconds,
            _unix(status.evidence.last_seen),
            status.evidence.cause,
        ),
        stuck=tuple(_stuck_of(one) for one in status.stuck_requests),
        steps=tuple(
            Step(step.name, unix(step.start), _unix(step.end), step.outcome, step.detail)
            for step in status.steps
        ),
        ending=status.ending,
        ended=_unix(status.ended),
        code=status.code,
        detail=status.detail,
        wait=status.wait,
        peer_unknown=status.peer_unknown,
        approved=meta.annotations.get(ANNOTATION_APPROVE, "").strip().lower() == "true",
        version=meta.resource_version,
    )


def _stuck_of(one: StuckStatus) -> Stuck:
    return Stuck(
        one.id,
        one.age_seconds,
        one.blocks,
        one.client_gone,
        one.releasable,
        one.refusal,
        one.remote_engine,
        one.peer,
    )


def status_of(incident: Incident, before: LeakIncidentStatus) -> LeakIncidentStatus:
    """The status that remembers the incident; what it does not hold (conditions, the watch) as it was."""
    step = incident.current or (incident.steps[-1] if incident.steps else None)
    phase = incident.ending.value if incident.ending is not None else "" if step is None else step.name.value
    stuck = sorted(incident.stuck, key=lambda one: -one.age_seconds)
    return before.model_copy(
        update={
            "phase": phase,
            "unit": incident.unit,
            "pod_uid": incident.pod_uid,
            "container_id": incident.container_id,
            "boot_id": incident.boot_id,
            "episode": incident.episode,
            "way": incident.way,
            "created": moment(incident.created),
            "evidence": EvidenceStatus(
                signature=incident.evidence.signature,
                usage=incident.evidence.usage,
                held_seconds=incident.evidence.held_seconds,
                last_seen=_moment(incident.evidence.last_seen),
                cause=_cut(incident.evidence.cause),
            ),
            "engines": [EngineStatus(name=name) for name in _names(incident.engines)],
            "steps": [
                StepStatus(
                    name=one.name,
                    start=moment(one.start),
                    end=_moment(one.end),
                    outcome=one.outcome,
                    detail=_cut(one.detail),
                )
                for one in incident.steps
            ],
            "stuck_requests": [_stuck_status(one) for one in stuck[:MOST_STUCK]],
            "stuck_count": len(stuck),
            "ending": incident.ending,
            "ended": _moment(incident.ended),
            "code": incident.code,
            "detail": _cut(incident.detail),
            "wait": _cut(incident.wait),
            "peer_unknown": incident.peer_unknown,
        }
    )


def _stuck_status(one: Stuck) -> StuckStatus:
    return StuckStatus(
        # Who sends a request chooses its id: one that is too long must not cost the incident its status.
        id=kept_id(one.id),
        age_seconds=one.age_seconds,
        blocks=one.blocks,
        client_gone=one.client_gone,
        releasable=one.releasable,
        refusal=None if one.refusal is None else _cut(one.refusal),
        remote_engine=None if one.remote_engine is None else kept_id(one.remote_engine),
        peer=one.peer,
    )


def _names(engines: tuple[str, ...]) -> list[str]:
    """By its labels an engine chooses its name, and how many there are."""
    return list(dict.fromkeys(map(kept_id, engines)))[:_MOST_ENGINES]


def kept_id(text: str) -> str:
    """As much of an id as a status holds."""
    return text[:_ID]


def ledger_of(watch: LeakWatch, read_at: float) -> Ledger:
    """The ledger as it stands in the watch's status, read at that time."""
    status = watch.status
    return Ledger(
        claims=tuple(Claim(one.incident, one.unit, unix(one.expires)) for one in status.claims),
        repairs=tuple(
            Repair(one.incident, one.unit, unix(one.began), _unix(one.ended)) for one in status.repairs
        ),
        failures=tuple(Failure(one.incident, unix(one.time), one.why) for one in status.failures),
        tripped=_unix(status.breaker.tripped),
        tripped_why=status.breaker.why,
        reset_seen=status.breaker.reset_seen,
        reset_at=_unix(status.breaker.reset_at),
        read_at=read_at,
        version=watch.metadata.resource_version,
    )


def status_with(ledger: Ledger, before: LeakWatchStatus) -> LeakWatchStatus:
    """The watch's status with that ledger; the oldest repairs and failures go where there are too many."""
    return before.model_copy(
        update={
            "claims": [
                ClaimStatus(incident=one.incident, unit=one.unit, expires=moment(one.expires))
                for one in ledger.claims
            ],
            "repairs": [
                RepairStatus(
                    incident=one.incident,
                    unit=one.unit,
                    began=moment(one.began),
                    ended=_moment(one.ended),
                )
                for one in ledger.repairs[-2000:]
            ],
            "failures": [
                FailureStatus(incident=one.incident, time=moment(one.t), why=_cut(one.why))
                for one in ledger.failures[-100:]
            ],
            "breaker": BreakerStatus(
                tripped=_moment(ledger.tripped),
                why=_cut(ledger.tripped_why),
                reset_seen=ledger.reset_seen,
                reset_at=_moment(ledger.reset_at),
            ),
        }
    )


def _cut(text: str) -> str:
    return text if len(text) <= _TEXT else f"{text[: _TEXT - 3]}..."


def _unix(time: datetime | None) -> float | None:
    return None if time is None else unix(time)


def _moment(seconds: float | None) -> datetime | None:
    return None if seconds is None else moment(seconds)
