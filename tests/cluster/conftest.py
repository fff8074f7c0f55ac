"""Fixtures of the cluster tier: the cluster, and a namespace for each test."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import nullcontext

import pytest

from tests.bed import image, node, product
from tests.bed.cluster import Access, Cluster, Namespace
from tests.cluster.installed import Installed, installed
from tests.cluster.operators import operating
from tests.cluster.together import Operated, Played, playing


@pytest.fixture(scope="session", autouse=True)
def access() -> Access:
    """How to reach the cluster. Without one the whole tier is skipped."""
    found = Access.given()
    if found is None:
        pytest.skip("no cluster: neither the bed nor STANCH_TEST_KUBECONFIG")
    return found


@pytest.fixture(scope="session")
def cluster(access: Access, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """The cluster, and in it, where it is the bed, the image of this very checkout's simulated engine."""
    if access.bed is not None and image.engine_name() not in node.images(access.bed):
        archive = tmp_path_factory.mktemp("image") / "engine.tar"
        node.load(access.bed, image.engine(archive).archive)
        archive.unlink()
    with Cluster(access) as found:
        yield found


@pytest.fixture(scope="session")
def stanch_image(access: Access) -> str:
    """The name of this very checkout's own image, for imagePullPolicy Never; in the bed it is there."""
    name = product.operator_name()
    if access.bed is not None and name not in node.images(access.bed):
        if (lack := product.missing()) is not None:
            pytest.skip(lack)
        node.load(access.bed, product.operator_image().archive)
    return name


@pytest.fixture
def namespace(cluster: Cluster) -> Iterator[Namespace]:
    """A new namespace, deleted afterwards."""
    found = Namespace(cluster, f"test-{uuid.uuid4().hex[:8]}")
    found.make()
    yield found
    found.remove()


@pytest.fixture(scope="module")
def stanch(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installed]:
    """Stanch's kinds, account and rights, taken away after the module."""
    with installed(cluster, tmp_path_factory.mktemp("installed")) as found:
        yield found


@pytest.fixture(scope="module")
def operated(stanch: Installed, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operated]:
    """Who acts in the namespaces of scenarios: one operator in all of them."""
    with operating(stanch, tmp_path_factory.mktemp("operator")) as operator:
        yield lambda _: nullcontext(operator)


@pytest.fixture(scope="module")
def played(cluster: Cluster, operated: Operated, request: pytest.FixtureRequest) -> Iterator[Played]:
    """The module's scenarios (`together.scenario`), under way side by side."""
    tests = [getattr(item, "function", None) for item in request.session.items if item.path == request.path]
    with playing(cluster, operated, tests) as scenes:
        yield scenes
