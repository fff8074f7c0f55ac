"""A release's life on the cluster: installed, upgraded, rolled back, uninstalled in the middle of a repair,
installed again; and the other ways to have it."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.bed.cluster import Cluster, KubectlError, Namespace, Object, wait_for
from tests.bed.helm import CHART, HelmError, helm, template
from tests.cluster import releases
from tests.cluster.operators import Operator
from tests.cluster.releases import PATIENCE_S, Release, place_for
from tests.cluster.scenes import RESTART, Scene, outcome

pytestmark = pytest.mark.cluster

# Of a request that runs for some forty seconds: longer than the hook takes to have the Lease.
TOKENS = 2000


@pytest.fixture
def release(cluster: Cluster, stanch_image: str) -> Iterator[Release]:
    """Not installed yet."""
    with place_for(cluster) as where:
        yield Release(cluster, where)


def scene_in(namespace: Namespace) -> Scene:
    """Its operator is the release's, so none is a process here."""
    return Scene(namespace, Operator("", Path("none")))


def test_a_repair_under_a_release_that_is_uninstalled_and_installed_again(
    release: Release, namespace: Namespace
) -> None:
    """The namespace enforces the restricted profile: the API server's own word on the chart's pods."""
    release.install()
    release.until_acting()
    assert "Phase:          Succeeded" in release.helm("test", release.name)
    scene = scene_in(namespace)
    scene.engines().watch(remediation=RESTART).until_watching()
    (healthy,) = scene.draining("d0", tokens=TOKENS)
    assert {"stanch.dev/cordon", "stanch.dev/incident"} <= set(scene.marks("d0"))
    release.uninstall()
    # The hook has lifted it: no lease had to run out, and nothing of ours is left on it.
    assert scene.marks("d0") == {}
    wait_for("d0 ready again", lambda: scene.ready("d0"), PATIENCE_S)
    assert scene.restarts("d0") == 0
    assert healthy.result()["usage"]["completion_tokens"] == TOKENS
    (incident,) = scene.incidents()
    assert not incident["status"].get("ending")
    assert scene.watched()["spec"]["mode"] == "Enforce"

    def kept() -> set[str]:
        kinds = "all,configmaps,serviceaccounts,secrets,jobs,roles,rolebindings"
        found = release.namespace.kubectl("get", kinds, "-o", "name").split()
        return {one for one in found if "stanch" in one}

    # The pod ends in its own time.
    wait_for("nothing of the release", lambda: not kept(), PATIENCE_S)
    # And again: what was open is gone on with.
    release.install()
    release.until_acting()
    assert outcome(scene.ended()) == ("Resolved", "Restarted")
    scene.let_go("d0")
    assert scene.restarts("d0") == 1


def bundle(release: Release) -> bytes:
    """The authorities in the webhook's configuration, in PEM."""
    return base64.b64decode(release.webhook().get("caBundle", ""))


@pytest.mark.parametrize("way", ["true", "false"], ids=["server-side", "client-side"])
def test_upgrade_and_rollback_leave_what_the_operator_wrote(release: Release, way: str) -> None:
    """The first pod's authority stands in the webhook's configuration all through it: no later pod knows it,
    so nobody has put it back."""
    release.install(f"--server-side={way}")
    release.until_acting()
    first = wait_for(
        "the authority in the webhook's configuration", lambda: bundle(release) or None, PATIENCE_S
    )
    release.upgrade(f"--server-side={way}", replicas=2, labels={"team": "sre"})
    wait_for("two of them", lambda: len(release.pods()) == 2, PATIENCE_S)
    assert release.api("policy/v1 poddisruptionbudgets/stanch")["spec"]["minAvailable"] == 1
    assert first in bundle(release)
    release.rollback()
    wait_for("one of them", lambda: len(release.pods()) == 1, PATIENCE_S)
    assert first in bundle(release)
    release.until_acting()


def test_upgrade_from_the_chart_before(release: Release, tmp_path: Path) -> None:
    found = releases.earlier_chart(tmp_path)
    if found is None:
        pytest.skip("no earlier chart in this checkout's history")
    chart, commit = found
    release.install(chart=chart)
    release.until_acting()
    release.upgrade()
    release.until_acting()
    for name, kind in kinds(release.cluster).items():
        (plain,) = [one for one in template() if one["metadata"]["name"] == name]
        assert schemas(kind) == schemas(plain), f"{name}: not upgraded from {commit}"
    release.rollback()
    release.until_acting()


def kinds(cluster: Cluster) -> dict[str, Object]:
    path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    found = cluster.api(path)["items"]
    return {one["metadata"]["name"]: one for one in found if one["spec"]["group"] == "stanch.dev"}


def schemas(kind: Object) -> list[Object]:
    return [version["schema"] for version in kind["spec"]["versions"]]


def test_kinds_are_upgraded_and_stay(release: Release, namespace: Namespace) -> None:
    """One of a wrong, older shape is put right by an upgrade; none goes with the release."""
    release.install()
    name = "leakwatches.stanch.dev"
    before = kinds(release.cluster)[name]
    path = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}"
    release.cluster.api(
        path, "PATCH", [{"op": "remove", "path": "/spec/names/shortNames"}], "application/json-patch+json"
    )
    release.upgrade("--force-conflicts")
    assert kinds(release.cluster)[name]["spec"]["names"] == before["spec"]["names"]
    scene_in(namespace).watch(mode="Observe")
    release.uninstall()
    assert set(kinds(release.cluster)) >= {name}
    assert namespace.kubectl("get", "leakwatches", "-o", "name").split() == ["leakwatch.stanch.dev/shop"]


