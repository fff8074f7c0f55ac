"""From nothing to a healed cluster: Stanch's own image, its chart by helm, a DisaggDeployment of real vLLM.

One installation serves all tests, in this order: the last one uninstalls it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from tests.alerting import To, alertmanager, prometheus
from tests.bed import node, product
from tests.bed.cluster import Cluster, Namespace, is_ready, wait_for
from tests.bed.place import BedError
from tests.bed.vllm import Vllm
from tests.cluster.releases import Release, place_for, values
from tests.cluster.scenes import ending, steps
from tests.e2e.shop import NAME, WATCH, Shop, old_deployment
from tests.e2e.stage import START_S, text
from tests.engine.client import get

pytestmark = pytest.mark.e2e
TOKEN, PROOF_S = "alerts-from-nothing", 20
TRANSFERRED = re.compile(r'by_source_total\{.*source="external_kv_transfer".*\} (\S+)')
RELEASED = ["Observe:Done", "Confirm:Done", "Release:Done", "Confirm:Done"]


@pytest.fixture(scope="module")
def shop(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    """Nothing is installed yet, and nothing runs."""
    try:
        vllm = Vllm.prepare(tmp_path_factory.mktemp("engines"))
        image = product.operator_image()
    except BedError as error:
        pytest.skip(str(error))
    assert cluster.bed is not None
    if image.name not in node.images(cluster.bed):
        node.load(cluster.bed, image.archive)
    repository, _, tag = image.name.rpartition(":")
    with place_for(cluster) as home:
        found = {**values(), "image": {"repository": repository, "tag": tag, "pullPolicy": "Never"}}
        alerts = {"enabled": True, "tokenSecret": {"name": "alerts"}}
        release = Release(cluster, home, values={**found, "alerts": alerts})
        namespace = Namespace(cluster, f"shop-{home.name[-8:]}")
        namespace.make()
        try:
            yield Shop(namespace, vllm, release)
        finally:
            namespace.remove()


def test_installed_deployed_and_served_through_its_router(shop: Shop) -> None:
    token = f"--from-literal=token={TOKEN}"
    shop.release.namespace.kubectl("create", "secret", "generic", "alerts", token)
    shop.release.install()
    shop.release.until_acting()
    shop.apply(shop.manifest("Never"))
    names = shop.look()
    assert {role: len(found) for role, found in names.items()} == {"prefill": 1, "decode": 2, "router": 1}
    for role, kv_role in (("prefill", "kv_producer"), ("decode", "kv_consumer")):
        state = shop.stage.state(names[role][0])
        assert (state["vllm"], state["role"], state["ready"]) == ("0.29.0", kv_role, True)
        assert (state["connector"], state["disabled"]) == ("NixlConnector", None)
    for one in ("dd", "lw"):
        shop.namespace.kubectl("wait", "--for=condition=Ready", one, NAME, "--timeout=60s")
    with shop.customers() as customers:
        customers.went_on(8)
    customers.check()
    pages = [get(shop.stage.url(one), "/metrics", timeout_s=30).body for one in names["decode"]]
    taken = [float(found[1]) for page in pages if (found := TRANSFERRED.search(page))]
    assert sum(taken) > 0, "their KV came from the prefill"
    assert shop.incidents() == []


def test_a_leak_is_released_and_the_stuck_requests_are_named(shop: Shop) -> None:
    prefill, decode = shop.pair()
    with shop.customers() as customers:
        customers.went_on()
        gave_up = shop.stage.leak(prefill, decode, 3)
        found = shop.ended(0)
        customers.went_on()
    customers.check()
    assert ending(found) == "Resolved", json.dumps(found["status"], indent=1)
    assert steps(found) == RELEASED
    assert found["spec"]["podRef"]["name"] == decode
    assert {one["id"] for one in found["status"]["stuckRequests"]} == set(gave_up)
    assert shop.stage.stuck(decode) == []
    assert restarts(shop) == 0


def test_the_same_with_an_alert_as_the_trigger(shop: Shop, tmp_path: Path) -> None:
    """Debian's Prometheus and Alertmanager; the watchdog itself would look much later."""
    patient = {"parkedRemoteKvSeconds": PROOF_S, "heldIdleSeconds": 3600}
    shop.apply(shop.manifest("Never", signatures=patient))
    before = len(shop.incidents())
    prefill, decode = shop.pair()
    (tmp_path / "token").write_text(TOKEN)
    http = {"authorization": {"credentials_file": str(tmp_path / "token")}}
    address = shop.release.api("v1 services/stanch-alerts")["spec"]["clusterIP"]
    labels = {"namespace": shop.namespace.name, "pod": decode}
    engine = {shop.stage.url(decode).removeprefix("http://"): labels}
    with (
        alertmanager(tmp_path, To(f"http://{address}:9095/alerts/v4", http)) as manager,
        prometheus(tmp_path, manager, engine),
    ):
        gave_up = shop.stage.leak(prefill, decode, 3)
        found = shop.ended(before)
        trigger = found["spec"]["trigger"]
        assert (trigger["type"], trigger["alert"]["name"]) == ("Alert", "EngineHoldsCache"), trigger
        assert ending(found) == "Resolved", json.dumps(found["status"], indent=1)
        assert {one["id"] for one in found["status"]["stuckRequests"]} == set(gave_up)
        wait_for(
            "the end of the alert", lambda: "alertResolved" in shop.incidents()[before]["status"], START_S
        )
    assert len(shop.incidents()) == before + 1
    assert restarts(shop) == 0


