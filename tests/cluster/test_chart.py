"""What the chart renders, by the real helm; test_chart_values.py has each value."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from stanch.api.generate import KINDS
from stanch.edge import diagnosis_access
from stanch.edge.findings import Mark
from stanch.edge.permissions import Guard
from tests.bed.helm import CHART, Object, helm, template
from tests.cluster.charts import (
    ALL,
    DEPLOYMENT,
    HOOK,
    HOOK_POD,
    OPERATOR,
    POD,
    POLICY,
    WEBHOOK,
    at,
    merged,
    rendered,
)

pytestmark = pytest.mark.cluster
row = pytest.param


def test_as_a_part_of_another_chart(tmp_path: Path) -> None:
    """Then Helm adds `global` to its values."""
    (tmp_path / "charts").mkdir()
    (tmp_path / "charts/stanch").symlink_to(CHART)
    (tmp_path / "Chart.yaml").write_text("apiVersion: v2\nname: shop\nversion: 1.0.0\n")
    found = template({"global": {"a": "b"}, "stanch": {"replicas": 2}}, name="shop", chart=tmp_path)
    assert at(found, "Deployment/shop-stanch spec.replicas") == 2


def pods(objects: list[Object]) -> Iterator[tuple[str, Object]]:
    """Every pod's spec, whoever makes it."""
    for one in objects:
        spec = one if one["kind"] == "Pod" else one.get("spec", {}).get("template")
        if spec is not None:
            yield f"{one['kind']}/{one['metadata']['name']}", spec["spec"]


@pytest.mark.parametrize("values", [row({}, id="defaults"), row(ALL, id="all")])
def test_every_pod_fits_the_restricted_profile(values: dict[str, Any]) -> None:
    """As data; the API server's own word is in test_helm.py."""
    found = dict(pods(rendered(values)))
    assert set(found) == {DEPLOYMENT, HOOK, "Pod/stanch-ready"}
    for name, spec in found.items():
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(spec), name
        security = spec["securityContext"]
        assert security["runAsNonRoot"] is True, name
        assert security["runAsUser"] == 65532, name
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}, name
        for volume in spec.get("volumes", []):
            assert set(volume) - {"name"} <= {"emptyDir", "secret", "configMap"}, name
        for container in spec["containers"]:
            own = container["securityContext"]
            assert own == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }, name
            assert container["resources"]["requests"]["memory"], name
            assert all("hostPort" not in port for port in container.get("ports", [])), name


def test_what_is_mounted_is_declared_and_nothing_else() -> None:
    spec = at(rendered(ALL), f"{POD}.spec")
    mounted = {one["name"] for one in spec["containers"][0]["volumeMounts"]}
    assert mounted == {one["name"] for one in spec["volumes"]}
    assert mounted == {
        *("tmp", "tables", "webhook-tls", "alerts-token", "alerts-tls", "prometheus", "api-keys"),
    }
    paths = {one["mountPath"] for one in spec["containers"][0]["volumeMounts"]}
    files = [one.get("value", "") for one in spec["containers"][0]["env"]]
    for file in filter(lambda one: one.startswith("/"), files):
        assert any(file == path or file.startswith(f"{path}/") for path in paths), file


@pytest.mark.parametrize("values", [row({}, id="defaults"), row(ALL, id="all")])
def test_no_secret_is_made(values: dict[str, Any]) -> None:
    assert {one["kind"] for one in rendered(values)} <= {
        *(
            "ServiceAccount",
            "ClusterRole",
            "ClusterRoleBinding",
            "Role",
            "RoleBinding",
            "Service",
            "ConfigMap",
        ),
        *("Deployment", "Job", "Pod", "PodDisruptionBudget", "NetworkPolicy", "ServiceMonitor"),
        *("CustomResourceDefinition", "MutatingWebhookConfiguration"),
        *("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"),
    }


def test_the_kinds_stay() -> None:
    """Those of crds/, each with the mark that keeps it; nothing else has that."""
    found = {
        one["metadata"]["name"]: one for one in rendered({}) if one["kind"] == "CustomResourceDefinition"
    }
    assert set(found) == {kind.crd for kind, _ in KINDS}
    for name, one in found.items():
        plain = yaml.safe_load((CHART.parents[1] / f"crds/{name}.yaml").read_text())
        assert one["metadata"].pop("annotations") == {"helm.sh/resource-policy": "keep"}
        assert one["metadata"].pop("labels")["app.kubernetes.io/name"] == "stanch"
        assert one == plain
    others = [one for one in rendered(ALL) if one["kind"] != "CustomResourceDefinition"]
    assert "resource-policy" not in json.dumps(others)


