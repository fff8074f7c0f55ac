"""Verdicts as sentences and as data."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from stanch.core.kit import Entry, summary
from stanch.core.report import SCHEMA, percent, record, sentence
from stanch.core.sample import Lifecycle, Role
from stanch.core.verdict import Answer, Cap, Signature, State, Verdict, Warn

pytestmark = pytest.mark.unit
row = pytest.param

HEALTHY = Verdict(
    9.0, "decode-3", Role.DECODE, State.HEALTHY, usage=0.82, running=0, waiting=0, idle_seconds=64.0
)
FAULT = replace(
    HEALTHY, state=State.FAULT, signature=Signature.HELD_IDLE, held_seconds=64.0, limit_seconds=60.0
)
DEFERRED = replace(FAULT, signature=Signature.DEFERRED_STALL, waiting=3, deferred=3, limit_seconds=120.0)
DEADLOCK = replace(FAULT, signature=Signature.QUEUE_DEADLOCK, waiting=1, usage=0.0)
FLOOR = replace(
    FAULT,
    signature=Signature.HELD_FLOOR,
    held_seconds=912.0,
    limit_seconds=900.0,
    floor_usage=0.7,
    readings=41,
)
HANG = replace(FAULT, signature=Signature.NO_PROGRESS, running=7, held_seconds=301.0, limit_seconds=300.0)
STRANDED = replace(FAULT, signature=Signature.PRODUCER_STRANDED, engine="prefill-1", role=Role.PREFILL)
BLIND = Verdict(
    9.0, "decode-3", Role.DECODE, State.BLIND, Signature.BLIND, cause="the connection was refused"
)
HELD = (
    "decode-3 holds 82 % of its KV cache with nothing running or waiting and no token for 64 s (limit 60 s)"
)


def but(verdict: Verdict, **changed: Any) -> Verdict:
    return replace(verdict, **changed)


@pytest.mark.parametrize(
    ("verdict", "expected"),
    [
        row(FAULT, HELD, id="held-idle"),
        row(
            but(FAULT, state=State.SUSPECT, held_seconds=0.0),
            HELD.replace(" and no token for 64 s", ""),
            id="at-once",
        ),
        row(
            but(FAULT, confirmation=Answer.CONFIRMED, cause="a canary freed nothing"),
            f"{HELD}; confirmed: a canary freed nothing",
            id="confirmed",
        ),
        row(
            but(FAULT, confirmation=Answer.INCONCLUSIVE, cause="it was rejected"),
            f"{HELD}; asking the engine was inconclusive: it was rejected",
            id="inconclusive",
        ),
        row(
            but(
                FAULT,
                state=State.HEALTHY,
                signature=Signature.STALE_GAUGE,
                cause="after a canary it holds 0 %",
            ),
            "decode-3 is healthy: after a canary it holds 0 %",
            id="vetoed",
        ),
        row(
            but(FAULT, state=State.SUSPECT, cap=Cap.MAY_BE_PINNED),
            f"{HELD}; only a suspicion, since a bidirectional decode pins its finished turns",
            id="may-be-pinned",
        ),
        row(
            but(FAULT, state=State.SUSPECT, role=Role.UNKNOWN, cap=Cap.ROLE_UNKNOWN),
            HELD.replace("decode-3", "decode-3 (unknown)")
            + "; only a suspicion, since its role is not known: say whether it is decode or prefill",
            id="role-unknown",
        ),
        row(
            but(FAULT, spared=True),
            "decode-3 showed HeldIdle for 64 s (limit 60 s) until this reading, which does not; "
            "nothing moved since, so one more decides",
            id="spared",
        ),
        row(
            DEFERRED,
            "decode-3 has 3 requests waiting, all deferred, with nothing running, 82 % of its KV cache held "
            "and no token for 64 s (limit 120 s); a KV transfer that never ends looks like this, and so do a "
            "grammar that compiles, a LoRA limit and an idle streaming session",
            id="deferred",
        ),
        row(
            but(DEADLOCK),
            "decode-3 has 1 request waiting that could run, yet nothing runs, 0 % of its KV cache held and "
            "no token for 64 s (limit 60 s)",
            id="deadlock",
        ),
        row(
            HANG,
            "decode-3 runs 7 requests, yet no token, no iteration and no block moved for 301 s (limit 300 s)",
            id="no-progress",
        ),
        row(
            but(STRANDED, state=State.SUSPECT, cap=Cap.NO_FLEET),
            "prefill-1 (prefill) holds 82 % of its KV cache with nothing running or waiting and no token for "
            "64 s (limit 60 s, twice its lease); only a suspicion, since what a prefill may hold depends on "
            "its decodes: name them too",
            id="stranded",
        ),
        row(BLIND, "cannot tell about decode-3: the connection was refused", id="blind"),
        row(HEALTHY, "decode-3 is idle with 82 % of its KV cache in use", id="idle"),
        row(
            but(HEALTHY, idle_seconds=0.0),
            "decode-3 is between requests with 82 % of its KV cache in use",
            id="between",
        ),
        row(
            but(HEALTHY, idle_seconds=0.0, usage=0.0),
            "decode-3 is idle with 0 % of its KV cache in use",
            id="empty",
        ),
        row(
            but(HEALTHY, running=2, waiting=1),
            "decode-3 is at work: 2 running, 1 waiting, 82 % of its KV cache in use",
            id="at-work",
        ),
        row(
            but(HEALTHY, waiting=1),
            "decode-3 has 1 request waiting and none running, 82 % of its KV cache in use",
            id="waiting",
        ),
        row(
            but(HEALTHY, lifecycle=Lifecycle.ASLEEP),
            "decode-3 is asleep, so holding KV cache and standing still mean nothing",
            id="asleep",
        ),
    ],
)
def test_the_sentence(verdict: Verdict, expected: str) -> None:
    assert sentence(verdict) == expected


def test_the_sentence_of_the_leak_under_traffic() -> None:
    text = sentence(FLOOR)
    assert text.startswith(
        "decode-3 held at least 70 % of its KV cache in each of 41 idle readings over 912 s"
    )
    assert "(limit 900 s)" in text
    assert "a leak under traffic" in text


def test_without_the_reasons_it_does_not_say_all_deferred() -> None:
    text = sentence(but(DEFERRED, deferred=None))
    assert "3 requests waiting, and blocks held for them, with nothing running" in text


@pytest.mark.parametrize(
    ("verdict", "end"),
    [
        row(HEALTHY, "; one look cannot tell whether an idle engine would answer", id="idle"),
        row(
            but(HEALTHY, running=1),
            "; one look cannot see a stall (--for 310 does) or a leak under traffic (--for 910)",
            id="a-busy-decode",
        ),
        row(
            but(HEALTHY, running=1, role=Role.PREFILL),
            "; one look cannot see a stall (--for 310 does)",
            id="prefill",
        ),
        row(
            but(FAULT, state=State.SUSPECT, held_seconds=0.0),
            "waiting; one look cannot tell for how long: watch it with --for 70",
            id="suspect",
        ),
        row(
            but(FAULT, state=State.SUSPECT, limit_seconds=510.0),
            "watch it with --for 520",
            id="suspect-with-a-pin",
        ),
        row(
            but(FAULT, state=State.SUSPECT, role=Role.UNKNOWN),
            "only a suspicion, since its role is not known: say whether it is decode or prefill",
            id="of-unknown-role",
        ),
        row(
            but(STRANDED, state=State.SUSPECT),
            "; a prefill holds blocks for its decodes until its lease ends; one look cannot tell for how "
            "long: watch them together, --for 70",
            id="prefill-that-holds",
        ),
        row(BLIND, "cannot tell about decode-3: the connection was refused", id="blind"),
        row(but(HEALTHY, lifecycle=Lifecycle.PAUSED), "standing still mean nothing", id="paused"),
    ],
)
def test_one_look_says_what_it_hides(verdict: Verdict, end: str) -> None:
    assert sentence(verdict, one_look=True).endswith(end)


@pytest.mark.parametrize(
    ("ratio", "text"),
    [
        row(None, "an unknown share", id="unknown"),
        row(0.0, "0 %", id="nothing"),
        row(0.004, "0.4 %", id="a-little"),
        row(0.0094, "0.9 %", id="just-below-one"),
        row(0.0096, "1 %", id="nearly-one"),
        row(0.825, "82 %", id="much"),
        row(1.0, "100 %", id="all"),
    ],
)
def test_a_share(ratio: float | None, text: str) -> None:
    assert percent(ratio) == text


ALWAYS = (
    *("schema", "t", "engine", "role", "state", "signature", "held_seconds", "usage", "running", "waiting"),
    *("warnings", "confirmation", "reason"),
)


@pytest.mark.parametrize("verdict", [HEALTHY, FAULT, FLOOR, DEFERRED, BLIND], ids=lambda v: v.signature_name)
def test_the_object_has_the_documented_keys_first(verdict: Verdict) -> None:
    found = record(verdict)
    assert tuple(found)[: len(ALWAYS)] == ALWAYS
    assert found["schema"] == SCHEMA == "stanch.verdict/1"
    assert found["reason"] == sentence(verdict)
    assert json.loads(json.dumps(found, allow_nan=False)) == found


@pytest.mark.parametrize(
    ("verdict", "expected"),
    [
        row(
            HEALTHY,
            {"state": "healthy", "signature": None, "held_seconds": 0, "confirmation": None},
            id="healthy",
        ),
        row(
            BLIND,
            {"signature": "Blind", "held_seconds": 0, "usage": None, "running": None, "waiting": None},
            id="blind",
        ),
        row(but(FAULT, held_seconds=64.00049), {"held_seconds": 64.0, "signature": "HeldIdle"}, id="rounded"),
        row(but(FAULT, confirmation=Answer.CONFIRMED), {"confirmation": "confirmed"}, id="confirmed"),
        row(
            but(FAULT, warnings=(Warn.CREEP, Warn.TRANSFER_FAULT)),
            {"warnings": ["Creep", "TransferFault"], "state": "fault"},
            id="warnings",
        ),
        row(but(FAULT, cap=Cap.NO_FLEET), {"cap": "no-fleet"}, id="cap"),
        row(but(HEALTHY, lifecycle=Lifecycle.DRAINING), {"lifecycle": "draining"}, id="lifecycle"),
    ],
)
def test_the_object_s_values(verdict: Verdict, expected: dict[str, object]) -> None:
    found = record(verdict)
    assert {key: found[key] for key in expected} == expected


def test_the_reason_of_one_look_is_in_the_object_too() -> None:
    assert "one look" in str(record(HEALTHY, one_look=True)["reason"])


def test_one_look_at_a_list_tells_for_how_long() -> None:
    entry = Entry("cmpl-a", "a", "FINISHED_ABORTED", 20.0, 10, "remote_kv", True, False, False, share=0.1)
    text = sentence(but(FAULT, state=State.SUSPECT, held_seconds=0.0, stuck=summary((entry,))), one_look=True)
    assert "waiting; 1 request holds 10 blocks of 100: cmpl-a (20 s, its client has gone)" in text
    assert "one look cannot tell for how long" not in text
