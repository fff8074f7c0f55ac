"""Objects that Stanch makes for others: applied by the server, listed by label, deleted under their UID.

Server-side apply sends the whole of what we want of an object; the server keeps what others want of it, and
takes away what we wanted before and do not want any more (Kubernetes 1.22 and later). Nothing is read first,
and nothing of an object but our fields is written.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from stanch.api.names import API_VERSION, LEAK_WATCH
from stanch.edge.cluster.errors import Conflict, Invalid, NotFound, Object, Unreachable
from stanch.edge.cluster.listing import Listing, list_all
from stanch.edge.cluster.refs import DISRUPTION_BUDGETS, KNOWN, WATCHES, Request, Resource
from stanch.edge.cluster.transport import Transport

MANAGER: Final = "stanch"
# JSON is YAML; the media type of JSON is not taken by Kubernetes 1.30.
_APPLY = "application/apply-patch+yaml"
# A field that the kind has not, or of another type, is a 500 (k8s.io/apimachinery 0.35,
# util/managedfields/internal/structuredmerge.go), and so is a value that cannot be read, as a quantity that
# is none; asking again would change nothing.
_NOT_OF_THE_SCHEMA = (
    "failed to create typed patch object",
    "failed to convert patch object",
    "failed to convert new object",
)
# Whether a kind that is not Kubernetes' own is there is asked so often.
_LOOK_AGAIN_SECONDS = 60.0

POD_MONITORS: Final = Resource("monitoring.coreos.com", "v1", "podmonitors")
DEPLOYMENTS: Final = KNOWN["apps/v1", "Deployment"]
# In the order in which they are made: pods come after what they need, and are watched once they are there.
MADE: Final[Mapping[tuple[str, str], Resource]] = {
    ("v1", "ServiceAccount"): Resource("", "v1", "serviceaccounts"),
    ("v1", "Service"): Resource("", "v1", "services"),
    ("policy/v1", "PodDisruptionBudget"): DISRUPTION_BUDGETS,
    ("apps/v1", "Deployment"): DEPLOYMENTS,
    (POD_MONITORS.api_version, "PodMonitor"): POD_MONITORS,
    (API_VERSION, LEAK_WATCH.kind): WATCHES,
}


class Making:
    """clock: Unix seconds. An object is named by its apiVersion, kind, metadata.namespace and metadata.name;
    one of a kind that is not in MADE raises KeyError."""

    def __init__(self, transport: Transport, clock: Callable[[], float]) -> None:
        self._transport = transport
        self._clock = clock
        self._monitors: tuple[float, bool] | None = None

    async def apply(
        self, body: Object, *, manager: str = MANAGER, force: bool = True, dry_run: bool = False
    ) -> Object:
        """The object as it is then. body: all that this manager wants of it; with metadata.uid it must be
        the one that has it. force: fields that another manager has set otherwise become ours; without it that
        raises Conflict. dry_run: everything is checked, and nothing is kept.

        Raises Conflict (another UID, or another manager), Invalid (in the server's words what it will never
        take), Forbidden, NotFound (the namespace, or the kind)."""
        query = {"fieldManager": manager, "fieldValidation": "Strict"}
        if force:
            query["force"] = "true"
        if dry_run:
            query["dryRun"] = "All"
        meta = body["metadata"]
        request = Request(
            "patch", resource_of(body), meta["namespace"], meta["name"], query=query, body=body, media=_APPLY
        )
        try:
            return await self._transport.write(request)
        except Invalid as error:
            if error.of_another_uid:
                raise Conflict(str(error), error.code, error.status) from error
            raise
        except Unreachable as error:
            if any(words in str(error) for words in _NOT_OF_THE_SCHEMA):
                raise Invalid(str(error), error.code, error.status) from error
            raise

    async def get(self, like: Mapping[str, Any]) -> Object:
        """The object of that kind and name as it is now, with its managedFields. Raises NotFound."""
        meta = like["metadata"]
        return await self._transport.read(Request("get", resource_of(like), meta["namespace"], meta["name"]))

    async def listed(self, resource: Resource, namespace: str | None, selector: str) -> Listing:
        """namespace: None for all. Raises NotFound where the cluster has not the kind."""
        return await list_all(self._transport, self._clock, resource, namespace, selector)

    async def delete(self, like: Mapping[str, Any]) -> None:
        """The object of that kind, name and metadata.uid, and by the garbage collector what it owns. Raises
        Conflict where another object has the name now, NotFound."""
        meta = like["metadata"]
        body = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": {"uid": meta["uid"]},
            "propagationPolicy": "Background",
        }
        request = Request("delete", resource_of(like), meta["namespace"], meta["name"], body=body)
        await self._transport.send(request)

    async def hand_over_replicas(self, like: Mapping[str, Any]) -> bool:
        """Whether there was anything to do so that our next apply without spec.replicas leaves the number as
        it is. A field that its last manager no longer wants is removed, and the server would set it to 1;
        so another manager, which never wants anything else, takes it over first. Raises NotFound."""
        found = await self.get(like)
        if not _sets_replicas(found):
            return False
        meta = found["metadata"]
        body = {
            "apiVersion": like["apiVersion"],
            "kind": like["kind"],
            "metadata": {"namespace": meta["namespace"], "name": meta["name"], "uid": meta["uid"]},
            "spec": {"replicas": found["spec"]["replicas"]},
        }
        # Without force: who has set another number since then owns it, and nothing is to be handed over.
        await self.apply(body, manager=f"{MANAGER}-replicas", force=False)
        return True

    async def pod_monitors(self) -> bool:
        """Whether the cluster has PodMonitors; asked anew every minute."""
        now = time.monotonic()
        if self._monitors is None or now - self._monitors[0] > _LOOK_AGAIN_SECONDS:
            try:
                found = await self._transport.read(Request("get", raw=f"/apis/{POD_MONITORS.api_version}"))
                there = any(one["name"] == POD_MONITORS.plural for one in found.get("resources") or ())
            except NotFound:
                there = False
            self._monitors = now, there
        return self._monitors[1]


def resource_of(body: Mapping[str, Any]) -> Resource:
    return MADE[body["apiVersion"], body["kind"]]


def _sets_replicas(found: Object) -> bool:
    """Whether we have applied spec.replicas last (managedFields of meta/v1, Kubernetes 1.35)."""
    for entry in found["metadata"].get("managedFields") or ():
        ours = entry.get("manager") == MANAGER and entry.get("operation") == "Apply"
        if ours and "f:replicas" in entry.get("fieldsV1", {}).get("f:spec", {}):
            return True
    return False
