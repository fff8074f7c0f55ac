"""Whole lists, page by page."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from stanch.edge.cluster.errors import Expired, Object, Unreachable
from stanch.edge.cluster.refs import Request, Resource
from stanch.edge.cluster.transport import Transport

PAGE = 500
# So often a list whose later pages expired is begun anew; the server keeps a page's version for minutes.
_TRIES = 3


@dataclass(frozen=True, slots=True)
class Listing:
    """All objects of one kind at one moment. version: the list's resourceVersion. at: Unix seconds when the
    request for its first page was sent, so nothing in it is older than that. Objects are as the server gave
    them, without managedFields; those of a list of core kinds have neither apiVersion nor kind."""

    items: list[Object]
    version: str
    at: float


async def list_all(
    transport: Transport,
    clock: Callable[[], float],
    resource: Resource,
    namespace: str | None,
    selector: str = "",
    fields: str = "",
) -> Listing:
    """The list as it is now, never out of the server's cache. selector: of labels; fields: of those that
    the server can select by. Raises ClusterError."""
    for _ in range(_TRIES):
        # What is left of another version, which the server offers then, would be a list of no moment at all.
        with suppress(Expired):
            return await _pages(transport, clock, resource, namespace, selector, fields)
    raise Unreachable(f"list {resource.plural}: its pages expired {_TRIES} times before they were read")


async def _pages(
    transport: Transport,
    clock: Callable[[], float],
    resource: Resource,
    namespace: str | None,
    selector: str,
    fields: str,
) -> Listing:
    query = {"limit": str(PAGE)}
    query |= {"labelSelector": selector} if selector else {}
    query |= {"fieldSelector": fields} if fields else {}
    items: list[Object] = []
    at = clock()
    while True:
        page = await transport.read(Request("list", resource, namespace, query=query))
        found, meta = page.get("items"), page.get("metadata", {})
        # null is how some servers of Go write an empty list.
        if found is None:
            found = []
        for item in found:
            item["metadata"].pop("managedFields", None)
        items += found
        if not meta.get("continue"):
            return Listing(items, meta.get("resourceVersion", ""), at)
        query = query | {"continue": meta["continue"]}
