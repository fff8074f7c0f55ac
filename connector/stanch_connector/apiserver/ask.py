"""Asks every engine core that this API server manages, each by its own identity.

Looked up in vLLM 0.18 to 0.33 (v1/engine/core_client.py): `core_engines` holds the identities, two bytes
with the rank, little-endian, which is the number that the label `engine` has;
`_call_utility_async(method, *args, engine=)` asks one of them. `call_utility_async` is no use with data
parallelism: it returns the first rank's answer only.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from stanch_connector.plugin import UTILITY

# An engine core answers between two steps; a long prefill on a slow device takes seconds.
DEADLINE_SECONDS: Final = 5.0

NO_PLUGIN: Final = "the engine core has not loaded the plug-in `stanch` (is it in VLLM_PLUGINS?)"


# A string, since a task is no generic at run time in Python 3.10.
Reply: TypeAlias = "asyncio.Task[dict[str, Any]]"


class NoEngineError(Exception):
    """This server has no engine core that the kit could ask; the message says why."""


@dataclass(frozen=True, slots=True)
class Answers:
    """answers: what each rank said. failed: the sentence of a rank that has nothing to tell.
    missing: ranks without an answer of use, the failed ones among them."""

    answers: dict[int, dict[str, Any]] = field(default_factory=dict)
    failed: dict[int, str] = field(default_factory=dict)
    missing: list[int] = field(default_factory=list)


class Ranks:
    """Lives in the event loop of one API-server process. At most one question of a kind is under way to
    a rank: who asks meanwhile shares its answer, so that neither a crowd of readers nor a hung engine
    piles anything up."""

    def __init__(self) -> None:
        self._under_way: dict[tuple[int, str], asyncio.Task[dict[str, Any]]] = {}

    async def ask(self, client: Any, question: str, deadline_s: float = DEADLINE_SECONDS) -> Answers:
        """Ask all ranks at once. Raises NoEngineError where the client is none that the kit knows."""
        tasks = {rank: self._task(client, identity, rank, question) for rank, identity in ranks_of(client)}
        await asyncio.wait(tasks.values(), timeout=deadline_s)
        return answers(tasks)

    def _task(self, client: Any, identity: bytes, rank: int, question: str) -> asyncio.Task[dict[str, Any]]:
        key = (rank, question)
        task = self._under_way.get(key)
        if task is None or task.done():
            task = self._under_way[key] = _begun(client, identity, question)
        return task


def order(client: Any, question: str, args: Mapping[int, str]) -> dict[int, Reply]:
    """The same question with arguments of its own (JSON text) to each of these ranks: shared with nobody, and
    under way until the engine core has answered. Raises NoEngineError."""
    return {
        rank: _begun(client, identity, question, args[rank])
        for rank, identity in ranks_of(client)
        if rank in args
    }


def answers(tasks: Mapping[int, Reply]) -> Answers:
    """What has come in so far."""
    result = Answers()
    for rank, task in tasks.items():
        if not task.done() or task.cancelled():
            result.missing.append(rank)
            continue
        error = task.exception()
        if error is not None:
            result.missing.append(rank)
            if _has_no_plugin(error):
                result.failed[rank] = NO_PLUGIN
            continue
        reply = task.result()
        if "error" in reply:
            result.missing.append(rank)
            result.failed[rank] = str(reply["error"])
        else:
            result.answers[rank] = reply
    return result


def ranks_of(client: Any) -> list[tuple[int, bytes]]:
    """(rank, identity) of each engine core. Raises NoEngineError."""
    identities = getattr(client, "core_engines", None)
    if not identities or not callable(getattr(client, "_call_utility_async", None)):
        raise NoEngineError("this vLLM's engine client is not shaped as the kit knows it")
    return [(int.from_bytes(one, "little"), one) for one in identities]


def _begun(client: Any, identity: bytes, question: str, *args: str) -> Reply:
    task = asyncio.ensure_future(_ask_one(client, identity, question, *args))
    # A failure that nobody waits for any more is no news.
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    return task


async def _ask_one(client: Any, identity: bytes, question: str, *args: str) -> dict[str, Any]:
    text = await client._call_utility_async(UTILITY, question, *args, engine=identity)
    reply = json.loads(text)
    if not isinstance(reply, dict):
        raise TypeError("not an answer of the kit")
    return reply


def _has_no_plugin(error: BaseException) -> bool:
    """Whether an engine core said that it does not know our method. Anything else, a dead engine among it,
    is a rank that does not answer."""
    return UTILITY in str(error) and "attribute" in str(error)
