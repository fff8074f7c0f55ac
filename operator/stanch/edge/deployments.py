"""Which DisaggDeployments there are: each is made and kept so, and says what became of it.

Runs in the elected process only. As with watches, lists decide; news only make it look sooner. Nothing of an
engine waits for it: what was made goes on without the operator, and goes with its DisaggDeployment by owner
references alone.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from stanch.edge.cluster import Cluster, ClusterError, NotFound
from stanch.edge.cluster.making import MADE, POD_MONITORS
from stanch.edge.deployments_objects import SELECTOR, Object
from stanch.edge.deployments_one import Maker, NotLeadingError
from stanch.edge.deployments_telling import Teller
from stanch.edge.namespaces import each
from stanch.edge.news import News
from stanch.edge.render import Place
from stanch.edge.telemetry import Telemetry
from stanch.edge.waking import woken

PART, NEWS = "list of deployments", "news of DisaggDeployments"
_ROUND_SECONDS = 10.0
# While pods are on their way: what they come to is to be said soon.
_SOON_SECONDS = 5.0
_LIMIT_SECONDS = 120.0
# So many at once; the watches need the API server as well.
_AT_ONCE = 4


@dataclass(frozen=True, slots=True)
class Kit:
    """What the operator was told of the image with the engine kit. image: "" where it was not. image_volume:
    pods mount it, in place of an init container."""

    image: str
    pull_policy: str
    image_volume: bool = False


class Deployments:
    """namespaces: those whose DisaggDeployments count; empty for all."""

    def __init__(
        self,
        cluster: Cluster,
        telemetry: Telemetry,
        clock: Callable[[], float],
        leads: Callable[[], bool],
        kit: Kit,
        namespaces: tuple[str, ...] = (),
    ) -> None:
        self.news = News()
        self._cluster = cluster
        self._telemetry = telemetry
        self._leads = leads
        self._kit = kit
        self._namespaces: tuple[str | None, ...] = namespaces or (None,)
        self._maker = Maker(cluster, telemetry, leads)
        self._teller = Teller(cluster, telemetry, clock)
        # Namespaces of which it was told that they are being deleted.
        self._ending: set[str] = set()
        self._wake = asyncio.Event()

    def changed(self) -> None:
        """A DisaggDeployment was made, edited or deleted."""
        self._wake.set()

    async def run(self) -> None:
        """Until cancelled; then what was made stays."""
        # Another process may have acted meanwhile: what was applied before says nothing.
        self._maker.forget(())
        try:
            while True:
                self._wake.clear()
                settled = True
                try:
                    settled = await self.round()
                    self._telemetry.sign(PART, _LIMIT_SECONDS, needs_api=True)
                except ClusterError as error:
                    self._telemetry.note("warning", "deployments-not-listed", str(error))
                except NotLeadingError:
                    # Whoever has the Lease now goes on; we are about to be told.
                    settled = True
                await woken(self._wake, _ROUND_SECONDS if settled else _SOON_SECONDS)
        finally:
            for part in (PART, NEWS):
                self._telemetry.health.forget(part)

    async def round(self) -> bool:
        """Look at all of them once. Whether nothing is on its way. Raises ClusterError, NotLeadingError."""
        try:
            lists = await each(self._namespaces, self._cluster.deployments)
        except NotFound:
            # The kind is not installed: there is nothing to do, and nothing to be heard of.
            self._telemetry.health.forget(NEWS)
            return True
        # The supervisor tells which cannot be listed.
        raws = [raw for one in lists.found.values() for raw in one.items]
        silent = self.news.behind(raws, time.monotonic())
        if silent is None:
            self._telemetry.sign(NEWS, _LIMIT_SECONDS, needs_api=True)
        else:
            self._telemetry.note("warning", "watch-silent", f"nothing is heard of DisaggDeployment {silent}")
        self._maker.forget(raw["metadata"]["uid"] for raw in raws)
        self._ending &= {raw["metadata"]["namespace"] for raw in raws}
        # What is being deleted is the garbage collector's.
        raws = [raw for raw in raws if "deletionTimestamp" not in raw["metadata"]]
        if not raws:
            return True
        monitors = await self._cluster.making.pod_monitors()
        place = Place(
            self._kit.image,
            self._kit.pull_policy,
            pod_monitors=monitors,
            image_volumes=self._kit.image_volume,
        )
        found = await self._objects(lists.found, monitors)
        room = asyncio.Semaphore(_AT_ONCE)

        async def one(raw: Object) -> bool:
            async with room:
                return await self._one(raw, found.get(raw["metadata"]["namespace"], ()), place)

        return all(await asyncio.gather(*map(one, raws)))

    async def _objects(self, namespaces: Iterable[str | None], monitors: bool) -> dict[str, list[Object]]:
        """All that was ever made for any of them, by namespace."""
        found: dict[str, list[Object]] = {}
        for (version, kind), resource in MADE.items():
            if resource == POD_MONITORS and not monitors:
                continue
            for namespace in namespaces:
                listing = await self._cluster.making.listed(resource, namespace, SELECTOR)
                for item in listing.items:
                    one = {**item, "apiVersion": version, "kind": kind}
                    found.setdefault(item["metadata"]["namespace"], []).append(one)
        return found

    async def _one(self, raw: Object, found: Sequence[Object], place: Place) -> bool:
        """Whether nothing of it is on its way."""
        try:
            made = await self._maker.make(raw, found, place)
            if not self._leads():
                raise NotLeadingError
            if made.ends:
                self._tell_ending(raw["metadata"]["namespace"])
                return True
            settled = await self._teller.tell(raw, made)
            # Of many, while the API server is slow, a round may take longer.
            self._telemetry.sign(PART, _LIMIT_SECONDS, needs_api=True)
            return settled
        except NotLeadingError:
            raise
        except Exception as error:  # of one of them: the others, and all watches, go on
            name = f"{raw['metadata']['namespace']}/{raw['metadata']['name']}"
            self._telemetry.note("error", "deployment-failed", repr(error), deployment=name)
            return False

    def _tell_ending(self, namespace: str) -> None:
        """Once: what is left in it goes by itself."""
        if namespace not in self._ending:
            self._ending.add(namespace)
            said = f"namespace {namespace} is being deleted: nothing is made in it any more"
            self._telemetry.note("info", "namespace-ends", said)
