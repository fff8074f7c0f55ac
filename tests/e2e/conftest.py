"""Fixtures of the end-to-end tier: the bed, real engines in it, and the operator."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from tests.bed.cluster import Access, Cluster, Namespace
from tests.bed.place import BedError
from tests.bed.vllm import Vllm
from tests.cluster.installed import installed
from tests.cluster.operators import operating
from tests.e2e.stage import STEP_MS, Stage


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    found = Access.given()
    if found is None or found.bed is None:
        pytest.skip("real engines come from the node's own files, so they run in the bed only")
    with Cluster(found) as opened:
        yield opened


@pytest.fixture(scope="module")
def stage(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """One prefill and two decodes: d0 with the stock connector, the kit beside it, d1 with Stanch's. Both
    have the fault planted. An operator that acts."""
    try:
        vllm = Vllm.prepare(tmp_path_factory.mktemp("engines"))
    except BedError as error:
        pytest.skip(str(error))
    directory = tmp_path_factory.mktemp("operator")
    namespace = Namespace(cluster, f"e2e-{uuid.uuid4().hex[:8]}")
    namespace.make()
    try:
        with installed(cluster, directory) as found, operating(found, directory) as operator:
            played = Stage(namespace, operator)
            played.engines(
                vllm.pod("p0", "prefill"),
                vllm.pod("d0", "decode", inject=True, step_ms=STEP_MS),
                vllm.pod("d1", "decode", inject=True, fixed=True, step_ms=STEP_MS),
            )
            yield played
    finally:
        namespace.remove()
