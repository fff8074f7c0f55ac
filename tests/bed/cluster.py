"""The cluster that tests run on, the bed or one given by STANCH_TEST_KUBECONFIG, and how they talk to it."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from tests.bed import build
from tests.bed.place import BedError, Place

Object = dict[str, Any]
_T = TypeVar("_T")
ENV_KUBECONFIG = "STANCH_TEST_KUBECONFIG"
ENV_BED = "STANCH_BED"
# Contexts as the makers of throw-away clusters name them.
_PREFIXES = ("kind-", "k3d-", "minikube", "stanch-bed-")
_LABEL = "stanch.dev/test-cluster"
_API_SECONDS = 30.0


class KubectlError(Exception):
    """kubectl ended with an error; the message is the command and its words."""


class ApiError(Exception):
    """The API server refused; status: the HTTP code."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status


def why_not_test_cluster(context: str, labels: Mapping[str, str]) -> str | None:
    """None where the cluster looks like one for tests; else the rules and how to satisfy one.

    labels: those of its namespace kube-system.
    """
    if context.startswith(_PREFIXES) or labels.get(_LABEL) == "true":
        return None
    return (
        f"context {context!r} does not look like a test cluster: its name begins with none of "
        f"{', '.join(_PREFIXES)}, and its namespace kube-system has no label {_LABEL}=true. Tests kill pods "
        "and change cluster-wide objects; only if nobody needs it: "
        f"kubectl label namespace kube-system {_LABEL}=true"
    )


def wait_for(what: str, ask: Callable[[], _T | None], deadline_s: float = 60.0) -> _T:
    """Ask until the answer is neither None nor False; that answer. Raises TimeoutError."""
    end = time.monotonic() + deadline_s
    pause = 0.02
    while True:
        found = ask()
        if found is not None and found is not False:
            return found
        if time.monotonic() > end:
            raise TimeoutError(f"{what}: not within {deadline_s:g} s")
        time.sleep(pause)
        # What takes long is asked for rarely: the machine has better things to do.
        pause = min(0.5, pause * 1.3)


@dataclass(frozen=True, slots=True)
class Access:
    """How a cluster is reached. bed: None for a cluster that somebody else runs."""

    kubectl: str
    kubeconfig: Path
    bed: Place | None

    @classmethod
    def given(cls) -> Access | None:
        """What the environment names; None where it names no cluster. Raises BedError."""
        own = os.environ.get(ENV_KUBECONFIG)
        if own:
            if not Path(own).is_file():
                raise BedError(f"{ENV_KUBECONFIG} names {own}, which is no file")
            found = shutil.which("kubectl") or str(build.kube().program("kubectl"))
            return cls(found, Path(own), None)
        bed = os.environ.get(ENV_BED)
        if not bed:
            return None
        place = Place.of(bed)
        return cls(str(build.kube().program("kubectl")), place.kubeconfig, place)


