"""The pods of one watch and what they belong to, read from the API server now; units selects among them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from stanch.api.watch import LeakWatch
from stanch.edge import units
from stanch.edge.cluster import Cluster, Forbidden, NotFound, ObjectRef

# Pod, its owner, the owner's owner, and a workload of that: no chain of owners is longer.
_MOST_ROUNDS = 8


@dataclass(frozen=True, slots=True)
class Survey:
    """at: Unix seconds when the oldest of the lists of pods was asked for."""

    selection: units.Selection
    objects: units.Objects
    at: float


async def survey(cluster: Cluster, watch: LeakWatch, watches: Sequence[LeakWatch]) -> Survey:
    """watches: all of the namespace. Raises ClusterError where the pods cannot be listed."""
    namespace = watch.metadata.namespace
    objects: dict[units.Ref, units.Object | None] = {}
    # The workloads of the watch itself come first: their selectors keep the lists of pods short.
    await _get(cluster, namespace, units.wanted(watch, (), objects), objects)
    selectors = units.queries(watch, objects)
    lists = await asyncio.gather(*(cluster.pods(namespace, selector) for selector in selectors))
    pods = [pod for listing in lists for pod in listing.items]
    for _ in range(_MOST_ROUNDS):
        if not (need := units.wanted(watch, pods, objects)):
            break
        await _get(cluster, namespace, need, objects)
    return Survey(units.select(watch, pods, objects, watches), objects, min(one.at for one in lists))


async def _get(
    cluster: Cluster,
    namespace: str,
    refs: frozenset[units.Ref],
    objects: dict[units.Ref, units.Object | None],
) -> None:
    async def one(ref: units.Ref) -> units.Object | None:
        where = None if (ref.api_version, ref.kind) == ("v1", "Node") else namespace
        try:
            return await cluster.get(ObjectRef(ref.api_version, ref.kind, ref.name, where))
        except (NotFound, Forbidden):
            return None

    ordered = sorted(refs, key=lambda ref: (ref.kind, ref.name))
    objects.update(zip(ordered, await asyncio.gather(*map(one, ordered)), strict=True))
