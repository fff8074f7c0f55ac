"""Which objects are a DisaggDeployment's own, and what has changed."""

from __future__ import annotations

from typing import Any

import pytest

from stanch.edge.deployments_objects import (
    Owner,
    called,
    digest,
    fingerprint,
    leftover,
    of_previous,
    ordered,
    whose,
)

pytestmark = pytest.mark.unit

Object = dict[str, Any]
OWNER = Owner("ns", "shop", "u1")
MINE = {"apiVersion": "stanch.dev/v1alpha1", "kind": "DisaggDeployment", "name": "shop", "controller": True}
MARKED = {"app.kubernetes.io/managed-by": "stanch", "stanch.dev/deployment": "shop"}


def service(
    name: str = "a", uid: str | None = None, labels: Object | None = None, kind: str = "Service", **more: Any
) -> Object:
    """uid: of the DisaggDeployment shop that controls it; None: nobody does."""
    owners = [] if uid is None else [{**MINE, "uid": uid}]
    version = {"Deployment": "apps/v1", "LeakWatch": "stanch.dev/v1alpha1"}.get(kind, "v1")
    meta = {"name": name, "labels": labels, "ownerReferences": owners, **more}
    return {"apiVersion": version, "kind": kind, "metadata": meta, "spec": {"ports": []}}


@pytest.mark.parametrize(
    ("live", "owned"),
    [
        (service(uid="u1"), True),
        (service(uid="u1", labels={"stanch.dev/deployment": "other"}), True),
        (service(labels=MARKED), True),
        (service(uid="u0", labels=MARKED), False),
        (service(), False),
        (service(labels={**MARKED, "stanch.dev/deployment": "other"}), False),
        (service(labels={**MARKED, "app.kubernetes.io/managed-by": "Helm"}), False),
    ],
    ids=["controlled", "label lost", "orphan", "of a previous one", "foreign", "other's", "Helm's"],
)
def test_what_is_ours(live: Object, owned: bool) -> None:
    assert OWNER.owns(live) is owned


def test_what_was_left_by_one_of_the_same_name() -> None:
    assert of_previous(service(uid="u0"), OWNER)
    assert not of_previous(service(uid="u1"), OWNER)
    assert not of_previous(service(), OWNER)


def test_is_marked_as_ours_and_the_rendered_one_is_not_changed() -> None:
    rendered = service()
    marked = OWNER.marked(rendered)
    (reference,) = marked["metadata"]["ownerReferences"]
    assert reference == {**MINE, "uid": "u1"}
    assert marked["metadata"]["namespace"] == "ns"
    assert rendered == service()


def test_words() -> None:
    assert (
        called(service(kind="Deployment", labels={"stanch.dev/role": "decode"}))
        == "Deployment a (role decode)"
    )
    assert called(service()) == "Service a"
    assert whose(service()) == "somebody else made it"
    assert whose(service(uid="u0")) == "it belongs to DisaggDeployment shop"


def test_order_is_what_pods_need_then_pods_then_the_watch() -> None:
    objects = [service(kind=kind) for kind in ("LeakWatch", "Deployment", "Service", "ServiceAccount")]
    assert [one["kind"] for one in ordered(objects)] == [
        "ServiceAccount",
        "Service",
        "Deployment",
        "LeakWatch",
    ]
    with pytest.raises(ValueError, match="Secret"):
        ordered([service(kind="Secret")])


class TestFingerprint:
    LIVE = service(uid="u1", labels=MARKED)

    @pytest.mark.parametrize(
        "changed",
        [
            {**LIVE, "spec": {"ports": [{"port": 1}]}},
            {**LIVE, "metadata": {**LIVE["metadata"], "labels": {**MARKED, "a": "b"}}},
            {**LIVE, "metadata": {**LIVE["metadata"], "annotations": {"a": "b"}}},
            {**LIVE, "metadata": {**LIVE["metadata"], "ownerReferences": []}},
            {**LIVE, "metadata": {**LIVE["metadata"], "uid": "another"}},
            {**LIVE, "automountServiceAccountToken": True},
        ],
        ids=["spec", "label", "annotation", "owner", "another object", "a field at the top"],
    )
    def test_changes_with_what_somebody_writes(self, changed: Object) -> None:
        assert fingerprint(changed) != fingerprint(self.LIVE)

    @pytest.mark.parametrize(
        "same",
        [
            {**LIVE, "status": {"replicas": 1}},
            {**LIVE, "metadata": {**LIVE["metadata"], "resourceVersion": "2", "managedFields": [{}]}},
            {**LIVE, "metadata": {**LIVE["metadata"], "annotations": {}}},
        ],
        ids=["status", "version", "empty as absent"],
    )
    def test_does_not_change_with_the_rest(self, same: Object) -> None:
        assert fingerprint(same) == fingerprint(self.LIVE)

    def test_of_none(self) -> None:
        assert fingerprint(None) not in (fingerprint(self.LIVE), digest({}))


def test_leftovers_are_what_it_controls_and_does_not_want() -> None:
    live = [
        service("wanted", "u1"),
        service("router", "u1", kind="Deployment"),
        service("router", "u1"),
        service("going", "u1", deletionTimestamp="2026-11-30T00:00:00Z"),
        service("orphan", labels=MARKED),
        service("theirs"),
        service("previous", "u0"),
    ]
    found = leftover(OWNER, [service("wanted")], live)
    assert [(one["kind"], one["metadata"]["name"]) for one in found] == [
        ("Deployment", "router"),
        ("Service", "router"),
    ]
