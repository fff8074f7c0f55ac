"""The only room that talks to the API server (an import rule holds that). Raw objects, as JSON has them.

How it is used:

    async with Cluster(kubeconfig="~/.kube/config", own_namespace="stanch-system") as cluster:
        listing = await cluster.pods("shop", "app=vllm,role=decode")
        ...
        version = await cluster.patch_pod("shop", "decode-0", uid=uid, version=version, annotations={...})

What is handled here: time-outs, the limit of requests in flight, paging, a page that has expired (listed
anew), Retry-After before a read is tried again, credentials that have expired. What is not: a write is sent
once. What comes of it is an error of `errors`, and after `Unreachable` nobody knows whether it happened; the
next turn reads and sees. Nothing is watched here: kopf does that, to wake us, and every turn lists anew.
"""

from __future__ import annotations

from stanch.edge.cluster.cluster import Cluster
from stanch.edge.cluster.election import Election
from stanch.edge.cluster.errors import (
    AlreadyExists,
    ClusterError,
    Conflict,
    Forbidden,
    Invalid,
    NotFound,
    Refused,
    Unreachable,
)
from stanch.edge.cluster.listing import Listing
from stanch.edge.cluster.refs import INCIDENTS, PODS, WATCHES, ObjectRef, Resource
from stanch.edge.cluster.transport import Call
from stanch.edge.cluster.webhooks import WebhookConfiguration

__all__ = [
    "INCIDENTS",
    "PODS",
    "WATCHES",
    "AlreadyExists",
    "Call",
    "Cluster",
    "ClusterError",
    "Conflict",
    "Election",
    "Forbidden",
    "Invalid",
    "Listing",
    "NotFound",
    "ObjectRef",
    "Refused",
    "Resource",
    "Unreachable",
    "WebhookConfiguration",
]
