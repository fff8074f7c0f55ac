"""Everything that Stanch asks of and tells the API server, one method each."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from stanch.edge.cluster.election import Election
from stanch.edge.cluster.errors import Object
from stanch.edge.cluster.follow import Follower
from stanch.edge.cluster.listing import Listing
from stanch.edge.cluster.refs import ObjectRef, Resource
from stanch.edge.cluster.transport import Call


class Cluster:
    """A context; its connections live as long as it is open. One for the whole process.

    kubeconfig: a file, None inside a pod (its service account). context: None for the file's current one.
    own_namespace: where the operator's Lease and its ConfigMap `stanch-stop` are.
    clock: Unix seconds. on_call: told of every request that ended.
    Entering raises ClusterError where the configuration cannot be used; the server is not asked yet.
    Every method raises ClusterError or one of its kinds; those named are what a caller may expect.
    """

    def __init__(
        self,
        kubeconfig: str | None = None,
        context: str | None = None,
        own_namespace: str = "stanch-system",
        clock: Callable[[], float] = time.time,
        on_call: Callable[[Call], None] = lambda call: None,
    ) -> None:
        raise NotImplementedError

    async def __aenter__(self) -> Cluster:
        raise NotImplementedError

    async def __aexit__(self, *_: object) -> None:
        raise NotImplementedError

    async def pods(self, namespace: str | None, selector: str = "") -> Listing:
        """Pods now (never out of a cache), in pages of 500. namespace: None for all. selector: of labels, as
        kubectl's -l."""
        raise NotImplementedError

    async def pod(self, namespace: str, name: str) -> Object:
        """Raises NotFound."""
        raise NotImplementedError

    async def endpoint_slices(self, namespace: str | None) -> Listing:
        """Endpoints of Services."""
        raise NotImplementedError

    async def pdbs(self, namespace: str | None) -> Listing:
        """PodDisruptionBudgets."""
        raise NotImplementedError

    async def watches(self, namespace: str | None) -> Listing:
        """LeakWatches."""
        raise NotImplementedError

    async def incidents(self, namespace: str | None) -> Listing:
        """LeakIncidents."""
        raise NotImplementedError

    async def get(self, ref: ObjectRef, max_age: float = 60.0) -> Object:
        """An owner, a workload or a node, out of a cache where it was read within max_age seconds; that it
        does not exist, or may not be read, is remembered too. Raises NotFound, Forbidden."""
        raise NotImplementedError

    async def watch(self, namespace: str, name: str) -> Object:
        """One LeakWatch, now. Raises NotFound."""
        raise NotImplementedError

    async def incident(self, namespace: str, name: str) -> Object:
        """One LeakIncident, now. Raises NotFound."""
        raise NotImplementedError

    async def write_watch_status(self, namespace: str, name: str, status: Object, version: str) -> str:
        """Replace the status of the LeakWatch that has this resourceVersion; the new one. Raises Conflict,
        NotFound, Invalid."""
        raise NotImplementedError

    async def write_incident_status(self, namespace: str, name: str, status: Object, version: str) -> str:
        """The same for a LeakIncident."""
        raise NotImplementedError

    async def create_incident(self, namespace: str, body: Object) -> Object:
        """The LeakIncident as the server made it; a status in the body is not taken, write it next.
        Raises AlreadyExists, Invalid, NotFound (the namespace)."""
        raise NotImplementedError

    async def delete_incident(self, namespace: str, name: str, uid: str) -> None:
        """Raises Conflict where another object has the name now, NotFound."""
        raise NotImplementedError

    async def patch_pod(
        self, namespace: str, name: str, *, uid: str, version: str, annotations: Mapping[str, str | None]
    ) -> str:
        """Set or (None) remove annotations of the pod that has this UID and resourceVersion; its new
        resourceVersion. Raises Conflict where either differs, NotFound, Forbidden."""
        raise NotImplementedError

    async def evict(self, namespace: str, name: str, *, uid: str, dry_run: bool) -> None:
        """Evict the pod of this UID, or only ask whether that would be allowed. Raises Refused, naming the
        PodDisruptionBudget; NotFound where there is no pod of that UID (any more); Unreachable."""
        raise NotImplementedError

    async def logs(self, namespace: str, pod: str, container: str, lines: int, previous: bool = False) -> str:
        """The last lines of a container's log, at most 256 KiB; previous: of the run before this one.
        Raises NotFound where there is no such container or run."""
        raise NotImplementedError

    async def event(
        self,
        regarding: Object,
        reason: str,
        action: str,
        note: str,
        warning: bool = False,
    ) -> None:
        """Tell the owner of an object. regarding: apiVersion, kind, name, namespace, uid. reason: why; action:
        what was done or tried; each one word in CamelCase. The same again within six minutes is counted in
        the same Event, which is written at most once a minute; another text begins a new one, as rarely."""
        raise NotImplementedError

    async def stop_reason(self) -> str | None:
        """Why all action is stopped (ConfigMap stanch-stop), one sentence; None where it is not. Never
        raises: what cannot be read counts as stop."""
        raise NotImplementedError

    async def allowed(
        self, verb: str, group: str, resource: str, namespace: str | None = None, name: str | None = None
    ) -> bool:
        """Whether our own account may. resource: with its subresource, as "pods/eviction".
        namespace: None for all."""
        raise NotImplementedError

    async def version(self) -> str:
        """The API server's version, as "v1.35.4"."""
        raise NotImplementedError

    def election(self, name: str, identity: str) -> Election:
        """Takes part in the election by the Lease of this name in the operator's namespace. identity: no two
        processes may share it."""
        raise NotImplementedError

    def follow(self, resource: Resource, namespace: str | None = None, selector: str = "") -> Follower:
        """Lists and watches a kind (PODS, WATCHES, INCIDENTS)."""
        raise NotImplementedError
