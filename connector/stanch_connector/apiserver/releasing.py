"""Carries a release order to every engine core, in the event loop of one API-server process.

First each is asked to hear its ranks, then it is told to release; both are its own thread's work. An order
whose deadline passes is told to nobody any more; where it had been told already, what came of it is reported
when it is known.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections import Counter
from collections.abc import Callable, MutableMapping
from typing import Any, Final

from stanch_connector.apiserver import ask
from stanch_connector.apiserver.commands import Order, ReleaseArgs
from stanch_connector.apiserver.gate import Report
from stanch_connector.apiserver.routes import engine_core_of
from stanch_connector.contract import Outcome
from stanch_connector.engine.guard import Guard
from stanch_connector.engine.releasing import REFUSED_AT_MOST, RELEASED_AT_MOST

# A rank answers with its next step; a hung one is not waited for.
HEAR_SECONDS: Final = 5.0
LOOK_SECONDS: Final = 0.05


class Releasing:
    """`begin` is the Gate's releaser. Its engine it knows from the first request that came by."""

    def __init__(self, guard: Guard, clock: Callable[[], float] = time.monotonic) -> None:
        self._guard = guard
        self._clock = clock
        self._loop: asyncio.AbstractEventLoop | None = None
        self._app_state: Any = None
        self._under_way: set[asyncio.Task[None]] = set()

    def meet(self, scope: MutableMapping[str, Any]) -> None:
        """Called in the event loop with every ASGI scope."""
        if self._loop is None:
            state = getattr(scope.get("app"), "state", None)
            if getattr(state, "engine_client", None) is not None:
                self._app_state = state
                self._loop = asyncio.get_running_loop()

    def begin(self, order: Order, report: Report) -> None:
        """From any thread; returns at once."""
        if self._loop is None or order.release is None:
            reason = "this API server has not served a request yet, so it knows no engine"
            report({"id": order.id, "state": "refused", "reason": reason})
            return
        self._loop.call_soon_threadsafe(self._start, order, order.release, report)

    def _start(self, order: Order, args: ReleaseArgs, report: Report) -> None:
        task = asyncio.ensure_future(self._guarded(order, args, report))
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    async def _guarded(self, order: Order, args: ReleaseArgs, report: Report) -> None:
        try:
            await self._carry_out(order, args, report)
        except ask.NoEngineError as error:
            report({"id": order.id, "state": "failed", "reason": str(error)})
        except Exception as error:
            self._guard.failed("releasing", error)
            reason = f"the kit failed: {type(error).__name__}; see which requests are still listed"
            report({"id": order.id, "state": "failed", "reason": reason})

    async def _carry_out(self, order: Order, args: ReleaseArgs, report: Report) -> None:
        report({"id": order.id, "state": "running"})
        client = engine_core_of(self._app_state)
        body = {
            "ids": None if args.ids is None else list(args.ids),
            "olderThanSeconds": args.older_than_seconds,
            "dryRun": args.dry_run,
        }
        ranks = [rank for rank, _ in ask.ranks_of(client)]
        await self._hear(client, ranks, body, order.deadline)
        if self._clock() >= order.deadline:
            reason = "its deadline passed before the engine was told; nothing was released"
            report({"id": order.id, "state": "failed", "reason": reason})
            return
        tasks = ask.order(client, "release", dict.fromkeys(ranks, json.dumps(body)))
        await asyncio.wait(tasks.values(), timeout=max(0.0, order.deadline - self._clock()))
        report(outcome(order.id, args, ask.answers(tasks)))
        late = [task for task in tasks.values() if not task.done()]
        if late:
            await asyncio.wait(late)
            report(outcome(order.id, args, ask.answers(tasks)))

    async def _hear(self, client: Any, ranks: list[int], body: dict[str, Any], deadline: float) -> None:
        """Until every engine core has heard its ranks. One that cannot is left to say so when it is told."""
        until = min(deadline, self._clock() + HEAR_SECONDS)
        open_ranks = dict.fromkeys(ranks, json.dumps(body))
        while open_ranks and self._clock() < until:
            tasks = ask.order(client, "inquire", open_ranks)
            await asyncio.wait(tasks.values(), timeout=max(0.0, until - self._clock()))
            said = ask.answers(tasks).answers
            open_ranks = {
                rank: json.dumps({"ticket": reply["ticket"]})
                for rank, reply in said.items()
                if not reply["heard"]
            }
            if open_ranks:
                await asyncio.sleep(LOOK_SECONDS)


def outcome(name: str, args: ReleaseArgs, said: ask.Answers) -> Outcome:
    """All ranks' parts into one. An id is unknown where none of the ranks that answered has it. At most
    REFUSED_AT_MOST sentences and RELEASED_AT_MOST ids; `refusals` and `releases` count all."""
    result: Outcome = {"id": name, "dryRun": args.dry_run, "missingRanks": sorted(said.missing)}
    if said.answers:
        result = {**result, **_parts(args, said)}
    reason = _missing(args, said)
    if reason is not None:
        return {**result, "state": "failed", "reason": reason}
    if result["refusals"] and not result["ways"]:
        return {**result, "state": "refused", "reason": "none of them may be released"}
    return {**result, "state": "done"}


def _parts(args: ReleaseArgs, said: ask.Answers) -> Outcome:
    ways: dict[str, Any] = {}
    refused: dict[str, str] = {}
    refusals = Counter[str]()
    unknown = set(args.ids or ())
    for reply in said.answers.values():
        ways.update(reply["ways"])
        refused.update(reply["refused"])
        refusals.update(reply["refusals"])
        unknown &= set(reply["unknown"])
    for one in dict.fromkeys(one for one in args.ids or () if one in unknown):
        refused[one] = "no request has this id" + (" on the ranks that answered" if said.missing else "")
        refusals["unknown-id"] += 1
    told = dict(itertools.islice(ways.items(), RELEASED_AT_MOST))
    return {
        "released": list(told),
        "ways": told,
        "releases": dict(Counter(ways.values())),
        "refused": dict(itertools.islice(refused.items(), REFUSED_AT_MOST)),
        "refusals": dict(refusals),
    }


def _missing(args: ReleaseArgs, said: ask.Answers) -> str | None:
    """What to say of the ranks without an answer of use; None where there are none."""
    sentences = [f"rank {rank}: {sentence}" for rank, sentence in sorted(said.failed.items())]
    silent = sorted(set(said.missing) - said.failed.keys())
    if silent:
        numbers = ", ".join(map(str, silent))
        after = "" if args.dry_run else "; it may still release its own"
        sentences.append(f"rank {numbers} did not answer{after}")
    return "; ".join(sentences) or None
