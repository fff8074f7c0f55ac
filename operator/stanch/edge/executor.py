"""Carries a plan's actions out: annotations and evictions here and now, questions in the background.

Nothing is tried again here: what fails is planned again by the next turn, as long as the fleet does not show
it. What engines and the API server answered is kept for the planner, and whoever waits is woken.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any, Protocol

import aiohttp

from stanch.core.history import Confirmation, Incident, Outcome, Result
from stanch.core.plan_types import Action, Precondition, Verb
from stanch.core.report import percent
from stanch.core.verdict import Answer
from stanch.edge.answering import answer_of
from stanch.edge.cluster import ClusterError, Conflict, NotFound, Refused
from stanch.edge.executor_words import PATCHES, Annotations, annotations_of
from stanch.edge.live import Live
from stanch.edge.place import Pods, Seen
from stanch.edge.verifying import verified
from stanch.edge.waking import ended

# What an engine said counts for an interval; that it was asked in vain, for a minute.
_CONFIRMATIONS_KEPT_SECONDS = 900.0
_OUTCOMES_KEPT_SECONDS = 3600.0
_LOG_LINES = 50


class Note(Protocol):
    """Writes a log line."""

    def __call__(self, level: str, event: str, message: str, **more: object) -> None: ...


class Executor:
    """Of one watch. told: called when an answer has come. leads: whether this process may act right now."""

    def __init__(
        self,
        pods: Pods,
        live: Live,
        session: aiohttp.ClientSession,
        told: Callable[[], None],
        leads: Callable[[], bool],
        note: Note,
    ) -> None:
        self.confirmations: tuple[Confirmation, ...] = ()
        self.outcomes: tuple[Outcome, ...] = ()
        self._pods = pods
        self._live = live
        self._session = session
        self._told = told
        self._leads = leads
        self._note = note
        self._asking: dict[str, asyncio.Task[None]] = {}

    async def carry_out(
        self, actions: Iterable[Action], seen: Seen, incidents: Mapping[str, Incident]
    ) -> None:
        """In their order; those on different units side by side. incidents: by name, as last written."""
        self._forget()
        by_unit: dict[str, list[Action]] = {}
        for action in actions:
            by_unit.setdefault(action.unit, []).append(action)
        await asyncio.gather(*(self._unit(each, seen, incidents) for each in by_unit.values()))

    async def close(self) -> None:
        """Ask nobody any more. What is written stays."""
        await ended(*self._asking.values())

    def _forget(self) -> None:
        now = self._live.clock()
        self.confirmations = tuple(
            one for one in self.confirmations if now - one.t < _CONFIRMATIONS_KEPT_SECONDS
        )
        self.outcomes = tuple(one for one in self.outcomes if now - one.t < _OUTCOMES_KEPT_SECONDS)

    async def _unit(self, actions: list[Action], seen: Seen, incidents: Mapping[str, Incident]) -> None:
        """What is written on one pod by several actions is one write."""
        await self._patch([action for action in actions if action.verb in PATCHES], seen)
        for action in actions:
            incident = incidents.get(action.incident)
            if action.verb is Verb.ASK:
                self._begin(action, self._ask(action, seen, incident))
            elif action.verb is Verb.CAPTURE:
                self._begin(action, self._capture(action, seen, incident))
            elif action.verb is Verb.VERIFY:
                self._begin(action, self._verify(action, seen))
            elif action.verb in (Verb.TRY_EVICT, Verb.EVICT):
                await self._evict(action, seen)

    async def _patch(self, actions: list[Action], seen: Seen) -> None:
        wanted: dict[str, tuple[Precondition, Annotations]] = {}
        unit = seen.fleet.unit(actions[0].unit) if actions else None
        pods = {} if unit is None else {pod.name: pod for pod in unit.pods}
        for action in actions:
            for need in action.pods:
                pod = pods.get(need.pod)
                if pod is None or (pod.lock not in (None, action.incident) and pod.lock in seen.open):
                    continue
                draining = pod.kit is not None and pod.kit.draining
                marks = annotations_of(action, need, draining=draining)
                if marks:
                    wanted[need.pod] = need, {**wanted.get(need.pod, (need, {}))[1], **marks}
        for need, marks in wanted.values():
            if not self._leads():
                return
            try:
                await self._pods.patch_pod(
                    seen.namespace,
                    need.pod,
                    uid=need.uid,
                    version=need.version,
                    annotations=marks,
                )
            except Conflict:
                self._told()  # it has changed since it was listed: look again, at once
            except NotFound:
                pass  # the next list shows it
            except ClusterError as error:
                self._failed(actions[0], error)

    async def _evict(self, action: Action, seen: Seen) -> None:
        trial = action.verb is Verb.TRY_EVICT
        for need in action.pods:
            if not self._leads():
                return
            try:
                await self._pods.evict(seen.namespace, need.pod, uid=need.uid, dry_run=trial)
            except NotFound:
                continue
            except Refused as refused:
                self._outcome(action, Result.FAILED, str(refused))
                return
            except ClusterError as error:
                self._failed(action, error)
                return
        if trial:
            self._outcome(action, Result.OK)

    def _failed(self, action: Action, error: ClusterError) -> None:
        self._note("warning", "action-failed", str(error), action=action.verb.value, unit=action.unit)

    def _outcome(self, action: Action, result: Result, detail: str = "") -> None:
        known = tuple(one for one in self.outcomes if one.key != action.key)
        self.outcomes = (*known, Outcome(action.key, self._live.clock(), result, detail))
        self._told()

    def _begin(self, action: Action, work: Coroutine[Any, Any, None]) -> None:
        """In the background, unless the same is under way."""
        if action.key in self._asking:
            work.close()
            return
        task = asyncio.ensure_future(work)
        self._asking[action.key] = task
        task.add_done_callback(lambda done: self._ended(action, done))

    def _ended(self, action: Action, done: asyncio.Task[None]) -> None:
        self._asking.pop(action.key, None)
        if not done.cancelled() and (error := done.exception()) is not None:
            self._note("error", "action-failed", repr(error), action=action.verb.value, unit=action.unit)

    async def _ask(self, action: Action, seen: Seen, incident: Incident | None) -> None:
        answers = await asyncio.gather(*(self._answer(action, one, seen, incident) for one in action.engines))
        self.confirmations = (*self.confirmations, *answers)
        if incident is None:
            # Nothing comes of it, and nothing else would say why.
            for one in answers:
                if one.answer is Answer.VETOED:
                    self._note("info", "fault-vetoed", one.cause, engine=one.engine, unit=action.unit)
        self._told()

    async def _answer(
        self, action: Action, engine: str, seen: Seen, incident: Incident | None
    ) -> Confirmation:
        judged = seen.judged.get(engine)
        pod = engine.partition("/")[0] if judged is None else judged.watched.target.name.partition("/")[0]
        need = next((one for one in action.pods if one.pod == pod), action.pods[0])
        try:
            return await answer_of(
                self._live,
                engine,
                judged,
                incident,
                need.container_id,
                need.boot_id,
                seen.limits.canary,
            )
        except Exception as error:  # an answer of some kind is owed, or it would be asked at every turn
            self._note("error", "ask-failed", repr(error), engine=engine)
            why = f"it could not be asked: {type(error).__name__}"
            return Confirmation(engine, self._live.clock(), Answer.INCONCLUSIVE, need.container_id, why)

    async def _capture(self, action: Action, seen: Seen, incident: Incident | None) -> None:
        """The log tail goes to our own log: the incident has the stuck requests already."""
        need = action.pods[0]
        stuck = () if incident is None else incident.stuck
        said = (
            [f"{len(stuck)} stuck requests hold {sum(one.blocks for one in stuck)} blocks"] if stuck else []
        )
        unit = seen.fleet.unit(action.unit)
        verdicts = [seen.judged[one].verdict for one in unit.engines if one in seen.judged] if unit else []
        usage = [verdict.usage for verdict in verdicts if verdict.usage is not None]
        if usage:
            said.append(f"{percent(max(usage))} of the KV cache held")
        try:
            container = seen.container(need.pod)
            text = await self._pods.logs(seen.namespace, need.pod, container, _LOG_LINES)
        except ClusterError as error:
            self._outcome(action, Result.FAILED, "; ".join([*said, f"no log: {error}"]))
            return
        lines = text.splitlines()
        tail = f"the last {'line' if len(lines) == 1 else f'{len(lines)} lines'} of its log"
        self._note(
            "info",
            "captured",
            tail,
            incident=action.incident,
            pod=need.pod,
            log=lines,
            samples=[
                {"engine": v.engine, "usage": v.usage, "running": v.running, "waiting": v.waiting}
                for v in verdicts
            ],
        )
        said.append(f"{tail}: see the operator's")
        self._outcome(action, Result.OK, "; ".join(said))

    async def _verify(self, action: Action, seen: Seen) -> None:
        unit = seen.fleet.unit(action.unit)
        assert unit is not None
        own = seen.reached.get(unit.key, ())
        peers = [target for key in action.peers for target in seen.reached.get(key, ())]
        try:
            result, detail = await verified(
                self._live, self._session, unit.role, own, peers, seen.limits.floor_ratio
            )
        except Exception as error:  # without an outcome the whole patience of the step would be waited
            self._note("error", "verify-failed", repr(error), unit=unit.key)
            result, detail = Result.FAILED, f"it could not be verified: {type(error).__name__}"
        self._outcome(action, result, detail)
