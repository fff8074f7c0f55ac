"""What the operator's account may do, and that it may do nothing else: every verb tried under its token."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from tests.bed import cluster as bed
from tests.bed.cluster import Namespace
from tests.cluster.caller import METHODS, Caller
from tests.cluster.installed import NAMESPACE, Installed

pytestmark = pytest.mark.cluster

Object = dict[str, Any]

# In any namespace: what may be done. Every other verb on these and on DENIED is tried and must be refused.
ALLOWED: dict[str, str] = {
    "v1 pods": "get list patch",
    "v1 pods/eviction": "create",
    "v1 pods/log": "get",
    "v1 nodes": "get",
    "discovery.k8s.io/v1 endpointslices": "list",
    "policy/v1 poddisruptionbudgets": "get list create patch delete",
    "apps/v1 deployments": "get list create patch delete",
    "v1 services": "get list create patch delete",
    "v1 serviceaccounts": "get list create patch delete",
    "monitoring.coreos.com/v1 podmonitors": "get list create patch delete",
    "apps/v1 replicasets": "get",
    "apps/v1 statefulsets": "get",
    "leaderworkerset.x-k8s.io/v1 leaderworkersets": "get",
    "disaggregatedset.x-k8s.io/v1 disaggregatedsets": "get",
    "stanch.dev/v1alpha1 leakwatches": "get list watch create patch delete",
    "stanch.dev/v1alpha1 disaggdeployments": "list watch",
    "stanch.dev/v1alpha1 leakincidents": "get list watch create delete",
    "stanch.dev/v1alpha1 leakwatches/status": "update",
    "stanch.dev/v1alpha1 leakincidents/status": "update",
    "stanch.dev/v1alpha1 disaggdeployments/status": "update",
    "events.k8s.io/v1 events": "create patch",
}
DENIED = [
    *(
        f"v1 {plural}"
        for plural in (
            "pods/exec",
            "pods/attach",
            "pods/portforward",
            "pods/proxy",
            "pods/status",
            "pods/ephemeralcontainers",
            "pods/resize",
            "pods/binding",
            "secrets",
            "configmaps",
            "events",
            "endpoints",
            "services/proxy",
            "services/status",
            "serviceaccounts/token",
            "persistentvolumeclaims",
            "resourcequotas",
            "replicationcontrollers",
            "nodes/proxy",
            "nodes/status",
            "namespaces",
            "namespaces/finalize",
            "persistentvolumes",
        )
    ),
    *(
        f"apps/v1 {kind}"
        for kind in ("deployments/scale", "deployments/status", "statefulsets/scale", "daemonsets")
    ),
    "batch/v1 jobs",
    "autoscaling/v2 horizontalpodautoscalers",
    "networking.k8s.io/v1 networkpolicies",
    "policy/v1 poddisruptionbudgets/status",
    "coordination.k8s.io/v1 leases",
    *(
        f"rbac.authorization.k8s.io/v1 {kind}"
        for kind in ("roles", "rolebindings", "clusterroles", "clusterrolebindings")
    ),
    *(
        f"admissionregistration.k8s.io/v1 {kind}"
        for kind in (
            "validatingadmissionpolicies",
            "validatingadmissionpolicybindings",
            "validatingwebhookconfigurations",
            "mutatingwebhookconfigurations",
        )
    ),
    "apiextensions.k8s.io/v1 customresourcedefinitions",
    "apiregistration.k8s.io/v1 apiservices",
    "certificates.k8s.io/v1 certificatesigningrequests",
    "certificates.k8s.io/v1 certificatesigningrequests/approval",
    "authentication.k8s.io/v1 tokenreviews",
    "authorization.k8s.io/v1 subjectaccessreviews",
    "scheduling.k8s.io/v1 priorityclasses",
    "storage.k8s.io/v1 storageclasses",
]


@pytest.fixture(scope="module")
def caller(stanch: Installed) -> Iterator[Caller]:
    found = Caller(stanch, stanch.token())
    yield found
    found.close()


@pytest.fixture(scope="module")
def namespace_name(cluster: bed.Cluster) -> Iterator[str]:
    """One for all of them: nothing is ever made in it."""
    found = Namespace(cluster, f"test-{uuid.uuid4().hex[:8]}")
    found.make()
    yield found.name
    found.remove()


def verbs_of(resource: str) -> list[str]:
    """Those that a path can express: what is below an object is neither listed nor deleted with others."""
    below = "/" in resource.partition(" ")[2]
    return ["get", "create", "update", "patch", "delete"] if below else list(METHODS)


class TestRights:
    @pytest.mark.parametrize("resource", [*ALLOWED, *DENIED])
    def test_every_verb(self, namespace_name: str, caller: Caller, resource: str) -> None:
        tried = {verb: caller.may(verb, resource, namespace_name) for verb in verbs_of(resource)}
        allowed = ALLOWED.get(resource, "").split()
        assert {verb for verb, yes in tried.items() if yes} == set(allowed)

    @pytest.mark.parametrize(
        ("resource", "name", "allowed"),
        [
            ("v1 configmaps", "stanch-stop", "get"),
            ("v1 configmaps", "another", ""),
            ("v1 secrets", "stanch-stop", ""),
            ("coordination.k8s.io/v1 leases", "stanch", "get create update"),
            ("coordination.k8s.io/v1 leases", "another", "create"),
            ("admissionregistration.k8s.io/v1 mutatingwebhookconfigurations", "stanch", "get patch"),
        ],
    )
    def test_in_its_own_namespace(self, caller: Caller, resource: str, name: str, allowed: str) -> None:
        tried = {verb for verb in METHODS if caller.may(verb, resource, NAMESPACE, name)}
        assert tried == set(allowed.split())

    def test_it_can_be_nobody_else(self, caller: Caller) -> None:
        code, text = caller.ask("GET", "/api/v1/nodes", headers={"Impersonate-User": "admin"})
        assert code == 403
        assert "cannot impersonate resource" in text

    def test_the_server_knows_of_nothing_more(self, caller: Caller) -> None:
        """What the tests above did not think of: all rules that the server has for the account, those of
        everybody aside."""
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectRulesReview",
            "spec": {"namespace": "default"},
        }
        code, text = caller.ask("POST", "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews", review)
        assert code == 201, text
        found = {
            (group, resource, verb)
            for rule in json.loads(text)["status"]["resourceRules"]
            for group in rule.get("apiGroups", [])
            for resource in rule.get("resources", [])
            for verb in rule["verbs"]
        }
        expected = set()
        for key, verbs in ALLOWED.items():
            version, _, resource = key.partition(" ")
            group = version.rpartition("/")[0]
            expected |= {(group, resource, verb) for verb in verbs.split()}
        # Of that one only which is named stanch.
        own = ("admissionregistration.k8s.io", "mutatingwebhookconfigurations")
        expected |= {(*own, verb) for verb in ("get", "patch")}
        everybodys = {"selfsubjectaccessreviews", "selfsubjectrulesreviews", "selfsubjectreviews"}
        assert {one for one in found if one[1] not in everybodys} == expected
