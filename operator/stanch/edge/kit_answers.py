"""What answers of the engine kit say. They are checked; what they do not say is None, never zero. Pure.

The contract is additive: keys and values that are not known here are passed over, whatever its version. An
answer of another schema, or one in which a needed key is missing or makes no sense, is no answer at all.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from stanch.core.kit import Entry
from stanch.core.policy import DAY
from stanch.core.sample import Role
from stanch.edge.text import one_line, printable

# Of 16 MB of brackets Python makes half a gigabyte of lists, in seconds. A full list of the kit's has 20,000
# objects and 320,000 commas; there may be some in the ids of requests as well.
_MOST_OPENED = 200_000
_MOST_COMMAS = 1_000_000
# Longer than any id that vLLM makes of an X-Request-Id which a server would take.
_MOST_CHARS = 512
# What a LeakIncident can hold of a boot id; the kit's own has 32.
_MOST_BOOT_ID = 128
_MOST_RANK = 64
# What a LeakIncident can hold of each: an age in seconds, a number of blocks.
_MOST_AGE = 10**9
_MOST_BLOCKS = 2**31 - 1


class KitError(Exception):
    """The kit gave no answer of use; the text is a sentence without its end: "its kit ...".

    absent: the engine has no kit. lasting: asking again soon will bring the same. unsent: there was no
    connection, so nothing was sent. locked: it wants a key, or another one.
    """

    def __init__(
        self,
        text: str,
        *,
        absent: bool = False,
        lasting: bool = False,
        unsent: bool = False,
        locked: bool = False,
    ) -> None:
        super().__init__(text)
        self.absent = absent
        self.lasting = absent or lasting or locked
        self.locked = locked
        self.unsent = unsent


@dataclass(frozen=True, slots=True)
class Facts:
    """What /state says; None: it does not say. role: only where kv_role tells it (kv_both does not). fix: one
    of contract.Fix, fix_reason: a sentence. engine_ids: by rank, the id by which its peers know it, of those
    that say so."""

    boot_id: str
    kit: str | None = None
    connector: str | None = None
    fix: str | None = None
    fix_reason: str | None = None
    role: Role | None = None
    lease_seconds: float | None = None
    pin_seconds: float | None = None
    bidirectional: bool | None = None
    ready: bool | None = None
    draining: bool | None = None
    cordoned: bool | None = None
    cordon_incident: str | None = None
    disabled: str | None = None
    engine_ids: Mapping[str, str] = field(default_factory=dict)
    outcomes: tuple[Mapping[str, Any], ...] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True)
class Lists:
    """What /requests says. ranks: by the engine's label; missing: labels of ranks that did not answer. size:
    of the answer, in bytes; 0 where that was not counted."""

    boot_id: str
    ranks: Mapping[str, tuple[Entry, ...]]
    missing: tuple[str, ...] = ()
    size: int = 0


@dataclass(frozen=True, slots=True)
class Reply:
    """One HTTP answer. data: its JSON, None where it is none."""

    status: int
    data: object


def json_of(body: bytes) -> object:
    """None where it is none, or more than a kit would say."""
    if body.count(b"[") + body.count(b"{") > _MOST_OPENED or body.count(b",") > _MOST_COMMAS:
        return None
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def said(data: object, key: str = "error") -> str | None:
    """The text under that key of an answer, fit for a terminal."""
    text = data.get(key) if isinstance(data, dict) else None
    return one_line(text, 300) if isinstance(text, str) and text.strip() else None


def checked(reply: Reply, schema: str, *, key_given: bool) -> dict[str, Any]:
    """The answer of that schema. key_given: whether it was asked with one. Raises KitError."""
    status, data = reply.status, reply.data
    if status in (HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED):
        raise KitError("it has no engine kit", absent=True)
    if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        how = (
            "does not take the API key in that file"
            if key_given
            else "wants vLLM's API key: give the file that holds it with --api-key-file"
        )
        raise KitError(f"its kit {how} (HTTP {status})", locked=True)
    if status == HTTPStatus.NOT_IMPLEMENTED:
        raise KitError(f"its kit has no list: {said(data) or 'it does not say why'}", lasting=True)
    if status != HTTPStatus.OK:
        raise KitError(f"its kit answers HTTP {status}" + (f" ({said(data)})" if said(data) else ""))
    if not isinstance(data, dict) or not isinstance(data.get("schema"), str):
        raise KitError("what answers in the place of its kit is something else", lasting=True)
    if data["schema"] != schema:
        other = one_line(data["schema"], 60)
        raise KitError(f"its kit speaks {other}, which this version of Stanch does not know", lasting=True)
    boot_id = data.get("bootId")
    if not isinstance(boot_id, str) or not 0 < len(boot_id) <= _MOST_BOOT_ID or not boot_id.isprintable():
        raise KitError("its kit's answer has no boot id", lasting=True)
    return data


_ROLES = {"kv_producer": Role.PREFILL, "kv_consumer": Role.DECODE}


def facts_of(data: Mapping[str, Any]) -> Facts:
    """From a checked answer of /state; what makes no sense is not said."""
    outcomes = data.get("outcomes")
    return Facts(
        boot_id=data["bootId"],
        kit=said(data, "kit"),
        connector=said(data, "connector"),
        fix=said(data, "fix"),
        fix_reason=said(data, "fixReason"),
        role=_ROLES.get(str(data.get("role"))),
        lease_seconds=_seconds(data.get("leaseSeconds")),
        pin_seconds=_seconds(data.get("pinSeconds")),
        bidirectional=_truth(data.get("bidirectional")),
        ready=_truth(data.get("ready")),
        draining=_truth(data.get("draining")),
        cordoned=_truth(data.get("cordoned")),
        cordon_incident=said(data, "cordonIncident"),
        disabled=said(data, "disabled"),
        engine_ids=_ids(data.get("engineIds")),
        outcomes=tuple(o for o in outcomes if isinstance(o, dict)) if isinstance(outcomes, list) else (),
    )


def _ids(value: object) -> dict[str, str]:
    found = value.items() if isinstance(value, dict) else ()
    ids = {str(rank): _text(given) for rank, given in found if len(str(rank)) <= _MOST_RANK}
    return {rank: own for rank, own in ids.items() if own is not None}


def _truth(value: object) -> bool | None:
    return value if isinstance(value, bool) else None


def _seconds(value: object) -> float | None:
    number = _number(value)
    return number if number is not None and 0 < number <= DAY else None


def _number(value: object, most: float = _MOST_AGE) -> float | None:
    """A number that is finite, not negative and not above that; a truth value is none."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    # A whole number may be one that no float can hold.
    return float(value) if 0 <= value <= most else None


