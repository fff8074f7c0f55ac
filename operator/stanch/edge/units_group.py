"""Which pods die together, and how their processes are ended. Pure.

Where the facts come from (read November 2026; docs/units.md has the table):
- LeaderWorkerSet 0.9.0: api/leaderworkerset/v1/leaderworkerset_types.go (labels, restart policies),
  pkg/controllers/pod_controller.go handleRestartPolicy (a restarted container of any pod of the group, also
  of one of size 1, deletes the leader, and with it the group).
- RoleBasedGroup 0.8.0-alpha.5: api/workloads/constants/label.go,
  api/workloads/v1alpha2/roleinstance_types.go.
- Grove 0.1.0-alpha.9: operator/api/common/labels.go.
- AIBrix 0.7.0-rc.3: pkg/controller/constants/stormservice.go, api/orchestration/v1alpha1/podset_types.go.
- KubeRay: labels ray.io/cluster and ray.io/node-type.
"""

from __future__ import annotations

from dataclasses import dataclass

from stanch.core.fleet import Way
from stanch.edge.units_args import Arguments
from stanch.edge.units_raw import (
    Object,
    Objects,
    Ref,
    annotation,
    controller,
    group_of,
    label,
    name_of,
    rows,
    text,
    whole,
)

LWS_NAME = "leaderworkerset.sigs.k8s.io/name"
LWS_GROUP = "leaderworkerset.sigs.k8s.io/group-index"
LWS_WORKER = "leaderworkerset.sigs.k8s.io/worker-index"
LWS_SIZE = "leaderworkerset.sigs.k8s.io/size"
LWS_REVISION = "leaderworkerset.sigs.k8s.io/template-revision-hash"
LWS_API = "leaderworkerset.x-k8s.io/v1"
_RECREATES = ("RecreateGroupOnPodRestart", "RecreateGroupAfterStart")
_STAYS = ("None", "Default")
_RBG = "rbg.workloads.x-k8s.io/"
_ROLE_INSTANCE = ("workloads.x-k8s.io", "RoleInstance")


@dataclass(frozen=True, slots=True)
class Group:
    """Several pods that belong together, or one that is a group's only one. name: stays when its pods are
    replaced. what: as a person calls it. lead: whether the pod is the one that a restart goes to. order:
    among its pods. several: it surely has more than one pod."""

    name: str
    what: str
    lead: bool
    order: int
    several: bool


@dataclass(frozen=True, slots=True)
class Ending:
    """How a unit's processes are ended; why it is no restart in place, "" where it is one."""

    way: Way
    why: str = ""


def lws_of(pod: Object) -> Ref | None:
    """The LeaderWorkerSet of a pod, by its labels: its owners are StatefulSets and, for a worker, the
    leader's pod."""
    name = label(pod, LWS_NAME)
    return Ref(LWS_API, "LeaderWorkerSet", name) if name and label(pod, LWS_WORKER) else None


def group(pod: Object) -> Group | None:
    """The group that the pod's own labels put it in; None: it stands alone, as far as they say."""
    if lws_of(pod) is not None and label(pod, LWS_GROUP):
        index = _number(label(pod, LWS_WORKER))
        size = annotation(pod, LWS_SIZE) or ""
        name = f"{label(pod, LWS_NAME)}-{label(pod, LWS_GROUP)}"
        return Group(name, f"LeaderWorkerSet group {name}", index == 0, index, _number(size) > 1)
    if name := label(pod, f"{_RBG}role-instance-name"):
        index = _number(label(pod, f"{_RBG}component-index"))
        return Group(name, f"RoleInstance {name}", index == 0, index, _number(_size(pod)) > 1)
    if (scaling := label(pod, "grove.io/podcliquescalinggroup")) and (
        replica := label(pod, "grove.io/podcliquescalinggroup-replica-index")
    ):
        # Leader and workers are cliques of their own; which leads is only in their names.
        order = _number(label(pod, "grove.io/podclique-pod-index"))
        leads = "leader" in label(pod, "grove.io/podclique").lower() or "ldr" in label(
            pod, "grove.io/podclique"
        )
        name = f"{scaling}-{replica}"
        return Group(name, f"PodCliqueScalingGroup replica {name}", leads, order, True)
    if name := label(pod, "stormservice.orchestration.aibrix.ai/podset-name"):
        index = _number(label(pod, "stormservice.orchestration.aibrix.ai/pod-group-index"))
        return Group(name, f"PodSet {name}", index == 0, index, True)
    if name := label(pod, "ray.io/cluster"):
        head = label(pod, "ray.io/node-type") == "head"
        return Group(name, f"RayCluster {name}", head, 0 if head else 1, True)
    return None


