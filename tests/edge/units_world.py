"""Raw objects as an API server gives them, for tests of edge/units*.py."""

from __future__ import annotations

import json
from functools import cache
from typing import Any, Literal

from stanch.api.v1alpha1 import LeakWatch
from stanch.core.fleet import Fleet, Unit
from stanch.edge.kit_answers import Facts
from stanch.edge.units import Heard, Object, Ref, Selection, fleet_of, select
from tests.bed import manifests

NOW = 1796045600.0  # 2026-11-30T13:33:20Z
LISTED = NOW - 1
NAMESPACE = "serving"
Raw = dict[str, Any]
Role = Literal["prefill", "decode"]


def watch(name: str = "pd", **spec: object) -> LeakWatch:
    """Decodes and prefills by the bed's labels, or as `roles` says."""
    roles = [
        {"name": role, "selector": {"matchLabels": {"app": manifests.APP, "role": role}}}
        for role in ("decode", "prefill")
    ]
    return LeakWatch.model_validate(
        {
            "metadata": {"name": name, "namespace": NAMESPACE},
            "spec": {"roles": roles, **spec},
        }
    )


def by_workload(kind: str, name: str, api_version: str = "apps/v1", role: str = "decode") -> LeakWatch:
    ref = {"apiVersion": api_version, "kind": kind, "name": name}
    return watch(roles=[{"name": role, "workloadRef": ref}])


@cache
def _template(role: Role, kit: bool) -> str:
    return json.dumps(manifests.engine("", role, kit=kit))


def pod(name: str, role: Role = "decode", *, owner: Raw | None = None, kit: bool = True) -> Raw:
    """One of the bed's pods as it stands in the API server once it serves."""
    raw: Raw = json.loads(_template(role, kit))
    raw["metadata"]["name"] = name
    raw["metadata"] |= {
        "namespace": NAMESPACE,
        "uid": f"uid-{name}",
        "resourceVersion": "71",
        "annotations": {},
    }
    if owner is not None:
        raw["metadata"]["ownerReferences"] = [reference(owner)]
    raw["spec"] |= {"restartPolicy": "Always", "nodeName": "node-a"}
    raw["status"] = {
        "phase": "Running",
        "podIP": "10.201.0.7",
        "conditions": [{"type": "Ready", "status": "True"}],
        "containerStatuses": [
            {
                "name": "vllm",
                "containerID": f"containerd://{name}-1",
                "restartCount": 0,
                "started": True,
                "ready": True,
                "state": {"running": {"startedAt": "2026-11-30T13:00:00Z"}},
            }
        ],
    }
    return raw


def engine(raw: Raw) -> Raw:
    """The engine's container in the spec."""
    found: Raw = raw["spec"]["containers"][0]
    return found


def status(raw: Raw) -> Raw:
    """The status of the engine's container."""
    found: Raw = raw["status"]["containerStatuses"][0]
    return found


def arguments(raw: Raw, *args: str) -> Raw:
    """The pod with vLLM's own command line in the place of the simulated engine's."""
    engine(raw)["command"] = ["vllm", "serve", "Qwen/Qwen3-0.6B"]
    engine(raw)["args"] = list(args)
    return raw


def thing(
    kind: str, name: str, api_version: str = "apps/v1", *, owner: Raw | None = None, **more: Any
) -> Raw:
    """Any other object; `metadata` in `more` is added to its own."""
    metadata = {"name": name, "namespace": NAMESPACE, **more.pop("metadata", {})}
    if owner is not None:
        metadata["ownerReferences"] = [reference(owner)]
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata, **more}


def reference(owner: Raw) -> Raw:
    kind, name = owner["kind"], owner["metadata"]["name"]
    return {"apiVersion": owner["apiVersion"], "kind": kind, "name": name, "uid": "u", "controller": True}


def ref(obj: Raw) -> Ref:
    return Ref(obj["apiVersion"], obj["kind"], obj["metadata"]["name"])


