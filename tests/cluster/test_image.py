"""Stanch's image in pods as its chart runs it: no root, nothing writable, nothing else listening."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stanch.edge.render.kit import KitOptions, inject
from tests.bed import image
from tests.bed.cluster import Cluster, Namespace, Object, is_ready, wait_for
from tests.cluster.installed import ACCOUNT, NAMESPACE, Installed

pytestmark = pytest.mark.cluster
FACTS = Path(__file__).with_name("image_facts.py").read_text()
LISTENING = """
import pathlib
texts = [pathlib.Path("/proc/net", name).read_text() for name in ("tcp", "tcp6")]
rows = [line.split() for text in texts for line in text.splitlines()]
print(sorted({int(row[1].rpartition(":")[2], 16) for row in rows if row[3] == "0A"}))
"""
PORT = 8080
# As OpenShift gives them out: no line of /etc/passwd has it.
SOME_USER = 1_000_660_000


def _restricted(namespace: Namespace) -> None:
    namespace.cluster.kubectl(
        "label", "namespace", namespace.name, "pod-security.kubernetes.io/enforce=restricted"
    )


def _pod(name: str, image: str, uid: int | None = None, **more: Any) -> Object:
    """As pod-security `restricted` wants it, and with a root that cannot be written. uid: None for the
    image's own user. more: of the container."""
    closed = {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    container = {"name": "a", "image": image, "imagePullPolicy": "Never", "securityContext": closed, **more}
    user = {} if uid is None else {"runAsUser": uid, "runAsGroup": uid}
    spec = {
        "containers": [container],
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}, **user},
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 40,
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def _said(namespace: Namespace, pod: str) -> str:
    """What a pod has said once it has ended well."""

    def ended() -> str | None:
        found = namespace.pod(pod)
        phase = None if found is None else found["status"].get("phase")
        return phase if phase in ("Succeeded", "Failed") else None

    phase = wait_for(f"the end of pod {pod}", ended, 240)
    said = namespace.kubectl("logs", pod)
    assert phase == "Succeeded", said
    return said


def test_the_command_line_runs_as_the_images_user_and_as_any_other(
    namespace: Namespace, stanch_image: str
) -> None:
    _restricted(namespace)
    namespace.apply(
        _pod("version", stanch_image, args=["--version"]),
        _pod("policy", stanch_image, SOME_USER, args=["policy"]),
    )
    assert "stanch" in _said(namespace, "version")
    assert "transferFaultSeconds: 600" in _said(namespace, "policy")


def test_all_of_it_loads_and_nothing_can_be_written(namespace: Namespace, stanch_image: str) -> None:
    _restricted(namespace)
    namespace.apply(_pod("facts", stanch_image, SOME_USER, command=["python", "-c", FACTS]))
    found = json.loads(_said(namespace, "facts"))
    print(f"stanch --help: {found['help_seconds']:.2f} s; modules of ours: {found['modules']}")
    assert found["uid"] == SOME_USER
    assert tuple(found["python"]) >= (3, 11)
    assert found["modules"] > 150
    assert found["broken"] == {}
    assert found["written"] == []
    assert found["programs"] == {"stanch": "/opt/venv/bin/stanch", "python": "/opt/venv/bin/python"}
    assert found["kit"] == "/opt/stanch/stanch_connector/__init__.py"
    assert found["plugins"] == ["stanch_connector.plugin:register"]


@pytest.fixture
def operator(stanch: Installed, stanch_image: str) -> Iterator[str]:
    """A pod of the operator under its account."""
    name = "stanch-image-test"
    address = stanch.cluster
    environment = {"STANCH_NAMESPACE": NAMESPACE, "STANCH_IDENTITY": name}
    one = _pod(
        name,
        stanch_image,
        env=[{"name": key, "value": value} for key, value in environment.items()],
        readinessProbe={
            "httpGet": {"path": "/readyz", "port": PORT},
            "periodSeconds": 1,
            "timeoutSeconds": 20,
        },
    )
    one["spec"] |= {"serviceAccountName": ACCOUNT, "automountServiceAccountToken": True}
    address.kubectl("label", "namespace", NAMESPACE, "pod-security.kubernetes.io/enforce=restricted")
    address.apply(one, namespace=NAMESPACE)
    yield name
    address.kubectl("delete", "pod", name, f"--namespace={NAMESPACE}", "--ignore-not-found", "--now")
    address.kubectl("label", "namespace", NAMESPACE, "pod-security.kubernetes.io/enforce-")


def test_the_operator_acts_and_only_its_port_is_open(cluster: Cluster, operator: str) -> None:
    path = f"/api/v1/namespaces/{NAMESPACE}/pods/{operator}"

    def ready() -> bool:
        found = cluster.get(path)
        assert found is not None
        states = [one.get("state", {}) for one in found["status"].get("containerStatuses", [])]
        assert not any("terminated" in state for state in states), _log(cluster, operator)
        return is_ready(found)

    wait_for("the operator Ready", ready, 120)
    lease = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/stanch"
    wait_for(
        "its Lease", lambda: (cluster.get(lease) or {}).get("spec", {}).get("holderIdentity") == operator
    )
    listening = _in(cluster, operator, "python", "-c", LISTENING)
    assert json.loads(listening) == [PORT]
    # And it ends as it is told to.
    _in(cluster, operator, "python", "-c", "import os, signal; os.kill(1, signal.SIGTERM)")

    def ended() -> int | None:
        found = cluster.get(path)
        assert found is not None
        (state,) = (one["state"] for one in found["status"]["containerStatuses"])
        code: int | None = state.get("terminated", {}).get("exitCode")
        return None if code is None else code + 1

    assert wait_for("its end", ended, 90) == 1, _log(cluster, operator)


def _in(cluster: Cluster, pod: str, *command: str) -> str:
    return cluster.kubectl("exec", pod, f"--namespace={NAMESPACE}", "--", *command)


def _log(cluster: Cluster, pod: str) -> str:
    return cluster.kubectl("logs", pod, f"--namespace={NAMESPACE}", "--tail=50")


def test_as_an_init_container_of_any_user_it_puts_the_kit_into_an_engine(
    namespace: Namespace, stanch_image: str
) -> None:
    _restricted(namespace)
    one = _pod(
        "engine", image.engine_name(), SOME_USER, command=["vllm", "serve", "some/model", "--port=8000"]
    )
    one["spec"]["restartPolicy"] = "Always"
    closed = one["spec"]["containers"][0]["securityContext"]
    done = inject(one, KitOptions(stanch_image, "Never"))
    assert done.changed, done.problems
    for init in done.template["spec"]["initContainers"]:
        # What the pod security standard asks of every container; those of a pod that runs there have it.
        init["securityContext"] = {**closed, **init.get("securityContext", {})}
    namespace.apply(done.template)
    namespace.wait_ready("engine")
    ask = "import stanch_connector; print(stanch_connector.__file__)"
    said = namespace.kubectl("exec", "engine", "--container=a", "--", "python3", "-c", ask).strip()
    assert said == "/opt/stanch/stanch_connector/__init__.py"
    state = "import urllib.request as u; print(u.urlopen('http://127.0.0.1:8000/stanch/v1/state').status)"
    assert namespace.kubectl("exec", "engine", "--container=a", "--", "python3", "-c", state).strip() == "200"
