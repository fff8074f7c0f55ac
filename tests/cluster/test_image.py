"""Stanch's image in pods as its chart runs it: no root, nothing writable, nothing else listening."""

from __future__ import annotations

from typing import Any

import pytest

from tests.bed.cluster import Namespace, wait_for

pytestmark = pytest.mark.cluster


def _restricted(namespace: Namespace) -> None:
    namespace.cluster.kubectl(
        "label", "namespace", namespace.name, "pod-security.kubernetes.io/enforce=restricted"
    )


def _pod(name: str, image: str, uid: int | None, *arguments: str) -> dict[str, Any]:
    """A pod that runs to its end. uid: None for the image's own user. arguments: else the image's own."""
    context = {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    container: dict[str, Any] = {"name": "a", "image": image, "imagePullPolicy": "Never"}
    container |= {"securityContext": context, "args": list(arguments)}
    pod_context: dict[str, Any] = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    if uid is not None:
        pod_context |= {"runAsUser": uid, "runAsGroup": uid}
    spec = {
        "containers": [container],
        "securityContext": pod_context,
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def _said(namespace: Namespace, pod: str) -> str:
    """What a pod has said once it has ended well."""

    def ended() -> str | None:
        found = namespace.pod(pod)
        phase = None if found is None else found["status"].get("phase")
        return phase if phase in ("Succeeded", "Failed") else None

    phase = wait_for(f"the end of pod {pod}", ended, 120)
    said = namespace.kubectl("logs", pod)
    assert phase == "Succeeded", said
    return said


def test_the_command_line_runs_as_the_images_user_and_as_any_other(
    namespace: Namespace, stanch_image: str
) -> None:
    _restricted(namespace)
    namespace.apply(
        _pod("version", stanch_image, None, "--version"),
        _pod("policy", stanch_image, 1_000_660_000, "policy"),
    )
    assert "stanch" in _said(namespace, "version")
    assert "transferFaultSeconds: 600" in _said(namespace, "policy")