def known(*objects: Raw) -> dict[Ref, Object | None]:
    return {ref(one): one for one in objects}


def rollout(name: str = "decode", replicas: int = 2, revision: str = "1") -> tuple[Raw, Raw]:
    """A Deployment and its newest ReplicaSet."""
    mark = {"deployment.kubernetes.io/revision": revision}
    deployment = thing("Deployment", name, metadata={"annotations": mark}, spec={"replicas": replicas})
    newest = thing(
        "ReplicaSet",
        f"{name}-{revision}",
        owner=deployment,
        metadata={"annotations": mark},
        spec={"replicas": replicas},
    )
    return deployment, newest


def lws(name: str, *, replicas: int = 2, size: int = 2, **more: Any) -> Raw:
    template = {"size": size, **{k: more.pop(k) for k in ("restartPolicy",) if k in more}}
    spec = {"replicas": replicas, "leaderWorkerTemplate": template}
    return thing("LeaderWorkerSet", name, "leaderworkerset.x-k8s.io/v1", spec=spec, **more)


def lws_pod(of: Raw, group: int, worker: int, role: Role = "decode", revision: str = "aaa") -> Raw:
    """A member of a LeaderWorkerSet's group, as its controllers label it."""
    name = of["metadata"]["name"]
    set_name = name if worker == 0 else f"{name}-{group}"
    raw = pod(f"{name}-{group}" if worker == 0 else f"{name}-{group}-{worker}", role)
    raw["metadata"]["ownerReferences"] = [reference(thing("StatefulSet", set_name))]
    raw["metadata"]["labels"] |= {
        "leaderworkerset.sigs.k8s.io/name": name,
        "leaderworkerset.sigs.k8s.io/group-index": str(group),
        "leaderworkerset.sigs.k8s.io/worker-index": str(worker),
        "leaderworkerset.sigs.k8s.io/template-revision-hash": revision,
    }
    size = of["spec"]["leaderWorkerTemplate"]["size"]
    raw["metadata"]["annotations"]["leaderworkerset.sigs.k8s.io/size"] = str(size)
    return raw


def headless(raw: Raw) -> Raw:
    """A worker as vLLM's multi-node serving has it: no server, no port, no probe."""
    arguments(raw, "--headless", "--nnodes", "2", "--node-rank", "1")
    for key in ("ports", "startupProbe", "readinessProbe"):
        engine(raw).pop(key, None)
    return raw


def facts(boot_id: str = "boot-1", **more: Any) -> Facts:
    return Facts(boot_id, **more)


def answering(**more: Any) -> Heard:
    return Heard(running=0.0, arriving=False, healthy=True, kit=facts(), **more)


def slice_of(*pods: Raw, serving: bool = True, ready: bool = True) -> Raw:
    endpoints = [
        {
            "addresses": [one["status"]["podIP"]],
            "conditions": {"ready": ready, "serving": serving, "terminating": False},
            "targetRef": {
                "kind": "Pod",
                "name": one["metadata"]["name"],
                "namespace": NAMESPACE,
                "uid": one["metadata"]["uid"],
            },
        }
        for one in pods
    ]
    return thing("EndpointSlice", "decode-x", "discovery.k8s.io/v1", endpoints=endpoints)


def look(
    pods: list[Raw],
    *objects: Raw,
    of: LeakWatch | None = None,
    heard: dict[str, Heard] | None = None,
    slices: list[Raw] | None = None,
    now: float = NOW,
) -> tuple[Selection, Fleet]:
    """The selection and the fleet of these pods."""
    lw = of or watch()
    selection = select(lw, pods, known(*objects))
    return selection, fleet_of(lw, selection, known(*objects), slices, heard or {}, listed_at=LISTED, now=now)


def only(pods: list[Raw], *objects: Raw, **more: Any) -> Unit:
    """The single unit of these pods."""
    _, fleet = look(pods, *objects, **more)
    (unit,) = fleet.units
    return unit
