"""The design's "Confirmation", as tables: what each end of a canary proves about each signature."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from stanch.core.confirm import Canary, Evidence, Outcome, Paused, Ruling, judge
from stanch.core.policy import Policy
from stanch.core.sample import Role, Sample
from stanch.core.verdict import Answer, Cap, Signature, State, Verdict
from tests.core.build import POLICY, sample

pytestmark = pytest.mark.unit

row = pytest.param
CONFIRMED, VETOED, INCONCLUSIVE = Answer.CONFIRMED, Answer.VETOED, Answer.INCONCLUSIVE
FINISHED = Canary(Outcome.FINISHED, 0.4, 200, "", 1.0, 1.0)
TIMED_OUT = Canary(Outcome.TIMED_OUT, 30.0)
# What a canary itself does to the counters, and what one request of somebody else's adds.
OWN: dict[str, Any] = {
    "generation_tokens": 1001.0,
    "prompt_tokens": 5001.0,
    "iterations": 901.0,
    "finished": 11.0,
}
SERVED: dict[str, Any] = OWN | {"generation_tokens": 1041.0, "prompt_tokens": 5301.0, "iterations": 941.0}
BUSY: dict[str, Any] = {"running": 1}
QUEUE: dict[str, Any] = {"waiting": 3, "waiting_deferred": 3.0}
BLOCKED: dict[str, Any] = {"waiting": 3}
PIN = Policy(kv_pin_seconds=480.0)
LEASE = Policy(lease_seconds=30.0)

HELD_IDLE = Verdict(300.0, "decode-3", Role.DECODE, State.FAULT, Signature.HELD_IDLE, 60.0, usage=0.82)
HELD_FLOOR = replace(HELD_IDLE, signature=Signature.HELD_FLOOR, held_seconds=900.0, floor_usage=0.8)
DEFERRED = replace(HELD_IDLE, signature=Signature.DEFERRED_STALL, waiting=3)
DEADLOCK = replace(HELD_IDLE, signature=Signature.QUEUE_DEADLOCK, waiting=3)
NO_PROGRESS = replace(HELD_IDLE, signature=Signature.NO_PROGRESS, running=4)
STRANDED = replace(HELD_IDLE, signature=Signature.PRODUCER_STRANDED, role=Role.PREFILL)


def asked(
    verdict: Verdict,
    before: dict[str, Any],
    after: dict[str, Any],
    policy: Policy = POLICY,
    canary: Canary = FINISHED,
) -> Ruling:
    """The ruling where the engine showed `before`, and after the canary's end `after`."""
    first, then = sample(301.0, **({"usage": 0.82} | before)), sample(302.0, **({"usage": 0.82} | after))
    return judge(verdict, Evidence(canary, first, [then], True, Paused.NOT_SERVED), policy)