def test_with_the_connector_patched_nothing_leaks(shop: Shop) -> None:
    shop.apply(shop.manifest("Auto"))
    before = len(shop.incidents())
    prefill, decode = shop.pair()
    state = shop.stage.state(decode)
    assert (state["connector"], state["fix"]) == ("StanchNixlConnector", "active"), state
    with shop.customers() as customers:
        planted = [shop.stage.park(prefill, decode, seed) for seed in (21, 22, 23)]
        answers = [one.pending.answer(180) for one in planted]
        assert [text(one.status, one.body) for one in answers] == [one.text for one in planted]
        customers.went_on()
    customers.check()
    assert shop.stage.state(decode)["fixHits"] == len(planted), "the fault was planted, and met the fix"
    assert shop.stage.stuck(decode) == []
    assert len(shop.incidents()) == before
    assert restarts(shop) == 0


def test_a_deployment_that_was_there_before_gets_the_kit_and_is_healed(shop: Shop) -> None:
    shop.namespace.apply(old_deployment(shop.vllm, shop.planted))
    (stock,) = wait_for("the old engine", lambda: ready(shop, "app=old") or None, START_S)
    assert [one["name"] for one in stock["spec"].get("initContainers", [])] == []
    label = {"spec": {"template": {"metadata": {"labels": {"stanch.dev/inject": "enabled"}}}}}
    shop.namespace.kubectl("patch", "deployment", "old", "--patch", json.dumps(label))
    watch = {
        **WATCH,
        "roles": [{"name": "decode", "workloadRef": {"kind": "Deployment", "name": "old"}}],
    }
    shop.namespace.apply(
        {
            "apiVersion": "stanch.dev/v1alpha1",
            "kind": "LeakWatch",
            "metadata": {"name": "old"},
            "spec": watch,
        }
    )

    def injected() -> Any:
        found = ready(shop, "app=old,stanch.dev/inject=enabled")
        return found if len(found) == 1 else None

    (pod,) = wait_for("the old engine with the kit", injected, START_S)
    name = pod["metadata"]["name"]
    assert [one["name"] for one in pod["spec"]["initContainers"]] == ["stanch-kit"]
    shop.stage.scene.ips[name] = pod["status"]["podIP"]
    prefill = shop.look()["prefill"][0]
    shop.stage.warm_up(prefill, name)
    before = len(shop.incidents())
    gave_up = shop.stage.leak(prefill, name, 3)
    found = shop.ended(before)
    assert ending(found) == "Resolved", json.dumps(found["status"], indent=1)
    assert steps(found) == RELEASED
    assert {one["id"] for one in found["status"]["stuckRequests"]} == set(gave_up)
    shop.stage.until_free(name)


def test_upgraded_and_uninstalled_while_engines_serve_on(shop: Shop) -> None:
    uids = {one["metadata"]["uid"] for one in ready(shop, f"stanch.dev/deployment={NAME}")}
    with shop.customers() as customers:
        customers.went_on()
        shop.release.upgrade(replicas=2)
        shop.release.until_acting()
        customers.went_on()
        said = shop.release.uninstall()
        assert "uninstalled" in said
        customers.went_on()
        shop.namespace.kubectl("scale", "deployment", f"{NAME}-decode", "--replicas=3")

        def grown() -> bool:
            return len(ready(shop, f"stanch.dev/deployment={NAME},stanch.dev/role=decode")) == 3

        wait_for("a new decode without an operator", grown, START_S)
        customers.went_on()
    customers.check()
    assert uids <= {one["metadata"]["uid"] for one in ready(shop, f"stanch.dev/deployment={NAME}")}
    assert restarts(shop) == 0
    # What people wrote is still there.
    assert shop.namespace.kubectl("get", "dd,lw,li", "-o", "name").count("stanch.dev/") >= 4


def ready(shop: Shop, labels: str) -> list[dict[str, Any]]:
    query = urlencode({"labelSelector": labels})
    found = shop.namespace.cluster.api(f"/api/v1/namespaces/{shop.namespace.name}/pods?{query}")["items"]
    return [one for one in found if is_ready(one) and "deletionTimestamp" not in one["metadata"]]


def restarts(shop: Shop) -> int:
    """Of all containers of the engines' pods."""
    pods = ready(shop, f"stanch.dev/deployment={NAME}")
    return sum(status["restartCount"] for pod in pods for status in pod["status"]["containerStatuses"])
