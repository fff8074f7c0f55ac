"""LeakIncident: one fault of one container run, from its confirmation to its end."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, StringConstraints

from stanch.api.base import ATOMIC, Model, Rule, list_map
from stanch.api.common import Condition, Count, Id, Metadata, Name, Ratio, Seconds, Text, Time, Word
from stanch.core.fleet import Way
from stanch.core.history import Ending, StepName, StepOutcome, Trigger
from stanch.core.verdict import Signature


class PodRef(Model):
    """The pod, in the incident's namespace."""

    name: Name
    """Its name."""
    uid: Annotated[str, StringConstraints(max_length=64)] = ""
    """Its UID. Left out: whichever pod has the name when the incident is first seen."""


class AlertRef(Model):
    """The alert, as Alertmanager knows it."""

    name: Id = ""
    """Its alertname."""
    fingerprint: Word
    """Alertmanager's hash of its labels. Also the label stanch.dev/alert of the incident."""
    starts_at: Time
    """When it began to fire."""
    engine: Id = ""
    """The engine (rank), where a label of the alert names one. All engines of the pod are asked."""


class TriggerSpec(Model):
    """Who or what asked for it."""

    type: Trigger = Trigger.PERSON
    """Watchdog, Person or Alert."""
    by: Annotated[str, StringConstraints(max_length=253)] = ""
    """Who, as the object's maker says: the operator its identity, stanch remediate the name by which the API
    server knows its user, an alert the receiver that it came through. Proof is the API server's audit log."""
    reason: Text = ""
    """Why, in words."""
    alert: AlertRef | None = None
    """The alert that asked for it, where one did."""


class LeakIncidentSpec(Model):
    """What the incident is about. Cannot be changed afterwards."""

    rules: ClassVar = (
        Rule("self == oldSelf", "spec cannot be changed: delete this incident and make another"),
    )

    pod_ref: PodRef
    """The pod whose engine is to be looked at, and repaired if it is stuck."""
    trigger: TriggerSpec = TriggerSpec()
    """Who or what asked for it."""
    ttl_seconds_after_finished: Annotated[int, Field(ge=3600, le=31536000)] = 604800
    """The object is deleted so long after its end. Never under an hour: what recurs is judged by it."""


class EvidenceStatus(Model):
    """Why the incident was opened."""

    signature: Signature | None = None
    """The pattern that was seen."""
    usage: Ratio | None = None
    """Share of the KV cache that was held, 0 to 1."""
    held_seconds: Seconds | None = None
    """For how long the pattern had held."""
    last_seen: Time | None = None
    """When the engine last confirmed it."""
    cause: Text = ""
    """What the engine said."""


class EngineStatus(Model):
    """One engine (data-parallel rank) that is part of it."""

    name: Id
    """The engine, as verdicts name it."""


class StepStatus(Model):
    """One try of one step."""

    name: StepName
    """The step."""
    start: Time
    """When it was begun; written before anything of it was done."""
    end: Time | None = None
    """When it ended; absent while it is under way."""
    outcome: StepOutcome | None = None
    """Done, Failed, Interrupted or WouldDo; absent while it is under way."""
    detail: Text = ""
    """What came of it, in a sentence."""


class StuckStatus(Model):
    """One stuck request as the engine lists it."""

    id: Id
    """As its client knows it."""
    age_seconds: Seconds
    """How long it had been stuck when it was listed."""
    blocks: Count
    """Blocks of KV cache that it holds."""
    client_gone: bool = False
    """Nobody waits for it any more."""
    releasable: bool = False
    """A release would free it."""
    refusal: Text | None = None
    """Why a release would not."""
    remote_engine: Id | None = None
    """The engine that it pulls its KV from, by its own id."""
    peer: Id | None = None
    """The repair unit of that engine, where it is known."""


class LeakIncidentStatus(Model):
    """The memory of the repair: whatever process goes on with it reads it from here."""

    observed_generation: Annotated[int, Field(ge=0)] = 0
    """The generation of the spec that this is about."""
    conditions: Annotated[list[Condition], Field(max_length=16, json_schema_extra=list_map("type"))] = []
    """Ready first: True once it ended well; then Waiting and Escalated."""
    phase: Word = ""
    """A summary for printing: the step under way, or the end."""
    watch: Id = ""
    """The LeakWatch that works on it."""
    unit: Id = ""
    """The repair unit."""
    pod_uid: Annotated[str, StringConstraints(max_length=64)] = ""
    """UID of the pod, as bound when it was first seen or as the restart left it."""
    container_id: Annotated[str, StringConstraints(max_length=253)] | None = None
    """The container run that it is about."""
    boot_id: Annotated[str, StringConstraints(max_length=128)] | None = None
    """The engine kit's id of the process that it is about."""
    episode: Annotated[int, Field(ge=1, le=1_000_000)] = 1
    """Which fault of that container run this is."""
    way: Way | None = None
    """How the process is ended, once that was begun."""
    created: Time | None = None
    """When it was opened or first seen."""
    evidence: EvidenceStatus = EvidenceStatus()
    """Why it was opened."""
    engines: Annotated[list[EngineStatus], Field(max_length=256, json_schema_extra=list_map("name"))] = []
    """The engines (ranks) that are part of it."""
    steps: Annotated[list[StepStatus], Field(max_length=64, json_schema_extra=ATOMIC)] = []
    """What was done, in order."""
    stuck_requests: Annotated[list[StuckStatus], Field(max_length=100, json_schema_extra=ATOMIC)] = []
    """The stuck requests, the longest stuck first, at most 100."""
    stuck_count: Count = 0
    """How many there are."""
    ending: Ending | None = None
    """How it ended; absent while it is open."""
    ended: Time | None = None
    """When it ended."""
    code: Word = ""
    """Why it ended, as one word."""
    detail: Text = ""
    """Why it ended, as a sentence."""
    wait: Text = ""
    """Why the next step does not begin; empty where nothing is in the way."""
    peer_unknown: bool = False
    """It was given back without the proof of a transfer, because no live peer was there."""
    alert_resolved: Time | None = None
    """When its alert was resolved, by Alertmanager's word. Nothing begins or ends because of it."""


class LeakIncident(Model):
    """One leak of one engine process: what was seen, what was done, how it ended.

    Made by the operator, by an alert, or by a person (`kubectl apply`, `stanch remediate`)."""

    api_version: Literal["stanch.dev/v1alpha1"] = "stanch.dev/v1alpha1"
    kind: Literal["LeakIncident"] = "LeakIncident"
    metadata: Metadata
    spec: LeakIncidentSpec
    """What it is about. Cannot be changed afterwards."""
    status: LeakIncidentStatus = LeakIncidentStatus()
    """The memory of the repair."""
