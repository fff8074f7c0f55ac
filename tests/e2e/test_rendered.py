"""Real vLLM 0.29.0 engines as rendered of a DisaggDeployment: they start, have the kit, and serve."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stanch.api.v1alpha1 import DisaggDeployment
from stanch.edge.render import Place, render
from stanch_connector.contract import ROUTE_STATE
from tests.bed import image, node
from tests.bed.cluster import Cluster, Namespace, is_ready, wait_for
from tests.bed.place import BedError
from tests.bed.vllm import Vllm
from tests.cluster.installed import Installed, installed
from tests.e2e.stage import START_S
from tests.engine.client import get, pd_request
from tests.engine.model import words

pytestmark = pytest.mark.e2e


@pytest.fixture
def kinds(cluster: Cluster, tmp_path: Path) -> Iterator[Installed]:
    assert cluster.bed is not None
    if image.engine_name() not in node.images(cluster.bed):
        node.load(cluster.bed, image.engine(tmp_path / "engine.tar").archive)
    with installed(cluster, tmp_path) as found:
        yield found


@pytest.fixture
def namespace(cluster: Cluster, kinds: Installed) -> Iterator[Namespace]:
    found = Namespace(cluster, f"e2e-{uuid.uuid4().hex[:8]}")
    found.make()
    try:
        yield found
    finally:
        found.remove()


@pytest.fixture
def vllm(tmp_path: Path) -> Vllm:
    try:
        return Vllm.prepare(tmp_path)
    except BedError as error:
        pytest.skip(str(error))


def ready(namespace: Namespace, role: str) -> dict[str, Any]:
    query = f"labelSelector=stanch.dev%2Frole%3D{role}"
    path = f"/api/v1/namespaces/{namespace.name}/pods?{query}"

    def look() -> dict[str, Any] | None:
        found = namespace.cluster.api(path)["items"]
        return next((one for one in found if is_ready(one)), None)

    return wait_for(f"a pod of {role} Ready", look, START_S)


def test_rendered_engines_start_with_the_kit_and_pass_a_request_on(namespace: Namespace, vllm: Vllm) -> None:
    found = vllm.deployment("shop", leaseSeconds=60)
    found["metadata"]["namespace"] = namespace.name
    made = render(DisaggDeployment.model_validate(found), Place(image.engine_name(), "Never"))
    assert [str(one) for one in made.problems] == []
    items = json.dumps({"apiVersion": "v1", "kind": "List", "items": list(made.objects)})
    namespace.kubectl("apply", "--server-side", "-f", "-", stdin=items)
    try:
        urls = {}
        for role, kv_role in (("prefill", "kv_producer"), ("decode", "kv_consumer")):
            urls[role] = f"http://{ready(namespace, role)['status']['podIP']}:8000"
            state = json.loads(get(urls[role], ROUTE_STATE, timeout_s=30).body)
            assert (state["vllm"], state["role"], state["ready"]) == ("0.29.0", kv_role, True)
            assert (state["connector"], state["fix"]) == ("StanchNixlConnector", "active")
            assert (state["leaseSeconds"], state["disabled"]) == (60, None)
        answer = pd_request(urls["prefill"], urls["decode"], words(64, seed=1), number=1).answer(120)
        assert answer.status == 200
        page = get(urls["decode"], "/metrics", timeout_s=30).body
        (taken,) = re.findall(r'by_source_total\{.*source="external_kv_transfer".*\} (\S+)', page)
        assert float(taken) > 0, "its KV came from the prefill"
    except BaseException:
        for role in ("prefill", "decode"):
            print(namespace.kubectl("logs", f"deploy/shop-{role}", "--all-containers", "--tail=40"))
        print(namespace.story())
        raise
