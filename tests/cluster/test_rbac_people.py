"""What people may do with our kinds in a namespace in which they have a role, and what becomes of an object
that Stanch's account made for an owner that is not there."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.bed.cluster import Namespace, wait_for
from tests.cluster.caller import Caller
from tests.cluster.installed import Installed

pytestmark = pytest.mark.cluster

Object = dict[str, Any]
VERBS = ("get", "list", "watch", "create", "update", "patch", "delete", "deletecollection")
READ = {"get", "list", "watch"}
WRITE = set(VERBS) - READ
RESPOND = READ | {"create", "update", "patch", "delete"}
KINDS = ("leakwatches", "disaggdeployments", "leakincidents")
# By role: what it may do with each of KINDS.
MAY: dict[str, tuple[set[str], set[str], set[str]]] = {
    "view": (READ, READ, READ),
    "edit": (READ | WRITE, READ | WRITE, READ),
    "stanch-responder": (set(), set(), RESPOND),
}


def may(stanch: Installed, namespace: str, user: str, verb: str, resource: str) -> bool:
    """By the server's own word."""
    kind, _, below = resource.partition("/")
    of = {"namespace": namespace, "verb": verb, "group": "stanch.dev", "resource": kind, "subresource": below}
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {"user": user, "groups": ["system:authenticated"], "resourceAttributes": of},
    }
    path = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
    return bool(stanch.cluster.api(path, "POST", review)["status"]["allowed"])


@pytest.mark.parametrize("role", MAY)
def test_what_a_role_may_do_with_our_kinds(stanch: Installed, namespace: Namespace, role: str) -> None:
    """Who may edit may write a watch and a DisaggDeployment, and neither an incident nor its approval."""
    namespace.kubectl("create", "rolebinding", "ann", f"--clusterrole={role}", "--user=ann")

    def found() -> tuple[set[str], ...]:
        return tuple(
            {verb for verb in VERBS if may(stanch, namespace.name, "ann", verb, kind)} for kind in KINDS
        )

    # Kubernetes puts what is aggregated together after a moment.
    wait_for(f"{role} {MAY[role]}", lambda: found() == MAY[role])
    for kind in KINDS:
        assert not may(stanch, namespace.name, "ann", "update", f"{kind}/status")
        assert not may(stanch, "default", "ann", "get", kind)
        assert not may(stanch, namespace.name, "bob", "get", kind)


@pytest.fixture
def ask(stanch: Installed) -> Iterator[Callable[[str, str, object], tuple[int, str]]]:
    """Under the token of Stanch's account."""
    caller = Caller(stanch, stanch.token())
    yield caller.ask
    caller.close()


def test_what_is_made_for_an_owner_that_is_not_there_does_not_stay(
    stanch: Installed, namespace: Namespace, ask: Callable[[str, str, object], tuple[int, str]]
) -> None:
    """No admission policy can look up an owner: a stolen token can name one. Kubernetes itself collects what
    has none."""
    owner = {
        "apiVersion": "stanch.dev/v1alpha1",
        "kind": "DisaggDeployment",
        "name": "none",
        "uid": "made-up",
    }
    path = f"/api/v1/namespaces/{namespace.name}/serviceaccounts"
    body: Object = {
        "metadata": {
            "name": "strange",
            "labels": {"app.kubernetes.io/managed-by": "stanch", "stanch.dev/deployment": "none"},
            "ownerReferences": [{**owner, "controller": True}],
        }
    }
    code, text = ask("POST", path, body)
    assert code == 201, text
    assert json.loads(text)["metadata"]["name"] == "strange"
    wait_for("its end", lambda: stanch.cluster.get(f"{path}/strange") is None, 120)
