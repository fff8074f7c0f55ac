"""What the engines of a watch said, for one turn: from their pages, and where it matters, asked anew.

An engine is attended to where something is done to it or it shows something: its page, its /health and its
kit's state are then read in the turn itself. The others are known by their last page and kit's last word.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import aiohttp

from stanch.edge import engine, kit
from stanch.edge.kit_answers import Facts, KitError
from stanch.edge.live import Live
from stanch.edge.scrape import Scrape
from stanch.edge.targets import Watched
from stanch.edge.units import Heard

_STATE_SECONDS = 2.0
# A kit that misses one answer is not a kit that has gone.
_KEPT_SECONDS = 15.0
# Two readings this far apart tell whether requests arrive: for so long at most they were seen to come after
# the endpoint had gone (kube-proxy 1.35). Older ones tell of another time.
_APART_SECONDS, _MEMORY_SECONDS = 0.7, 30.0


@dataclass(slots=True)
class _Known:
    """facts: the kit's last answer to us, with its time. counts: (time, requests seen so far) of the last
    readings. ids: by which its peers know its ranks, of the process with that boot id: an engine that hangs
    does not say them any more."""

    facts: Facts | None = None
    facts_at: float = 0.0
    boot_id: str = ""
    ids: dict[str, str] = field(default_factory=dict)
    counts: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=64))


class Hearing:
    """Of one watch; remembers from turn to turn."""

    def __init__(self, live: Live, session: aiohttp.ClientSession) -> None:
        self._live = live
        self._session = session
        self._known: dict[str, _Known] = {}

    async def listen(self, watched: Iterable[Watched], attended: frozenset[str]) -> Mapping[str, Heard]:
        """By the name of the target. attended: names of those that are asked now."""
        targets = list(watched)
        names = {one.target.name for one in targets}
        for gone in self._known.keys() - names:
            del self._known[gone]
        asked = [one for one in targets if one.target.name in attended]
        healthy, _, _ = await asyncio.gather(
            asyncio.gather(*(engine.healthy(self._session, one.base) for one in asked)),
            asyncio.gather(*(self._ask_state(one) for one in asked)),
            self._live.look_again(one.target.name for one in asked),
        )
        health = {one.target.name: ok for one, ok in zip(asked, healthy, strict=True)}
        return {
            one.target.name: replace(
                self._heard(one.target.name, health.get(one.target.name)), role=self._live.role(one)
            )
            for one in targets
        }

    async def _ask_state(self, watched: Watched) -> None:
        known = self._known.setdefault(watched.target.name, _Known())
        try:
            known.facts = await kit.state(self._session, watched.base, _STATE_SECONDS)
            known.facts_at = self._live.clock()
        except KitError as error:
            if error.absent or self._live.clock() - known.facts_at > _KEPT_SECONDS:
                known.facts = None

    def _heard(self, name: str, health: bool | None) -> Heard:
        """health: None where it was not asked."""
        known = self._known.setdefault(name, _Known())
        facts = known.facts if health is not None else self._live.facts(name)
        if health is None:
            known.facts = None
        if facts is not None:
            before = known.ids if facts.boot_id == known.boot_id else {}
            known.boot_id, known.ids = facts.boot_id, {**before, **facts.engine_ids}
        ids = tuple(known.ids.values())
        scrape = self._live.newest(name)
        if scrape is None:
            return Heard(healthy=health, kit=facts, transfer_ids=ids)
        if health is None:
            health = scrape.problem is None
        running = _sum(sample.running for sample in scrape.samples)
        engines = tuple(sample.engine for sample in scrape.samples)
        return Heard(engines, running, self._arriving(known, scrape), health, facts, ids)

    def _arriving(self, known: _Known, scrape: Scrape) -> bool | None:
        """Whether requests came since a reading of at least 0.7 s before; None: cannot be told."""
        seen = _requests(scrape)
        if seen is None:
            return None
        counts = known.counts
        if not counts or counts[-1][0] < scrape.t:
            counts.append((scrape.t, seen))
        before = [count for t, count in counts if _APART_SECONDS <= scrape.t - t <= _MEMORY_SECONDS]
        return seen > before[-1] if before else None


def _requests(scrape: Scrape) -> float | None:
    """Requests that the engines of a page have seen so far: finished, running and waiting. One that is given
    up lowers it or not, and never raises it."""
    if scrape.problem is not None:
        return None
    return _sum(value for one in scrape.samples for value in (one.finished, one.running, one.waiting))


def _sum(values: Iterable[float | None]) -> float | None:
    """None where one of them, or all, are missing."""
    known = list(values)
    if not known or None in known:
        return None
    return sum(value for value in known if value is not None)
