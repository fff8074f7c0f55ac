"""Single objects by reference, remembered for a while: many pods have one owner."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from stanch.edge.cluster.errors import ClusterError, Forbidden, NotFound, Object
from stanch.edge.cluster.refs import KNOWN, ObjectRef, Request, Resource
from stanch.edge.cluster.transport import Transport
from stanch.edge.waking import ended

_FORGET_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class _Kept:
    """What came of one reading that was begun at `at`, by the monotonic clock."""

    at: float
    task: asyncio.Task[Object]


class Objects:
    """Reads each reference once, however many ask at the same time."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._kept: dict[ObjectRef, _Kept] = {}
        self._resources: dict[tuple[str, str], Resource] = dict(KNOWN)

    async def get(self, ref: ObjectRef, max_age: float) -> Object:
        """The object, as read within max_age seconds or now. That there is none, or that we may not read it,
        is remembered as well; any other error is not. Raises ClusterError."""
        now = time.monotonic()
        kept = self._kept.get(ref)
        if kept is None or now - kept.at > max_age or _to_be_read_again(kept.task):
            self._kept = {key: one for key, one in self._kept.items() if now - one.at < _FORGET_SECONDS}
            task = asyncio.create_task(self._read(ref))
            # Whoever asked may have been cancelled, and then nobody takes its error.
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
            kept = self._kept[ref] = _Kept(now, task)
        # Shielded: others may wait for the same reading.
        return await asyncio.shield(kept.task)

    async def close(self) -> None:
        await ended(*(one.task for one in self._kept.values()))

    async def _read(self, ref: ObjectRef) -> Object:
        resource = await self._resource(ref)
        return await self._transport.read(Request("get", resource, ref.namespace, ref.name))

    async def _resource(self, ref: ObjectRef) -> Resource:
        """How paths name the kind; asked of the server for those that are not known."""
        key = ref.api_version, ref.kind
        if key not in self._resources:
            group, _, version = ref.api_version.rpartition("/")
            raw = f"/apis/{ref.api_version}" if group else f"/api/{version}"
            found = await self._transport.read(Request("get", raw=raw))
            for one in found.get("resources") or ():
                if "/" not in one["name"]:
                    self._resources[ref.api_version, one["kind"]] = Resource(
                        group, version, one["name"], one["namespaced"]
                    )
        if key not in self._resources:
            raise NotFound(f"the cluster knows no kind {ref.kind} in {ref.api_version}")
        return self._resources[key]


def _to_be_read_again(task: asyncio.Task[Object]) -> bool:
    if not task.done():
        return False
    error = None if task.cancelled() else task.exception()
    return task.cancelled() or (
        isinstance(error, ClusterError) and not isinstance(error, NotFound | Forbidden)
    )
