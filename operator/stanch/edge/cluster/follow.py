"""One kind, listed and then watched: wakes whoever waits for changes, and knows how fresh it is."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Literal

from stanch.edge.cluster.errors import ClusterError, Expired, Object, Unreachable, error_in_stream
from stanch.edge.cluster.listing import list_all
from stanch.edge.cluster.refs import Request, Resource
from stanch.edge.cluster.transport import Transport, decoded

# The server ends a watch after so long, and a bookmark comes 2 s before that at the latest
# (apiserver/pkg/storage/cacher/cache_watcher.go, 1.35). One of which nothing came by then has fallen silent.
WATCH_SECONDS = 30
_GRACE_SECONDS = 10.0
# A watch that ends sooner than this is begun again only then.
_LEAST_SECONDS = 1.0
_MOST_PAUSE_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Change:
    """type: what became of the object. A list after a break is told as changes too."""

    type: Literal["ADDED", "MODIFIED", "DELETED"]
    object: Object


class Follower:
    """Keeps the objects of one kind. Made by Cluster.follow; it does nothing until run() does.

    items: by (namespace, name), as last seen; empty before the first list.
    at: Unix time when the server last said anything of the kind (a list, an event, a bookmark); None before
    the first. A watch that works says something every half a minute.
    problem: why it does not stand right now, one sentence; None where it does.
    """

    def __init__(
        self,
        transport: Transport,
        clock: Callable[[], float],
        resource: Resource,
        namespace: str | None,
        selector: str,
        watch_seconds: int = WATCH_SECONDS,
    ) -> None:
        self.items: dict[tuple[str, str], Object] = {}
        self.at: float | None = None
        self.problem: str | None = None
        self._transport = transport
        self._clock = clock
        self._resource = resource
        self._namespace = namespace
        self._selector = selector
        self._watch_seconds = watch_seconds
        self._version: str | None = None

    async def run(self, changed: Callable[[Change], None]) -> None:
        """List and watch until cancelled; no error of the server ends it. `changed` is called for each
        change, from the same loop, and must not block."""
        failures = 0
        while True:
            start, pause = time.monotonic(), 0.0
            try:
                if self._version is None:
                    await self._list(changed)
                self.problem = None
                await self._watch(changed)
                failures = 0
            except Expired as error:
                self._version, self.problem = None, str(error)
            except ClusterError as error:
                self.problem = str(error)
                failures += 1
                pause = min(2.0 ** (failures - 1), _MOST_PAUSE_SECONDS) * random.uniform(0.5, 1.0)
                if isinstance(error, Unreachable):
                    pause = max(pause, error.retry_after or 0.0)
            await asyncio.sleep(max(pause, start + _LEAST_SECONDS - time.monotonic()))

    async def _list(self, changed: Callable[[Change], None]) -> None:
        listing = await list_all(
            self._transport, self._clock, self._resource, self._namespace, self._selector
        )
        before = self.items
        self.items = {_key(item): item for item in listing.items}
        self._version, self.at = listing.version, self._clock()
        for key, item in self.items.items():
            known = before.get(key)
            if known is None:
                changed(Change("ADDED", item))
            elif _version(known) != _version(item):
                changed(Change("MODIFIED", item))
        for key in before.keys() - self.items.keys():
            changed(Change("DELETED", before[key]))

    async def _watch(self, changed: Callable[[Change], None]) -> None:
        """One watch, from the last version seen to its end. Raises Expired and other ClusterErrors."""
        query = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(self._watch_seconds),
            "resourceVersion": self._version or "",
        }
        if self._selector:
            query["labelSelector"] = self._selector
        request = Request("watch", self._resource, self._namespace, query=query)
        async with aclosing(self._transport.lines(request, self._watch_seconds + _GRACE_SECONDS)) as lines:
            async for line in lines:
                # The last line of a connection that was cut has no end.
                if line.endswith(b"\n"):
                    self._take(decoded(request, line), request.what, changed)

    def _take(self, event: Object, what: str, changed: Callable[[Change], None]) -> None:
        kind, item = event["type"], event["object"]
        if kind == "ERROR":
            raise error_in_stream(what, item)
        self._version, self.at = _version(item), self._clock()
        if kind == "BOOKMARK":
            return
        item["metadata"].pop("managedFields", None)
        if kind == "DELETED":
            self.items.pop(_key(item), None)
        else:
            kind = "MODIFIED" if _key(item) in self.items else "ADDED"
            self.items[_key(item)] = item
        changed(Change(kind, item))


def _key(item: Object) -> tuple[str, str]:
    return item["metadata"].get("namespace", ""), item["metadata"]["name"]


def _version(item: Object) -> str:
    found: str = item["metadata"]["resourceVersion"]
    return found
