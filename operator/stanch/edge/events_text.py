"""What Events say, on the pod and on the watch. Pure; posting and counting them is the cluster room's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from stanch.api.names import API_VERSION, LEAK_INCIDENT, LEAK_WATCH
from stanch.core.history import Ending, Incident, Step, StepName, StepOutcome
from stanch.core.plan_conditions import Said
from stanch.core.report import percent
from stanch.edge.changes import Change, Kind
from stanch.edge.text import one_line

# Bounds of events.k8s.io/v1: pkg/apis/core/validation/events.go of Kubernetes 1.35.
NOTE_CHARS: Final = 1024
_REASON_CHARS: Final = 128

POD: Final = "Pod"
WATCH: Final = LEAK_WATCH.kind


@dataclass(frozen=True, slots=True)
class EventText:
    """One Event, as Cluster.event takes it. kind, name, uid: what it is about, in the watch's namespace."""

    kind: str
    name: str
    uid: str
    warning: bool
    reason: str
    action: str
    note: str

    def regarding(self, namespace: str) -> dict[str, str]:
        """The object that it is about, as an Event names it."""
        return {
            "apiVersion": "v1" if self.kind == POD else API_VERSION,
            "kind": self.kind,
            "namespace": namespace,
            "name": self.name,
            "uid": self.uid,
        }


# What a step that was done is called; one that is not here is told by the next one or by the end.
_DONE: Final = {
    StepName.CONFIRM: ("LeakConfirmed", True),
    StepName.RELEASE: ("Released", False),
    StepName.CORDON: ("Cordoned", False),
    StepName.DRAIN: ("Drained", False),
    StepName.CAPTURE: ("Captured", False),
    StepName.RESTART: ("Restarted", False),
    StepName.EVICT: ("Evicted", False),
    StepName.VERIFY: ("Verified", False),
    StepName.UNCORDON: ("Uncordoned", False),
}
# Told when they are begun: what they do lasts, and serving may suffer meanwhile.
_BEGUN: Final = {StepName.RESTART: "Restarting", StepName.EVICT: "Evicting"}
_GOOD: Final = frozenset(
    {Ending.RESOLVED, Ending.RECOVERED, Ending.DUPLICATE, Ending.POD_GONE, Ending.WOULD_DO}
)
# Conditions of a watch for which True is good.
_GOOD_WHEN_TRUE: Final = frozenset({"Ready"})


def of_change(change: Change, watch: str, watch_uid: str) -> tuple[EventText, ...]:
    """The Events of one change of an incident. The pod has them all, the watch what concerns all of it."""
    incident, step = change.incident, change.step
    if change.kind is Kind.BEGUN and step is not None and step.name in _BEGUN:
        return (_on_pod(incident, False, _BEGUN[step.name], step.name.value, _begun(incident, step)),)
    if change.kind is Kind.ENDED and step is not None:
        return _of_step(incident, step, watch, watch_uid)
    if change.kind is Kind.WAITS:
        reason, _, message = incident.wait.partition(": ")
        text = _on_pod(incident, True, reason, "Wait", message)
        return text, _on_watch(text, watch, watch_uid)
    if change.kind is Kind.CLOSED and incident.ending is not None:
        text = _on_pod(incident, incident.ending not in _GOOD, incident.ending.value, "End", _end(incident))
        return text, _on_watch(text, watch, watch_uid)
    return ()


def _of_step(incident: Incident, step: Step, watch: str, watch_uid: str) -> tuple[EventText, ...]:
    name = step.name.value
    if step.outcome is StepOutcome.DONE and step.name in _DONE:
        if step.name is StepName.CONFIRM and not incident.open and step is incident.steps[-1]:
            return ()  # asked once more, the engine has said that nothing is stuck, and the end tells that
        reason, warning = _DONE[step.name]
        text = _on_pod(incident, warning, reason, name, _done(incident, step))
        # The watch says that there is a leak, and how it ended; the steps between are the pod's.
        return (text, _on_watch(text, watch, watch_uid)) if step.name is StepName.CONFIRM else (text,)
    if step.outcome in (StepOutcome.FAILED, StepOutcome.INTERRUPTED):
        return (_on_pod(incident, True, f"{name}{step.outcome.value}", name, step.detail),)
    return ()


def _begun(incident: Incident, step: Step) -> str:
    how = "restarting its container in place" if step.name is StepName.RESTART else "evicting it"
    return f"{how}, because {_evidence(incident)}"


def _done(incident: Incident, step: Step) -> str:
    if step.name is StepName.CONFIRM:
        where = f"{LEAK_INCIDENT.singular} {incident.name}"
        said = (_evidence(incident), incident.evidence.cause or step.detail, where)
        return "; ".join(part for part in said if part)
    if step.name is StepName.CAPTURE and incident.stuck:
        oldest = sorted(incident.stuck, key=lambda one: -one.age_seconds)
        ids = ", ".join(one.id for one in oldest)
        return f"{len(oldest)} stuck request{'' if len(oldest) == 1 else 's'}: {ids}"
    return step.detail or step.name.value


def _evidence(incident: Incident) -> str:
    """ "HeldIdle, 74 % of the KV cache held, for 75 s"."""
    evidence = incident.evidence
    words = ["a leak" if evidence.signature is None else evidence.signature.value]
    if evidence.usage is not None:
        words.append(f"{percent(evidence.usage)} of the KV cache held")
    if evidence.held_seconds is not None:
        words.append(f"for {evidence.held_seconds:.0f} s")
    return ", ".join(words)


def _end(incident: Incident) -> str:
    would = [step.name.value for step in incident.steps if step.outcome is StepOutcome.WOULD_DO]
    return f"{incident.detail} ({', '.join(would)})" if would else incident.detail


def _on_pod(incident: Incident, warning: bool, reason: str, action: str, note: str) -> EventText:
    note = _cut(note)
    return EventText(
        POD,
        incident.pod_name,
        incident.pod_uid,
        warning,
        reason[:_REASON_CHARS],
        action,
        note,
    )


def _on_watch(text: EventText, watch: str, watch_uid: str) -> EventText:
    return replace(text, kind=WATCH, name=watch, uid=watch_uid, note=_cut(f"{text.name}: {text.note}"))


def of_conditions(
    before: Sequence[Said] | None, said: Sequence[Said], watch: str, watch_uid: str
) -> tuple[EventText, ...]:
    """The Events of the watch's conditions that turned. Leaks have Events of their own.

    before: None at the first turn, which tells only what is not as it should be."""
    known = None if before is None else {one.type: one.true for one in before}
    found = []
    for one in said:
        good = one.true is (one.type in _GOOD_WHEN_TRUE)
        turned = not good if known is None else known.get(one.type, not one.true) is not one.true
        if turned and one.type != "Leaking":
            text = f"{one.type} is {one.true}: {one.message or one.reason}"
            reason = one.reason if not good else one.type if one.true else f"{one.type}Over"
            found.append(
                EventText(WATCH, watch, watch_uid, not good, reason[:_REASON_CHARS], "Watch", _cut(text))
            )
    return tuple(found)


def _cut(text: str) -> str:
    # An API server counts characters; what comes from engines may hold anything.
    line = one_line(text, NOTE_CHARS + 1)
    return line if len(line) <= NOTE_CHARS else f"{line[: NOTE_CHARS - 3]}..."
