"""A real vLLM engine that somebody else starts, with nothing of Stanch but a label: the webhook puts the
kit in."""

from __future__ import annotations

import json
import urllib.request
import uuid
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest

from tests.bed import image, node
from tests.bed.cluster import Cluster, Namespace, is_ready, wait_for
from tests.bed.place import BedError
from tests.bed.vllm import Vllm
from tests.cluster.installed import installed
from tests.cluster.webhooks import Webhook, configuring, serving
from tests.e2e.stage import START_S
from tests.engine.client import MODEL_NAME

pytestmark = pytest.mark.e2e
PATIENCE_S = 150.0


@pytest.fixture(scope="module")
def vllm(tmp_path_factory: pytest.TempPathFactory) -> Vllm:
    try:
        return Vllm.prepare(tmp_path_factory.mktemp("engine"))
    except BedError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def webhook(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Webhook]:
    """By an operator that ends with the module: another acts in the other tests."""
    assert cluster.bed is not None
    if image.engine_name() not in node.images(cluster.bed):
        # The kit comes out of the simulated engine's image, which has this checkout.
        node.load(cluster.bed, image.engine(tmp_path_factory.mktemp("image") / "engine.tar").archive)
    directory = tmp_path_factory.mktemp("webhook")
    with installed(cluster, directory) as found, configuring(cluster), serving(found, directory) as served:
        yield served


@pytest.fixture
def namespace(cluster: Cluster) -> Iterator[Namespace]:
    found = Namespace(cluster, f"e2e-{uuid.uuid4().hex[:8]}")
    found.make()
    yield found
    found.remove()


def get(url: str, body: object = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


def test_the_kit_and_the_fixed_connector_are_in_a_stock_engine(
    vllm: Vllm, webhook: Webhook, namespace: Namespace
) -> None:
    pod = vllm.pod("d0", "decode", kit=False)
    assert "stanch_connector" not in json.dumps(pod)
    pod["metadata"]["labels"]["stanch.dev/inject"] = "enabled"
    pod["metadata"]["annotations"] = {"stanch.dev/inject-connector-patch": "Auto"}
    namespace.apply(pod)
    [address] = namespace.wait_ready("d0", deadline_s=START_S).values()
    url = f"http://{address}:8000"
    state = get(f"{url}/stanch/v1/state")
    assert (state["connector"], state["fix"]) == ("StanchNixlConnector", "active")
    assert state["errors"] == {}
    assert get(f"{url}/stanch/v1/requests")["ranks"] == {"0": {"requests": []}}
    answer = get(f"{url}/v1/completions", {"model": MODEL_NAME, "prompt": [5, 6, 7], "max_tokens": 4})
    assert answer["usage"]["completion_tokens"] == 4
    beats = count(1)

    def cordoned() -> bool:
        mark = {"incident": "by-hand", "beat": next(beats), "leaseSeconds": 5}
        namespace.annotate("d0", cordon=json.dumps(mark))
        return not is_ready(namespace.pod("d0") or {})

    wait_for("the cordon's effect", cordoned, PATIENCE_S)
    wait_for("its end", lambda: is_ready(namespace.pod("d0") or {}), PATIENCE_S)
