"""Everything that Stanch asks of and tells the API server, one method each."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack, suppress

from stanch.api.names import API_VERSION, STOP_CONFIG_MAP
from stanch.edge.cluster import evict, stop
from stanch.edge.cluster.election import LEASE_SECONDS, Election
from stanch.edge.cluster.errors import ClusterError, Conflict, Invalid, NotFound, Object, Refused
from stanch.edge.cluster.events import Events, Key, Told
from stanch.edge.cluster.hold import hold
from stanch.edge.cluster.listing import Listing, list_all
from stanch.edge.cluster.making import Making
from stanch.edge.cluster.objects import Objects
from stanch.edge.cluster.refs import (
    ACCESS_REVIEWS,
    CONFIG_MAPS,
    DISAGG_DEPLOYMENTS,
    DISRUPTION_BUDGETS,
    ENDPOINT_SLICES,
    INCIDENTS,
    OTHERS_ACCESS_REVIEWS,
    PODS,
    SELF_REVIEWS,
    WATCHES,
    ObjectRef,
    Request,
    Resource,
)
from stanch.edge.cluster.transport import Call, Transport
from stanch.edge.cluster.webhooks import WebhookConfiguration

_MOST_LOG_BYTES = 256 * 1024
MERGE_PATCH = "application/merge-patch+json"


class Cluster:
    """A context; its connections live as long as it is open. One for the whole process.

    kubeconfig: a file, None inside a pod (its service account). context: None for the file's current one.
    own_namespace: where the operator's Lease and its ConfigMap `stanch-stop` are. instance: which process
    of ours this is, for Events and incidents. clock: Unix seconds. on_call: told of every request that ended.
    Entering raises ClusterError where the configuration cannot be used; the server is not asked yet.
    Every method raises ClusterError or one of its kinds; those named are what a caller may expect.
    making: objects of other kinds that we make.
    """

    def __init__(
        self,
        kubeconfig: str | None = None,
        context: str | None = None,
        own_namespace: str = "stanch-system",
        instance: str = "stanch",
        clock: Callable[[], float] = time.time,
        on_call: Callable[[Call], None] = lambda call: None,
    ) -> None:
        self.instance = instance
        self._own = own_namespace
        self._clock = clock
        self._transport = Transport(kubeconfig, context, on_call)
        self._objects = Objects(self._transport)
        self.making = Making(self._transport, clock)
        self._events = Events(instance)
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Cluster:
        await self._stack.enter_async_context(self._transport)
        self._stack.push_async_callback(self._objects.close)
        self._stack.push_async_callback(self._tell_the_rest)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def pods(self, namespace: str | None, selector: str = "") -> Listing:
        """Pods now (never out of a cache), in pages of 500. namespace: None for all. selector: of labels, as
        kubectl's -l."""
        return await self._list(PODS, namespace, selector)

    async def pod(self, namespace: str, name: str) -> Object:
        """Raises NotFound."""
        return await self._transport.read(Request("get", PODS, namespace, name))

    async def pods_at(self, namespace: str | None, address: str) -> Listing:
        """Pods whose first IP address is this one."""
        return await self._list(PODS, namespace, fields=f"status.podIP={address}")

    async def endpoint_slices(self, namespace: str | None) -> Listing:
        """Endpoints of Services."""
        return await self._list(ENDPOINT_SLICES, namespace)

    async def pdbs(self, namespace: str | None) -> Listing:
        """PodDisruptionBudgets."""
        return await self._list(DISRUPTION_BUDGETS, namespace)

    async def watches(self, namespace: str | None) -> Listing:
        """LeakWatches."""
        return await self._list(WATCHES, namespace)

    async def incidents(self, namespace: str | None, selector: str = "") -> Listing:
        """LeakIncidents. selector: of labels."""
        return await self._list(INCIDENTS, namespace, selector)

    async def deployments(self, namespace: str | None) -> Listing:
        """DisaggDeployments. Raises NotFound where the cluster has not the kind."""
        return await self._list(DISAGG_DEPLOYMENTS, namespace)

    async def get(self, ref: ObjectRef, max_age: float = 60.0) -> Object:
        """An owner, a workload or a node, out of a cache where it was read within max_age seconds; that it
        does not exist, or may not be read, is remembered too. Not to be changed: others get the same one.
        Raises NotFound, Forbidden."""
        return await self._objects.get(ref, max_age)

    async def watch(self, namespace: str, name: str) -> Object:
        """One LeakWatch, now. Raises NotFound."""
        return await self._transport.read(Request("get", WATCHES, namespace, name))

    async def incident(self, namespace: str, name: str) -> Object:
        """One LeakIncident, now. Raises NotFound."""
        return await self._transport.read(Request("get", INCIDENTS, namespace, name))

    async def write_watch_status(self, namespace: str, name: str, status: Object, version: str) -> str:
        """Replace the status of the LeakWatch that has this resourceVersion; the new one. Raises Conflict,
        NotFound, Invalid."""
        return await self._write_status(WATCHES, "LeakWatch", namespace, name, status, version)

    async def write_incident_status(self, namespace: str, name: str, status: Object, version: str) -> str:
        """The same for a LeakIncident."""
        return await self._write_status(INCIDENTS, "LeakIncident", namespace, name, status, version)

    async def write_deployment_status(self, namespace: str, name: str, status: Object, version: str) -> str:
        """The same for a DisaggDeployment."""
        return await self._write_status(
            DISAGG_DEPLOYMENTS, "DisaggDeployment", namespace, name, status, version
        )

    async def create_incident(self, namespace: str, body: Object) -> Object:
        """The LeakIncident as the server made it; a status in the body is not taken, write it next.
        Raises AlreadyExists, Invalid, NotFound (the namespace)."""
        return await self._transport.write(Request("create", INCIDENTS, namespace, body=body))

    async def delete_incident(self, namespace: str, name: str, uid: str) -> None:
        """Raises Conflict where another object has the name now, NotFound."""
        body = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": uid}}
        await self._transport.send(Request("delete", INCIDENTS, namespace, name, body=body))

    async def patch_pod(
        self, namespace: str, name: str, *, uid: str, version: str, annotations: Mapping[str, str | None]
    ) -> str:
        """Set or (None) remove annotations of the pod that has this UID and resourceVersion; its new
        resourceVersion. Raises Conflict where either differs, NotFound, Forbidden."""
        if not uid or not version:
            raise ValueError(f"pod {namespace}/{name}: without a UID and a version any pod would be patched")
        meta = {"uid": uid, "resourceVersion": version, "annotations": dict(annotations)}
        request = Request("patch", PODS, namespace, name, body={"metadata": meta}, media=MERGE_PATCH)
        try:
            return _version(await self._transport.write(request))
        except Invalid as error:
            if error.of_another_uid:
                raise Conflict(str(error), error.code, error.status) from error
            raise

    async def evict(self, namespace: str, name: str, *, uid: str, dry_run: bool) -> None:
        """Evict the pod of this UID, or only ask whether that would be allowed. Raises Refused, naming the
        PodDisruptionBudget; NotFound where there is no pod of that UID (any more); Unreachable."""
        # The server would try for longer than we wait before it says that the UID is another (1.35).
        if (await self.pod(namespace, name))["metadata"]["uid"] != uid:
            raise NotFound(f"create pods/eviction {name} in {namespace}: the pod of that name is another one")
        try:
            await self._transport.send(evict.eviction(namespace, name, uid, dry_run))
        except ClusterError as error:
            refused = evict.refusal(error)
            if refused is None and evict.by_several(error):
                pod, pdbs = await self.pod(namespace, name), await self.pdbs(namespace)
                names = ", ".join(evict.budgets(pod, pdbs.items))
                refused = Refused(f"{error}: {names}", error.code, error.status)
            raise refused or error from error

    async def logs(self, namespace: str, pod: str, container: str, lines: int, previous: bool = False) -> str:
        """The last lines of a container's log, at most 256 KiB; previous: of the run before this one. None of
        a pod that no node has yet. Raises NotFound where there is no such container or run."""
        query = {"container": container, "tailLines": str(lines), "limitBytes": str(_MOST_LOG_BYTES)}
        if previous:
            query["previous"] = "true"
        try:
            body = await self._transport.send(Request("get", PODS, namespace, pod, "log", query))
        except Invalid as error:
            # 400 for a container that is not there, has not begun, or has no earlier run.
            raise NotFound(str(error), error.code, error.status) from error
        return body.decode(errors="replace")

    async def event(
        self, regarding: Object, reason: str, action: str, note: str, warning: bool = False
    ) -> None:
        """Tell the owner of an object. regarding: apiVersion, kind, name, namespace, uid. reason: why;
        action: what was done or tried; each one word in CamelCase. The same again within six minutes is
        counted in the same Event, which is written at most once a minute; another text begins a new one, as
        rarely."""
        await self._write_events(
            self._events.tell(Told(regarding, reason, action, note, warning), self._clock())
        )

    async def stop_reason(self) -> str | None:
        """Why all action is stopped (ConfigMap stanch-stop), one sentence; None where it is not. Never
        raises: what cannot be read counts as stop."""
        try:
            found = await self._transport.read(Request("get", CONFIG_MAPS, self._own, STOP_CONFIG_MAP))
        except NotFound:
            return None
        except ClusterError as error:
            return stop.unreadable(error, self._own)
        return stop.reason(found, self._own)

    async def allowed(
        self,
        verb: str,
        group: str,
        resource: str,
        namespace: str | None = None,
        name: str | None = None,
        service_account: tuple[str, str] | None = None,
    ) -> bool:
        """Whether our own account may, or (namespace, name) of a service account, about which only those may
        ask who may create SubjectAccessReviews: else Forbidden. resource: with its subresource, as
        "pods/eviction". namespace: None for all."""
        plural, _, sub = resource.partition("/")
        asked = {"verb": verb, "group": group, "resource": plural, "subresource": sub}
        asked |= {"namespace": namespace or "", "name": name or ""}
        spec: Object = {"resourceAttributes": asked}
        reviews, kind = ACCESS_REVIEWS, "SelfSubjectAccessReview"
        if service_account is not None:
            reviews, kind = OTHERS_ACCESS_REVIEWS, "SubjectAccessReview"
            whose, account = service_account
            spec |= {"user": f"system:serviceaccount:{whose}:{account}", "groups": _groups(whose)}
        body = {"apiVersion": reviews.api_version, "kind": kind, "spec": spec}
        found = await self._transport.read(Request("create", reviews, body=body))
        return found["status"].get("allowed") is True

    async def user(self) -> str:
        """The name by which the server knows our account (SelfSubjectReview, Kubernetes 1.28 and later); ""
        where it does not say."""
        body = {"apiVersion": SELF_REVIEWS.api_version, "kind": "SelfSubjectReview"}
        found = await self._transport.read(Request("create", SELF_REVIEWS, body=body))
        return str(found.get("status", {}).get("userInfo", {}).get("username", ""))

    async def kinds(self) -> frozenset[str]:
        """Plurals of the kinds of our group and version that the cluster has; a kind with its subresources
        counts as several."""
        try:
            found = await self._transport.read(Request("get", raw=f"/apis/{API_VERSION}"))
        except NotFound:
            return frozenset()
        return frozenset(str(one["name"]) for one in found.get("resources") or ())

    async def version(self) -> str:
        """The API server's version, as "v1.35.4"."""
        found = await self._transport.read(Request("get", raw="/version"))
        return str(found["gitVersion"])

    def election(self, name: str, identity: str, lease_seconds: float = LEASE_SECONDS) -> Election:
        """Takes part in the election by the Lease of this name in the operator's namespace. identity: no two
        processes may share it."""
        return Election(self._transport, self._clock, name, self._own, identity, lease_seconds)

    def webhook_configuration(self, name: str) -> WebhookConfiguration:
        """The MutatingWebhookConfiguration of this name."""
        return WebhookConfiguration(self._transport, name)

    async def hold(self, name: str, identity: str, seconds: float) -> float:
        """Take the Lease of this name in the operator's namespace for so many seconds, whoever has it, so
        that no operator acts; for how many seconds from now the one that had it still may."""
        return await hold(self._transport, self._clock, name, self._own, identity, seconds)

    async def _list(
        self, resource: Resource, namespace: str | None, selector: str = "", fields: str = ""
    ) -> Listing:
        return await list_all(self._transport, self._clock, resource, namespace, selector, fields)

    async def _write_status(
        self, resource: Resource, kind: str, namespace: str, name: str, status: Object, version: str
    ) -> str:
        body = {
            "apiVersion": resource.api_version,
            "kind": kind,
            "metadata": {"name": name, "namespace": namespace, "resourceVersion": version},
            "status": status,
        }
        request = Request("update", resource, namespace, name, "status", body=body)
        return _version(await self._transport.write(request))

    async def _write_events(self, requests: list[tuple[Key, Request]]) -> None:
        open_keys = [key for key, _ in requests]
        try:
            for key, request in requests:
                # An Event that was counted in may have gone: they live for an hour.
                with suppress(NotFound):
                    await self._transport.send(request)
                    open_keys.remove(key)
        finally:
            for key in open_keys:
                self._events.failed(key)

    async def _tell_the_rest(self) -> None:
        with suppress(ClusterError):
            await self._write_events(self._events.due(self._clock(), every=True))


def _groups(namespace: str) -> list[str]:
    """Of a service account (k8s.io/apiserver 1.35, pkg/authentication/serviceaccount MakeGroupNames)."""
    return ["system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated"]


def _version(found: Object) -> str:
    version: str = found["metadata"]["resourceVersion"]
    return version
