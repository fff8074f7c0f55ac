"""Whole lists, page by page."""

from __future__ import annotations

from dataclasses import dataclass

from stanch.edge.cluster.errors import Object


@dataclass(frozen=True, slots=True)
class Listing:
    """All objects of one kind at one moment. version: the list's resourceVersion. at: Unix seconds when the
    request for its first page was sent, so nothing in it is older than that. Objects are as the server gave
    them, without managedFields; those of a list of core kinds have neither apiVersion nor kind."""

    items: list[Object]
    version: str
    at: float
