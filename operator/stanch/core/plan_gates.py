"""Why a step may not begin, or go on, now: the laws and switches that hold everything, in their order."""

from __future__ import annotations

from stanch.core.fleet import Unit, Way
from stanch.core.history import Ending, Incident, StepName, StepOutcome
from stanch.core.plan_limits import FORGOTTEN_SECONDS, PEER_WAIT_SECONDS, Approval, Limits, Mode, Rung
from stanch.core.plan_scene import Scene, another_run, boot_id
from stanch.core.plan_types import Reason
from stanch.core.sample import Role
from stanch.core.verdict import Signature, State

Why = tuple[Reason, str]


def switched_off(scene: Scene) -> Why | None:
    """What people have said: nothing new, and nothing that is under way goes on."""
    if scene.fleet.stop is not None:
        return Reason.STOPPED, f"all action is stopped: {scene.fleet.stop}"
    if scene.limits.mode is Mode.DISABLED:
        return Reason.DISABLED, "the watch's mode is Disabled"
    return None


def standing(scene: Scene, unit: Unit, incident: Incident | None, *, restarting: bool = False) -> Why | None:
    """What holds a unit at any step. restarting: its process was ended by us, so it is unread and not ready.

    While this holds nothing is sent, not even the renewal of a cordon: serving returns within one lease.
    """
    if (off := switched_off(scene)) is not None:
        return off
    if scene.limits.paused and incident is not None:
        return Reason.PAUSED, "spec.remediation.paused is true"
    if scene.blind_fleet:
        return Reason.BLIND_FLEET, "more than half of the engines cannot be read, so nothing is done to any"
    if unit.conflict is not None:
        return Reason.CONFLICT, f"{unit.key} is selected by {unit.conflict} too: change one of both selectors"
    if unit.leaving is not None and not restarting:
        return Reason.LEAVING, f"{unit.leaving}, so nothing is done to it"
    if restarting:
        return None
    own = "" if incident is None else incident.name
    for pod in unit.pods:
        if pod.cordon is not None and not _ours(scene, pod.cordon.incident, own):
            return Reason.HAND_CORDON, f"{pod.name} is cordoned by {pod.cordon.incident or 'somebody else'}"
        if pod.container_id is None:
            return Reason.NOT_RUNNING, f"the engine's container of {pod.name} does not run"
    if (blind := scene.blind(unit)) is not None:
        return Reason.BLIND, f"cannot tell about {blind.engine}: {blind.cause}"
    if not scene.of(unit):
        return Reason.BLIND, f"no engine of {unit.key} was read"
    return None


def _ours(scene: Scene, holder: str, own: str) -> bool:
    """A cordon of this incident, or the rest of one that has ended."""
    return holder == own or any(i.name == holder and not i.open for i in scene.history.incidents)


def unapproved(scene: Scene, incident: Incident) -> Why | None:
    if scene.limits.approval is Approval.MANUAL and not incident.approved:
        return (
            Reason.APPROVAL,
            f"approval is Manual: kubectl annotate leakincident {incident.name} stanch.dev/approve=true",
        )
    return None


def peers(scene: Scene, unit: Unit, incident: Incident) -> Why | None:
    """Whether the other side of the transfers is what ails, or may still end it."""
    signature = incident.evidence.signature
    if unit.role is Role.PREFILL and signature is not Signature.NO_PROGRESS:
        for key in unit.peers:
            other = scene.units.get(key)
            patient = scene.at_work.get(key)
            if other is not None and (scene.faults(other) or (patient is not None and patient.open)):
                return (
                    Reason.PEER_WAITS,
                    f"{unit.key} may hold what {key} waits for, and {key} is repaired first",
                )
    if scene.now - incident.created > PEER_WAIT_SECONDS:
        return None
    frozen = [key for key in unit.peers if scene.frozen(key)]
    waits = [stuck.peer for stuck in incident.stuck]
    parked = signature in (Signature.PARKED_REMOTE_KV, Signature.DEFERRED_STALL)
    if frozen and ((waits and all(peer in frozen for peer in waits)) or (parked and not waits)):
        named = [key for key in frozen if key in waits] or frozen
        return (
            Reason.PEER_FROZEN,
            f"its requests wait for {', '.join(named)}, which cannot answer now: if that comes back they "
            f"end by themselves (waits {PEER_WAIT_SECONDS:.0f} s at most)",
        )
    return None


def way_out(limits: Limits, unit: Unit, incident: Incident) -> Rung | None:
    """How the unit's process is to be ended; None: nothing that is allowed could."""
    if _not_in_place(limits, unit, incident) is None:
        return Rung.RESTART
    return Rung.EVICT if Rung.EVICT in limits.steps and not unit.not_remade else None


def no_way(limits: Limits, unit: Unit, incident: Incident) -> tuple[str, str]:
    """Why there is no way out, as a sentence and as a word."""
    if Rung.EVICT in limits.steps and unit.not_remade:
        why_not = _not_in_place(limits, unit, incident)
        return (
            f"{unit.key} is not restarted in place ({why_not}), and must not be evicted: {unit.not_remade}",
            "NotRemade",
        )
    allowed = ", ".join(sorted(rung.value for rung in limits.steps)) or "nothing"
    return f"no step that is allowed here could help (remediation.steps allows {allowed})", "NothingAllowed"


def _not_in_place(limits: Limits, unit: Unit, incident: Incident) -> str | None:
    """Why its process is not to be ended by a restart in place; None: it is."""
    restarted = incident.last(StepName.RESTART)
    if restarted is not None and restarted.outcome is StepOutcome.FAILED:
        return f"that has failed: {restarted.detail}"
    if unit.way is Way.EVICT:
        return unit.way_why or "a restart would not help"
    if not unit.can_cordon:
        return "its readiness does not ask an engine kit, so it cannot be cordoned"
    return None if Rung.RESTART in limits.steps else "remediation.steps does not allow Restart"


def unheard(unit: Unit, incident: Incident) -> Why | None:
    """A pod that should have a kit and whose kit has never said its boot id cannot be commanded."""
    for pod in unit.pods:
        if boot_id(pod, incident) is None:
            return Reason.KIT_SILENT, f"the kit in {pod.name} does not answer, so it cannot be commanded"
    return None


def vanished(scene: Scene, incident: Incident, unit: Unit | None) -> Incident | None:
    """The incident's end where its pod or process is not there any more; None: it still is."""
    if unit is None or (unit.lead.uid != incident.pod_uid and incident.pod_uid):
        return incident.close(Ending.POD_GONE, f"{incident.pod_name} is gone", scene.now)
    if another_run(unit, incident):
        why = f"the engine of {incident.pod_name} has restarted by itself"
        return incident.close(Ending.RECOVERED, why, scene.now, code="Restarted")
    return None


def cleared(scene: Scene, unit: Unit, incident: Incident) -> str | None:
    """What shows that the fault is over without our doing; None: nothing does."""
    verdicts = scene.of(unit)
    seen = incident.evidence.last_seen or incident.created
    if not verdicts or any(verdict.state is not State.HEALTHY for verdict in verdicts):
        return None
    if scene.now - seen > FORGOTTEN_SECONDS:
        return "it was not seen again"
    queue = incident.evidence.signature in (Signature.QUEUE_DEADLOCK, Signature.NO_PROGRESS)
    if queue or all((verdict.usage or 0.0) < scene.limits.floor_ratio for verdict in verdicts):
        return "it serves again" if queue else "it holds nothing any more"
    return None
