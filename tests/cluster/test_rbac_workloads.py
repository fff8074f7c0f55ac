"""The admission policy that keeps the operator's account to what a DisaggDeployment controls: everything is
tried under its own token."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tests.bed import cluster as bed
from tests.bed.cluster import Namespace, wait_for
from tests.cluster.caller import MERGE, Caller
from tests.cluster.disagg import Shop, disagg
from tests.cluster.installed import Installed, watch
from tests.cluster.test_making import POD_MONITOR_CRD

pytestmark = pytest.mark.cluster

Object = dict[str, Any]
APPLY = "application/apply-patch+yaml"
LABELS = {"app.kubernetes.io/managed-by": "stanch", "stanch.dev/deployment": "shop"}
_POD: Object = {"selector": {"matchLabels": {"one": "a"}}}
_POD["template"] = {
    "metadata": {"labels": {"one": "a"}},
    "spec": {"containers": [{"name": "a", "image": "stanch.test/none"}]},
}
KINDS: dict[str, tuple[str, str, Object]] = {
    "deployments": ("apps/v1", "Deployment", {"spec": {"replicas": 0, **_POD}}),
    "services": ("v1", "Service", {"spec": {"selector": {"one": "a"}, "ports": [{"port": 80}]}}),
    "serviceaccounts": ("v1", "ServiceAccount", {}),
    "poddisruptionbudgets": (
        "policy/v1",
        "PodDisruptionBudget",
        {"spec": {"maxUnavailable": 1, "selector": {"matchLabels": {"one": "a"}}}},
    ),
    "podmonitors": ("monitoring.coreos.com/v1", "PodMonitor", {"spec": {}}),
    "leakwatches": ("stanch.dev/v1alpha1", "LeakWatch", {"spec": watch("x")["spec"]}),
}
EVERY = pytest.mark.parametrize("plural", KINDS)


@dataclass(frozen=True)
class Tried:
    """Calls under the operator's account. uid: of the DisaggDeployment."""

    caller: Caller
    namespace: Namespace
    uid: str

    def owner(self, **changed: object) -> Object:
        found = {"apiVersion": "stanch.dev/v1alpha1", "kind": "DisaggDeployment", "name": "shop"}
        return {**found, "uid": self.uid, "controller": True, **changed}

    def body(self, plural: str, name: str, owners: list[Object] | None, labels: Object | None) -> Object:
        version, kind, rest = KINDS[plural]
        meta: Object = {"name": name, "namespace": self.namespace.name, "labels": labels or {}}
        if owners is not None:
            meta["ownerReferences"] = owners
        return {"apiVersion": version, "kind": kind, "metadata": meta, **rest}

    def path(self, plural: str, name: str = "") -> str:
        version = KINDS[plural][0]
        root = f"/apis/{version}" if "/" in version else f"/api/{version}"
        return f"{root}/namespaces/{self.namespace.name}/{plural}/{name}".rstrip("/")

    def create(self, plural: str, body: Object) -> tuple[int, str]:
        return self.caller.ask("POST", f"{self.path(plural)}?dryRun=All", body)

    def apply(self, plural: str, body: Object) -> tuple[int, str]:
        path = f"{self.path(plural, body['metadata']['name'])}?fieldManager=stanch&force=true&dryRun=All"
        return self.caller.ask("PATCH", path, body, {"Content-Type": APPLY})

    def patch(self, plural: str, name: str, body: Object) -> tuple[int, str]:
        return self.caller.ask(
            "PATCH", f"{self.path(plural, name)}?dryRun=All", body, {"Content-Type": MERGE}
        )

    def delete(self, plural: str, name: str) -> tuple[int, str]:
        return self.caller.ask("DELETE", f"{self.path(plural, name)}?dryRun=All")


@pytest.fixture(scope="module")
def tried(cluster: bed.Cluster, stanch: Installed) -> Iterator[Tried]:
    """With an object of each kind that is ours, one that is somebody's, one left by `--cascade=orphan`."""
    cluster.apply(POD_MONITOR_CRD)
    cluster.kubectl(
        "wait", "--for=condition=Established", "--timeout=60s", "crd/podmonitors.monitoring.coreos.com"
    )
    namespace = Namespace(cluster, f"test-{uuid.uuid4().hex[:8]}")
    namespace.make()
    shop = Shop(namespace).apply(disagg())
    caller = Caller(stanch, stanch.token())
    found = Tried(caller, namespace, shop.must("DisaggDeployment")["metadata"]["uid"])
    for plural in KINDS:
        namespace.apply(
            found.body(plural, "ours", [found.owner()], LABELS),
            found.body(plural, "theirs", None, {"app": "theirs"}),
            found.body(plural, "left", None, LABELS),
        )
    # A new policy is in force after a moment.
    wait_for("the policy", lambda: found.delete("services", "theirs")[0] == 403)
    yield found
    caller.close()
    namespace.remove()
    cluster.kubectl("delete", "crd", "podmonitors.monitoring.coreos.com")


