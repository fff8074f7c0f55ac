"""Paths of kinds and objects."""

from __future__ import annotations

import pytest

from stanch.edge.cluster.refs import INCIDENTS, NODES, PODS, WATCHES, Request

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("request_", "path", "kind", "what"),
    [
        (Request("list", PODS), "/api/v1/pods", "pods", "list pods"),
        (Request("list", PODS, "a"), "/api/v1/namespaces/a/pods", "pods", "list pods in a"),
        (
            Request("create", PODS, "a", "b", "eviction"),
            "/api/v1/namespaces/a/pods/b/eviction",
            "pods/eviction",
            "create pods/eviction b in a",
        ),
        (Request("get", NODES, None, "n"), "/api/v1/nodes/n", "nodes", "get nodes n"),
        (Request("get", NODES, "a", "n"), "/api/v1/nodes/n", "nodes", "get nodes n in a"),
        (
            Request("update", WATCHES, "a", "w", "status"),
            "/apis/stanch.dev/v1alpha1/namespaces/a/leakwatches/w/status",
            "leakwatches/status",
            "update leakwatches/status w in a",
        ),
        (Request("get", raw="/version"), "/version", "", "get /version"),
        # A name that is none reaches no other object.
        (
            Request("get", INCIDENTS, "a", "../../b"),
            "/apis/stanch.dev/v1alpha1/namespaces/a/leakincidents/..%2F..%2Fb",
            "leakincidents",
            "get leakincidents ../../b in a",
        ),
    ],
    ids=["all", "namespace", "subresource", "cluster", "cluster, asked with one", "status", "raw", "hostile"],
)
def test_paths(request_: Request, path: str, kind: str, what: str) -> None:
    assert (request_.path, request_.kind, request_.what) == (path, kind, what)


def test_an_unknown_verb_is_no_request() -> None:
    with pytest.raises(KeyError):
        _ = Request("exec", PODS, "a", "b").method
