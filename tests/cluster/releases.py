"""Releases of the chart on the cluster, by the real helm, with an image of this very checkout."""

from __future__ import annotations

import json
import subprocess
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.bed import product
from tests.bed.cluster import Cluster, Namespace, Object, is_ready, wait_for
from tests.bed.helm import CHART, HelmError, helm
from tests.bed.place import REPOSITORY

PATIENCE_S = 240.0
KINDS = "customresourcedefinitions"


def values(**more: Any) -> dict[str, Any]:
    """What every release here needs: the image, and less of the machine than a real one."""
    repository, _, tag = product.operator_name().partition(":")
    return {
        "image": {"repository": repository, "tag": tag, "pullPolicy": "Never"},
        "resources": {"requests": {"cpu": "10m", "memory": "64Mi"}, "limits": {"memory": "512Mi"}},
        **more,
    }


@dataclass
class Release:
    """Named so that all its objects have that name too. namespace: it enforces pod security `restricted`."""

    cluster: Cluster
    namespace: Namespace
    name: str = "stanch"
    values: dict[str, Any] = field(default_factory=values)

    def helm(self, *arguments: str, stdin: str | None = None) -> str:
        where = f"--namespace={self.namespace.name}"
        return helm(*arguments, where, kubeconfig=self.cluster.kubeconfig, stdin=stdin)

    def install(self, *arguments: str, chart: Path = CHART, **more: Any) -> None:
        self._write("install", chart, arguments, more)

    def upgrade(self, *arguments: str, chart: Path = CHART, **more: Any) -> None:
        self._write("upgrade", chart, arguments, more)

    def _write(self, verb: str, chart: Path, arguments: tuple[str, ...], more: Mapping[str, Any]) -> None:
        text = json.dumps({**self.values, **more})
        wait = ("--wait", f"--timeout={PATIENCE_S:.0f}s", "--values=-")
        self.helm(verb, self.name, str(chart), *wait, *arguments, stdin=text)

    def rollback(self, *arguments: str) -> None:
        self.helm("rollback", self.name, *arguments, "--wait", f"--timeout={PATIENCE_S:.0f}s")

    def uninstall(self) -> str:
        return self.helm("uninstall", self.name, "--wait", f"--timeout={PATIENCE_S:.0f}s")

    def api(self, path: str) -> Object:
        """A path below the namespace's, as "apps/v1 deployments/stanch"."""
        version, _, rest = path.partition(" ")
        root = f"/apis/{version}" if "/" in version else f"/api/{version}"
        return self.cluster.api(f"{root}/namespaces/{self.namespace.name}/{rest}")

    def pods(self) -> list[Object]:
        """The operator's own that are ready."""
        label = "labelSelector=app.kubernetes.io%2Fcomponent%3Doperator"
        found: list[Object] = self.api(f"v1 pods?{label}")["items"]
        return [one for one in found if is_ready(one) and "deletionTimestamp" not in one["metadata"]]

    def until_acting(self) -> str:
        """The name of the pod that holds the Lease."""

        def look() -> str | None:
            with suppress(Exception):
                holder = self.api("coordination.k8s.io/v1 leases/stanch")["spec"].get("holderIdentity")
                return holder if holder in {one["metadata"]["name"] for one in self.pods()} else None
            return None

        return wait_for("an operator that acts", look, PATIENCE_S)

    def webhook(self) -> Object:
        path = f"/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/{self.name}"
        found: Object = self.cluster.api(path)["webhooks"][0]["clientConfig"]
        return found

    def story(self) -> str:
        said = [self.namespace.story()]
        for one in ("deployment/stanch", "job/stanch-lift"):
            with suppress(Exception):
                said.append(self.namespace.kubectl("logs", one, "--tail=40", "--all-pods"))
        return "\n".join(said)


@contextmanager
def place_for(cluster: Cluster) -> Iterator[Namespace]:
    """A namespace for a release, and no kinds and nothing of another release in the way."""
    sweep(cluster)
    found = Namespace(cluster, f"helm-{uuid.uuid4().hex[:8]}")
    found.make()
    level = "pod-security.kubernetes.io/enforce=restricted"
    cluster.kubectl("label", "namespace", found.name, level)
    try:
        yield found
    finally:
        found.remove()
        sweep(cluster)


def sweep(cluster: Cluster) -> None:
    """All that is Stanch's and belongs to no namespace, but the bed's own."""
    kinds = f"{KINDS},clusterroles,clusterrolebindings,mutatingwebhookconfigurations"
    kinds += ",validatingadmissionpolicies,validatingadmissionpolicybindings"
    ours = "app.kubernetes.io/name=stanch"
    cluster.kubectl("delete", kinds, "-l", ours, "--wait=true", "--timeout=60s")
    cluster.kubectl("delete", "--ignore-not-found", "--timeout=60s", "-f", str(REPOSITORY / "crds"))


def earlier_chart(directory: Path) -> tuple[Path, str] | None:
    """The newest chart of the history that is another than this one, and its commit."""

    def git(*arguments: str) -> bytes:
        command = ["git", "-C", str(REPOSITORY), *arguments]
        return subprocess.run(command, capture_output=True, check=True).stdout

    where = CHART.relative_to(REPOSITORY)
    try:
        clean = not git("status", "--porcelain", "--", str(where))
        commits = git("log", "--format=%H", "--", str(where)).decode().split()[1 if clean else 0 :]
    except (OSError, subprocess.CalledProcessError):
        return None  # no repository
    for commit in commits:
        if not git("ls-tree", commit, f"{where}/Chart.yaml"):
            return None
        archive = git("archive", commit, str(where))
        subprocess.run(["tar", "-x", "-C", str(directory)], input=archive, check=True)
        return directory / where, commit
    return None


__all__ = ["HelmError", "Release", "earlier_chart", "place_for", "values"]
