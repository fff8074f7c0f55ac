"""A release by POST: order it, wait for its outcome, and tell of each request what became of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from typing import Any
from uuid import uuid4

import aiohttp

from stanch.core.kit import Entry
from stanch.edge import kit, one_engine
from stanch.edge.kit import Key
from stanch.edge.kit_answers import KitError, Lists, said
from stanch.edge.one_engine import SeveralError
from stanch.edge.text import one_line
from stanch_connector import contract

_POLL_SECONDS = 0.2
# After its deadline the kit itself calls an order failed; for so long we wait to hear that.
_SLACK_SECONDS = 5.0
# Of several API-server processes one that did not take the order shows its outcome within about a second.
_LOST_SECONDS = 5.0
# Of the time for all of it, what the list may take: it only brings the names that people know.
_PART_FOR_LIST = 1 / 3
_LEAST_DEADLINE_SECONDS = 1.0
# The kit's words for one that is too young, which do not name it.
_AGE = "it has been so for"
_OPEN = ("accepted", "running")
# What a proxy answers where the engine has, or may have, taken the order.
_GATEWAY = (HTTPStatus.BAD_GATEWAY, HTTPStatus.GATEWAY_TIMEOUT)
_HOW_TO_TURN_ON = (
    "its kit takes no commands by POST: start the engine with STANCH_TOKEN_FILE=FILE, a file with a token of "
    "16 to 4096 bytes, and give the same file with --token-file"
)


@dataclass(frozen=True, slots=True)
class Order:
    """ids: as clients know them, or the scheduler; None: every stuck request. older_than_seconds: only those
    that have been stuck for so long. deadline_seconds: for all of it."""

    ids: tuple[str, ...] | None = None
    older_than_seconds: float | None = None
    dry_run: bool = False
    deadline_seconds: float = 30.0


@dataclass(frozen=True, slots=True)
class Fate:
    """What became, or under dry run would become, of one request. id, blocks: None where no list told them.

    way: freed, completed, failed; None: refused, and refusal says why. young: it was not meant, because the
    order was for older ones and named none (a kit may name another reason first, such as a read under way).
    """

    scheduler_id: str
    id: str | None
    blocks: int | None
    way: str | None
    refusal: str | None
    young: bool = False


@dataclass(frozen=True, slots=True)
class Released:
    """An order that ended. state, reason: as the kit says; fates: of those that the kit names, which are not
    all of very many; releases: how many by way, empty where an older kit does not count them; refusals: how
    many by kind; missing: ranks that did not answer."""

    command_id: str
    boot_id: str
    dry_run: bool
    state: str
    reason: str | None
    fates: tuple[Fate, ...]
    refusals: Mapping[str, int] = field(default_factory=dict)
    missing: tuple[str, ...] = ()
    releases: Mapping[str, int] = field(default_factory=dict)

    @property
    def certain(self) -> bool:
        """Whether it is known of every rank what was done."""
        return self.state in ("done", "refused") and not self.missing


async def release(
    session: aiohttp.ClientSession, base: str, order: Order, token: str | None, key: Key = kit.no_key
) -> Released:
    """Order it and wait for the end. Raises KitError where it cannot be told what was done; where the order
    was given, or may have been, the error says so.

    session: with one connection only. With several API-server processes the one that took the order is the
    first to know its outcome, and one connection stays with one of them.
    """
    deadline = time.monotonic() + order.deadline_seconds
    looked = await one_engine.look(base, key, order.deadline_seconds * _PART_FOR_LIST)
    if isinstance(looked.facts, KitError):
        raise looked.facts
    boot_id = looked.facts.boot_id
    command: contract.Command = {
        "id": f"cli-{uuid4().hex[:16]}",
        "verb": "release",
        "bootId": boot_id,
        "args": _args(order),
        "deadlineSeconds": max(_LEAST_DEADLINE_SECONDS, round(deadline - time.monotonic(), 1)),
    }
    outcome = await _post(session, base, command, token)
    outcome = await _end(session, base, command, outcome, deadline + _SLACK_SECONDS, token)
    before = looked.lists if isinstance(looked.lists, Lists) else Lists(boot_id, {})
    return _told(outcome, command["id"], boot_id, order, before)


def _args(order: Order) -> dict[str, object]:
    args: dict[str, object] = {"dryRun": order.dry_run}
    if order.ids is not None:
        args["ids"] = list(order.ids)
    if order.older_than_seconds is not None:
        args["olderThanSeconds"] = order.older_than_seconds
    return args


async def _post(
    session: aiohttp.ClientSession, base: str, command: contract.Command, token: str | None
) -> Mapping[str, Any]:
    """The outcome so far, empty where it is not known whether the order was taken. Raises KitError where it
    was not."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    url = base + contract.ROUTE_COMMAND
    try:
        reply = await kit.exchange(session, "POST", url, kit.STATE_SECONDS, headers=headers, body=command)
    except KitError as error:
        if error.unsent:
            raise
        return {}
    data = reply.data if isinstance(reply.data, dict) else {}
    if reply.status in (HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED):
        raise KitError(_HOW_TO_TURN_ON)
    if reply.status == HTTPStatus.UNAUTHORIZED:
        how = (
            "its kit does not take the token in that file"
            if token
            else "its kit wants a token: give the file that holds it with --token-file"
        )
        raise KitError(f"{how} (HTTP 401)")
    if reply.status == HTTPStatus.CONFLICT:
        why = said(data, "reason")
        if why is None or "boot id" in why:
            raise SeveralError(": nothing was released")
        raise KitError(f"its kit ignored the order, so nothing was released: {why}")
    if reply.status == HTTPStatus.BAD_REQUEST and data.get("state") == "refused":
        return data
    if reply.status in _GATEWAY:
        return {}
    if reply.status != HTTPStatus.OK or data.get("id") != command["id"]:
        why = said(data) or said(data, "reason")
        text = f"its kit answers HTTP {reply.status} to the order" + (f": {why}" if why else "")
        raise KitError(f"{text}; whether it took it is not known: look at `stanch requests`")
    return data