@pytest.mark.parametrize(
    ("verdict", "before", "after", "expected", "words"),
    [
        row(HELD_IDLE, {}, OWN, CONFIRMED, "0.4 s and freed nothing: 82 % still held", id="held-idle"),
        row(HELD_IDLE, {}, {}, INCONCLUSIVE, "its token is not on the page", id="held-idle-unseen"),
        row(HELD_IDLE, {}, {"usage": 0.0}, VETOED, "holds 0 %", id="held-idle-freed-though-unseen"),
        row(HELD_IDLE, {}, OWN | {"usage": 0.0}, VETOED, "holds 0 %, not 82 %", id="held-idle-freed"),
        row(HELD_IDLE, {}, OWN | {"usage": 0.049}, VETOED, "holds 5 %", id="held-idle-below-the-floor"),
        row(HELD_IDLE, {"usage": 0.0}, OWN | {"usage": 0.0}, VETOED, "82 %", id="held-idle-freed-before"),
        row(HELD_IDLE, {}, SERVED, INCONCLUSIVE, "were served", id="held-idle-others-served"),
        row(HELD_IDLE, {}, OWN | BUSY, INCONCLUSIVE, "requests arrived", id="held-idle-one-runs"),
        row(HELD_IDLE, {}, OWN | QUEUE, INCONCLUSIVE, "requests arrived", id="held-idle-some-wait"),
        row(HELD_FLOOR, {}, OWN, CONFIRMED, "freed nothing", id="held-floor"),
        row(HELD_FLOOR, {}, SERVED, CONFIRMED, "freed nothing", id="held-floor-others-served"),
        row(HELD_FLOOR, {}, SERVED | BUSY, INCONCLUSIVE, "requests arrived", id="held-floor-one-runs"),
        row(HELD_FLOOR, {}, OWN | {"usage": 0.01}, VETOED, "holds 1 %", id="held-floor-freed"),
        row(
            HELD_FLOOR,
            BUSY | {"usage": 0.95},
            SERVED | {"usage": 0.8},
            CONFIRMED,
            "80 %",
            id="held-floor-busy-before",
        ),
        row(HELD_FLOOR, {}, {}, INCONCLUSIVE, "another engine answered", id="held-floor-unseen"),
        row(DEFERRED, QUEUE, OWN | QUEUE, CONFIRMED, "queue stands", id="deferred"),
        row(DEFERRED, QUEUE, QUEUE, INCONCLUSIVE, "its token is not on the page", id="deferred-unseen"),
        row(DEFERRED, QUEUE, OWN | QUEUE | {"waiting": 5}, CONFIRMED, "queue stands", id="deferred-grows"),
        row(DEFERRED, QUEUE, SERVED | QUEUE, VETOED, "queue moved", id="deferred-others-served"),
        row(DEFERRED, QUEUE, OWN | BUSY | QUEUE, VETOED, "queue moved", id="deferred-one-runs"),
        row(
            DEFERRED, QUEUE, OWN | {"waiting": 2}, INCONCLUSIVE, "left the queue", id="deferred-a-client-left"
        ),
        row(DEFERRED, QUEUE, OWN, INCONCLUSIVE, "left the queue", id="deferred-all-clients-left"),
        row(DEFERRED, {}, OWN, INCONCLUSIVE, "left the queue", id="deferred-left-before-the-canary"),
        row(DEFERRED, QUEUE, OWN | {"usage": 0.0}, VETOED, "nothing waits", id="deferred-all-gone"),
        row(DEADLOCK, BLOCKED, OWN | BLOCKED, CONFIRMED, "queue stands", id="deadlock"),
        row(
            DEADLOCK,
            BLOCKED | {"usage": 0.0},
            OWN | BLOCKED | {"usage": 0.0},
            CONFIRMED,
            "stands",
            id="deadlock-empty",
        ),
        row(DEADLOCK, BLOCKED, SERVED | BLOCKED, VETOED, "queue moved", id="deadlock-others-served"),
        row(DEADLOCK, BLOCKED, OWN | {"waiting": 1}, INCONCLUSIVE, "left", id="deadlock-clients-left"),
        row(NO_PROGRESS, BUSY, OWN | BUSY, VETOED, "does make progress", id="no-progress"),
        row(NO_PROGRESS, BUSY, OWN | {"usage": 0.0}, VETOED, "does make progress", id="no-progress-stale"),
        row(NO_PROGRESS, BUSY, BUSY, INCONCLUSIVE, "another engine answered", id="no-progress-unseen"),
    ],
)
def test_a_finished_canary(
    verdict: Verdict, before: dict[str, Any], after: dict[str, Any], expected: Answer, words: str
) -> None:
    ruling = asked(verdict, before, after)
    assert (ruling.answer, ruling.restart_hold) == (expected, False)
    assert words in ruling.cause


