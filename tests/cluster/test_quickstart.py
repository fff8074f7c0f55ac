"""README's quick start, word by word: the shell gets its lines as they stand there.

What a reader has and the bed has not is made to look so: the images by their names, and GPUs on the node. The
engines are simulated ones, started as vLLM is.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bed import build, host, image
from tests.bed.cluster import Cluster
from tests.bed.place import REPOSITORY, Place
from tests.cluster.releases import sweep

pytestmark = pytest.mark.cluster
HOME = "stanch-system"
GPU = "nvidia.com~1gpu"


def blocks() -> list[str]:
    """The shell's blocks of the section."""
    section = (REPOSITORY / "README.md").read_text().partition("\n## Quick start\n")[2].partition("\n## ")[0]
    return re.findall(r"^```sh\n(.*?)^```$", section, flags=re.DOTALL | re.MULTILINE)


@pytest.fixture
def shell(cluster: Cluster, stanch_image: str, tmp_path: Path) -> Iterator[dict[str, str]]:
    """The environment of a reader's shell; afterwards nothing of the quick start is left."""
    if cluster.bed is None:
        pytest.skip("the images of the quick start can be made up in the bed only")
    found = re.search(r"image\.repository=(\S+) --set image\.tag=(\S+)", "\n".join(blocks()))
    assert found is not None
    tag(cluster.bed, stanch_image, f"{found[1]}:{found[2]}")
    for one in sorted({name for file in examples() for name in re.findall(r'image: "?([^"\s}]+)', file)}):
        tag(cluster.bed, image.engine_name(), f"docker.io/{one}")
    with gpus(cluster, 8):
        clean(cluster)
        (tmp_path / "kubectl").symlink_to(cluster.access.kubectl)
        (tmp_path / "helm").symlink_to(build.helm())
        path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
        try:
            yield {**os.environ, "PATH": path, "KUBECONFIG": str(cluster.kubeconfig)}
        finally:
            clean(cluster)


def examples() -> list[str]:
    named = re.findall(r"docs/examples/\S+\.yaml", "\n".join(blocks()))
    return [(REPOSITORY / one).read_text() for one in named]


def clean(cluster: Cluster) -> None:
    cluster.kubectl("delete", "namespace", HOME, "--ignore-not-found", "--timeout=120s")
    sweep(cluster)
    # Owned objects go with their DisaggDeployment, which goes with its kind.
    own = "app.kubernetes.io/managed-by=stanch"
    cluster.kubectl("delete", "deployments,services,serviceaccounts", "-n", "default", "-l", own)


def tag(bed: Place, name: str, other: str) -> None:
    """The image is known by another name too."""
    command = ["ctr", "-n", "k8s.io", "images", "tag", "--force", name, other]
    subprocess.run(host.enter(bed, command, whole=True), check=True, capture_output=True)


class gpus:  # noqa: N801  (a context)
    """So many GPUs on the node."""

    def __init__(self, cluster: Cluster, count: int) -> None:
        self._cluster, self._count = cluster, count
        (self._node,) = cluster.api("/api/v1/nodes")["items"]

    def __enter__(self) -> None:
        self._patch(f'{{"op": "add", "path": "/status/capacity/{GPU}", "value": "{self._count}"}}')

    def __exit__(self, *exception: object) -> None:
        self._patch(f'{{"op": "remove", "path": "/status/capacity/{GPU}"}}')

    def _patch(self, operation: str) -> None:
        name = self._node["metadata"]["name"]
        what = ["--subresource=status", "--type=json", "-p", f"[{operation}]"]
        self._cluster.kubectl("patch", "node", name, *what)


def test_word_by_word(cluster: Cluster, shell: dict[str, str]) -> None:
    said = []
    for lines in blocks():
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", lines],
            cwd=REPOSITORY,
            env=shell,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert done.returncode == 0, f"{lines}\n{done.stdout}\n{done.stderr}\n{story(cluster)}"
        said.append(done.stdout)
    whole = "\n".join(said)
    assert "disaggdeployment.stanch.dev/shop condition met" in whole
    assert re.search(r"leakwatch\.stanch\.dev/shop +Observe +True", whole)
    assert 'release "stanch" uninstalled' in whole


def story(cluster: Cluster) -> str:
    parts = [
        cluster.kubectl("get", "pods,dd,lw,events", "-n", one, "-o", "wide") for one in (HOME, "default")
    ]
    return "\n".join(parts)
