"""The watchdog of the demo's fleet: the turns of edge/watchdog.py, with memory in place of the API server.

Verdicts, plan, questions, verification and what is written on a pod are the product's own. Only where a turn
reads from (processes and their router) and what remembers the incidents (this object) are given here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import aiohttp

from stanch.core.fleet import Fleet
from stanch.core.history import History, Incident, Ledger
from stanch.core.plan_limits import Limits
from stanch.core.planner import plan, sweep
from stanch.edge.changes import Change, changes
from stanch.edge.demo.deployment import Deployment, Traffic
from stanch.edge.demo.pods import NAMESPACE, Pods
from stanch.edge.executor import Executor, Note
from stanch.edge.hearing import Hearing
from stanch.edge.live import Judged, Live
from stanch.edge.targets import Watched
from stanch.edge.waking import woken

# Between two turns, however many answers come; those that come together are planned with together.
_LEAST_SECONDS = 0.25


@dataclass(frozen=True, slots=True)
class Seen:
    """What one turn has read, as place.Seen has it."""

    limits: Limits
    fleet: Fleet
    judged: Mapping[str, Judged]
    reached: Mapping[str, tuple[Watched, ...]]
    open: frozenset[str]
    namespace: str = NAMESPACE

    def container(self, pod: str) -> str:
        return "engine"


class Ladder:
    """limits: for the next turn; they may be changed, as a person edits a LeakWatch. told: hears of every
    change of an incident. incidents: by name, ended ones too; judged: by the engine's name, of the last turn;
    traffic: None until the router has answered."""

    def __init__(
        self,
        deployment: Deployment,
        live: Live,
        session: aiohttp.ClientSession,
        limits: Limits,
        told: Callable[[Change], None],
        note: Note,
    ) -> None:
        self.limits = limits
        self.incidents: dict[str, Incident] = {}
        self.judged: Mapping[str, Judged] = {}
        self.traffic: Traffic | None = None
        self.live = live
        self._deployment = deployment
        self._told = told
        self._ledger = Ledger()
        self._pods = Pods(deployment)
        self._hearing = Hearing(live, session)
        self._wake = asyncio.Event()
        self._executor = Executor(self._pods, live, session, self._wake.set, lambda: True, note)

    async def run(self, turned: Callable[[], None]) -> None:
        """Turn after turn, until cancelled. turned: called after each."""
        try:
            while True:
                self._wake.clear()
                pause = await self._turn()
                turned()
                if await woken(self._wake, pause):
                    await asyncio.sleep(_LEAST_SECONDS)
        finally:
            await self._executor.close()

    async def _turn(self) -> float:
        """One turn; seconds until the next."""
        self._ledger = replace(self._ledger, read_at=self.live.clock())
        seen = await self._read()
        history = History(
            tuple(self.incidents.values()),
            self._ledger,
            self._executor.confirmations,
            self._executor.outcomes,
        )
        verdicts = [one.verdict for one in seen.judged.values()]
        made = plan(seen.fleet, verdicts, history, seen.limits, self.live.clock())
        self._ledger = made.ledger or self._ledger
        for incident in made.incidents:
            before = self.incidents.get(incident.name)
            self.incidents[incident.name] = incident
            for change in changes(before, incident):
                self._told(change)
        left = sweep(seen.fleet, [name for name, incident in self.incidents.items() if incident.open])
        await self._executor.carry_out((*left, *made.actions), seen, self.incidents)
        self.live.arm(made.arm)
        return min(seen.limits.interval_seconds, made.recheck_after)

    async def _read(self) -> Seen:
        """The processes first, then what they say: so few are all asked in every turn."""
        before, listed_at = self._deployment.engines, self.live.clock()
        watched = self.live.watched
        try:
            self.traffic = await self._deployment.traffic()
        except (aiohttp.ClientError, asyncio.TimeoutError):
            self.traffic = None  # whom it sends to is unknown then, and no cordon counts as seen
        heard = await self._hearing.listen(watched.values(), frozenset(watched))
        fleet = self._pods.fleet(before, self._deployment.engines, heard, self.traffic, listed_at)
        self.judged = {one.verdict.engine: one for one in self.live.turn()}
        return Seen(
            self.limits,
            fleet,
            self.judged,
            {name: (one,) for name, one in watched.items()},
            frozenset(name for name, incident in self.incidents.items() if incident.open),
        )
