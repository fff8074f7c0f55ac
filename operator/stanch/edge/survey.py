"""Everything that one turn of one watch reads, in the order that the planner's laws need.

1. The LeakWatch, with its ledger. 2. Workloads, EndpointSlices, the other watches, the cluster-wide stop.
3. The pods: their list is newer than the ledger (law 4). 4. The incidents, after the pods: whatever lock a
pod carries, its incident was written before. 5. The engines. Nothing is written here; `stanch plan` reads
by the same code.
"""

from __future__ import annotations

import asyncio
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import aiohttp
from pydantic import ValidationError

from stanch.api.convert import incident_of, ledger_of, limits_of
from stanch.api.incident import LeakIncident
from stanch.api.names import GROUP
from stanch.api.watch import LeakWatch, Source
from stanch.core.fleet import Fleet
from stanch.core.history import Incident, Ledger
from stanch.core.plan_conditions import Readings
from stanch.core.plan_limits import Limits
from stanch.core.verdict import State, Verdict
from stanch.edge.asking import Judged
from stanch.edge.cluster import Cluster, ClusterError, Listing, ObjectRef
from stanch.edge.hearing import Hearing
from stanch.edge.live import Live
from stanch.edge.runs import Runs
from stanch.edge.targets import Watched
from stanch.edge.units import Heard, Selection, fleet_of, paced, queries, select, targets, wanted
from stanch.edge.units_build import target_name
from stanch.edge.units_raw import Object, Ref, table, text, unix

__all__ = ["Survey", "Surveyor"]

# Owners of owners: pod, ReplicaSet, Deployment, and what stands above that.
_OWNER_ROUNDS = 6
_OWNERS_SECONDS = 300.0
_CORE_KINDS = {"Node"}
# What recurs is judged by an hour; twice that for clocks that differ.
_KEPT_SECONDS = 7200.0


@dataclass(frozen=True, slots=True)
class Survey:
    """What was read. found: the incidents of the watch as objects, by name; incidents: the same for the
    planner. judged: by the engine's name. watched: by the target's name; reached: targets by unit.
    strange: objects that could not be understood, one sentence each. readings: what is to be said of where
    they come from, None where the engines themselves are read."""

    watch: LeakWatch
    ledger: Ledger
    limits: Limits
    fleet: Fleet
    incidents: tuple[Incident, ...]
    found: Mapping[str, LeakIncident]
    judged: Mapping[str, Judged]
    watched: Mapping[str, Watched]
    reached: Mapping[str, tuple[Watched, ...]]
    selection: Selection
    heard: Mapping[str, Heard]
    strange: tuple[str, ...] = ()
    readings: Readings | None = None

    @property
    def verdicts(self) -> list[Verdict]:
        return [one.verdict for one in self.judged.values()]

    @property
    def open(self) -> frozenset[str]:
        return frozenset(incident.name for incident in self.incidents if incident.open)

    @property
    def namespace(self) -> str:
        return self.watch.metadata.namespace

    def container(self, pod: str) -> str:
        """The engine's container. Raises KeyError where the pod is none of this turn's."""
        return {one.name: one.container for one in self.selection.chosen}[pod]


