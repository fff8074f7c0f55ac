"""The loop of one LeakWatch: read, judge, plan, write down, carry out; and again, at once where it was told.

What a turn writes and in which order: docs/operator.md.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

from pydantic import ValidationError

from stanch.api.convert import policy_of
from stanch.api.watch import LeakWatch
from stanch.core import plan_conditions
from stanch.core.history import History, Incident
from stanch.core.look import fault_due
from stanch.core.plan_types import Action, Plan
from stanch.core.planner import plan, sweep
from stanch.edge import client
from stanch.edge.carrying import Carrier
from stanch.edge.cluster import Cluster, ClusterError, Conflict, NotFound
from stanch.edge.events_text import EventText
from stanch.edge.executor import Executor
from stanch.edge.idle import IdleCanaries
from stanch.edge.kit import Key, no_key
from stanch.edge.prometheus_query import wanted_of
from stanch.edge.recording import Recorder, by_name, shape, watch_status, written
from stanch.edge.survey import Survey, Surveyor
from stanch.edge.telemetry import Telemetry, Turned, Watch
from stanch.edge.waking import ended, woken
from stanch.edge.watching import watching

# Sentences of the status, with their seconds, are written so often where nothing else has changed.
_STATUS_SECONDS = 30.0
_SWEEP_SECONDS = 60.0
# Events that wait to be posted: the oldest are given up first, where the server takes none.
_MOST_EVENTS, _LAST_WORDS_SECONDS = 4000, 2.0
# Between two turns, however many answers come; and after a turn that is not the interval's, at least as long
# as it took.
_LEAST_SECONDS = 0.25
# A turn for a fault that is due: so long after that moment, and no sooner than this part of an interval.
_PAST_SECONDS, _SOONEST = 0.05, 1 / 5
# So much longer at most an answer counts in a turn that takes long to read.
_READING_SECONDS = 30.0


class WatchGoneError(Exception):
    """There is no such LeakWatch any more."""


class Watchdog:
    """One per LeakWatch, in the elected process. leads: whether it may act right now. key: reads the engines'
    API key. prometheus_table: the admin's.

    selected: names of the pods that the watch meant in its last turn; None before the first.
    """

    def __init__(
        self,
        cluster: Cluster,
        telemetry: Telemetry,
        watch: LeakWatch,
        clock: Callable[[], float],
        leads: Callable[[], bool],
        key: Key = no_key,
        prometheus_table: Path | None = None,
    ) -> None:
        self.selected: frozenset[str] | None = None
        self.turned_at = 0.0
        self._cluster = cluster
        self._telemetry = telemetry
        self._clock = clock
        self._leads = leads
        self._key = key
        meta = watch.metadata
        self._watch = Watch(meta.namespace, meta.name, meta.uid)
        self._policy = policy_of(watch)
        self._wanted = wanted_of(watch, prometheus_table)
        self._wake = asyncio.Event()
        self._swept = 0.0
        self._status_at = 0.0
        self._events: deque[EventText] = deque(maxlen=_MOST_EVENTS)
        self._posting: asyncio.Task[None] | None = None
        # Held by whoever writes: a turn as a whole, an Event by itself, so that no turn waits for many.
        self._writing = asyncio.Lock()
        self._carrier = Carrier(Recorder(cluster, telemetry.note), leads, self._told, self.wake)

    def wake(self) -> None:
        """Something has happened: plan again at once."""
        self._wake.set()

    async def run(self) -> None:
        """Until cancelled, or until the watch is gone. No error of the API server or an engine ends it."""
        try:
            async with AsyncExitStack() as stack:
                live = await stack.enter_async_context(
                    watching([], self._policy, self._key, self._clock, wanted=self._wanted, verify=False)
                )
                session = await stack.enter_async_context(client.session(verify=False))
                surveyor = Surveyor(self._cluster, live, session, self._watch.namespace, self._watch.name)
                executor = Executor(
                    self._cluster, live, session, self.wake, self._leads, self._telemetry.note
                )
                stack.push_async_callback(executor.close)
                idle = IdleCanaries(live, self.wake, self._leads, self._telemetry.note)
                stack.push_async_callback(idle.close)
                stack.push_async_callback(self._told_all)
                scraping = asyncio.create_task(live.scraping())
                stack.push_async_callback(ended, scraping)
                turning = asyncio.create_task(self._turns(surveyor, executor, idle))
                stack.push_async_callback(ended, turning)
                done, _ = await asyncio.wait((scraping, turning), return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
        except WatchGoneError:
            pass
        finally:
            self._telemetry.forget(self._watch)

    async def _turns(self, surveyor: Surveyor, executor: Executor, idle: IdleCanaries) -> None:
        interval = self._policy.interval_seconds
        due = time.monotonic()
        while True:
            began = time.monotonic()
            self._wake.clear()
            pause = interval
            try:
                pause = min(interval, await self._turn(surveyor, executor, idle, due, began))
            except NotFound as gone:
                self._telemetry.note("info", "watch-gone", str(gone), watch=self._watch.key)
                raise WatchGoneError from gone
            except (ClusterError, ValidationError) as error:
                message = str(error).splitlines()[0]
                self._telemetry.turn_failed(self._watch, interval, type(error).__name__, message)
            now = time.monotonic()
            due = max(now + _LEAST_SECONDS, began + pause, min(now + now - began, began + interval))
            if await woken(self._wake, max(0.0, due - time.monotonic())):
                # Answers that come together are planned with together.
                await asyncio.sleep(_LEAST_SECONDS)
            due = min(due, time.monotonic())

    async def _turn(
        self, surveyor: Surveyor, executor: Executor, idle: IdleCanaries, due: float, began: float
    ) -> float:
        """One turn; seconds from its begin to the next. Raises ClusterError where it could not be made."""
        survey = await surveyor.read()
        self.selected = frozenset(one.name for one in survey.selection.chosen)
        self.turned_at = self._clock()
        history = History(survey.incidents, survey.ledger, executor.confirmations, executor.outcomes)
        verdicts = survey.verdicts
        now = self._clock()
        # What engines have said counts for an interval when the turn begins: in a large fleet the turn's own
        # reading may take as long, and no answer would ever count.
        counts = survey.limits.interval_seconds + min(time.monotonic() - began, _READING_SECONDS)
        limits = replace(survey.limits, interval_seconds=counts)
        made = plan(survey.fleet, verdicts, history, limits, now)
        left = {**by_name(survey.incidents), **by_name(made.incidents)}
        said = plan_conditions.of_watch(
            survey.fleet,
            verdicts,
            made,
            left.values(),
            made.ledger or survey.ledger,
            survey.limits,
            survey.readings,
        )
        if self._leads() and await self._write_watch(survey, made, said, now):
            # Before the steps, so that what a step writes is not taken for a rest of an earlier one.
            actions = [*self._sweeping(survey, left.values()), *made.actions]
            async with self._writing:
                await self._carrier.carry_out(survey, made.incidents, actions, left, executor, now)
            busy = {one.unit for one in left.values() if one.open}
            idle.send(survey.fleet, survey.judged, busy, survey.limits)
        if made.arm:
            surveyor.live.arm(made.arm)
        self._post(self._tell(survey, made, left, said, due, began))
        fault = fault_due(verdicts, self._clock())
        if fault is None:
            return made.recheck_after
        # At the moment at which it has held long enough, not up to an interval later.
        pause = max(fault + _PAST_SECONDS, self._policy.interval_seconds * _SOONEST)
        return min(made.recheck_after, time.monotonic() - began + pause)

    async def _write_watch(
        self, survey: Survey, made: Plan, said: Iterable[plan_conditions.Said], now: float
    ) -> bool:
        """Whether the plan may go on: its ledger is written, or it had none to write."""
        status = watch_status(survey, made, said, now)
        old = survey.watch.status
        news = made.ledger is not None or shape(status) != shape(old)
        stale = status != old and now - self._status_at >= _STATUS_SECONDS
        if not news and not stale:
            return True
        meta = survey.watch.metadata
        try:
            await self._cluster.write_watch_status(
                meta.namespace, meta.name, written(status), survey.ledger.version
            )
            self._status_at = now
        except (Conflict, NotFound):
            # The next turn reads what there is, or that it has gone.
            self.wake()
            return made.ledger is None
        except ClusterError as error:
            self._telemetry.note("warning", "watch-not-written", str(error), watch=self._watch.key)
            return made.ledger is None
        return True

    def _told(self, before: Incident | None, after: Incident) -> None:
        self._post(self._telemetry.incident(self._watch, before, after))

    def _sweeping(self, survey: Survey, incidents: Iterable[Incident]) -> list[Action]:
        """At the start and every minute: what no open incident stands behind is lifted."""
        now = time.monotonic()
        if self._swept and now - self._swept < _SWEEP_SECONDS:
            return []
        self._swept = now
        return list(sweep(survey.fleet, [one.name for one in incidents if one.open]))

    def _tell(
        self,
        survey: Survey,
        made: Plan,
        left: dict[str, Incident],
        said: tuple[plan_conditions.Said, ...],
        due: float,
        began: float,
    ) -> tuple[EventText, ...]:
        ledger = made.ledger or survey.ledger
        texts = self._telemetry.turn(
            self._watch,
            Turned(
                min(due, began),
                began,
                time.monotonic(),
                survey.limits.interval_seconds,
                survey.verdicts,
                made.deferred,
                tuple(left.values()),
                said,
                ledger.tripped is not None,
            ),
        )
        for line in survey.strange:
            self._telemetry.note("warning", "not-understood", line, watch=self._watch.key)
        return texts

    def _post(self, texts: Iterable[EventText]) -> None:
        """Post Events one after another, behind everything else."""
        self._events.extend(texts)
        if self._events and (self._posting is None or self._posting.done()):
            self._posting = asyncio.ensure_future(self._post_all())

    async def _post_all(self) -> None:
        while self._events:
            text = self._events.popleft()
            try:
                about = text.regarding(self._watch.namespace)
                async with self._writing:
                    await self._cluster.event(about, text.reason, text.action, text.note, text.warning)
            except ClusterError as error:
                if not error.namespace_ends:
                    self._telemetry.note("warning", "event-not-written", str(error), reason=text.reason)

    async def _told_all(self) -> None:
        """At the end: what is still to be posted has a moment."""
        if self._posting is not None:
            await asyncio.wait((self._posting,), timeout=_LAST_WORDS_SECONDS)
            await ended(self._posting)
