"""What a node, a ReplicaSet, a kubelet and the endpoint controller would write of a stand-in engine."""

from __future__ import annotations

import time

from bench.operator_api import Object
from bench.operator_engine import Engine

NAMESPACE = "bench"
NODE, NODE_ADDRESS, KUBELET_PORT = "node1", "10.203.255.1", 10250


def node() -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": NODE},
        "status": {
            "conditions": [{"type": "Ready", "status": "True"}],
            "addresses": [{"type": "InternalIP", "address": NODE_ADDRESS}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": KUBELET_PORT}},
        },
    }


def owner(kind: str, owner: Object) -> Object:
    meta = owner["metadata"]
    return {
        "apiVersion": "apps/v1",
        "kind": kind,
        "name": meta["name"],
        "uid": meta["uid"],
        "controller": True,
    }


def status(engine: Engine) -> Object:
    ready = engine.ready
    conditions = [("PodScheduled", True), ("Initialized", True), ("ContainersReady", ready), ("Ready", ready)]
    started = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(engine.started))
    return {
        "phase": "Running",
        "podIP": engine.address,
        "podIPs": [{"ip": engine.address}],
        "conditions": [{"type": kind, "status": str(holds)} for kind, holds in conditions],
        "containerStatuses": [
            {
                "name": "vllm",
                "image": "stanch.test/bench",
                "imageID": "",
                "containerID": engine.container_id,
                "restartCount": engine.number - 1,
                "started": True,
                "ready": ready,
                "state": {"running": {"startedAt": started}},
            }
        ],
    }


def endpoint(engine: Engine) -> Object:
    return {
        "addresses": [engine.address],
        "conditions": {"ready": engine.ready, "serving": engine.ready, "terminating": False},
        "nodeName": NODE,
        "targetRef": {"kind": "Pod", "name": engine.name, "namespace": NAMESPACE, "uid": engine.uid},
    }
