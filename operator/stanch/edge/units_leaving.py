"""Whether somebody else is about to remove a pod: then nothing is done to it. Pure.

Facts, read in Kubernetes 1.35.4 unless it says otherwise:
- A Deployment carries the revision of its newest ReplicaSet in deployment.kubernetes.io/revision, and each
  ReplicaSet its own (pkg/controller/deployment/util/deployment_util.go). A rollout that got stuck has the
  condition Progressing with reason ProgressDeadlineExceeded: it removes nothing any more.
- A StatefulSet replaces pods whose controller-revision-hash is not status.updateRevision, from the highest
  ordinal down to spec.updateStrategy.rollingUpdate.partition, and none under OnDelete; scaling down removes
  those beyond spec.ordinals.start + spec.replicas (pkg/controller/statefulset/stateful_set_utils.go).
- LeaderWorkerSet 0.9.0: pods and the leaders' StatefulSet have template-revision-hash; a group whose hash is
  not that StatefulSet's is replaced, but for indices below its partition; those at spec.replicas and beyond
  go (pkg/controllers/leaderworkerset_controller.go). What its own StatefulSets do between is its doing.
- DisaggregatedSet (LeaderWorkerSet 0.9.0 and later): an old revision's LeaderWorkerSet has the annotation
  initial-replicas once its rollout has begun, and is scaled down to nothing
  (pkg/controllers/disaggregatedset/executor.go).
- The eviction API, preemption, taints and a node's shutdown set the pod's condition DisruptionTarget, which
  is taken back after two minutes where nothing came of it (pkg/controller/disruption/disruption.go).
- `kubectl drain` first makes the node unschedulable; the taint node.kubernetes.io/unschedulable that follows
  says when (pkg/controller/util/node/controller_utils.go SwapNodeControllerTaint).
"""

from __future__ import annotations

from collections.abc import Mapping

from stanch.edge.units_group import LWS_GROUP, LWS_REVISION, lws_of, ordinal, replicas
from stanch.edge.units_owner import chain, node_of
from stanch.edge.units_raw import (
    Object,
    Objects,
    Ref,
    annotation,
    condition,
    dig,
    label,
    rows,
    table,
    text,
    unix,
    whole,
)

# A node that has been unschedulable for longer is kept so, and its pods with it: no drain takes as long.
DRAIN_SECONDS = 1800.0
_REVISION = "deployment.kubernetes.io/revision"
_INITIAL = "disaggregatedset.x-k8s.io/initial-replicas"
_UNSCHEDULABLE = "node.kubernetes.io/unschedulable"
# Taints by which a node's remover marks it: cluster-autoscaler/utils/taints/taints.go, and Karpenter 1.x
# (docs, Disruption); before 1.0 that was karpenter.sh/disruption.
_REMOVERS = {
    "ToBeDeletedByClusterAutoscaler": "the cluster autoscaler",
    "karpenter.sh/disrupted": "Karpenter",
    "karpenter.sh/disruption": "Karpenter",
}


def leaving(pod: Object, objects: Objects, active: Mapping[Ref, int], now: float) -> str | None:
    """Who is about to remove the pod, as the beginning of "... removes it"; None: nobody that is known of.

    active: how many living pods of each nearest owner there are.
    """
    disruption = condition(pod, "DisruptionTarget")
    if disruption.get("status") == "True":
        return f"a disruption ({text(disruption, 'reason') or 'no reason given'})"
    return _node(pod, objects, now) or _workload(pod, objects, active)


def _node(pod: Object, objects: Objects, now: float) -> str | None:
    ref = node_of(pod)
    node = None if ref is None else objects.get(ref)
    if ref is None or node is None:
        return None
    if dig(node, "metadata", "deletionTimestamp") is not None:
        return f"the deletion of node {ref.name}"
    since = None
    for taint in rows(node, "spec", "taints"):
        key = text(taint, "key")
        if key in _REMOVERS:
            return f"{_REMOVERS[key]}, which takes node {ref.name} away,"
        if key == _UNSCHEDULABLE:
            since = unix(taint.get("timeAdded"))
    if dig(node, "spec", "unschedulable") is True and (since is None or now - since < DRAIN_SECONDS):
        return f"the drain of node {ref.name}"
    return None


def _workload(pod: Object, objects: Objects, active: Mapping[Ref, int]) -> str | None:
    if lws_of(pod) is not None:
        return _lws(pod, objects)
    owners = chain(pod, objects)
    owner = None if not owners else objects.get(owners[0])
    if owner is None:
        return None
    if owners[0].kind == "StatefulSet":
        return _stateful(pod, owners[0], owner)
    if owners[0].kind != "ReplicaSet":
        return None
    deployment = objects.get(owners[1]) if len(owners) > 1 and owners[1].kind == "Deployment" else None
    if deployment is not None and _is_old(owner, deployment):
        return f"a rollout of Deployment {owners[1].name}"
    if active.get(owners[0], 0) > replicas(owner):
        return f"a scale-down of {owners[-1].kind} {owners[-1].name}"
    return None


def _is_old(replica_set: Object, deployment: Object) -> bool:
    """Whether the Deployment is replacing this ReplicaSet, and has not got stuck or been paused at it."""
    newest, own = annotation(deployment, _REVISION), annotation(replica_set, _REVISION)
    if newest is None or own is None or newest == own or dig(deployment, "spec", "paused") is True:
        return False
    return condition(deployment, "Progressing").get("reason") != "ProgressDeadlineExceeded"


def _stateful(pod: Object, ref: Ref, owner: Object) -> str | None:
    number = ordinal(pod)
    if number is None:
        return None
    first = whole(owner, "spec", "ordinals", "start") or 0
    if number >= first + replicas(owner):
        return f"a scale-down of StatefulSet {ref.name}"
    strategy = table(owner, "spec", "updateStrategy")
    newest, own = text(owner, "status", "updateRevision"), label(pod, "controller-revision-hash")
    from_here = first + (whole(strategy, "rollingUpdate", "partition") or 0)
    if newest and own and newest != own and strategy.get("type") != "OnDelete" and number >= from_here:
        return f"a rollout of StatefulSet {ref.name}"
    return None


def _lws(pod: Object, objects: Objects) -> str | None:
    owners = chain(pod, objects)
    lws = objects.get(owners[0])
    index = label(pod, LWS_GROUP)
    if lws is None or not (index.isascii() and index.isdigit() and len(index) < 10):
        return None
    if int(index) >= replicas(lws):
        return f"a scale-down of LeaderWorkerSet {owners[0].name}"
    if annotation(lws, _INITIAL) is not None and len(owners) > 1 and owners[1].kind == "DisaggregatedSet":
        return f"a rollout of DisaggregatedSet {owners[1].name}"
    leaders = objects.get(Ref("apps/v1", "StatefulSet", owners[0].name))
    newest, own = label(leaders, LWS_REVISION), label(pod, LWS_REVISION)
    kept = whole(lws, "spec", "rolloutStrategy", "rollingUpdateConfiguration", "partition") or 0
    if newest and own and newest != own and int(index) >= kept:
        return f"a rollout of LeaderWorkerSet {owners[0].name}"
    return None
