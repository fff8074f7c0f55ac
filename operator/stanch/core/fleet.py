"""What the planner knows of the pods of one watch: facts, read once per turn. Nothing here decides.

A repair unit is every pod that dies together; budgets, claims and incidents are by unit. What could not be
read is None, never a default (law 1).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from stanch.core.sample import Role


class Capability(str, Enum):
    """How a pod can be taken out of the Services without being deleted."""

    READINESS = "Readiness"  # its readiness probe asks the kit
    NONE = "None"


class Way(str, Enum):
    """How the processes of a unit are ended, by what its owners do then."""

    IN_PLACE = "InPlace"  # one pod, restartPolicy Always, no fixed engine id: the container restarts
    GROUP = "Group"  # one container's restart replaces the whole group (RecreateGroupOnPodRestart)
    EVICT = "Evict"  # several pods that die together, or a pod that a restart would not help


@dataclass(frozen=True, slots=True)
class CordonMark:
    """The cordon annotation as the pod has it. beat: the Unix second of its last renewal."""

    incident: str
    beat: int


@dataclass(frozen=True, slots=True)
class CommandOutcome:
    """What the kit says of a command. state: accepted, running, done, refused, failed, ignored."""

    state: str
    reason: str = ""

    @property
    def open(self) -> bool:
        return self.state in ("accepted", "running")


@dataclass(frozen=True, slots=True)
class Kit:
    """What the kit in the pod says of itself. cordoned_by: the incident whose lease lives in the engine."""

    boot_id: str
    cordoned_by: str | None = None
    draining: bool = False
    outcomes: Mapping[str, CommandOutcome] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Pod:
    """One pod with an engine's port.

    container_id: of the engine's container, None while none runs. ready: the pod's own condition.
    healthy: the container runs and the engine answers /health; a cordoned pod is healthy and not ready.
    terminating: it has a deletion timestamp. leaving: why another controller is about to remove it (a
    rollout, a node drain, a scale-down), as the end of "... removes it".
    routed: whether a ready endpoint of a Service points at it. arriving: whether its request counter moved
    between the last two readings. running: requests under way, of all its ranks.
    lock: the incident in its annotation. command: the id of the command in its annotation.
    kit: None where no kit answers. version: the resourceVersion of the list.
    not_injected: why it has no kit, although its label asks for one; "" where it has, or does not ask.
    """

    name: str
    uid: str
    container_id: str | None
    ready: bool
    healthy: bool
    terminating: bool = False
    leaving: str | None = None
    routed: bool | None = None
    arriving: bool | None = None
    running: float | None = None
    lock: str | None = None
    cordon: CordonMark | None = None
    command: str | None = None
    capability: Capability = Capability.READINESS
    kit: Kit | None = None
    version: str = ""
    not_injected: str = ""

    @property
    def serving(self) -> bool:
        return self.ready and not self.terminating

    def cordon_lives(self, incident: str, now: float, lease_seconds: float) -> bool:
        """Whether this incident's cordon was renewed within its lease."""
        mark = self.cordon
        return mark is not None and mark.incident == incident and now - mark.beat <= lease_seconds


@dataclass(frozen=True, slots=True)
class Unit:
    """One repair unit.

    key: stays the same when its pods are replaced under the same name (namespace/name of the pod or group).
    pods: those with an engine's port, the first is the one that a restart goes to. engines: as the verdicts
    name them. way_why: why it is no restart in place. not_remade: why an evicted pod of it would not be made
    anew, and what a person can do, as a sentence; "" where it would be. transfer_ids: by which the connectors
    of its peers know its engines, as far as that is known. peers: keys of the units on the other side of its
    KV transfers.
    conflict: another watch that selects it too.
    """

    key: str
    role: Role
    pods: tuple[Pod, ...]
    engines: tuple[str, ...]
    deployment: str = ""
    way: Way = Way.IN_PLACE
    way_why: str = ""
    not_remade: str = ""
    transfer_ids: tuple[str, ...] = ()
    peers: tuple[str, ...] = ()
    conflict: str | None = None

    @property
    def lead(self) -> Pod:
        return self.pods[0]

    @property
    def available(self) -> bool:
        return all(pod.serving for pod in self.pods)

    @property
    def leaving(self) -> str | None:
        """Why it will go by itself."""
        for pod in self.pods:
            if pod.leaving is not None:
                return f"{pod.leaving} removes {pod.name}"
            if pod.terminating:
                return f"{pod.name} is being deleted"
        return None

    @property
    def can_cordon(self) -> bool:
        return all(pod.capability is Capability.READINESS for pod in self.pods)

    @property
    def running(self) -> float | None:
        """Requests under way; None where one of its pods does not say."""
        counts = [pod.running for pod in self.pods]
        return None if None in counts else sum(count for count in counts if count is not None)


@dataclass(frozen=True, slots=True)
class Fleet:
    """All units of one watch in one turn, after its pods were listed.

    listed_at: when that list was made; claims read after it are too new to be judged by it (law 4).
    desired: how many units each role should have, where its workload says so; missing ones are unavailable.
    stop: why all action is stopped for the whole cluster, None where it is not.
    reset: the value of the watch's annotation that resets the breaker.
    """

    units: tuple[Unit, ...]
    listed_at: float
    desired: Mapping[Role, int] = field(default_factory=dict)
    stop: str | None = None
    reset: str | None = None

    def unit(self, key: str) -> Unit | None:
        return next((unit for unit in self.units if unit.key == key), None)
