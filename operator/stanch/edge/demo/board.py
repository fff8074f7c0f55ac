"""The watchdog's turns on the demo's fleet, told as they come and waited for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

import aiohttp

from stanch.core.history import Incident
from stanch.core.plan_limits import Limits
from stanch.core.report import sentence
from stanch.core.verdict import Signature, State, Verdict
from stanch.edge.changes import Change
from stanch.edge.demo.deployment import Deployment
from stanch.edge.demo.ladder import Ladder
from stanch.edge.demo.pods import NAMESPACE
from stanch.edge.demo.telling import Output, Row
from stanch.edge.events_text import POD, of_change
from stanch.edge.live import Live
from stanch.edge.waking import ended

_T = TypeVar("_T")


class NotInTimeError(Exception):
    """What was waited for did not come; the text says what, and for how long."""


class Board:
    """The ladder's turns. Use `following(...)`. cause: the sentence on an engine when its incident was
    opened, by the incident's name."""

    def __init__(
        self,
        deployment: Deployment,
        live: Live,
        session: aiohttp.ClientSession,
        limits: Limits,
        out: Output,
    ) -> None:
        self.ladder = Ladder(deployment, live, session, limits, self._tell_change, self._note)
        self.cause: dict[str, str] = {}
        self._out = out
        self._names = [member.name for member in deployment.engines]
        self._told: dict[str, list[tuple[State, Signature | None]]] = {}
        self._turned = asyncio.Event()
        self._following: asyncio.Task[None] | None = None

    async def until(self, ready: Callable[[], _T | None], seconds: float, what: str) -> _T:
        """What `ready` finds now or after the first turn in which it finds something. Raises
        NotInTimeError."""
        assert self._following is not None
        deadline = asyncio.get_running_loop().time() + seconds
        while (found := ready()) is None:
            left = deadline - asyncio.get_running_loop().time()
            if left <= 0:
                raise NotInTimeError(f"{what}: not within {seconds:g} s{self._wait()}")
            self._turned.clear()
            turned = asyncio.ensure_future(self._turned.wait())
            try:
                await asyncio.wait({turned, self._following}, timeout=left, return_when="FIRST_COMPLETED")
            finally:
                turned.cancel()
            if self._following.done():
                # It never ends by itself: whatever ended it is what went wrong.
                self._following.result()
        return found

    def _wait(self) -> str:
        """What the ladder waits for, where it does."""
        waits = [one for one in self.ladder.incidents.values() if one.open]
        steps = [f"; {one.name} is at {_at(one)}{f', {one.wait}' if one.wait else ''}" for one in waits]
        return "".join(steps)

    def _take(self) -> None:
        """After a turn."""
        traffic = self.ladder.traffic
        out = traffic.out if traffic is not None else ()
        verdicts = {name: one.verdict for name, one in self.ladder.judged.items()}
        self._out.board(
            [_row(verdicts[name], name in out) for name in self._names if name in verdicts], traffic
        )
        for verdict in verdicts.values():
            self._tell(verdict)
        self._turned.set()

    def _tell(self, verdict: Verdict) -> None:
        """A line where a verdict is not the one told last; what a single reading showed is noise, and that an
        engine drains is told by its incident."""
        what, told = (verdict.state, verdict.signature), self._told.setdefault(verdict.engine, [])
        if (verdict.state is State.SUSPECT and not verdict.held_seconds) or verdict.lifecycle is not None:
            return
        if verdict.state is State.HEALTHY:
            # Requests run between two readings of a suspect: that is not the end of a suspicion.
            if all(state is State.SUSPECT for state, _ in told):
                return
            told.clear()
        elif what in told:
            return
        else:
            told.append(what)
        self._out.say(f"watchdog: {verdict.state.value}: {sentence(verdict)}", verdict.state)

    def _tell_change(self, change: Change) -> None:
        """The Events that the operator would post on the pod."""
        incident = change.incident
        if incident.name not in self.cause:
            judged = [self.ladder.judged[name] for name in incident.engines if name in self.ladder.judged]
            self.cause[incident.name] = sentence(judged[0].verdict) if judged else ""
        for text in of_change(change, NAMESPACE, ""):
            if text.kind == POD:
                tone = State.FAULT if text.warning else State.HEALTHY
                self._out.say(f"{text.name}  {text.reason:<13}  {text.note}", tone)

    def _note(self, level: str, event: str, message: str, **more: object) -> None:
        """What the operator would log besides: the end of an engine's log, and what went wrong."""
        log = more.get("log")
        for line in log if isinstance(log, list) else ():
            self._out.say(f"{more.get('pod')}  log            {line}")
        if level != "info":
            self._out.say(f"{event}: {message}", State.BLIND)


def _at(incident: Incident) -> str:
    return incident.steps[-1].name.value if incident.steps else "its beginning"


def _row(verdict: Verdict, out: bool) -> Row:
    return Row(
        verdict.engine,
        verdict.role.value,
        verdict.state,
        verdict.usage,
        verdict.running,
        verdict.waiting,
        sentence(verdict),
        out,
    )


@asynccontextmanager
async def following(
    deployment: Deployment, live: Live, session: aiohttp.ClientSession, limits: Limits, out: Output
) -> AsyncIterator[Board]:
    """A board whose ladder makes turn after turn."""
    board = Board(deployment, live, session, limits, out)
    board._following = asyncio.create_task(board.ladder.run(board._take))
    try:
        yield board
    finally:
        await ended(board._following)