def test_kinds_that_were_applied_by_hand(release: Release) -> None:
    """Helm takes them only when it is told to; without, it leaves them alone where crds.install is false."""
    crds = str(CHART.parents[1] / "crds")
    release.cluster.kubectl("apply", "--server-side", "-f", crds)
    with pytest.raises(HelmError, match="cannot be imported into the current release"):
        release.install()
    release.install(crds={"install": False})
    release.uninstall()
    release.install("--take-ownership")


def test_some_namespaces_only(release: Release, namespace: Namespace) -> None:
    """Its rights are Roles in these; a leak in one of them is repaired."""
    release.install(
        watchNamespaces=[namespace.name], rbac={"create": True, "nodes": False, "aggregate": False}
    )
    release.until_acting()
    who = f"--as=system:serviceaccount:{release.namespace.name}:stanch"
    cluster = release.cluster
    assert may(cluster, who, "patch", "pods", namespace.name)
    assert not may(cluster, who, "list", "pods", release.namespace.name)
    scene = scene_in(namespace)
    scene.engines().watch(remediation=RESTART).until_watching()
    scene.leak()
    assert outcome(scene.ended()) == ("Resolved", "Restarted")
    scene.let_go("d0")


def test_two_releases_side_by_side(release: Release) -> None:
    """Each for itself: with names, namespaces and Leases of their own; the second without the kinds. When the
    first goes, the second goes on."""
    release.install(watchNamespaces=[release.namespace.name])
    first = release.until_acting()
    where = Namespace(release.cluster, f"{release.namespace.name}-b")
    where.make()
    try:
        second = Release(release.cluster, where, "other")
        second.install(watchNamespaces=[where.name], crds={"install": False}, fullnameOverride="other")
        acting = second.until_acting()
        assert release.until_acting() == first
        release.uninstall()
        assert second.until_acting() == acting
        assert second.webhook()["service"]["namespace"] == where.name
        second.uninstall()
    finally:
        where.remove()


def may(cluster: Cluster, who: str, verb: str, resource: str, namespace: str) -> bool:
    """`kubectl auth can-i` says no by its exit code, too."""
    try:
        return cluster.kubectl("auth", "can-i", verb, resource, who, "-n", namespace).strip() == "yes"
    except KubectlError:
        return False


def test_as_gitops_tools_have_it(release: Release) -> None:
    """Rendered without a cluster and applied, twice: the second time nothing changes, though the operator
    has written what is its own."""
    where = release.namespace.name
    text = helm(
        *("template", release.name, str(CHART), f"--namespace={where}", "--no-hooks", "--values=-"),
        stdin=json.dumps(release.values),
    )
    apply = ("apply", "--server-side", "--field-manager=gitops", "-f", "-")
    release.cluster.kubectl(*apply, stdin=text)
    release.until_acting()
    wait_for("the authority in the webhook's configuration", lambda: bundle(release) or None, PATIENCE_S)
    before = versions(release, text)
    release.cluster.kubectl(*apply, stdin=text)
    assert versions(release, text) == before
    # As Argo CD and `kubectl diff` see it: exit code 0.
    assert release.cluster.kubectl("diff", *apply[1:], stdin=text) == ""


def versions(release: Release, text: str) -> dict[str, Any]:
    """The generation, and for what has none the version, of each object; status is others' matter."""
    found = json.loads(release.cluster.kubectl("get", "-f", "-", "-o", "json", stdin=text))
    return {
        f"{one['kind']}/{one['metadata']['name']}": one["metadata"].get(
            "generation", one["metadata"]["resourceVersion"]
        )
        for one in found["items"]
    }


def test_the_network_policy_is_taken(release: Release) -> None:
    peers: list[Object] = [{"namespaceSelector": {}, "podSelector": {"matchLabels": {"app": "prometheus"}}}]
    policy = {"enabled": True, "metricsFrom": peers, "alertsFrom": peers, "prometheusPorts": [9090]}
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "t"},
        "stringData": {"token": 32 * "x"},
    }
    release.namespace.apply(secret)
    release.install(networkPolicy=policy, alerts={"enabled": True, "tokenSecret": {"name": "t"}})
    found = release.api("networking.k8s.io/v1 networkpolicies/stanch")["spec"]
    ports = {port["port"] for rule in found["ingress"] for port in rule["ports"]}
    assert ports == {8080, 9443, 9095}
    assert found["ingress"][0]["from"][0] == peers[0]
    assert "Phase:          Succeeded" in release.helm("test", release.name)
    release.until_acting()


def test_an_uninstallation_is_not_held_up_by_a_hook_that_fails(release: Release) -> None:
    """Its image is not to be had: Helm says so after the deadline, and goes without the hook then."""
    release.install()
    wrong = {**release.values["image"], "tag": "none"}
    release.upgrade("--wait=hookOnly", image=wrong, uninstall={"lift": True, "deadlineSeconds": 30})
    with pytest.raises(HelmError, match=r"Job/.*/stanch-lift not ready\. status: Failed"):
        release.uninstall()
    release.helm("uninstall", release.name, "--no-hooks", "--wait")
