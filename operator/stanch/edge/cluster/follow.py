"""One kind, listed and then watched: wakes whoever waits for changes, and knows how fresh it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from stanch.edge.cluster.errors import Object


@dataclass(frozen=True, slots=True)
class Change:
    """type: what became of the object. A list after a break is told as changes too."""

    type: Literal["ADDED", "MODIFIED", "DELETED"]
    object: Object


class Follower:
    """Keeps the objects of one kind. Made by Cluster.follow; it does nothing until run() does.

    items: by (namespace, name), as last seen; empty before the first list.
    at: Unix time when the server last said anything of the kind (a list, an event, a bookmark, an end in
    order); None before the first. A watch that works says something every half a minute.
    problem: why it does not stand right now, one sentence; None where it does.
    """

    items: dict[tuple[str, str], Object]
    at: float | None
    problem: str | None

    async def run(self, changed: Callable[[Change], None]) -> None:
        """List and watch until cancelled; no error of the server ends it. `changed` is called for each
        change, from the same loop, and must not block."""
        raise NotImplementedError
