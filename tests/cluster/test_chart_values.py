"""Every value of the chart once: where it shows, and what is refused."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from pydantic import BaseModel

from stanch.api.values import Values
from tests.bed.helm import CHART, HelmError, helm, template
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
    nested,
    rendered,
)

pytestmark = pytest.mark.cluster
row = pytest.param

DIGEST = "sha256:" + 64 * "a"


def env(name: str) -> str:
    return f"{OPERATOR}.env.{name}.value"


# A value, what it becomes, what else must be set for it, where that shows, and what is there then (a type:
# only that it is there). Before it, something else is there.
VALUES: list[tuple[str, Any, dict[str, Any], str, Any]] = [
    ("image.repository", "r/s", {}, f"{OPERATOR}.image", "r/s:0.1.0"),
    ("image.tag", "v9", {}, f"{HOOK_POD}.spec.containers.lift.image", "stanch:v9"),
    ("image.digest", DIGEST, {}, f"{OPERATOR}.image", f"stanch:0.1.0@{DIGEST}"),
    ("image.pullPolicy", "Never", {}, f"{OPERATOR}.imagePullPolicy", "Never"),
    ("imagePullSecrets", [{"name": "p"}], {}, f"{POD}.spec.imagePullSecrets", [{"name": "p"}]),
    ("kit.image", "k:1", {}, env("STANCH_KIT_IMAGE"), "k:1"),
    ("kit.pullPolicy", "Always", {}, env("STANCH_KIT_PULL_POLICY"), "Always"),
    ("kit.imageVolume", True, {}, env("STANCH_KIT_IMAGE_VOLUME"), "true"),
    ("fullnameOverride", "other", {}, "Deployment/other metadata.name", "other"),
    ("replicas", 2, {}, f"{DEPLOYMENT} spec.replicas", 2),
    ("watchNamespaces", ["a", "b"], {}, env("STANCH_WATCH_NAMESPACES"), "a,b"),
    ("crds.install", False, {}, "CustomResourceDefinition/leakwatches.stanch.dev", None),
    ("serviceAccount.create", False, nested("serviceAccount.name", "me"), "ServiceAccount/me", None),
    ("serviceAccount.name", "me", {}, f"{POD}.spec.serviceAccountName", "me"),
    ("serviceAccount.annotations", {"a": "b"}, {}, "ServiceAccount/stanch metadata.annotations", {"a": "b"}),
    ("rbac.create", False, {}, "ClusterRole/stanch", None),
    (
        "rbac.nodes",
        False,
        nested("watchNamespaces", ["a"]),
        "ClusterRole/stanch rules.0.resources",
        ["mutatingwebhookconfigurations"],
    ),
    (
        "rbac.aggregate",
        False,
        {},
        "ClusterRole/stanch-view metadata.labels.rbac~authorization~k8s~io/aggregate-to-view",
        None,
    ),
    ("disaggDeployments.enabled", False, {}, "ClusterRole/stanch rules.15", None),
    ("admissionPolicy.enabled", False, {}, "ValidatingAdmissionPolicyBinding/stanch-pods", None),
    ("webhook.enabled", False, {}, WEBHOOK, None),
    ("webhook.port", 9444, {}, env("STANCH_WEBHOOK_PORT"), "9444"),
    ("webhook.tlsSecret", "t", {}, env("STANCH_WEBHOOK_CERT_DIR"), "/etc/stanch/webhook-tls"),
    (
        "webhook.certificate",
        "c",
        nested("webhook.tlsSecret", "t"),
        f"{WEBHOOK} metadata.annotations.cert-manager~io/inject-ca-from",
        "stanch-system/c",
    ),
    (
        "alerts.enabled",
        True,
        nested("alerts.tokenSecret.name", "t"),
        "Service/stanch-alerts spec.ports.0.port",
        9095,
    ),
    ("alerts.port", 9096, ALL, env("STANCH_ALERTS_PORT"), "9096"),
    ("alerts.tokenSecret.name", "other", ALL, f"{POD}.spec.volumes.alerts-token.secret.secretName", "other"),
    ("alerts.tokenSecret.key", "k", ALL, env("STANCH_ALERTS_TOKEN_FILE"), "/etc/stanch/alerts-token/k"),
    ("alerts.tlsSecret", "other", ALL, f"{POD}.spec.volumes.alerts-tls.secret.secretName", "other"),
    ("alerts.table", {"a": ["b"]}, ALL, "ConfigMap/stanch-tables data.alerts~yaml", "a:\n- b\npod:\n- pod\n"),
    (
        "prometheus.table",
        [{"url": "http://q"}],
        {},
        "ConfigMap/stanch-tables data.prometheus~yaml",
        "- url: http://q\n",
    ),
    ("prometheus.secret", "q", {}, f"{POD}.spec.volumes.prometheus.secret.secretName", "q"),
    ("apiKeys.secret", "k", {}, env("STANCH_API_KEYS_DIR"), "/etc/stanch/api-keys"),
    ("metrics.port", 9000, {}, env("STANCH_HTTP_PORT"), "9000"),
    ("metrics.service.enabled", False, {}, "Service/stanch-metrics", None),
    (
        "metrics.service.annotations",
        {"a": "b"},
        {},
        "Service/stanch-metrics metadata.annotations",
        {"a": "b"},
    ),
    (
        "metrics.serviceMonitor.enabled",
        True,
        {},
        "ServiceMonitor/stanch spec.selector.matchLabels.app~kubernetes~io/component",
        "metrics",
    ),
    ("metrics.serviceMonitor.interval", "1m", ALL, "ServiceMonitor/stanch spec.endpoints.0.interval", "1m"),
    ("metrics.serviceMonitor.labels", {"a": "b"}, ALL, "ServiceMonitor/stanch metadata.labels.a", "b"),
    ("networkPolicy.enabled", True, {}, f"{POLICY} spec.policyTypes", ["Ingress", "Egress"]),
    ("networkPolicy.metricsFrom", [{"podSelector": {}}], ALL, f"{POLICY} spec.ingress.0.from", list),
    ("networkPolicy.alertsFrom", [{"podSelector": {}}], ALL, f"{POLICY} spec.ingress.2.from", list),
    ("networkPolicy.enginePorts", [1], ALL, f"{POLICY} spec.egress.1.ports.2.port", 1),
    ("networkPolicy.apiServerPorts", [1], ALL, f"{POLICY} spec.egress.1.ports.0.port", 1),
    ("networkPolicy.prometheusPorts", [1], ALL, f"{POLICY} spec.egress.1.ports.3.port", 1),
    ("podDisruptionBudget.enabled", False, ALL, "PodDisruptionBudget/stanch", None),
    ("uninstall.lift", False, {}, HOOK, None),
    ("uninstall.deadlineSeconds", 60, {}, f"{HOOK} spec.activeDeadlineSeconds", 60),
    ("resources", {"limits": {"cpu": "1"}}, {}, f"{OPERATOR}.resources.limits.cpu", "1"),
    ("priorityClassName", "high", {}, f"{POD}.spec.priorityClassName", "high"),
    ("nodeSelector", {"a": "b"}, {}, f"{POD}.spec.nodeSelector", {"a": "b"}),
    ("tolerations", [{"operator": "Exists"}], {}, f"{HOOK_POD}.spec.tolerations", [{"operator": "Exists"}]),
    ("affinity", {"podAffinity": {}}, {}, f"{POD}.spec.affinity", {"podAffinity": {}}),
    ("topologySpreadConstraints", [{"maxSkew": 1}], {}, f"{POD}.spec.topologySpreadConstraints", list),
    ("extraEnv", [{"name": "A", "value": "b"}], {}, env("A"), "b"),
    ("labels", {"a": "b"}, {}, "Service/stanch-webhook metadata.labels.a", "b"),
    ("annotations", {"a": "b"}, {}, f"{DEPLOYMENT} metadata.annotations", {"a": "b"}),
    ("podLabels", {"a": "b"}, {}, f"{POD}.metadata.labels.a", "b"),
    ("podAnnotations", {"a": "b"}, {}, f"{POD}.metadata.annotations.a", "b"),
]
# Of the files that have what they show: tests/monitoring.
FILES = {"prometheusRule": "rules.yaml", "dashboard": "dashboard.json"}


def leaves(part: BaseModel, prefix: str = "") -> Iterator[str]:
    for name, info in type(part).model_fields.items():
        value, path = getattr(part, name), prefix + (info.alias or name)
        if isinstance(value, BaseModel):
            yield from leaves(value, f"{path}.")
        else:
            yield path


@pytest.mark.parametrize(
    ("path", "value", "more", "where", "expected"), VALUES, ids=[one[0] for one in VALUES]
)
def test_every_value_shows(path: str, value: Any, more: dict[str, Any], where: str, expected: Any) -> None:
    before, after = at(rendered(more), where), at(rendered(merged(more, nested(path, value))), where)
    if isinstance(expected, type):
        assert isinstance(after, expected)
    else:
        assert after == expected
    assert before != after


def test_no_value_is_left_out() -> None:
    mine = [one[0] for one in VALUES]
    of_files = {one for one in leaves(Values()) if one.split(".")[1:2] and one.split(".")[1] in FILES}
    assert len(mine) == len(set(mine))
    assert set(mine) | of_files == set(leaves(Values()))


def test_values_yaml_is_the_model_s_default() -> None:
    found = yaml.safe_load((CHART / "values.yaml").read_text())
    assert found == Values().model_dump(by_alias=True)


@pytest.mark.parametrize("values", [row({}, id="defaults"), row(ALL, id="all")])
def test_lint(values: dict[str, Any]) -> None:
    said = helm("lint", "--strict", str(CHART), "--values=-", stdin=json.dumps(values))
    assert "0 chart(s) failed" in said


@pytest.mark.parametrize(
    ("values", "words"),
    [
        row({"replica": 2}, "additional properties 'replica' not allowed", id="misspelt"),
        row({"alerts": {"tokenSecret": "t"}}, "at '/alerts/tokenSecret': got string, want object", id="text"),
        row({"replicas": 3}, "at '/replicas': maximum: got 3, want 2", id="three"),
        row({"replicas": 0}, "at '/replicas': minimum: got 0, want 1", id="none"),
        row({"replicas": "2"}, "at '/replicas': got string, want integer", id="quoted"),
        row({"image": {"digest": "abc"}}, "at '/image/digest'", id="digest"),
        row({"image": {"pullPolicy": "Sometimes"}}, "at '/image/pullPolicy'", id="pull-policy"),
        row({"watchNamespaces": ["Shop"]}, "at '/watchNamespaces/0'", id="namespace"),
        row({"watchNamespaces": ["a", "a"]}, "at '/watchNamespaces'", id="twice"),
        row({"webhook": {"port": 70000}}, "at '/webhook/port'", id="port"),
        row({"uninstall": {"deadlineSeconds": 5}}, "at '/uninstall/deadlineSeconds'", id="deadline"),
        row({"resources": None}, "missing property 'resources'", id="removed"),
        row({"alerts": {"enabled": True}}, "alerts.enabled: name alerts.tokenSecret.name", id="no-token"),
        row({"webhook": {"certificate": "c"}}, "webhook.certificate: name the Secret", id="no-secret"),
        row({"serviceAccount": {"create": False}}, "serviceAccount.name: name the account", id="no-account"),
    ],
)
def test_a_wrong_value_is_refused_by_its_name(values: dict[str, Any], words: str) -> None:
    with pytest.raises(HelmError, match=re.escape(words)):
        template(values)


@pytest.mark.parametrize("part", FILES)
def test_rules_and_dashboard_are_what_the_files_have(part: str) -> None:
    file = CHART / "files" / FILES[part]
    on = nested(f"metrics.{part}", {"enabled": True, "labels": {"a": "b"}})
    if not file.is_file():
        with pytest.raises(HelmError, match=f"files/{FILES[part]} is not in this chart"):
            template(on)
        return
    found = rendered(on)
    one = at(found, "PrometheusRule/stanch" if part == "prometheusRule" else "ConfigMap/stanch-dashboard")
    assert one["metadata"]["labels"]["a"] == "b"
    text = file.read_text()
    if part == "prometheusRule":
        assert one["spec"] == yaml.safe_load(text)
    else:
        assert one["data"]["stanch.json"] == text
