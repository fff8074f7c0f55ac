"""Pods of simulated engines and what belongs to them, as objects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from stanch_connector.contract import DEFAULT_ANNOTATIONS, ROUTE_READY
from tests.bed import image

Object = dict[str, Any]
Role = Literal["prefill", "decode"]
PORT = 8000
# What says no says it at once. A machine that is busy with other tests answers late, which is no no.
ANSWER_SECONDS = 20
APP = "engines"
# On every pod of a LeaderWorkerSet.
LWS_NAME = "leaderworkerset.sigs.k8s.io/name"


def engine(
    name: str,
    role: Role,
    arguments: Sequence[str] = (),
    kit: bool = True,
    labels: Mapping[str, str] | None = None,
) -> Object:
    """The pod of one simulated engine. arguments: more of the engine's own flags. kit: without, it has
    neither the annotations nor the kit's readiness, as an engine without Stanch."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": _labels(role, labels)},
        "spec": _pod(role, arguments, kit),
    }


def deployment(
    name: str, role: Role, replicas: int, arguments: Sequence[str] = (), kit: bool = True
) -> Object:
    """So many of them, by a Deployment."""
    labels = _labels(role, {"deployment": name})
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": _pod(role, arguments, kit)},
        },
    }


def leader_worker_set(name: str, role: Role, replicas: int, arguments: Sequence[str] = ()) -> Object:
    """So many groups of two that restart as one: a leader that serves as any other engine, and a worker that
    serves nothing, as a `--headless` one of vLLM."""
    labels = _labels(role, None)
    worker = _pod(role, (), kit=False)
    container = worker["containers"][0]
    # It ends at once when it is told to; the first process of a container ignores signals otherwise.
    container["command"] = ["python3", "-c", "import signal as s; s.sigwait({s.SIGTERM})"]
    for key in ("ports", "startupProbe", "readinessProbe"):
        del container[key]
    return {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "leaderWorkerTemplate": {
                "size": 2,
                "restartPolicy": "RecreateGroupOnPodRestart",
                "leaderTemplate": {"metadata": {"labels": labels}, "spec": _pod(role, arguments, True)},
                "workerTemplate": {"metadata": {"labels": labels}, "spec": worker},
            },
        },
    }


def service(role: Role) -> Object:
    """The Service of all engines of a role, named by it."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": role},
        "spec": {"selector": _labels(role, None), "ports": [{"port": PORT}]},
    }


def disagg_deployment(name: str, prefill: int = 1, decode: int = 1, **spec: Any) -> Object:
    """A DisaggDeployment of simulated engines, whose image starts them by `vllm serve` and has the kit, too
    (the operator's STANCH_KIT_IMAGE is image.engine_name(), with STANCH_KIT_PULL_POLICY Never). Quick to
    begin and to end, as those above."""
    container = {
        "name": "vllm",
        "imagePullPolicy": "Never",
        "resources": {"requests": {"cpu": "10m", "memory": "32Mi"}},
        "startupProbe": {"periodSeconds": 1, "timeoutSeconds": ANSWER_SECONDS},
        "readinessProbe": {"periodSeconds": 1, "timeoutSeconds": ANSWER_SECONDS, "failureThreshold": 1},
        "lifecycle": {"preStop": {"sleep": {"seconds": 1}}},
    }
    template = {"spec": {"terminationGracePeriodSeconds": 3, "containers": [container]}}
    roles = [
        {
            "name": role,
            "replicas": replicas,
            "engine": {"image": image.engine_name()},
            "template": template,
        }
        for role, replicas in (("prefill", prefill), ("decode", decode))
    ]
    return {
        "apiVersion": "stanch.dev/v1alpha1",
        "kind": "DisaggDeployment",
        "metadata": {"name": name},
        "spec": {"model": {"uri": "tiny"}, "roles": roles, **spec},
    }


def _labels(role: Role, more: Mapping[str, str] | None) -> dict[str, str]:
    return {"app": APP, "role": role, **(more or {})}


def _pod(role: Role, arguments: Sequence[str], kit: bool) -> Object:
    command = ["python3", "-m", "stanch.edge.demo.engine", f"--role={role}", "--name=$(POD_NAME)"]
    command += ["--host=0.0.0.0", f"--port={PORT}", "--advertise=$(POD_IP)", *arguments]
    container: Object = {
        "name": "vllm",
        "image": image.engine_name(),
        "imagePullPolicy": "Never",
        "command": command,
        "env": [_field("POD_NAME", "metadata.name"), _field("POD_IP", "status.podIP")],
        "ports": [{"name": "http", "containerPort": PORT}],
        "startupProbe": {**_probe("/health"), "failureThreshold": 120},
        "readinessProbe": {**_probe(ROUTE_READY if kit else "/health"), "failureThreshold": 1},
        "resources": {"requests": {"cpu": "10m", "memory": "32Mi"}},
    }
    # An engine in a test has nobody to say goodbye to.
    spec: Object = {
        "containers": [container],
        "terminationGracePeriodSeconds": 2,
        "enableServiceLinks": False,
    }
    if kit:
        directory, _, file = DEFAULT_ANNOTATIONS.rpartition("/")
        items = [{"path": file, "fieldRef": {"fieldPath": "metadata.annotations"}}]
        spec["volumes"] = [{"name": "podinfo", "downwardAPI": {"items": items}}]
        container["volumeMounts"] = [{"name": "podinfo", "mountPath": directory, "readOnly": True}]
    return spec


def _field(name: str, path: str) -> Object:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def _probe(path: str) -> Object:
    return {"httpGet": {"path": path, "port": PORT}, "periodSeconds": 1, "timeoutSeconds": ANSWER_SECONDS}