class Cluster:
    """A context; while it is open, `api` reaches the API server without a kubectl for each call."""

    def __init__(self, access: Access) -> None:
        self.access = access
        self.kubeconfig = access.kubeconfig
        self.bed = access.bed
        self._proxy: subprocess.Popen[str] | None = None
        self._base = ""

    def __enter__(self) -> Cluster:
        """Raises BedError where it does not look like a test cluster."""
        context = self.kubectl("config", "current-context").strip()
        system = json.loads(self.kubectl("get", "namespace", "kube-system", "-o", "json"))
        refused = why_not_test_cluster(context, system["metadata"].get("labels", {}))
        if refused is not None:
            raise BedError(refused)
        # Whatever the kubeconfig's way to authenticate is, kubectl knows it.
        command = self._command("proxy", "--port=0")
        self._proxy = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._proxy.stdout is not None
        self._base = f"http://{self._proxy.stdout.readline().rpartition(' ')[2].strip()}"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._proxy is not None:
            self._proxy.terminate()
            self._proxy.communicate()

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        """What kubectl prints. Raises KubectlError."""
        command = self._command(*arguments)
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, check=False)
        if done.returncode:
            raise KubectlError(f"kubectl {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout

    def api(
        self, path: str, method: str = "GET", body: object = None, kind: str = "application/json"
    ) -> Object:
        """The API server's answer. kind: the media type of the body. Raises ApiError."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": kind, "Accept": "application/json"}
        request = urllib.request.Request(self._base + path, data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=_API_SECONDS) as answer:
                found: Object = json.load(answer)
                return found
        except urllib.error.HTTPError as error:
            with error:
                text = error.read().decode(errors="replace")
            raise ApiError(error.code, text) from error

    def get(self, path: str) -> Object | None:
        """The object; None where there is none."""
        try:
            return self.api(path)
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    def apply(self, *objects: Object, namespace: str | None = None) -> str:
        """`kubectl apply` of all of them. Raises KubectlError."""
        where = ["--namespace", namespace] if namespace is not None else []
        # JSON documents one after another are not YAML; a List is.
        items = json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)})
        return self.kubectl("apply", *where, "-f", "-", stdin=items)

    def server(self) -> tuple[str, str | None]:
        """The API server's address, and the certificate of its authority in PEM."""
        view = json.loads(self.kubectl("config", "view", "--raw", "--minify", "--flatten", "-o", "json"))
        cluster = view["clusters"][0]["cluster"]
        data = cluster.get("certificate-authority-data")
        return cluster["server"], None if data is None else base64.b64decode(data).decode()

    def _command(self, *arguments: str) -> Sequence[str]:
        return [self.access.kubectl, f"--kubeconfig={self.kubeconfig}", *arguments]


class Namespace:
    """A namespace of one test, with what a test does in it."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.cluster = cluster
        self.name = name

    def make(self) -> None:
        """Create it; returns once pods can be created in it."""
        self.cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.name}})
        account = f"/api/v1/namespaces/{self.name}/serviceaccounts/default"
        wait_for("the namespace's service account", lambda: self.cluster.get(account))

    def remove(self) -> None:
        """Delete it, not waiting for its end."""
        self.cluster.kubectl("delete", "namespace", self.name, "--wait=false", "--ignore-not-found")

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        return self.cluster.kubectl(f"--namespace={self.name}", *arguments, stdin=stdin)

    def apply(self, *objects: Object) -> str:
        return self.cluster.apply(*objects, namespace=self.name)

    def pod(self, name: str) -> Object | None:
        return self.cluster.get(f"/api/v1/namespaces/{self.name}/pods/{name}")

    def annotate(self, pod: str, **values: str | None) -> None:
        """Set or (None) remove annotations `stanch.dev/KEY`; a key's _ is a -."""
        annotations = {f"stanch.dev/{key.replace('_', '-')}": value for key, value in values.items()}
        path = f"/api/v1/namespaces/{self.name}/pods/{pod}"
        body = {"metadata": {"annotations": annotations}}
        self.cluster.api(path, "PATCH", body, "application/merge-patch+json")

    def wait_ready(self, *pods: str, deadline_s: float = 120.0) -> dict[str, str]:
        """Wait until the pods are Ready; their IPs by name. Raises TimeoutError, and BedError for a pod that
        cannot start."""
        return {pod: wait_for(f"pod {pod} Ready", lambda p=pod: self._ip(p), deadline_s) for pod in pods}  # type: ignore[misc]

    def _ip(self, name: str) -> str | None:
        pod = self.pod(name)
        if pod is None:
            return None
        for status in pod["status"].get("containerStatuses", []):
            waiting = status["state"].get("waiting", {})
            if waiting.get("reason") == "ErrImageNeverPull":
                raise BedError(
                    f"pod {name}: image {status['image']} is not on the node; "
                    "`python -m tests.bed image FILE` writes it: load that into the cluster"
                )
        return str(pod["status"]["podIP"]) if is_ready(pod) else None

    def story(self) -> str:
        """Pods and events, for a failure's report."""
        parts = [("get", "pods", "-o", "wide"), ("get", "events", "--sort-by=.lastTimestamp")]
        return "\n".join(self.kubectl(*part) for part in parts)


def is_ready(pod: Object) -> bool:
    """Whether its condition Ready is True."""
    conditions = pod.get("status", {}).get("conditions", [])
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)
