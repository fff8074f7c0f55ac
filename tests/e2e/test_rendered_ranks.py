"""Real vLLM 0.29.0 engines of two data-parallel ranks in a pod, as rendered of a DisaggDeployment."""

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
from tests.engine.client import complete, get, prefill_only
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


def test_the_decode_finds_each_rank_of_a_rendered_prefill(namespace: Namespace, vllm: Vllm) -> None:
    """Behind one HTTP port, each with a side channel at its own: the rank is added to it by vLLM."""
    found = vllm.deployment(
        "shop", {"prefill": 1, "decode": 1}, patch="Auto", planted=(), step_ms=0, watch={}, router={}
    )
    found["metadata"]["namespace"] = namespace.name
    del found["spec"]["router"]
    found["spec"]["kvTransfer"]["leaseSeconds"] = 60
    found["spec"]["roles"][0]["parallelism"] = {"data": 2}
    made = render(DisaggDeployment.model_validate(found), Place(image.engine_name(), "Never"))
    assert [str(one) for one in made.problems] == []
    items = json.dumps({"apiVersion": "v1", "kind": "List", "items": list(made.objects)})
    namespace.kubectl("apply", "--server-side", "-f", "-", stdin=items)
    try:
        ips = {role: ready(namespace, role)["status"]["podIP"] for role in ("prefill", "decode")}
        urls = {role: f"http://{ip}:8000" for role, ip in ips.items()}
        for role, kv_role in (("prefill", "kv_producer"), ("decode", "kv_consumer")):
            state = json.loads(get(urls[role], ROUTE_STATE, timeout_s=30).body)
            assert (state["vllm"], state["role"], state["ready"]) == ("0.29.0", kv_role, True)
            assert (state["connector"], state["fix"]) == ("StanchNixlConnector", "active")
            assert (state["leaseSeconds"], state["disabled"]) == (60, None)
        for rank in (0, 1):
            prompt = words(64, seed=rank)
            transfer = prefill_only(urls["prefill"], prompt, rank=rank, timeout_s=120)
            assert (transfer["remote_host"], transfer["remote_port"]) == (ips["prefill"], 5600 + rank)
            before = taken(urls["decode"])
            answer = complete(urls["decode"], prompt, kv_transfer_params=transfer).answer(120)
            assert answer.status == 200
            wait_for("its KV from the prefill", lambda b=before: taken(urls["decode"]) > b)  # type: ignore[misc]
    except BaseException:
        for role in ("prefill", "decode"):
            print(namespace.kubectl("logs", f"deploy/shop-{role}", "--all-containers", "--tail=60"))
        print(namespace.story())
        raise


def taken(url: str) -> float:
    """Prompt tokens whose KV came from elsewhere."""
    page = get(url, "/metrics", timeout_s=30).body
    (value,) = re.findall(r'by_source_total\{.*source="external_kv_transfer".*\} (\S+)', page)
    return float(value)