@pytest.mark.parametrize(
    ("verdict", "before", "after", "words"),
    [
        row(HELD_IDLE, {}, OWN | {"usage": 0.81}, "from 82 % to 81 %", id="held-idle"),
        row(HELD_IDLE, {}, OWN | {"usage": 0.05}, "from 82 % to 5 %", id="held-idle-to-the-floor"),
        row(HELD_FLOOR, {}, SERVED | {"usage": 0.5}, "from 82 % to 50 %", id="held-floor"),
        row(HELD_FLOOR, BUSY, SERVED | {"usage": 0.5}, "from 80 % to 50 %", id="held-floor-busy-before"),
        row(DEFERRED, QUEUE, OWN | QUEUE | {"usage": 0.5}, "to 50 %", id="deferred"),
        row(DEADLOCK, BLOCKED, OWN | BLOCKED | {"usage": 0.5}, "to 50 %", id="deadlock"),
        row(STRANDED, {}, OWN | {"usage": 0.5}, "to 50 %", id="stranded"),
    ],
)
def test_a_usage_that_fell_but_not_below_the_floor_restarts_the_hold(
    verdict: Verdict, before: dict[str, Any], after: dict[str, Any], words: str
) -> None:
    ruling = asked(verdict, before, after)
    assert (ruling.answer, ruling.restart_hold) == (INCONCLUSIVE, True)
    assert words in ruling.cause


def with_(verdict: Verdict, role: Role, held: float | None = None, cap: Cap | None = None) -> Verdict:
    return replace(verdict, role=role, held_seconds=verdict.held_seconds if held is None else held, cap=cap)


def around(verdict: Verdict) -> dict[str, Any]:
    """What an engine with this verdict shows besides what it holds."""
    return {"running": verdict.running or 0, "waiting": verdict.waiting or 0}


BARS = [
    row(HELD_IDLE, PIN, "pins end only after 510 s", id="held-idle-within-the-pin"),
    row(with_(HELD_IDLE, Role.DECODE, 509.9), PIN, "510 s", id="held-idle-a-moment-too-early"),
    row(with_(HELD_IDLE, Role.DECODE, 510.0), PIN, None, id="held-idle-after-the-pin"),
    row(with_(HELD_FLOOR, Role.DECODE, 9999.0), PIN, "finished turns stay pinned", id="held-floor-pinned"),
    row(DEFERRED, PIN, None, id="deferred-pinned"),
    row(DEADLOCK, PIN, "its pins end only after 510 s", id="deadlock-within-the-pin"),
    row(with_(DEADLOCK, Role.DECODE, 510.0), PIN, None, id="deadlock-after-the-pin"),
    row(with_(DEADLOCK, Role.PREFILL), LEASE, "on a prefill engine", id="deadlock-prefill"),
    row(with_(DEADLOCK, Role.BOTH), LEASE, "that also prefills", id="deadlock-both"),
    row(with_(HELD_IDLE, Role.BOTH), LEASE, "that also prefills", id="held-idle-both"),
    row(with_(HELD_IDLE, Role.UNKNOWN), LEASE, "role is not known", id="held-idle-unknown"),
    row(with_(DEADLOCK, Role.UNKNOWN), LEASE, "role is not known", id="deadlock-unknown"),
    row(with_(STRANDED, Role.PREFILL, 60.0), LEASE, None, id="stranded-prefill"),
    row(with_(STRANDED, Role.BOTH, 60.0), LEASE, None, id="stranded-both"),
    row(with_(STRANDED, Role.PREFILL, 59.0), LEASE, "leased for 60 s", id="stranded-within-its-lease"),
    row(with_(STRANDED, Role.PREFILL, 959.0), POLICY, "leased for 960 s", id="stranded-unknown-lease"),
    row(
        with_(STRANDED, Role.PREFILL, 60.0, Cap.NO_FLEET),
        LEASE,
        "may still read",
        id="stranded-no-decodes-known",
    ),
    row(
        with_(STRANDED, Role.PREFILL, 60.0, Cap.DECODE_WAITS),
        LEASE,
        "may still read",
        id="stranded-a-decode-waits",
    ),
]


@pytest.mark.parametrize(("verdict", "policy", "bar"), BARS)
def test_where_an_answered_canary_may_not_confirm(verdict: Verdict, policy: Policy, bar: str | None) -> None:
    ruling = asked(verdict, around(verdict), OWN | around(verdict), policy)
    assert ruling.answer is (CONFIRMED if bar is None else INCONCLUSIVE)
    assert bar is None or bar in ruling.cause
    assert not ruling.restart_hold


