"""The LeaderWorkerSet controller itself, as a process beside the bed's API server.

    with LeaderWorkerSets(cluster, tmp_path):
        namespace.apply(manifests.leader_worker_set("decode", ...))

It sees only its own kinds and pods: its webhooks are asked for nothing else, so no other test notices it.
"""

from __future__ import annotations

import base64
import shutil
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Any

import yaml

from tests.bed import build, pki
from tests.bed.cluster import Cluster, KubectlError, Object, wait_for
from tests.bed.manifests import LWS_NAME
from tests.bed.place import BedError
from tests.engine import leash
from tests.engine.processes import free_ports, tail

_START_SECONDS = 60.0
_API = "leaderworkerset.x-k8s.io/v1"
_WEBHOOKS = "stanch-test-lws"
# pkg/webhooks of LeaderWorkerSet 0.9.0: the defaults of a set, and the labels and variables of its pods.
_PATHS = {
    "leaderworkersets": "/mutate-leaderworkerset-x-k8s-io-v1-leaderworkerset",
    "pods": "/mutate--v1-pod",
}


class LeaderWorkerSets:
    """The running controller. directory: for its files. Raises BedError where it does not start."""

    def __init__(self, cluster: Cluster, directory: Path) -> None:
        if cluster.bed is None:
            raise BedError("the controller runs beside the bed's own API server, and no other reaches it")
        self._cluster = cluster
        self._built = build.lws()
        self._keys = directory / "pki"
        self._config = directory / "lws.yaml"
        self._log = directory / "lws.log"
        self._port = free_ports(1)
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> LeaderWorkerSets:
        try:
            self._start()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def _start(self) -> None:
        pki.write(self._keys)
        for ending in ("crt", "key"):
            shutil.copy(self._keys / f"api.{ending}", self._keys / f"tls.{ending}")
        self._config.write_text(yaml.safe_dump(self._configuration()))
        crds = str(self._built / "crds")
        self._cluster.kubectl("apply", "--server-side", "-f", crds)
        self._cluster.kubectl("wait", "--for=condition=Established", "--timeout=60s", "-f", crds)
        command = [str(self._built / "lws"), f"--config={self._config}"]
        command += [f"--kubeconfig={self._cluster.kubeconfig}", "--zap-log-level=info"]
        self._process = leash.start(command, self._log)
        self._cluster.apply(self._webhooks())
        wait_for("the LeaderWorkerSet controller's answer", self._answers, _START_SECONDS)

    def _end(self) -> None:
        self._cluster.kubectl("delete", "--ignore-not-found", "mutatingwebhookconfiguration", _WEBHOOKS)
        self._cluster.kubectl("delete", "--ignore-not-found", "-f", str(self._built / "crds"))
        if self._process is not None:
            leash.end(self._process)

    def _configuration(self) -> dict[str, Any]:
        return {
            "apiVersion": "config.lws.x-k8s.io/v1alpha1",
            "kind": "Configuration",
            "leaderElection": {"leaderElect": False},
            "internalCertManagement": {"enable": False},
            "webhook": {"host": "127.0.0.1", "port": self._port, "certDir": str(self._keys)},
            "metrics": {"bindAddress": "0"},
            "health": {"healthProbeBindAddress": "0"},
        }

    def _webhooks(self) -> Object:
        authority = base64.b64encode((self._keys / "ca.crt").read_bytes()).decode()
        hooks = []
        for resource, path in _PATHS.items():
            group, _, version = ("" if resource == "pods" else _API).rpartition("/")
            hook: Object = {
                "name": f"{resource}.lws.stanch.test",
                "admissionReviewVersions": ["v1"],
                "sideEffects": "None",
                "clientConfig": {"url": f"https://127.0.0.1:{self._port}{path}", "caBundle": authority},
                "rules": [
                    {
                        "apiGroups": [group],
                        "apiVersions": [version or "v1"],
                        "resources": [resource],
                        "operations": ["CREATE"] if resource == "pods" else ["CREATE", "UPDATE"],
                    }
                ],
            }
            if resource == "pods":
                # Were it asked about all pods, none could be made where it is away.
                own = {"key": LWS_NAME, "operator": "Exists"}
                hook["objectSelector"] = {"matchExpressions": [own]}
            hooks.append(hook)
        return {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "MutatingWebhookConfiguration",
            "metadata": {"name": _WEBHOOKS},
            "webhooks": hooks,
        }

    def _answers(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise BedError(
                f"the LeaderWorkerSet controller ended with {self._process.returncode}:\n"
                f"{tail(self._log, 15)}"
            )
        template = {"spec": {"containers": [{"name": "a", "image": "stanch.test/none"}]}}
        one = {
            "apiVersion": _API,
            "kind": "LeaderWorkerSet",
            "metadata": {"name": "asked", "namespace": "default"},
            "spec": {"leaderWorkerTemplate": {"workerTemplate": template}},
        }
        try:
            self._cluster.kubectl("create", "--dry-run=server", "-f", "-", stdin=yaml.safe_dump(one))
        except KubectlError:
            return False
        return True