def _size(pod: Object) -> str:
    return label(pod, f"{_RBG}component-size")


def _number(value: str) -> int:
    return int(value) if value.isascii() and value.isdigit() and len(value) < 10 else 0


def parallel_group(pod: Object, arguments: Arguments, servers: int) -> Group | None:
    """The group of a pod that no label puts into one, but whose arguments make it part of an engine over
    several pods: all such pods of the same workload with the same head."""
    owner = controller(pod)
    if owner is None or not arguments.spans_pods(servers):
        return None
    name = f"{owner.name}@{arguments.address}" if arguments.address else owner.name
    lead = not arguments.headless
    return Group(name, f"data-parallel group of {owner.kind} {owner.name}", lead, 0 if lead else 1, True)


def ending(pod: Object, container: str, arguments: Arguments, of: Group | None, objects: Objects) -> Ending:
    """How the processes of the unit that this pod leads are ended."""
    policy = _restart_policy(pod, container)
    if policy != "Always":
        return Ending(
            Way.EVICT,
            f"restartPolicy {policy}: a container that is ended is not started again (only Always does)",
        )
    recreated = None if of is None else _recreated(pod, of, objects)
    if recreated is not None:
        return recreated
    if of is not None and of.several:
        return Ending(Way.EVICT, f"its {of.what} has several pods, which must start together")
    if arguments.engine_id is not None:
        return Ending(
            Way.EVICT,
            f"its arguments fix engine_id {arguments.engine_id}: after a restart in place its peers would go "
            "on with what they know of the old process (leave engine_id out)",
        )
    return Ending(Way.IN_PLACE)


def _restart_policy(pod: Object, container: str) -> str:
    """Of the engine's container: its own where it has one (KEP-5307, Kubernetes 1.34 and later), else the
    pod's, which the API server defaults to Always."""
    for one in rows(pod, "spec", "containers"):
        if text(one, "name") == container and text(one, "restartPolicy"):
            return text(one, "restartPolicy")
    return text(pod, "spec", "restartPolicy") or "Always"


def _recreated(pod: Object, of: Group, objects: Objects) -> Ending | None:
    """GROUP where one restarted container replaces the whole group; EVICT where that cannot be told."""
    lws, owner = lws_of(pod), controller(pod)
    if lws is not None:
        found = objects.get(lws)
        policy = text(found, "spec", "leaderWorkerTemplate", "restartPolicy") or _RECREATES[0]
        source = f"LeaderWorkerSet {lws.name}"
        if found is not None and policy in _STAYS:
            return None
    elif owner is not None and (group_of(owner.api_version), owner.kind) == _ROLE_INSTANCE:
        found = objects.get(owner)
        policy = text(found, "spec", "restartPolicyConfig", "type") or text(found, "spec", "restartPolicy")
        source = f"RoleInstance {owner.name}"
        if found is not None and policy in ("", "None"):
            return None
    else:
        return None
    if found is None:
        return Ending(Way.EVICT, f"{source} cannot be read, so it is not known what it does on a restart")
    return Ending(Way.GROUP, f"{source} has {policy}: one restart replaces all pods of {of.name}")


def ordinal(pod: Object) -> int | None:
    """Of a StatefulSet's pod: the number at the end of its name."""
    tail = name_of(pod).rpartition("-")[2]
    return int(tail) if tail.isascii() and tail.isdigit() and len(tail) < 10 else None


def replicas(workload: Object) -> int:
    """How many pods or groups a workload should have; the API server's default is 1."""
    found = whole(workload, "spec", "replicas")
    return 1 if found is None else max(found, 0)
