"""Sends the rare idle canaries of one watch, in the background; who gets one is decided in core/idle.py."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

from stanch.core.confirm import Outcome
from stanch.core.fleet import Fleet
from stanch.core.idle import AT_ONCE, about, silent, whom
from stanch.core.plan_limits import Limits
from stanch.core.sample import Sample
from stanch.core.verdict import Answer
from stanch.edge.asking import Judged
from stanch.edge.executor import Note
from stanch.edge.live import Live
from stanch.edge.waking import ended


class IdleCanaries:
    """told: called when an engine did not answer. leads: whether this process may act right now."""

    def __init__(self, live: Live, told: Callable[[], None], leads: Callable[[], bool], note: Note) -> None:
        self._live = live
        self._told = told
        self._leads = leads
        self._note = note
        self._asked: dict[str, float] = {}
        self._asking: dict[str, asyncio.Task[None]] = {}

    def send(self, fleet: Fleet, judged: Mapping[str, Judged], busy: Collection[str], limits: Limits) -> None:
        """To those that are due, as far as there is room. judged: by the engine's name. busy: units that have
        an open incident."""
        now = self._live.clock()
        self._asked = {name: t for name, t in self._asked.items() if name in judged}
        if not self._leads():
            return
        readings = [(one.verdict, sample) for one in judged.values() if (sample := _sample(one)) is not None]
        for name in whom(fleet, readings, busy, limits, self._asked, now):
            if len(self._asking) < AT_ONCE and name not in self._asking:
                self._asked[name] = now
                task = asyncio.ensure_future(self._ask(judged[name]))
                self._asking[name] = task
                task.add_done_callback(lambda done, name=name: self._ended(name, done))  # type: ignore[misc]

    async def _ask(self, judged: Judged) -> None:
        name, began = judged.verdict.engine, self._live.clock()
        facts = self._live.facts(judged.watched.target.name)
        verdict = about(judged.verdict, self._live.policy_of(judged.watched))
        boot_id = None if facts is None else facts.boot_id
        said = await self._live.ask(replace(judged, verdict=verdict), canary=True, boot_id=boot_id)
        if said.canary is None or said.canary.outcome is Outcome.FINISHED:
            return
        state = self._live.state_of(name)
        if said.ruling.answer is Answer.CONFIRMED and state is not None:
            self._live.put(name, silent(state, began))
            self._note("warning", "idle-canary-unanswered", said.ruling.cause, engine=name)
            self._told()
        else:
            self._note("info", "idle-canary-undecided", said.ruling.cause, engine=name)

    def _ended(self, name: str, done: asyncio.Task[None]) -> None:
        self._asking.pop(name, None)
        if not done.cancelled() and (error := done.exception()) is not None:
            self._note("error", "idle-canary-failed", repr(error), engine=name)

    async def close(self) -> None:
        await ended(*self._asking.values())


def _sample(judged: Judged) -> Sample | None:
    return next((one for one in judged.scrape.samples if one.engine == judged.verdict.engine), None)