def lists_of(data: Mapping[str, Any]) -> Lists:
    """From a checked answer of /requests. Raises KitError where any of it makes no sense."""
    ranks, missing = data.get("ranks"), data.get("missingRanks")
    if not isinstance(ranks, dict) or not isinstance(missing, list):
        raise KitError("its kit's list has no ranks", lasting=True)
    absent = {str(rank) for rank in missing}
    found: dict[str, tuple[Entry, ...]] = {}
    for label, rank in ranks.items():
        entries = rank.get("requests") if isinstance(rank, dict) else None
        if not isinstance(entries, list) or len(label) > _MOST_RANK:
            raise KitError(f"its kit's list of rank {one_line(label, 20)} is none", lasting=True)
        # A rank that is called missing as well proves nothing.
        if label not in absent:
            found[printable(label)] = tuple(map(_entry, entries))
    return Lists(data["bootId"], found, tuple(sorted(map(printable, absent))))


def _entry(data: object) -> Entry:
    if not isinstance(data, dict):
        raise KitError("its kit's list has an entry that is none", lasting=True)
    age, share = (_number(data.get(key)) for key in ("ageSeconds", "cacheShare"))
    blocks = _number(data.get("blocks"), _MOST_BLOCKS)
    texts = {key: _text(data.get(key)) for key in ("id", "schedulerId", "status")}
    truths = {key: _truth(data.get(key)) for key in ("clientGone", "leased", "pinned")}
    needed = {**texts, **truths, "ageSeconds": age, "blocks": blocks}
    if bad := [key for key, value in needed.items() if value is None]:
        raise KitError(f"its kit's list has a request whose {bad[0]} is missing or none", lasting=True)
    if "waitsFor" not in data:
        raise KitError("its kit's list has a request whose waitsFor is missing", lasting=True)
    assert age is not None
    assert blocks is not None
    return Entry(
        id=texts["id"] or "",
        scheduler_id=texts["schedulerId"] or "",
        status=texts["status"] or "",
        age_seconds=age,
        blocks=int(blocks),
        waits_for=_text(data["waitsFor"]),
        client_gone=bool(truths["clientGone"]),
        leased=bool(truths["leased"]),
        pinned=bool(truths["pinned"]),
        share=share if share is not None and share <= 1 else None,
        remote_engine=_text(data.get("remoteEngine")),
        way=_text(data.get("way")),
        refusal=_text(data.get("refusal")),
        refusal_kind=_text(data.get("refusalKind")),
    )


def _text(value: object) -> str | None:
    return printable(value[:_MOST_CHARS]) if isinstance(value, str) and value else None