def test_everything_says_whose_it_is_and_where() -> None:
    cluster_wide = {
        *("ClusterRole", "ClusterRoleBinding", "CustomResourceDefinition", "MutatingWebhookConfiguration"),
        *("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"),
    }
    for one in template(ALL, name="heal", namespace="ops", hooks=True):
        meta = one["metadata"]
        assert meta["labels"]["app.kubernetes.io/instance"] == "heal", meta
        assert meta.get("namespace") == (None if one["kind"] in cluster_wide else "ops"), meta
        assert one["kind"] == "CustomResourceDefinition" or meta["name"].startswith("heal-stanch"), meta


def subjects(objects: list[Object]) -> set[tuple[str, str]]:
    return {(who["namespace"], who["name"]) for one in objects for who in one.get("subjects", [])}


def test_another_name_and_namespace() -> None:
    """The account, and whom policy, roles and webhook mean, go with them."""
    found = template({}, name="heal", namespace="ops")
    assert subjects(found) == {("ops", "heal-stanch")}
    assert at(found, "ServiceAccount/heal-stanch metadata.namespace") == "ops"
    policy = at(found, "ValidatingAdmissionPolicy/heal-stanch-pods")
    binding = at(found, "ValidatingAdmissionPolicyBinding/heal-stanch-pods")
    assert binding["spec"]["policyName"] == policy["metadata"]["name"]
    (condition,) = policy["spec"]["matchConditions"]
    assert condition["expression"].endswith("== 'system:serviceaccount:ops:heal-stanch'")
    (hook,) = at(found, "MutatingWebhookConfiguration/heal-stanch webhooks")
    service = hook["clientConfig"]["service"]
    assert (service["namespace"], service["name"]) == ("ops", "heal-stanch-webhook")
    assert at(found, "Service/heal-stanch-webhook")
    assert {
        "key": "kubernetes.io/metadata.name",
        "operator": "NotIn",
        "values": ["kube-system", "ops"],
    } in hook["namespaceSelector"]["matchExpressions"]


@pytest.mark.parametrize("guard", Guard)
def test_the_admission_policies_are_what_doctor_looks_for(guard: Guard) -> None:
    found = rendered({})
    policy, binding = (
        at(found, f"{kind}/stanch-{guard.value}")
        for kind in ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")
    )
    account = "system:serviceaccount:stanch-system:stanch"
    assert diagnosis_access.policy(account, guard, policy, binding).mark is Mark.OK


def test_the_webhook_holds_nobody_up() -> None:
    (hook,) = at(rendered({}), f"{WEBHOOK} webhooks")
    assert "caBundle" not in hook["clientConfig"]
    assert (hook["failurePolicy"], hook["timeoutSeconds"], hook["sideEffects"]) == ("Ignore", 2, "None")
    assert hook["reinvocationPolicy"] == "IfNeeded"
    assert hook["objectSelector"] == {
        "matchExpressions": [{"key": "stanch.dev/inject", "operator": "In", "values": ["enabled"]}]
    }
    (rule,) = hook["rules"]
    assert (rule["resources"], rule["operations"]) == (["pods"], ["CREATE"])


def rules(objects: list[Object], kind: str, name: str, namespace: str | None = None) -> list[Object]:
    return next(
        one["rules"]
        for one in objects
        if (one["kind"], one["metadata"]["name"]) == (kind, name)
        and one["metadata"].get("namespace") == namespace
    )


def test_rights_in_some_namespaces_only() -> None:
    """What is granted cluster-wide else is granted in each of them; cluster-wide what has no namespace."""
    wide, narrow = rendered({}), rendered({"watchNamespaces": ["shop", "lab"]})
    for namespace in ("shop", "lab"):
        mine = rules(narrow, "Role", "stanch-watched", namespace)
        assert rules(wide, "ClusterRole", "stanch") == [*mine, *rules(narrow, "ClusterRole", "stanch")]
        bound = [
            one["roleRef"]
            for one in narrow
            if one["kind"] == "RoleBinding" and one["metadata"]["namespace"] == namespace
        ]
        assert [one["name"] for one in bound] == ["stanch-watched"]
    resources = [one["resources"] for one in rules(narrow, "ClusterRole", "stanch")]
    assert resources == [["nodes"], ["mutatingwebhookconfigurations"]]
    none = rendered({"watchNamespaces": ["shop"], "rbac": {"nodes": False}, "webhook": {"enabled": False}})
    assert at(none, "ClusterRole/stanch") is None
    assert rules(narrow, "Role", "stanch", "stanch-system") == rules(wide, "Role", "stanch", "stanch-system")
    assert subjects(narrow) == {("stanch-system", "stanch")}
    (hook,) = at(narrow, f"{WEBHOOK} webhooks")
    assert hook["namespaceSelector"]["matchExpressions"][1]["values"] == ["shop", "lab"]
    args = at(narrow, f"{HOOK_POD}.spec.containers.lift.args")
    assert args[-2:] == ["--namespace=shop", "--namespace=lab"]


