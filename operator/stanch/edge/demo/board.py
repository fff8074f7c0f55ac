"""The watchdog on the demo's fleet: the product's own turns, told as they come and waited for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from typing import TypeVar, cast

import aiohttp

from stanch.core.report import sentence
from stanch.core.verdict import Signature, State, Verdict
from stanch.edge.demo.fleet import Traffic
from stanch.edge.demo.telling import Output, Row
from stanch.edge.live import Judged, Live

_T = TypeVar("_T")


class NotInTimeError(Exception):
    """What was waited for did not come; the text says what, and for how long."""


class Board:
    """The newest verdict of every engine; `traffic` asks the router for its counts. Use `following(...)`."""

    def __init__(
        self, live: Live, out: Output, names: Sequence[str], traffic: Callable[[], Awaitable[Traffic]]
    ) -> None:
        self.live = live
        self.now: Mapping[str, Judged] = {}
        self.traffic: Traffic | None = None
        self._out = out
        self._names = names
        self._ask_traffic = traffic
        self._told: dict[str, list[tuple[State, Signature | None]]] = {}
        self._turned = asyncio.Event()
        self._following: asyncio.Task[None] | None = None

    async def until(
        self, ready: Callable[[Mapping[str, Judged]], _T | None], seconds: float, what: str
    ) -> _T:
        """What `ready` finds in this turn or the first later one. Raises NotInTimeError."""
        assert self._following is not None
        deadline = asyncio.get_running_loop().time() + seconds
        while (found := ready(self.now)) is None:
            left = deadline - asyncio.get_running_loop().time()
            if left <= 0:
                raise NotInTimeError(f"{what}: not within {seconds:g} s")
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

    async def turns(self, count: int, seconds: float) -> None:
        """Let so many turns pass."""
        for _ in range(count):
            before = self.now
            await self.until(lambda now, old=before: None if now is old else True, seconds, "the next turn")  # type: ignore[misc]

    async def _follow(self) -> None:
        # A generator, so that its scraping ends with us and not some time later.
        turning = cast(AsyncGenerator[list[Judged], None], self.live.turns(None))
        async with aclosing(turning) as turns:
            async for judged in turns:
                # A router that does not answer leaves the old counts, and fails the steps that need it.
                with suppress(aiohttp.ClientError, asyncio.TimeoutError):
                    self.traffic = await self._ask_traffic()
                self._take(judged)

    def _take(self, judged: Sequence[Judged]) -> None:
        self.now = {one.verdict.engine: one for one in judged}
        out = self.traffic.out if self.traffic is not None else ()
        self._out.board(
            [_row(self.now[name].verdict, name in out) for name in self._names if name in self.now],
            self.traffic,
        )
        for one in judged:
            self._tell(one.verdict)
        self._turned.set()

    def _tell(self, verdict: Verdict) -> None:
        """A line where a verdict is not the one told last; what a single reading showed is noise."""
        what, told = (verdict.state, verdict.signature), self._told.setdefault(verdict.engine, [])
        if verdict.state is State.SUSPECT and not verdict.held_seconds:
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
    live: Live, out: Output, names: Sequence[str], traffic: Callable[[], Awaitable[Traffic]]
) -> AsyncIterator[Board]:
    """A board that takes in turn after turn; names: the engines in the order of their rows."""
    board = Board(live, out, names, traffic)
    board._following = asyncio.create_task(board._follow())
    try:
        yield board
    finally:
        board._following.cancel()
        await asyncio.gather(board._following, return_exceptions=True)
