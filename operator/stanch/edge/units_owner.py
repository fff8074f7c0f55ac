"""Who owns a pod, as far up as objects are known. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from stanch.api.watch import LeakWatch, WorkloadRef
from stanch.edge.units_group import lws_of
from stanch.edge.units_raw import Object, Objects, Ref, controller, group_of, text

_LONGEST = 8
# Those whose spec.replicas counts pods or groups.
_COUNTING = ("Deployment", "ReplicaSet", "StatefulSet", "LeaderWorkerSet")
# What is read whoever asks: what says how many pods there should be, and what is being replaced.
_READ = frozenset(
    {
        ("apps", "ReplicaSet"),
        ("apps", "Deployment"),
        ("apps", "StatefulSet"),
        ("leaderworkerset.x-k8s.io", "LeaderWorkerSet"),
        ("disaggregatedset.x-k8s.io", "DisaggregatedSet"),
        ("workloads.x-k8s.io", "RoleInstance"),
    }
)


def chain(pod: Object, objects: Objects) -> list[Ref]:
    """The pod's owners, the nearest first, as far as they are known; for a pod of a LeaderWorkerSet that and
    its owners, in the place of the StatefulSets between."""
    found: list[Ref] = []
    step = lws_of(pod) or controller(pod)
    while step is not None and step not in found and len(found) < _LONGEST:
        found.append(step)
        step = controller(objects.get(step))
    return found


def top(pod: Object, objects: Objects) -> Ref | None:
    """The workload whose spec.replicas counts this pod or its group: the highest such owner that was read."""
    counting = [ref for ref in chain(pod, objects) if counts(ref, objects)]
    return counting[-1] if counting else None


def counts(ref: Ref, objects: Objects) -> bool:
    return ref.kind in _COUNTING and objects.get(ref) is not None


def is_owned(pod: Object, workload: WorkloadRef, objects: Objects) -> bool:
    return any(_same(ref, ref_of(workload)) for ref in chain(pod, objects))


def ref_of(workload: WorkloadRef) -> Ref:
    return Ref(workload.api_version, workload.kind, workload.name)


def _same(ref: Ref, other: Ref) -> bool:
    """Whatever the version: an owner reference may have another one than the watch."""
    return (group_of(ref.api_version), ref.kind, ref.name) == (
        group_of(other.api_version),
        other.kind,
        other.name,
    )


def workloads(watch: LeakWatch) -> list[Ref]:
    """Those that the watch names."""
    return [ref_of(role.workload_ref) for role in watch.spec.watched if role.workload_ref is not None]


def owners_wanted(watch: LeakWatch, pods: Iterable[Object], objects: Objects) -> set[Ref]:
    """Owners that are not known yet. Unknown kinds are followed only where the watch names a workload that
    they may lead to."""
    named = workloads(watch)
    need = {ref for ref in named if (group_of(ref.api_version), ref.kind) in _READ}
    for pod in pods:
        lws = lws_of(pod)
        if lws is not None:
            # Its leaders' StatefulSet carries the newest revision.
            need.add(Ref("apps/v1", "StatefulSet", lws.name))
        owners = chain(pod, objects)
        need |= {
            ref
            for ref in owners
            if (group_of(ref.api_version), ref.kind) in _READ
            or (named and not any(_same(ref, one) for one in named))
        }
    return {ref for ref in need if ref not in objects}


def node_of(pod: Object) -> Ref | None:
    name = text(pod, "spec", "nodeName")
    return Ref("v1", "Node", name) if name else None