def test_people_s_roles() -> None:
    """An incident may not be made by whoever may edit a namespace."""
    found = [one for one in rendered({}) if one["kind"] == "ClusterRole"]
    aggregated = {
        label.rpartition("-")[2]: one
        for one in found
        for label in one["metadata"]["labels"]
        if label.startswith("rbac.authorization.k8s.io/aggregate-to-")
    }
    assert set(aggregated) == {"view", "edit"}
    (view,), (edit,) = aggregated["view"]["rules"], aggregated["edit"]["rules"]
    assert set(view["verbs"]) == {"get", "list", "watch"}
    assert set(view["resources"]) == {kind.plural for kind, _ in KINDS}
    assert "leakincidents" not in edit["resources"]
    (respond,) = rules(rendered({}), "ClusterRole", "stanch-responder")
    assert "create" in respond["verbs"]


def allowed(policy: Object, direction: str) -> dict[int, list[Object] | None]:
    """By port who may come, or where it may go; None for anybody."""
    key = {"ingress": "from", "egress": "to"}[direction]
    return {port["port"]: rule.get(key) for rule in policy["spec"][direction] for port in rule["ports"]}


def test_the_network_policy() -> None:
    peers = [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}]
    more = {"networkPolicy": {"metricsFrom": peers, "alertsFrom": peers, "prometheusPorts": [9090, 443]}}
    found = rendered(merged(ALL, more))
    policy = at(found, POLICY)
    test = at(found, "Pod/stanch-ready metadata.labels")
    (*first, own) = allowed(policy, "ingress").pop(8080) or []
    assert first == peers
    assert own["podSelector"]["matchLabels"].items() <= test.items()
    assert allowed(policy, "ingress") | {8080: None} == {8080: None, 9443: None, 9095: peers}
    assert allowed(policy, "egress") == dict.fromkeys((53, 443, 6443, 8000, 9090))
    chosen = policy["spec"]["podSelector"]
    (parts,) = chosen["matchExpressions"]
    for labels in (at(found, f"{POD}.metadata.labels"), at(found, f"{HOOK_POD}.metadata.labels")):
        assert chosen["matchLabels"].items() <= labels.items()
        assert labels[parts["key"]] in parts["values"]
    assert test[parts["key"]] not in parts["values"]
    off = {"webhook": {"enabled": False, "tlsSecret": "", "certificate": ""}, "alerts": {"enabled": False}}
    assert set(allowed(at(rendered(merged(ALL, off)), POLICY), "ingress")) == {8080}


def test_services_reach_the_operator_and_nothing_else() -> None:
    found = rendered(ALL)
    operator = at(found, f"{POD}.metadata.labels").items()
    others = [at(found, f"{HOOK_POD}.metadata.labels"), at(found, "Pod/stanch-ready metadata.labels")]
    selectors = [one["spec"]["selector"] for one in found if one["kind"] == "Service"]
    selectors += [at(found, f"{DEPLOYMENT} spec.selector.matchLabels")]
    selectors += [at(found, "PodDisruptionBudget/stanch spec.selector.matchLabels")]
    assert len(selectors) == 5
    for selector in selectors:
        assert selector.items() <= operator
        assert not any(selector.items() <= one.items() for one in others)
    ports = {one["name"] for one in at(found, f"{OPERATOR}.ports")}
    assert {one["spec"]["ports"][0]["targetPort"] for one in found if one["kind"] == "Service"} == ports


def test_of_one_replica_no_budget() -> None:
    assert at(rendered({}), "PodDisruptionBudget/stanch") is None
    assert at(rendered({"replicas": 2}), "PodDisruptionBudget/stanch spec.minAvailable") == 1


def test_notes_name_the_next_commands() -> None:
    said = helm("install", "heal", str(CHART), "--namespace=ops", "--dry-run=client")
    notes = said[said.index("NOTES:") :]
    for command in (
        "kubectl -n ops rollout status deployment/heal-stanch",
        "helm test heal -n ops",
        "stanch doctor -n NAMESPACE --operator-namespace ops --service-account heal-stanch",
        "kubectl get leakwatches,leakincidents -A",
    ):
        assert command in notes