async def _end(
    session: aiohttp.ClientSession,
    base: str,
    command: contract.Command,
    outcome: Mapping[str, Any],
    deadline: float,
    token: str | None,
) -> Mapping[str, Any]:
    """What the order ended with. An order that was given is not forgotten for a question that fails: only
    when the time is over, another process answers, or the kit has lost it, is there a KitError that names it.

    outcome: as the answer to the order had it; empty where none came.
    """
    lost_since: float | None = None
    why = "its kit has not said yet what became of it"
    while not outcome or outcome.get("state") in _OPEN:
        now = time.monotonic()
        if now > deadline:
            raise KitError(_given(command, outcome, why))
        await asyncio.sleep(_POLL_SECONDS)
        try:
            facts = await kit.state(session, base, min(kit.STATE_SECONDS, max(1.0, deadline - now)), token)
        except KitError as error:
            why, lost_since = str(error), None
            continue
        if facts.boot_id != command["bootId"]:
            raise KitError(_given(command, outcome, f"since then {one_engine.SEVERAL}"))
        found = next((one for one in facts.outcomes if one.get("id") == command["id"]), None)
        if found is not None:
            outcome, lost_since = found, None
            why = "its kit has not said yet what became of it"
            continue
        why, lost_since = "its kit does not know it", lost_since or now
        if now - lost_since > _LOST_SECONDS:
            raise KitError(_given(command, outcome, why))
    return outcome


def _given(command: contract.Command, outcome: Mapping[str, Any], why: str) -> str:
    given = "was given" if outcome else "may have been given (no answer came to it)"
    return f"the order {command['id']} {given}; {why}: look at `stanch requests`"


def _told(outcome: Mapping[str, Any], command_id: str, boot_id: str, order: Order, before: Lists) -> Released:
    entries = {entry.scheduler_id: entry for entries in before.ranks.values() for entry in entries}
    ways, refused = outcome.get("ways"), outcome.get("refused")
    done = {str(k): str(v) for k, v in ways.items()} if isinstance(ways, dict) else {}
    for name in _list(outcome.get("released")):
        done.setdefault(str(name), "freed")
    not_done = {str(k): str(v) for k, v in refused.items()} if isinstance(refused, dict) else {}
    counts = outcome.get("refusals")
    all_young = isinstance(counts, dict) and set(counts) == {"too-young"}
    least = None if order.ids is not None else order.older_than_seconds

    def young(name: str) -> bool:
        entry = entries.get(name)
        if least is None:
            return False
        return all_young or (entry is not None and entry.age_seconds < least)

    fates = [_fate(name, entries, way=way) for name, way in done.items()]
    fates += [
        replace(_fate(name, entries, refusal=why), young=young(name))
        for name, why in not_done.items()
        if name not in done
    ]
    return Released(
        command_id,
        boot_id,
        order.dry_run,
        one_line(str(outcome.get("state")), 20),
        said(outcome, "reason"),
        tuple(fates),
        _counts(counts),
        tuple(str(rank) for rank in _list(outcome.get("missingRanks"))),
        _counts(outcome.get("releases")),
    )


def _counts(value: object) -> dict[str, int]:
    pairs = value.items() if isinstance(value, dict) else ()
    return {one_line(str(kind), 40): count for kind, count in pairs if type(count) is int and count > 0}


def _list(value: object) -> Sequence[object]:
    return value if isinstance(value, list) else ()


def _fate(
    name: str, entries: Mapping[str, Entry], *, way: str | None = None, refusal: str | None = None
) -> Fate:
    entry = entries.get(name)
    return Fate(
        one_line(name, 512),
        None if entry is None else entry.id,
        None if entry is None else entry.blocks,
        None if way is None else one_line(way, 40),
        None if refusal is None else one_line(refusal, 300).replace(_AGE, f"too young: {_AGE}", 1),
    )
