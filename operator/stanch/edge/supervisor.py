"""Which LeakWatches there are: one watchdog for each, and what belongs to no watch.

Runs in the elected process only. Lists decide; news from the API server's watches only make it look sooner,
so a watch that has fallen silent delays and never decides.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from stanch.api.common import unix
from stanch.api.conditions import merged
from stanch.api.convert import incident_of, policy_of, status_of
from stanch.api.incident import LeakIncident
from stanch.api.watch import LeakWatch
from stanch.core import plan_conditions
from stanch.core.planner import unwatched
from stanch.edge.api_keys import key_of
from stanch.edge.cluster import Cluster, ClusterError, Listing, NotFound
from stanch.edge.namespaces import Telling, each
from stanch.edge.news import News
from stanch.edge.prometheus_query import wanted_of
from stanch.edge.recording import written
from stanch.edge.telemetry import Telemetry
from stanch.edge.waking import ended, woken
from stanch.edge.watchdog import Watchdog

Key = tuple[str, str]

PART, NEWS = "list of watches", "news of LeakWatches"
_ROUND_SECONDS = 10.0
_LIMIT_SECONDS = 90.0
# A watchdog that ended by an error of its own is begun again after so long.
_AGAIN_SECONDS = 5.0
# What a watchdog has to tidy up takes less.
_DOG_ENDS_SECONDS = 15.0
# For so long a new incident may wait for the watch that means its pod.
_GRACE_SECONDS = 5.0


@dataclass(slots=True)
class _Running:
    dog: Watchdog
    task: asyncio.Task[None]
    grounds: object


class Supervisor:
    """namespaces: those whose watches count; empty for all. api_keys: directory of the engines' keys.
    prometheus_table: the admin's."""

    def __init__(
        self,
        cluster: Cluster,
        telemetry: Telemetry,
        clock: Callable[[], float],
        leads: Callable[[], bool],
        news: News,
        namespaces: tuple[str, ...] = (),
        api_keys: Path | None = None,
        prometheus_table: Path | None = None,
    ) -> None:
        self._prometheus_table = prometheus_table
        self._news = news
        self._cluster = cluster
        self._telemetry = telemetry
        self._clock = clock
        self._leads = leads
        self._api_keys = api_keys
        self._namespaces: tuple[str | None, ...] = namespaces or (None,)
        self._running: dict[Key, _Running] = {}
        self._again: dict[Key, float] = {}
        self._unlisted = Telling()
        # Told in each round which of the namespaces may be listed; set by who wants to know.
        self.tell_readable: Callable[[tuple[str, ...]], None] = lambda _: None
        self._unclaimed: dict[str, float] = {}
        self._wake = asyncio.Event()

    def watch_changed(self, namespace: str, name: str) -> None:
        """A LeakWatch was made, edited or deleted."""
        if (running := self._running.get((namespace, name))) is not None:
            running.dog.wake()
        self._wake.set()

    @property
    def followed(self) -> frozenset[Key]:
        """Namespace and name of each watch that has a watchdog."""
        return frozenset(self._running)

    def incident_changed(self, namespace: str) -> None:
        """Somebody made, annotated or deleted a LeakIncident there."""
        for (where, _), running in self._running.items():
            if where == namespace:
                running.dog.wake()
        self._wake.set()

    async def run(self) -> None:
        """Until cancelled; then nobody watches any more, and what is written stays."""
        try:
            while True:
                self._wake.clear()
                try:
                    await self._round()
                    self._telemetry.sign(PART, _LIMIT_SECONDS, needs_api=True)
                except NotFound as gone:
                    # One of our kinds is not installed, or not any more; the log has it (edge/handlers.py).
                    await self._follow({}, ())
                    self._telemetry.health.forget(NEWS)
                    wrong = f"a kind of Stanch is not installed in the cluster: {gone}"
                    self._telemetry.sign(PART, _LIMIT_SECONDS, needs_api=True, wrong=wrong)
                except ClusterError as error:
                    self._telemetry.note("warning", "watches-not-listed", str(error))
                await woken(self._wake, _ROUND_SECONDS)
        finally:
            await ended(*(running.task for running in self._running.values()), again=_DOG_ENDS_SECONDS)
            self._running.clear()
            for part in (PART, NEWS):
                self._telemetry.health.forget(part)

    async def _round(self) -> None:
        watches = await each(self._namespaces, self._cluster.watches)
        for said in self._unlisted.news(watches):
            self._telemetry.note("warning", "namespace-left-out", said)
        self.tell_readable(tuple(name for name in self._namespaces if name and name not in watches.forbidden))
        lists = watches.found.values()
        silent = self._news.behind((raw for one in lists for raw in one.items), time.monotonic())
        if silent is None:
            self._telemetry.sign(NEWS, _LIMIT_SECONDS, needs_api=True)
        else:
            self._telemetry.note("warning", "watch-silent", f"nothing is heard of LeakWatch {silent}")
        incidents = await each(list(watches.found), self._cluster.incidents)
        await self._follow({_key(watch): watch for watch in self._understood(lists)}, watches.unknown)
        await self._tidy(_incidents(incidents.found.values()))

    def _understood(self, lists: Iterable[Listing]) -> Iterable[LeakWatch]:
        for listing in lists:
            for raw in listing.items:
                try:
                    watch = LeakWatch.model_validate(raw)
                except ValidationError as error:
                    name = raw.get("metadata", {}).get("name", "?")
                    why = error.errors()[0]["msg"]
                    self._telemetry.note("warning", "not-understood", f"LeakWatch {name}: {why}")
                    continue
                if watch.metadata.deletion_timestamp is None:
                    yield watch

    async def _follow(self, watches: Mapping[Key, LeakWatch], unknown: Collection[str | None]) -> None:
        """A watchdog for each of these and for no other. unknown: namespaces of which nothing is known: who
        is there goes on."""
        for key, running in list(self._running.items()):
            watch = watches.get(key)
            done = running.task.done()
            # Other thresholds, or readings from elsewhere, are another judgement: what was held by the old
            # ones counts no more.
            if watch is not None and not done and _grounds(watch) == running.grounds:
                continue
            if key[0] in unknown and not done:
                continue
            del self._running[key]
            await ended(running.task, again=_DOG_ENDS_SECONDS)
            error = None if running.task.cancelled() else running.task.exception()
            if done and error is not None:
                self._telemetry.note("error", "watchdog-failed", repr(error), watch="/".join(key))
                self._again[key] = time.monotonic() + _AGAIN_SECONDS
        for key, watch in watches.items():
            if key not in self._running and self._again.get(key, 0.0) <= time.monotonic():
                api_key = key_of(self._api_keys, key[0])
                dog = Watchdog(
                    self._cluster,
                    self._telemetry,
                    watch,
                    self._clock,
                    self._leads,
                    api_key,
                    self._prometheus_table,
                )
                task = asyncio.create_task(dog.run(), name=f"watchdog {'/'.join(key)}")
                task.add_done_callback(lambda _: self._wake.set())
                self._running[key] = _Running(dog, task, _grounds(watch))

    async def _tidy(self, incidents: Iterable[LeakIncident]) -> None:
        """What ended long ago is deleted; what no watch means is ended."""
        now = self._clock()
        names = set()
        for one in incidents:
            meta, status = one.metadata, one.status
            if status.ending is not None:
                kept = one.spec.ttl_seconds_after_finished
                if status.ended is not None and now - unix(status.ended) > kept and self._leads():
                    await self._try(self._cluster.delete_incident(meta.namespace, meta.name, meta.uid))
                continue
            if self._claimed(one):
                continue
            names.add(meta.uid)
            since = self._unclaimed.setdefault(meta.uid, now)
            if now - since >= _GRACE_SECONDS and self._leads():
                await self._end(one, now)
        self._unclaimed = {uid: t for uid, t in self._unclaimed.items() if uid in names}
        if self._unclaimed:
            asyncio.get_running_loop().call_later(_GRACE_SECONDS, self._wake.set)

    def _claimed(self, one: LeakIncident) -> bool:
        """Whether a watch works on it, means its pod, or has not yet said which pods it means."""
        namespace = one.metadata.namespace
        if one.status.watch:
            return (namespace, one.status.watch) in self._running
        dogs = [running.dog for (where, _), running in self._running.items() if where == namespace]
        return any(dog.selected is None or one.spec.pod_ref.name in dog.selected for dog in dogs)

    async def _end(self, one: LeakIncident, now: float) -> None:
        for over in unwatched([incident_of(one)], now):
            said = plan_conditions.of_incident(over)
            generation = one.metadata.generation
            status = status_of(over, one.status).model_copy(
                update={
                    "observed_generation": generation,
                    "conditions": merged(one.status.conditions, said, generation, now),
                }
            )
            meta = one.metadata
            await self._try(
                self._cluster.write_incident_status(
                    meta.namespace, meta.name, written(status), meta.resource_version
                )
            )

    async def _try(self, call: Awaitable[object]) -> None:
        try:
            await call
        except NotFound:
            pass  # somebody has deleted it
        except ClusterError as error:
            self._telemetry.note("warning", "incident-not-written", str(error))


def _key(watch: LeakWatch) -> Key:
    return watch.metadata.namespace, watch.metadata.name


def _grounds(watch: LeakWatch) -> object:
    """What a watchdog is begun with; another needs another one."""
    return policy_of(watch), wanted_of(watch)


def _incidents(lists: Iterable[Listing]) -> list[LeakIncident]:
    """Those that can be understood; the watchdog of a pod says which cannot."""
    found = []
    for listing in lists:
        for raw in listing.items:
            with suppress(ValidationError):
                found.append(LeakIncident.model_validate(raw))
    return found
