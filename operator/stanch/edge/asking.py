"""Asking engines about their verdicts: the kit's list first, then, where that may be, a canary."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import aiohttp

from stanch.core.answers import answer, ask
from stanch.core.confirm import Canary, Outcome, Ruling
from stanch.core.confirm_list import judge_list
from stanch.core.detector import EngineState
from stanch.core.kit import KitReport
from stanch.core.phases import IllegalTransitionError
from stanch.core.policy import Policy
from stanch.core.sample import Sample
from stanch.core.signatures import NOTHING_OWED
from stanch.core.verdict import Answer, State, Verdict
from stanch.edge import engine
from stanch.edge.errors import FileError
from stanch.edge.kit import Key
from stanch.edge.scrape import Scrape
from stanch.edge.targets import Watched
from stanch.edge.waking import ended

# An engine that could not be asked is asked again, but not at every turn.
_ASK_AGAIN_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Judged:
    """One engine of a turn. scrape: the page that its verdict rests on."""

    watched: Watched
    verdict: Verdict
    scrape: Scrape


@dataclass(frozen=True, slots=True)
class Said:
    """What an engine said. canary: the one that was sent, None where none was. report: its kit's list, None
    where it was not asked."""

    ruling: Ruling
    canary: Canary | None = None
    report: KitReport | None = None


class Fleet(Protocol):
    """What asking needs of those that are watched."""

    def state_of(self, name: str) -> EngineState | None:
        """What is remembered of an engine; None where it has left its page."""

    def put(self, name: str, state: EngineState) -> None: ...

    def policy_of(self, watched: Watched) -> Policy: ...

    async def read(self, judged: Judged) -> Sample:
        """A new reading of the engine."""

    async def look_at(self, judged: Judged) -> KitReport | None:
        """A new list of its kit, or why there is none; None where it is not asked."""


class Asking:
    """Who is being asked, and what becomes of the answers."""

    def __init__(
        self, fleet: Fleet, session: aiohttp.ClientSession, clock: Callable[[], float], key: Key
    ) -> None:
        self._fleet = fleet
        self._session = session
        self._clock = clock
        self._key = key
        self._asked: dict[str, float] = {}
        self._asking: dict[str, tuple[Verdict, asyncio.Task[Said]]] = {}

    async def confirm(self, judged: Judged, *, canary: bool = True) -> Judged:
        """Ask one engine about its verdict, and enter what it says. canary: whether one may be sent."""
        self._send(judged, canary)
        await asyncio.wait((self._asking[judged.verdict.engine][1],))
        return self._enter(judged)

    async def ask(self, judged: Judged, *, canary: bool, boot_id: str | None = None) -> Said:
        """What the engine says of judged.verdict, which need not be the last one of it; where it is, the
        detector learns the answer too. boot_id: of its kit, where it may be draining."""
        name = judged.verdict.engine
        state = self._fleet.state_of(name)
        if canary and state is not None:
            self._fleet.put(name, ask(state, 1.0, 1.0))
        said = await self._confirm(judged, canary, boot_id)
        self._learn(judged.verdict, said)
        return said

    def in_background(self, judged: Sequence[Judged]) -> list[Judged]:
        """Ask about every fault that was not asked about; the turn with what the answers so far changed."""
        found = []
        for one in judged:
            name = one.verdict.engine
            if name in self._asking and self._asking[name][1].done():
                one = self._enter(one)
            if self._is_due(one.verdict):
                self._send(one, canary=True)
            found.append(one)
        return found

    def _is_due(self, verdict: Verdict) -> bool:
        asked = self._asked.get(verdict.engine)
        return (
            verdict.state is State.FAULT
            and not verdict.spared
            and verdict.confirmation in (None, Answer.INCONCLUSIVE)
            and verdict.engine not in self._asking
            and (asked is None or self._clock() - asked >= _ASK_AGAIN_SECONDS)
        )

    def _send(self, judged: Judged, canary: bool) -> None:
        name = judged.verdict.engine
        state = self._fleet.state_of(name)
        assert state is not None
        if canary:
            self._fleet.put(name, ask(state, 1.0, 1.0))
        self._asked[name] = self._clock()
        task = asyncio.ensure_future(self._confirm(judged, canary, None))
        self._asking[name] = judged.verdict, task

    async def _confirm(self, judged: Judged, canary: bool, boot_id: str | None) -> Said:
        """What the kit's list proves; where that is nothing, what a canary does."""
        policy = self._fleet.policy_of(judged.watched)
        report = await self._fleet.look_at(judged)
        listed = None
        if report is not None and not report.absent:
            listed = judge_list(judged.verdict, report, policy)
        if listed is not None and (listed.answer is not Answer.INCONCLUSIVE or not canary):
            return Said(listed, None, report)
        if not canary:
            why = "it has no engine kit, and a canary was not asked for"
            return Said(Ruling(Answer.INCONCLUSIVE, why), None, report)
        try:
            key = self._key()
        except FileError as error:
            return Said(Ruling(Answer.INCONCLUSIVE, f"no canary was sent: {error}"), None, report)
        address = engine.Address(judged.watched.base, rank_of(judged), key, boot_id)

        async def read() -> Sample:
            return await self._fleet.read(judged)

        ruling, sent = await engine.confirm(self._session, address, judged.verdict, policy, read)
        return Said(ruling, sent, report)

    def _enter(self, judged: Judged) -> Judged:
        """With the answer that has come, if the engine still shows what it was asked about."""
        asked, task = self._asking.pop(judged.verdict.engine)
        verdict = self._learn(asked, task.result())
        if verdict is None:
            return judged
        return replace(judged, verdict=replace(verdict, warnings=judged.verdict.warnings))

    def _learn(self, asked: Verdict, said: Said) -> Verdict | None:
        """The engine's verdict with the answer; None where the answer is not about what it shows now."""
        name, ruling = asked.engine, said.ruling
        state = self._fleet.state_of(name)
        if state is None or (now := state.verdict) is None:
            return None  # it has left its page
        if said.canary is None or said.canary.outcome is Outcome.REJECTED:
            # It ran nothing, so whatever moves is other people's.
            state = replace(state, owed=NOTHING_OWED)
            self._fleet.put(name, state)
        if now.signature is not asked.signature or now.held_seconds < asked.held_seconds:
            return None  # another pattern, or the same one anew: not what it was asked about
        try:
            state, verdict = answer(state, ruling.answer, ruling.cause, restart_hold=ruling.restart_hold)
        except IllegalTransitionError:
            return None  # it is no longer under suspicion, so there is nothing to answer
        self._fleet.put(name, state)
        return verdict

    async def close(self) -> None:
        await ended(*(task for _, task in self._asking.values()))


def labels_of(scrape: Scrape) -> list[str]:
    """The labels of a page's engines, in the order of their numbers; also of one that the page has lost."""
    # NAME/LABEL: the samples also hold a rank that is missing from this page.
    labels = {sample.engine.rpartition("/")[2] for sample in scrape.samples}
    return sorted(labels, key=lambda label: (not label.isdigit(), label.zfill(9)))


def label_of(scrape: Scrape, engine_name: str) -> str:
    """The engine's own label, by which its kit lists it."""
    if len(scrape.samples) == 1 and len(scrape.page.engines) == 1:
        return scrape.page.engines[0].engine or "0"
    return engine_name.rpartition("/")[2]


def rank_of(judged: Judged) -> int | None:
    """The engine's place among those of its page: X-data-parallel-rank counts the server's own engines."""
    order = labels_of(judged.scrape)
    return order.index(judged.verdict.engine.rpartition("/")[2]) if len(order) > 1 else None