def refused(answer: tuple[int, str]) -> str:
    code, text = answer
    assert code == 403, text
    message = str(json.loads(text)["message"])
    assert "ValidatingAdmissionPolicy 'stanch-workloads'" in message
    return message


def taken(answer: tuple[int, str]) -> None:
    assert answer[0] in (200, 201), answer[1]


@EVERY
class TestRefused:
    def test_to_make_what_no_disaggdeployment_controls(self, tried: Tried, plural: str) -> None:
        node = {"apiVersion": "v1", "kind": "ConfigMap", "name": "x", "uid": "1", "controller": True}
        for owners in (
            None,
            [tried.owner(controller=False)],
            [node],
            [tried.owner(apiVersion="other.dev/v1")],
        ):
            body = tried.body(plural, "new", owners, LABELS)
            for answer in (tried.create(plural, body), tried.apply(plural, body)):
                assert "may make only what a DisaggDeployment controls" in refused(answer)

    def test_to_make_what_is_not_labelled(self, tried: Tried, plural: str) -> None:
        for labels in (
            None,
            {**LABELS, "app.kubernetes.io/managed-by": "Helm"},
            {"stanch.dev/deployment": "shop"},
        ):
            body = tried.body(plural, "new", [tried.owner()], labels)
            assert "labelled as its own" in refused(tried.create(plural, body))

    def test_to_take_over_or_change_what_others_have(self, tried: Tried, plural: str) -> None:
        body = tried.body(plural, "theirs", [tried.owner()], LABELS)
        assert "may change and delete only" in refused(tried.apply(plural, body))
        refused(tried.patch(plural, "theirs", {"metadata": {"labels": {"a": "b"}}}))
        mine = {"metadata": {"labels": LABELS, "ownerReferences": [tried.owner()]}}
        refused(tried.patch(plural, "theirs", mine))

    def test_to_let_go_of_what_is_ours(self, tried: Tried, plural: str) -> None:
        for owners in ([], [tried.owner(controller=False)]):
            refused(tried.patch(plural, "ours", {"metadata": {"ownerReferences": owners}}))
        refused(tried.patch(plural, "ours", {"metadata": {"labels": {"stanch.dev/deployment": None}}}))

    def test_to_give_it_to_another(self, tried: Tried, plural: str) -> None:
        other = tried.owner(uid="00000000-0000-0000-0000-000000000000", name="other")
        body = {"metadata": {"ownerReferences": [other]}}
        assert "may not give" in refused(tried.patch(plural, "ours", body))

    @pytest.mark.parametrize("name", ["theirs", "left"])
    def test_to_delete_what_none_controls(self, tried: Tried, plural: str, name: str) -> None:
        assert "may change and delete only" in refused(tried.delete(plural, name))


@EVERY
class TestTaken:
    def test_made_and_changed_and_deleted(self, tried: Tried, plural: str) -> None:
        body = tried.body(plural, "new", [tried.owner()], LABELS)
        taken(tried.create(plural, body))
        taken(tried.apply(plural, body))
        taken(tried.apply(plural, tried.body(plural, "ours", [tried.owner()], {**LABELS, "more": "x"})))
        taken(tried.delete(plural, "ours"))

    def test_what_was_left_is_taken_back(self, tried: Tried, plural: str) -> None:
        taken(tried.apply(plural, tried.body(plural, "left", [tried.owner()], LABELS)))


@EVERY
def test_is_no_matter_of_others(tried: Tried, plural: str) -> None:
    tried.namespace.kubectl("label", plural, "theirs", "a=b", "--dry-run=server")
    tried.namespace.kubectl("delete", plural, "theirs", "--dry-run=server")


def test_the_server_finds_no_fault_with_it(stanch: Installed) -> None:
    path = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies/stanch-workloads"
    checked = wait_for(
        "the check of types", lambda: stanch.cluster.api(path).get("status", {}).get("typeChecking")
    )
    assert "expressionWarnings" not in checked
