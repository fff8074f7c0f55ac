"""One round of questions to a Prometheus, in a thread: its client blocks, and so does looking up a name."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice

from stanch.core.plan_conditions import Why
from stanch.edge.exposition import Labels
from stanch.edge.prometheus_answer import Found, MalformedError, read
from stanch.edge.prometheus_client import NOT_PROMETHEUS, UNREACHABLE, Client, PrometheusError
from stanch.edge.prometheus_query import PODS_AT_ONCE, Place, Wanted, Way, query

# What a thread may need beyond the time-outs of its questions: for names, which have none.
_GRACE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Last:
    """How the series of a target were found last. way: None where they were not. behind: by how many seconds
    that group of them may be behind the newest and still be kept."""

    way: Way | None
    group: Labels
    behind: float


@dataclass(slots=True)
class Round:
    """What came. found: by the target's name. partial: why the answers about these targets are not whole.
    moments: of each answer, when it was evaluated by Prometheus's clock, and sent and received by ours.
    error: why there is no more."""

    found: dict[str, tuple[Way, Found]] = field(default_factory=dict)
    partial: dict[str, str] = field(default_factory=dict)
    moments: list[tuple[float, float, float]] = field(default_factory=list)
    error: Why | None = None

    def has(self, name: str) -> bool:
        """Whether there is a reading of that target."""
        return name in self.found and self.found[name][1].t is not None


class Questions:
    """Of one watch; one round at a time. clock: our own."""

    def __init__(self, wanted: Wanted, clock: Callable[[], float]) -> None:
        self._wanted = wanted
        self._client = Client(wanted.url, wanted.timeout_seconds, wanted.table, clock)
        self._working: asyncio.Future[None] | None = None

    async def answers(self, asked: Mapping[str, Place], last: Mapping[str, Last]) -> Round:
        """What Prometheus has of these, by the names of the targets."""
        got = Round()
        if self._working is not None and not self._working.done():
            got.error = Why(
                UNREACHABLE, f"{self._wanted.url}: an earlier question is still without an answer"
            )
            return got
        queries = len(self._wanted.ways) * (1 + len(asked) // PODS_AT_ONCE)
        most = queries * self._wanted.timeout_seconds + _GRACE_SECONDS
        self._working = _in_thread(lambda: self._ask(got, asked, last), self._wanted.url)
        done, _ = await asyncio.wait((self._working,), timeout=most)
        if not done:
            # What its thread still brings is nobody's.
            got = Round(error=Why(UNREACHABLE, f"{self._wanted.url}: no answer within {most:g} s"))
        elif (error := self._working.exception()) is not None:
            raise error
        return got

    def close(self) -> None:
        """A question that is still on its way ends by itself; nobody waits for it."""
        if self._working is None or self._working.done():
            self._client.close()

    def _ask(self, got: Round, asked: Mapping[str, Place], last: Mapping[str, Last]) -> None:
        """In a thread: all questions of one round, into got. A target that was found by one way is looked for
        by that way, the others by each in turn."""
        try:
            for way in self._wanted.ways:
                mine = (
                    one for name, one in asked.items() if last[name].way in (None, way) and not got.has(name)
                )
                while several := list(islice(mine, PODS_AT_ONCE)):
                    self._ask_one(got, way, {one.name: one for one in several}, last)
        except PrometheusError as error:
            got.error = error.why
        except MalformedError as error:
            got.error = Why(NOT_PROMETHEUS, f"{self._wanted.url}: {error}")

    def _ask_one(self, got: Round, way: Way, asked: Mapping[str, Place], last: Mapping[str, Last]) -> None:
        answer = self._client.ask(query(way, self._wanted, list(asked.values())))
        groups = {name: last[name].group for name in asked}
        behind = {name: last[name].behind for name in asked}
        found, evaluated = read(answer.result, way, asked, groups, behind, self._wanted.engine)
        if evaluated is not None:
            got.moments.append((evaluated, answer.sent, answer.received))
        if answer.partial is not None:
            got.partial |= dict.fromkeys(asked, answer.partial)
            return
        got.found |= {
            name: (way, said) for name, said in found.items() if name not in got.found or said.t is not None
        }


def _in_thread(work: Callable[[], None], name: str) -> asyncio.Future[None]:
    """In a daemon thread of its own: a look-up of a name cannot be ended, and the program's end must not wait
    for it, as it would for a pool's."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[None] = loop.create_future()

    def done(error: BaseException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(None)

    def run() -> None:
        error = None
        try:
            work()
        except BaseException as raised:
            error = raised
        with suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(done, error)

    threading.Thread(target=run, name=f"ask {name}", daemon=True).start()
    return future