@dataclass(slots=True)
class Surveyor:
    """Of one watch; remembers from turn to turn what engines said."""

    cluster: Cluster
    live: Live
    session: aiohttp.ClientSession
    namespace: str
    name: str
    _hearing: Hearing = field(init=False)
    _restless: frozenset[str] = frozenset()
    _runs: Runs = field(default_factory=Runs)
    _parsed: dict[tuple[str, str], LeakIncident] = field(default_factory=dict)
    # Owners and nodes that were needed since: with them known at the start, one round finds nothing missing.
    _owners: set[Ref] = field(default_factory=set)
    _owners_since: float = 0.0

    def __post_init__(self) -> None:
        self._hearing = Hearing(self.live, self.session)

    async def read(self) -> Survey:
        """Raises ClusterError where the API server did not tell all of it, NotFound where there is no such
        watch, ValidationError where the watch makes no sense to this version."""
        watch = LeakWatch.model_validate(await self.cluster.watch(self.namespace, self.name))
        ledger = ledger_of(watch, self.live.clock())
        objects: dict[Ref, Object | None] = {}
        await self._get_all(self._known_owners(), objects)
        watches, stop, slices, _ = await asyncio.gather(
            self.cluster.watches(self.namespace),
            self.cluster.stop_reason(),
            self._slices(),
            self._follow(watch, (), objects),
        )
        pods, listed_at = await self._pods(watch, objects)
        await self._follow(watch, pods, objects)
        listed = await self.cluster.incidents(self.namespace)
        selection = select(watch, pods, objects, _models(watches))
        understood, strange = self._understood(listed, {one.uid for one in selection.chosen})
        found = _of_watch(watch, selection, understood)
        incidents = tuple(incident_of(one) for one in found.values())
        watched = paced(targets(watch, selection), self.live.judged_every)
        self.live.retarget(watched)
        attended = self._attended(selection, incidents)
        heard = await self._hearing.listen(watched, attended)
        heard = self._runs.in_step(selection, heard, self.live.clock())
        judged = {one.verdict.engine: one for one in self.live.turn()}
        self._restless = _restless(judged.values(), watch.spec.source)
        fleet = fleet_of(
            watch, selection, objects, slices, heard, listed_at=listed_at, now=self.live.clock(), stop=stop
        )
        by_pod = _by_pod(selection, {one.target.name: one for one in watched})
        return Survey(
            watch,
            ledger,
            limits_of(watch),
            fleet,
            incidents,
            found,
            judged,
            {one.target.name: one for one in watched},
            {
                unit.key: tuple(target for pod in unit.pods for target in by_pod.get(pod.name, ()))
                for unit in fleet.units
            },
            selection,
            heard,
            tuple(strange),
            self.live.readings,
        )

    def _known_owners(self) -> frozenset[Ref]:
        """Begun anew now and then: those that are not needed any more fall away."""
        now = self.live.clock()
        if now - self._owners_since > _OWNERS_SECONDS:
            self._owners, self._owners_since = set(), now
        return frozenset(self._owners)

    async def _slices(self) -> Sequence[Object] | None:
        try:
            return (await self.cluster.endpoint_slices(self.namespace)).items
        except ClusterError:
            return None  # what is routed is unknown then, and no cordon counts as seen

    async def _pods(self, watch: LeakWatch, objects: dict[Ref, Object | None]) -> tuple[list[Object], float]:
        lists = await asyncio.gather(
            *(self.cluster.pods(self.namespace, query) for query in dict.fromkeys(queries(watch, objects)))
        )
        pods: dict[str, Object] = {}
        for listing in lists:
            pods |= {pod["metadata"]["name"]: pod for pod in listing.items}
        # A watch whose workloads are not there has nothing to list.
        return list(pods.values()), min((one.at for one in lists), default=self.live.clock())

    async def _follow(
        self, watch: LeakWatch, pods: Iterable[Object], objects: dict[Ref, Object | None]
    ) -> None:
        pods = list(pods)
        for _ in range(_OWNER_ROUNDS):
            need = [ref for ref in wanted(watch, pods, objects) if ref not in objects]
            if not need:
                return
            self._owners |= set(need)
            await self._get_all(need, objects)

    async def _get_all(self, refs: Iterable[Ref], objects: dict[Ref, Object | None]) -> None:
        refs = list(refs)
        got = await asyncio.gather(*(self._get(ref) for ref in refs))
        objects.update(zip(refs, got, strict=True))

    async def _get(self, ref: Ref) -> Object | None:
        namespace = None if ref.kind in _CORE_KINDS else self.namespace
        try:
            return await self.cluster.get(ObjectRef(ref.api_version, ref.kind, ref.name, namespace))
        except ClusterError:
            return None

    def _understood(self, listed: Listing, pods: Container[str]) -> tuple[list[LeakIncident], list[str]]:
        """The incidents that make sense, and a sentence on each that does not. Read once per version. Those
        of pods that have gone are kept for as long as anything is judged by them: they stay in the API
        server for a week, and where pods come and go there are many. pods: uids of those that there are."""
        known, self._parsed = self._parsed, {}
        strange, now = [], self.live.clock()
        for raw in listed.items:
            if text(raw, "spec", "podRef", "uid") not in pods and ended_before(raw, now - _KEPT_SECONDS):
                continue
            meta = raw["metadata"]
            key = meta.get("uid", ""), meta.get("resourceVersion", "")
            try:
                self._parsed[key] = known.get(key) or LeakIncident.model_validate(raw)
            except ValidationError as error:
                strange.append(f"LeakIncident {meta.get('name', '?')}: {error.errors()[0]['msg']}")
        return list(self._parsed.values()), strange

    def _attended(self, selection: Selection, incidents: Iterable[Incident]) -> frozenset[str]:
        ours = {one.pod_name for one in incidents if one.open}
        names = set(self._restless)
        for one in selection.chosen:
            marks = table(one.raw, "metadata", "annotations")
            if one.name in ours or any(key.startswith(f"{GROUP}/") for key in marks):
                names |= {target_name(one, port) for port in one.ports}
        return frozenset(names)


def ended_before(raw: Object, then: float) -> bool:
    """Whether an incident ended before that time, in Unix seconds; False where that cannot be told."""
    ended = unix(text(raw, "status", "ended"))
    return ended is not None and ended < then


def _restless(judged: Iterable[Judged], source: Source) -> frozenset[str]:
    """Targets of which an engine is not healthy. Where a Prometheus is read, not of one that is blind: it
    would be read in its place, and the whole fleet where it is Prometheus that does not answer."""
    well = {State.HEALTHY} if source is Source.SCRAPE else {State.HEALTHY, State.BLIND}
    return frozenset(one.watched.target.name for one in judged if one.verdict.state not in well)


def _by_pod(selection: Selection, watched: Mapping[str, Watched]) -> dict[str, list[Watched]]:
    return {
        one.name: [watched[name] for port in one.ports if (name := target_name(one, port)) in watched]
        for one in selection.chosen
    }


def _models(listing: Listing) -> list[LeakWatch]:
    """Those that can be understood."""
    found = []
    for raw in listing.items:
        try:
            found.append(LeakWatch.model_validate(raw))
        except ValidationError:
            continue
    return found


def _of_watch(
    watch: LeakWatch, selection: Selection, incidents: Iterable[LeakIncident]
) -> dict[str, LeakIncident]:
    """The incidents of this watch: those that it works on, and new ones about its pods."""
    uids = {one.name: one.uid for one in selection.chosen}
    found = {}
    for incident in incidents:
        about, holder = incident.spec.pod_ref, incident.status.watch
        new = not holder and about.name in uids and about.uid in ("", uids[about.name])
        if new or holder == watch.metadata.name:
            found[incident.metadata.name] = incident
    return found
