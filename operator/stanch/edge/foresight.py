"""What `stanch plan` reads and asks; the reading is the watchdog's own (edge/survey.py)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from stanch.api.convert import policy_of
from stanch.api.watch import LeakWatch
from stanch.core.history import Confirmation, History, Incident
from stanch.core.plan_types import Action
from stanch.edge import client
from stanch.edge.answering import answer_of
from stanch.edge.cluster import Cluster
from stanch.edge.forecast import Forecast, forecast, questions
from stanch.edge.kit import Key, no_key
from stanch.edge.live import Live
from stanch.edge.prometheus_query import wanted_of
from stanch.edge.survey import Survey, Surveyor
from stanch.edge.waking import ended
from stanch.edge.watching import watching


@dataclass(frozen=True, slots=True)
class Foresight:
    """mode: of the watch. engines: that were read."""

    mode: str
    engines: int
    units: tuple[Forecast, ...]


async def foresee(
    cluster: Cluster,
    namespace: str,
    name: str,
    seconds: float | None,
    *,
    canary: bool,
    key: Key = no_key,
    table: Path | None = None,
) -> Foresight:
    """seconds: to watch for before planning, None for one look. canary: whether one may be sent, where the
    watch allows it. table: of the Prometheus servers that may be asked. Raises ClusterError,
    ValidationError."""
    watch = LeakWatch.model_validate(await cluster.watch(namespace, name))
    wanted = wanted_of(watch, table)
    async with (
        watching([], policy_of(watch), key, wanted=wanted, verify=False) as live,
        client.session(verify=False) as session,
    ):
        surveyor = Surveyor(cluster, live, session, namespace, name)
        # Who there is to be read is known by the first reading only.
        await surveyor.read()
        await asyncio.gather(live.look(), live.learn())
        await live.ask_kits()
        survey = await surveyor.read()
        if seconds is not None:
            async with _scraping(live):
                end = live.clock() + seconds
                while (left := end - live.clock()) > 0:
                    await asyncio.sleep(min(left, live.policy.interval_seconds))
                    survey = await surveyor.read()
        history = History(survey.incidents, survey.ledger)
        facts = survey.fleet, survey.verdicts
        asked = questions(*facts, history, survey.limits, live.clock())
        answers = [await _ask(live, action, survey, canary) for action in asked]
        history = History(
            survey.incidents, survey.ledger, tuple(one for several in answers for one in several)
        )
        units = forecast(*facts, history, survey.limits, live.clock())
        return Foresight(survey.limits.mode.value, len(survey.judged), units)


@asynccontextmanager
async def _scraping(live: Live) -> AsyncIterator[None]:
    task = asyncio.create_task(live.scraping())
    try:
        yield
    finally:
        await ended(task)


async def _ask(live: Live, action: Action, survey: Survey, canary: bool) -> list[Confirmation]:
    incidents: dict[str, Incident] = {one.name: one for one in survey.incidents}
    need = action.pods[0]
    return list(
        await asyncio.gather(
            *(
                answer_of(
                    live,
                    engine,
                    survey.judged.get(engine),
                    incidents.get(action.incident),
                    need.container_id,
                    need.boot_id,
                    canary and survey.limits.canary,
                )
                for engine in action.engines
            )
        )
    )