@pytest.mark.parametrize(
    ("verdict", "policy", "bar"),
    [
        *BARS,
        row(with_(NO_PROGRESS, Role.PREFILL), LEASE, "on a prefill engine", id="no-progress-prefill"),
        row(NO_PROGRESS, PIN, None, id="no-progress-pinned"),
    ],
)
def test_where_a_time_out_may_not_confirm(verdict: Verdict, policy: Policy, bar: str | None) -> None:
    ruling = asked(verdict, around(verdict), around(verdict), policy, TIMED_OUT)
    assert ruling.answer is (CONFIRMED if bar is None else INCONCLUSIVE)
    assert bar is None or bar in ruling.cause


@pytest.mark.parametrize(("verdict", "policy", "bar"), [p for p in BARS if "held" in str(p.id)])
def test_a_bar_never_stops_a_veto(verdict: Verdict, policy: Policy, bar: str | None) -> None:
    assert asked(verdict, {}, OWN | {"usage": 0.0}, policy).answer is VETOED


@pytest.mark.parametrize(
    ("canary", "words"),
    [
        row(Canary(Outcome.REJECTED, 0.1, 401, "Unauthorized"), "HTTP 401 (Unauthorized)", id="4xx"),
        row(Canary(Outcome.REJECTED, 0.1, 404), "was rejected with HTTP 404", id="4xx-silent"),
        row(Canary(Outcome.FAILED, 0.1, 500, "EngineDead"), "failed with HTTP 500", id="5xx"),
        row(Canary(Outcome.FAILED, 0.1, 200, "an answer without a token"), "without a token", id="no-token"),
        row(Canary(Outcome.UNREACHABLE, 0.1, None, "the connection was refused"), "refused", id="refused"),
    ],
)
@pytest.mark.parametrize(
    "verdict",
    [HELD_IDLE, HELD_FLOOR, DEFERRED, DEADLOCK, NO_PROGRESS, STRANDED],
    ids=lambda v: v.signature_name,
)
def test_what_proves_nothing(verdict: Verdict, canary: Canary, words: str) -> None:
    """Also where the gauge fell meanwhile: nothing made the engine step."""
    for after in (around(verdict), around(verdict) | {"usage": 0.0}):
        ruling = asked(verdict, around(verdict), after, POLICY, canary)
        assert (ruling.answer, ruling.restart_hold) == (INCONCLUSIVE, False)
        assert words in ruling.cause
        assert ruling.cause.endswith("which proves nothing")


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        row(sample(301.0, 0.82), [], "no reading", id="no-reading"),
        row(
            sample(301.0, 0.82),
            [Sample(302.0, "decode-3", blind="it redirects")],
            "it redirects",
            id="blind-after",
        ),
        row(sample(301.0, None), [sample(302.0, 0.82, **OWN)], "usage is missing", id="blind-before"),
        row(
            sample(301.0, 0.82),
            [sample(302.0, 0.0, process_start=301.5)],
            "restarted meanwhile",
            id="restarted",
        ),
        row(
            sample(301.0, 0.82),
            [sample(302.0, 0.0, generation_tokens=1.0)],
            "restarted meanwhile",
            id="counters-fell",
        ),
    ],
)
@pytest.mark.parametrize(
    "verdict", [HELD_IDLE, HELD_FLOOR, DEADLOCK, NO_PROGRESS], ids=lambda v: v.signature_name
)
def test_an_answer_to_an_engine_that_could_not_be_read_or_restarted(
    verdict: Verdict, before: Sample, after: Sequence[Sample], words: str
) -> None:
    ruling = judge(verdict, Evidence(FINISHED, before, after, True, Paused.NO), POLICY)
    assert (ruling.answer, ruling.restart_hold) == (INCONCLUSIVE, False)
    assert words in ruling.cause


def test_only_the_newest_reading_counts_after_an_answer() -> None:
    """The first page after the answer may still be the old one."""
    stale, fresh = sample(301.5, 0.82), sample(302.0, 0.0, **OWN)
    ruling = judge(
        HELD_IDLE, Evidence(FINISHED, sample(301.0, 0.82), [stale, fresh], True, Paused.NO), POLICY
    )
    assert ruling.answer is VETOED
