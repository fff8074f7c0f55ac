"""Lists of several namespaces, of which one that cannot be listed does not hold up the others."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field

from stanch.edge.cluster import ClusterError, Forbidden, Listing


@dataclass(frozen=True, slots=True)
class Lists:
    """found, failed: by namespace; None stands for all of them."""

    found: dict[str | None, Listing] = field(default_factory=dict)
    failed: dict[str | None, ClusterError] = field(default_factory=dict)

    @property
    def forbidden(self) -> frozenset[str | None]:
        """They have gone, and the right with them, or the right was taken away."""
        return frozenset(name for name, error in self.failed.items() if isinstance(error, Forbidden))

    @property
    def unknown(self) -> frozenset[str | None]:
        """Of which nothing is known for now."""
        return frozenset(self.failed) - self.forbidden


async def each(namespaces: Sequence[str | None], ask: Callable[[str | None], Awaitable[Listing]]) -> Lists:
    """Raises ClusterError where none can be listed."""
    lists = Lists()

    async def one(name: str | None) -> None:
        try:
            lists.found[name] = await ask(name)
        except ClusterError as error:
            lists.failed[name] = error

    await asyncio.gather(*(one(name) for name in namespaces))
    if not lists.found:
        raise next(iter(lists.failed.values()))
    return lists


class Telling:
    """Of each namespace that cannot be listed once, until it is listed again."""

    def __init__(self) -> None:
        self._told = frozenset[str | None]()

    def news(self, lists: Lists) -> Iterator[str]:
        before, self._told = self._told, frozenset(lists.failed)
        for name in sorted(self._told - before, key=str):
            yield f"namespace {name} is left out until it can be listed: {lists.failed[name]}"
