"""DisaggDeployments with pods: the operator as a process, simulated engines started by what was rendered."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator

import pytest

from tests.bed import image
from tests.bed.cluster import Namespace, Object, wait_for
from tests.cluster.disagg import PATIENCE_S, Shop, disagg
from tests.cluster.installed import Installed
from tests.cluster.operators import Operator, operating
from tests.cluster.scenes import Scene, ending

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def operator(stanch: Installed, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operator]:
    """The image with the simulated engine has the kit as well."""
    directory = tmp_path_factory.mktemp("operator")
    with operating(stanch, directory, STANCH_KIT_IMAGE=image.engine_name()) as found:
        yield found


@pytest.fixture
def shop(operator: Operator, namespace: Namespace) -> Shop:
    return Shop(namespace)


def pods(shop: Shop, role: str) -> dict[str, Object]:
    path = f"/api/v1/namespaces/{shop.namespace.name}/pods?labelSelector=stanch.dev%2Frole%3D{role}"
    return {one["metadata"]["name"]: one for one in shop.namespace.cluster.api(path)["items"]}


def uids(shop: Shop) -> set[str]:
    return {one["metadata"]["uid"] for role in ("prefill", "decode") for one in pods(shop, role).values()}


def engines(shop: Shop, operator: Operator, decodes: int) -> tuple[Scene, str, list[str]]:
    """The prefill and the decodes, to be asked."""
    scene = Scene(shop.namespace, operator)
    (prefill,) = scene.labelled("stanch.dev/role", "prefill", 1)
    return scene, prefill, sorted(scene.labelled("stanch.dev/role", "decode", decodes))


def events(shop: Shop) -> list[tuple[str, str]]:
    found = json.loads(shop.namespace.kubectl("get", "events.events.k8s.io", "-o", "json"))["items"]
    return [
        (one["reason"], one["note"]) for one in found if one["regarding"].get("kind") == "DisaggDeployment"
    ]


def test_from_one_object_to_a_fleet_that_serves_and_is_healed(shop: Shop, operator: Operator) -> None:
    watch = {
        "mode": "Enforce",
        "intervalSeconds": 1,
        "signatures": {"heldIdleSeconds": 2, "parkedRemoteKvSeconds": 2},
    }
    shop.apply(disagg(prefill=1, decode=2, watch=watch)).until_ready()
    status = shop.must("DisaggDeployment")["status"]
    assert status["observedGeneration"] == 1
    assert [(one["name"], one["replicas"], one["ready"], one["updated"]) for one in status["roles"]] == [
        ("prefill", 1, 1, 1),
        ("decode", 2, 2, 2),
    ]
    assert shop.condition("Progressing") == "False Complete"
    assert shop.condition("Degraded") == "False AsExpected"
    wait_for("its Event", lambda: "Serving" in [reason for reason, _ in events(shop)], PATIENCE_S)
    scene, prefill, decodes = engines(shop, operator, 2)
    assert scene.transfer(decodes[0], prefill)["usage"]["completion_tokens"] == 4

    scene.leak(decodes[0], prefill)
    found = scene.ended()
    assert ending(found) == "Resolved", json.dumps(found["status"], indent=1)
    assert len(found["status"]["stuckRequests"]) == 3
    assert scene.held(decodes[0]) == 0
    # What was made with it stays: by it the kit is taken out again.
    wait_for("nothing else", lambda: set(scene.marks(decodes[0])) == {"stanch.dev/kit"}, PATIENCE_S)
    assert shop.condition("Ready") == "True Serving", "a leak does not clear it"


def test_a_wrong_spec_shows_and_no_pod_is_touched(shop: Shop) -> None:
    shop.apply(disagg(prefill=1, decode=1)).until_ready()
    before = uids(shop)
    shop.edit(lambda spec: spec["roles"][1]["engine"].update(args=["--tensor-parallel-size=4"]))
    shop.until("Ready", "False Invalid")
    assert shop.message("Ready").startswith("spec.roles[decode].engine.args[0]: ")
    shop.edit(lambda spec: spec["roles"][1]["engine"].pop("args"))
    shop.until("Ready", "True Serving")
    plain = copy.deepcopy(shop.must("DisaggDeployment")["spec"]["roles"][1]["template"])
    engine = {"name": "vllm", "resources": {"requests": {"cpu": "lots"}}}
    shop.edit(lambda spec: spec["roles"][1]["template"]["spec"].update(containers=[engine]))
    shop.until("Ready", "False Invalid")
    assert "resources.requests[cpu]: is 'lots'" in shop.message("Ready")
    shop.edit(lambda spec: spec["roles"][1].update(template=plain))
    shop.until("Ready", "True Serving")
    shop.edit(lambda spec: spec["roles"][1]["template"]["spec"].update(restartPolicy="Sometimes"))
    shop.until("Ready", "False Refused")
    assert "Deployment shop-decode (role decode)" in shop.message("Degraded")
    assert uids(shop) == before
    wanted = {"Invalid", "Refused", "DegradedOver"}
    wait_for("its Events", lambda: wanted <= {reason for reason, _ in events(shop)}, PATIENCE_S)


def test_what_was_edited_by_hand_is_put_right_and_scale_is_left_alone(shop: Shop) -> None:
    shop.apply(disagg(prefill=1, decode=None)).until_ready()
    before = set(pods(shop, "prefill"))
    shop.namespace.kubectl("scale", "deployment", "shop-decode", "--replicas=2")
    shop.namespace.kubectl("scale", "deployment", "shop-prefill", "--replicas=2")
    shop.patch("Service", "shop-decode", {"spec": {"selector": {"stanch.dev/role": "prefill"}}})
    wait_for(
        "the Service put right",
        lambda: shop.must("Service", "shop-decode")["spec"]["selector"]["stanch.dev/role"] == "decode",
        PATIENCE_S,
    )
    wait_for(
        "one prefill", lambda: shop.must("Deployment", "shop-prefill")["spec"]["replicas"] == 1, PATIENCE_S
    )
    shop.until_ready()
    assert shop.must("Deployment", "shop-decode")["spec"]["replicas"] == 2
    wait_for("two decodes", lambda: len(pods(shop, "decode")) == 2, PATIENCE_S)
    assert before & set(pods(shop, "prefill")), "the pod that was there first stays"


def test_an_autoscaler_has_the_replicas(shop: Shop) -> None:
    """From outside (its own controller needs a metrics server, which the bed has not): by the scale
    subresource, as a HorizontalPodAutoscaler does."""
    shop.apply(disagg(prefill=0, decode=1)).until_ready()
    shop.edit(lambda spec: spec["roles"][1].pop("replicas"))
    shop.until("Ready", "True Serving")
    path = f"{shop.path('Deployment', 'shop-decode')}/scale"
    scale = shop.namespace.cluster.api(path)
    scale["spec"]["replicas"] = 2
    shop.namespace.cluster.api(f"{path}?fieldManager=horizontal-pod-autoscaler", "PUT", scale)
    shop.edit(lambda spec: spec["roles"][1]["engine"].update(env=[{"name": "A", "value": "b"}]))
    wait_for("two of the new ones", lambda: _with_env(shop) == 2, PATIENCE_S)
    shop.until_ready()
    assert shop.must("Deployment", "shop-decode")["spec"]["replicas"] == 2


def _with_env(shop: Shop) -> int:
    found = [
        {"name": "A", "value": "b"} in one["spec"]["containers"][0]["env"]
        for one in pods(shop, "decode").values()
    ]
    return sum(found)


def test_without_the_operator_all_of_it_goes_on_and_goes(shop: Shop, operator: Operator) -> None:
    """New pods become ready, and deletion needs nobody."""
    shop.apply(disagg(prefill=1, decode=1)).until_ready()
    operator.stop()
    try:
        before = uids(shop)
        shop.namespace.kubectl("delete", "pods", "--all", "--wait=false")
        wait_for("ready pods in their place", lambda: ready(shop) and not uids(shop) & before, PATIENCE_S)
        shop.namespace.kubectl("delete", "disaggdeployment", "shop", "--timeout=60s")
        wait_for("the end of all of it", lambda: not shop.objects() and not uids(shop), PATIENCE_S)
    finally:
        operator.start()


def ready(shop: Shop) -> bool:
    found = [shop.must("Deployment", f"shop-{role}")["status"] for role in ("prefill", "decode")]
    return all(one.get("readyReplicas") == 1 for one in found)


def test_what_is_deleted_by_people_in_the_foreground_goes(shop: Shop) -> None:
    shop.apply(disagg(prefill=0, decode=1)).until_ready()
    shop.namespace.kubectl(
        "delete", "disaggdeployment", "shop", "--cascade=foreground", f"--timeout={PATIENCE_S:g}s"
    )
    wait_for("the end of all of it", lambda: not shop.objects() and not uids(shop), PATIENCE_S)
