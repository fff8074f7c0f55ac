"""Carries out what a turn has planned: of each unit its incidents are written, then it is acted upon.

Many units at a time. Where very many repairs go on at once, a turn has a second or so for what can wait, and
throws the rest away unwritten; the next one plans it again. It would else last for many seconds, in which no
engine that leaks meanwhile would be seen.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from stanch.core.history import Incident
from stanch.core.plan_types import HARMLESS, Action, Verb
from stanch.edge.executor import Executor
from stanch.edge.recording import Recorder, by_name
from stanch.edge.survey import Survey

# As many as there may be requests to the API server.
_UNITS_AT_ONCE = 16
# What can wait is begun within so long, or by the next turn.
_BEGUN_WITHIN_SECONDS = 1.0
# With these a leak does no more harm; and no cordon may run out because there is much else to do.
_URGENT = frozenset({Verb.CORDON, Verb.RELEASE, Verb.EVICT})


def order(
    incidents: Collection[Incident], actions: Iterable[Action], late: Collection[str]
) -> tuple[list[str], list[str]]:
    """The units of a plan: those that cannot wait, and the others. At the front of the first those that are
    only asked, which takes no time, and the answers come meanwhile; at the front of the second those that
    the turn before had no time for (late); else in the plan's own order."""
    written = {one.unit for one in incidents}
    verbs: dict[str, set[Verb]] = {one.unit: set() for one in incidents}
    for one in actions:
        verbs.setdefault(one.unit, set()).add(one.verb)
    asked = [unit for unit, its in verbs.items() if unit not in written and its <= HARMLESS]
    first = dict.fromkeys([*asked, *(unit for unit, its in verbs.items() if its & _URGENT)])
    rest = [unit for unit in verbs if unit not in first]
    return list(first), sorted(rest, key=lambda unit: unit not in late)


@dataclass(slots=True)
class Carrier:
    """Of one watch. leads: whether this process may act right now. told: called with an incident as it was
    and as it is written now. again: asks for another turn at once. late: units that the last turn had no
    time for."""

    recorder: Recorder
    leads: Callable[[], bool]
    told: Callable[[Incident | None, Incident], None]
    again: Callable[[], None]
    late: frozenset[str] = frozenset()

    async def carry_out(
        self,
        survey: Survey,
        incidents: Iterable[Incident],
        actions: Iterable[Action],
        left: dict[str, Incident],
        executor: Executor,
        now: float,
    ) -> None:
        """left: all incidents by name; afterwards as last written."""
        incidents, actions = list(incidents), list(actions)
        before, room, late = by_name(survey.incidents), asyncio.Semaphore(_UNITS_AT_ONCE), set[str]()
        to_write: dict[str, list[Incident]] = {}
        to_do: dict[str, list[Action]] = {}
        for incident in incidents:
            to_write.setdefault(incident.unit, []).append(incident)
        for action in actions:
            to_do.setdefault(action.unit, []).append(action)

        async def one(unit: str) -> None:
            held_back = set()
            for incident in to_write.get(unit, ()):
                kept = await self.recorder.write(survey, incident, now) if self.leads() else None
                if kept is None:
                    held_back.add(incident.name)
                    continue
                left[kept.name] = kept
                self.told(before.get(kept.name), kept)
            if held_back:
                self.again()  # what the next turn reads tells why
            may = [action for action in to_do.get(unit, ()) if action.incident not in held_back]
            if may:
                await executor.carry_out(may, survey, left)

        async def begun(unit: str, until: float) -> None:
            async with room:
                if time.monotonic() < until:
                    await one(unit)
                else:
                    late.add(unit)

        first, rest = order(incidents, actions, self.late)
        await asyncio.gather(*(begun(unit, math.inf) for unit in first))
        until = time.monotonic() + _BEGUN_WITHIN_SECONDS
        await asyncio.gather(*(begun(unit, until) for unit in rest))
        for incident in (each for unit in late for each in to_write.get(unit, ())):
            if incident.name in before:
                left[incident.name] = before[incident.name]
            else:
                del left[incident.name]
        self.late = frozenset(late)
        if late:
            self.again()
