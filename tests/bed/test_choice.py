"""Which cluster tests may run on, and what a bed may be called."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bed.cluster import ENV_BED, ENV_KUBECONFIG, Access, why_not_test_cluster
from tests.bed.place import BedError, Place

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("context", "labels"),
    [
        ("kind-ci", {}),
        ("k3d-dev", {}),
        ("minikube", {}),
        ("stanch-bed-stanch", {}),
        ("prod", {"stanch.dev/test-cluster": "true"}),
    ],
    ids=["kind", "k3d", "minikube", "bed", "label"],
)
def test_what_looks_like_a_test_cluster(context: str, labels: dict[str, str]) -> None:
    assert why_not_test_cluster(context, labels) is None


@pytest.mark.parametrize(
    ("context", "labels"),
    [
        ("prod", {}),
        ("gke_shop_europe_kind-1", {}),
        ("", {}),
        ("prod", {"stanch.dev/test-cluster": "false"}),
        ("prod", {"test-cluster": "true"}),
    ],
    ids=["name", "name-within", "no-name", "label-false", "other-label"],
)
def test_what_does_not_is_refused_with_the_rules(context: str, labels: dict[str, str]) -> None:
    why = why_not_test_cluster(context, labels)
    assert why is not None
    assert repr(context) in why
    assert "kind-" in why
    assert "kubectl label namespace kube-system stanch.dev/test-cluster=true" in why


def test_without_a_word_in_the_environment_there_is_no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ENV_BED, raising=False)
    monkeypatch.delenv(ENV_KUBECONFIG, raising=False)
    # A KUBECONFIG that happens to be set is somebody's daily one.
    monkeypatch.setenv("KUBECONFIG", "/home/someone/.kube/config")
    assert Access.given() is None


def test_a_kubeconfig_that_is_not_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(ENV_KUBECONFIG, str(tmp_path / "none"))
    with pytest.raises(BedError, match="which is no file"):
        Access.given()


@pytest.mark.parametrize("name", ["stanch", "a", "second-bed-2", "x" * 32])
def test_names_of_beds(name: str) -> None:
    assert Place.of(name).state.name == name


@pytest.mark.parametrize("name", ["", "-a", "a-", "A", "a/b", "..", "a b", "x" * 33, "ü"])
def test_names_that_no_bed_may_have(name: str) -> None:
    with pytest.raises(BedError, match="cannot be a bed's name"):
        Place.of(name)
