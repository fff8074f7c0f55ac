"""What the bed promises to the tests that use it: real pods, probes, Services, annotations in a file."""

from __future__ import annotations

import itertools
import json
import urllib.error
import urllib.request
from typing import Any

import pytest

from stanch_connector.contract import ROUTE_STATE
from tests.bed import manifests
from tests.bed.cluster import Namespace, is_ready, wait_for

pytestmark = pytest.mark.cluster


def fetch(ip: str, path: str, body: object = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"http://{ip}:{manifests.PORT}{path}", data, headers)
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        # It is an answer, too, with a connection of its own.
        error.close()
        raise


def test_a_prefill_decode_pair_serves_across_pods(namespace: Namespace) -> None:
    namespace.apply(manifests.engine("prefill", "prefill"), manifests.engine("decode", "decode"))
    ips = namespace.wait_ready("prefill", "decode")
    ask = {"prompt": "one two three", "max_tokens": 1}
    first = fetch(
        ips["prefill"], "/v1/completions", {**ask, "kv_transfer_params": {"do_remote_decode": True}}
    )
    assert first["kv_transfer_params"]["remote_host"] == ips["prefill"]
    second = {**ask, "max_tokens": 4, "kv_transfer_params": first["kv_transfer_params"]}
    assert fetch(ips["decode"], "/v1/completions", second)["usage"]["completion_tokens"] == 4


def test_a_service_answers_for_ready_pods_of_its_role(namespace: Namespace) -> None:
    namespace.apply(manifests.service("decode"), manifests.engine("d0", "decode"))
    namespace.wait_ready("d0")
    found = namespace.cluster.get(f"/api/v1/namespaces/{namespace.name}/services/decode")
    assert found is not None
    address = found["spec"]["clusterIP"]

    def answers() -> bool:
        try:
            return bool(fetch(address, "/version"))
        except OSError:
            return False

    wait_for("the Service's answer", answers)


def test_a_cordon_by_annotation_reaches_the_kit_and_ends_with_its_lease(namespace: Namespace) -> None:
    namespace.apply(manifests.engine("d0", "decode"))
    ip = namespace.wait_ready("d0")["d0"]
    beats = itertools.count()

    def cordoned() -> bool:
        cordon = {"incident": "by-hand", "beat": next(beats), "leaseSeconds": 5}
        namespace.annotate("d0", cordon=json.dumps(cordon))
        pod = namespace.pod("d0")
        return pod is not None and not is_ready(pod)

    wait_for("the pod not ready", cordoned)
    assert fetch(ip, ROUTE_STATE)["cordonIncident"] == "by-hand"
    # Nobody renews it.
    namespace.wait_ready("d0")
    assert fetch(ip, ROUTE_STATE)["cordoned"] is False


def test_an_engine_that_ends_is_started_again_in_its_pod(namespace: Namespace) -> None:
    namespace.apply(manifests.engine("d0", "decode", kit=False))
    ip = namespace.wait_ready("d0")["d0"]
    namespace.kubectl("exec", "d0", "--", "python3", "-c", "import os; os.kill(1, 15)")

    def restarted() -> bool:
        pod = namespace.pod("d0")
        assert pod is not None
        return bool(pod["status"]["containerStatuses"][0]["restartCount"] == 1)

    wait_for("the restart", restarted)
    assert namespace.wait_ready("d0")["d0"] == ip


def test_dozens_of_engines_fit_on_the_node(namespace: Namespace) -> None:
    namespace.apply(manifests.deployment("many", "decode", 30))
    path = f"/apis/apps/v1/namespaces/{namespace.name}/deployments/many"
    wait_for(
        "30 Ready", lambda: (namespace.cluster.get(path) or {})["status"].get("readyReplicas") == 30, 300
    )
