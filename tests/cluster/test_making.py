"""edge.cluster.making against a real API server, under the operator's own account."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from stanch.edge.cluster import Cluster, Conflict, Forbidden, Invalid, NotFound
from stanch.edge.cluster.making import DEPLOYMENTS, POD_MONITORS
from tests.bed.cluster import Namespace, Object, wait_for
from tests.cluster.disagg import Shop, disagg, settled
from tests.cluster.installed import Installed, Speaker

pytestmark = pytest.mark.cluster

SOMEBODY = {"metadata": {"labels": {"theirs": "x"}, "annotations": {"theirs": "x"}}}


@pytest.fixture
def speaker(stanch: Installed, tmp_path: Path) -> Speaker:
    return Speaker(stanch.kubeconfig(tmp_path / "kubeconfig"))


@pytest.fixture
def shop(stanch: Installed, namespace: Namespace) -> Shop:
    """With a DisaggDeployment that nobody acts on: it may own things."""
    return Shop(namespace).apply(disagg())


def deployment(shop: Shop, replicas: int | None = 0, **container: object) -> Object:
    owner = shop.must("DisaggDeployment")["metadata"]
    labels = {"app.kubernetes.io/managed-by": "stanch", "stanch.dev/deployment": "shop"}
    reference = {
        "apiVersion": "stanch.dev/v1alpha1",
        "kind": "DisaggDeployment",
        "name": "shop",
        "uid": owner["uid"],
        "controller": True,
    }
    one = {"name": "a", "image": "stanch.test/none", "env": [{"name": "A", "value": "1"}], **container}
    spec: Object = {
        "selector": {"matchLabels": {"one": "a"}},
        "template": {"metadata": {"labels": {"one": "a"}}, "spec": {"containers": [one]}},
    }
    if replicas is not None:
        spec["replicas"] = replicas
    meta = {
        "name": "a",
        "namespace": shop.namespace.name,
        "labels": labels,
        "ownerReferences": [reference],
    }
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": meta, "spec": spec}


def with_uid(body: Object, uid: str) -> Object:
    changed = deepcopy(body)
    changed["metadata"]["uid"] = uid
    return changed


class TestApply:
    def test_makes_and_again_changes_nothing(self, shop: Shop, speaker: Speaker) -> None:
        body = deployment(shop)
        made = speaker.run(lambda cluster: cluster.making.apply(body))
        assert made["spec"]["replicas"] == 0
        assert (
            made["metadata"]["ownerReferences"][0]["uid"] == shop.must("DisaggDeployment")["metadata"]["uid"]
        )
        wait_for("its controller", lambda: settled(shop.must("Deployment", "a")))
        before = shop.must("Deployment", "a")
        again = speaker.run(lambda cluster: cluster.making.apply(body))
        assert again["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]

    def test_takes_back_what_is_ours_and_leaves_what_is_not(self, shop: Shop, speaker: Speaker) -> None:
        body = deployment(shop)
        speaker.run(lambda cluster: cluster.making.apply(body))
        shop.patch("Deployment", "a", SOMEBODY)
        shop.patch("Deployment", "a", {"spec": {"template": {"spec": {"hostNetwork": True}}}})
        shop.patch("Deployment", "a", {"metadata": {"labels": {"stanch.dev/deployment": "other"}}})
        now = speaker.run(lambda cluster: cluster.making.apply(body))
        assert now["metadata"]["labels"]["stanch.dev/deployment"] == "shop"
        assert now["metadata"]["labels"]["theirs"] == "x"
        assert now["metadata"]["annotations"]["theirs"] == "x"
        assert now["spec"]["template"]["spec"]["hostNetwork"] is True, "we have never said anything of it"

    def test_takes_away_what_we_do_not_want_any_more(self, shop: Shop, speaker: Speaker) -> None:
        async def scene(cluster: Cluster) -> Object:
            await cluster.making.apply(deployment(shop))
            return await cluster.making.apply(deployment(shop, env=[]))

        found = speaker.run(scene)
        assert "env" not in found["spec"]["template"]["spec"]["containers"][0]

    @pytest.mark.parametrize("dry_run", [True, False])
    @pytest.mark.parametrize(
        ("container", "words"),
        [
            ({"imge": "typo"}, "imge"),
            ({"resources": {"limits": {"cpu": "-1"}}}, "must be greater than or equal to 0"),
            ({"image": 7}, "image"),
            ({"resources": {"limits": {"cpu": "lots"}}}, "quantities must match"),
            ({"livenessProbe": {"httpGet": {"port": {}}}}, "cannot unmarshal object"),
        ],
        ids=["unknown field", "wrong value", "wrong type", "no quantity", "wrong type of two"],
    )
    def test_what_the_server_will_never_take(
        self, shop: Shop, speaker: Speaker, container: dict[str, Any], words: str, dry_run: bool
    ) -> None:
        with pytest.raises(Invalid, match=words):
            speaker.run(lambda cluster: cluster.making.apply(deployment(shop, **container), dry_run=dry_run))
        assert shop.get("Deployment", "a") is None

    def test_a_dry_run_leaves_nothing(self, shop: Shop, speaker: Speaker) -> None:
        body = deployment(shop)
        made = speaker.run(lambda cluster: cluster.making.apply(body, dry_run=True))
        assert made["metadata"]["name"] == "a"
        assert shop.get("Deployment", "a") is None

    def test_of_another_uid(self, shop: Shop, speaker: Speaker) -> None:
        body = with_uid(deployment(shop), "00000000-0000-0000-0000-000000000000")
        with pytest.raises(Conflict):
            speaker.run(lambda cluster: cluster.making.apply(body))
        assert shop.get("Deployment", "a") is None
        speaker.run(lambda cluster: cluster.making.apply(deployment(shop)))
        with pytest.raises(Conflict):
            speaker.run(lambda cluster: cluster.making.apply(body))

    def test_without_force_nothing_is_taken_from_another_manager(self, shop: Shop, speaker: Speaker) -> None:
        speaker.run(lambda cluster: cluster.making.apply(deployment(shop, replicas=0)))
        shop.namespace.kubectl("scale", "deployment", "a", "--replicas=2")
        with pytest.raises(Conflict, match="conflict"):
            speaker.run(lambda cluster: cluster.making.apply(deployment(shop, replicas=0), force=False))


class TestReplicas:
    def test_absent_are_left_to_whoever_sets_them(self, shop: Shop, speaker: Speaker) -> None:
        speaker.run(lambda cluster: cluster.making.apply(deployment(shop, replicas=None)))
        assert shop.must("Deployment", "a")["spec"]["replicas"] == 1
        shop.namespace.kubectl("scale", "deployment", "a", "--replicas=3")
        found = speaker.run(lambda cluster: cluster.making.apply(deployment(shop, replicas=None)))
        assert found["spec"]["replicas"] == 3

    def test_from_given_to_absent_stay_by_being_handed_over(self, shop: Shop, speaker: Speaker) -> None:
        async def scene(cluster: Cluster) -> list[object]:
            absent = deployment(shop, replicas=None)
            await cluster.making.apply(deployment(shop, replicas=3))
            return [
                await cluster.making.hand_over_replicas(absent),
                (await cluster.making.apply(absent))["spec"]["replicas"],
                await cluster.making.hand_over_replicas(absent),
            ]

        assert speaker.run(scene) == [True, 3, False]
        shop.namespace.kubectl("scale", "deployment", "a", "--replicas=5")
        found = speaker.run(lambda cluster: cluster.making.apply(deployment(shop, replicas=None)))
        assert found["spec"]["replicas"] == 5

    def test_without_handing_over_the_server_would_set_one(self, shop: Shop, speaker: Speaker) -> None:
        async def scene(cluster: Cluster) -> object:
            await cluster.making.apply(deployment(shop, replicas=3))
            return (await cluster.making.apply(deployment(shop, replicas=None)))["spec"]["replicas"]

        assert speaker.run(scene) == 1

    def test_what_an_autoscaler_has_set_since_is_not_ours_to_hand_over(
        self, shop: Shop, speaker: Speaker
    ) -> None:
        speaker.run(lambda cluster: cluster.making.apply(deployment(shop, replicas=3)))
        shop.namespace.kubectl("scale", "deployment", "a", "--replicas=4")

        async def scene(cluster: Cluster) -> list[object]:
            absent = deployment(shop, replicas=None)
            handed = await cluster.making.hand_over_replicas(absent)
            return [handed, (await cluster.making.apply(absent))["spec"]["replicas"]]

        assert speaker.run(scene) == [False, 4]


class TestListAndDelete:
    def test_by_label(self, shop: Shop, speaker: Speaker) -> None:
        speaker.run(lambda cluster: cluster.making.apply(deployment(shop)))
        name = shop.namespace.name

        async def scene(cluster: Cluster) -> list[int]:
            listings = [
                await cluster.making.listed(DEPLOYMENTS, name, f"stanch.dev/deployment={one}")
                for one in ("shop", "other")
            ]
            return [len(listing.items) for listing in listings]

        assert speaker.run(scene) == [1, 0]

    def test_deleted_under_its_uid_only(self, shop: Shop, speaker: Speaker) -> None:
        made = speaker.run(lambda cluster: cluster.making.apply(deployment(shop)))
        other = with_uid(made, "00000000-0000-0000-0000-000000000000")
        with pytest.raises(Conflict):
            speaker.run(lambda cluster: cluster.making.delete(other))
        assert shop.get("Deployment", "a") is not None
        speaker.run(lambda cluster: cluster.making.delete(made))
        wait_for("its end", lambda: shop.get("Deployment", "a") is None)
        with pytest.raises(NotFound):
            speaker.run(lambda cluster: cluster.making.delete(made))

    def test_pod_monitors_are_there_or_not(
        self, stanch: Installed, speaker: Speaker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("stanch.edge.cluster.making._LOOK_AGAIN_SECONDS", 0.0)
        assert speaker.run(lambda cluster: cluster.making.pod_monitors()) is False
        with pytest.raises(NotFound):
            speaker.run(lambda cluster: cluster.making.listed(POD_MONITORS, None, ""))
        stanch.cluster.apply(POD_MONITOR_CRD)
        try:
            wait_for("the kind", lambda: speaker.run(lambda cluster: cluster.making.pod_monitors()))
        finally:
            stanch.cluster.kubectl("delete", "crd", "podmonitors.monitoring.coreos.com")
        wait_for("its end", lambda: not speaker.run(lambda cluster: cluster.making.pod_monitors()))


# As the Prometheus operator's, without its schema.
POD_MONITOR_CRD: Object = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "podmonitors.monitoring.coreos.com"},
    "spec": {
        "group": "monitoring.coreos.com",
        "names": {"kind": "PodMonitor", "plural": "podmonitors", "singular": "podmonitor"},
        "scope": "Namespaced",
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
                },
            }
        ],
    },
}


def test_what_nobody_controls_cannot_be_made(shop: Shop, speaker: Speaker) -> None:
    body = deployment(shop)
    del body["metadata"]["ownerReferences"]
    with pytest.raises(Forbidden, match="only what a DisaggDeployment controls"):
        speaker.run(lambda cluster: cluster.making.apply(body))
