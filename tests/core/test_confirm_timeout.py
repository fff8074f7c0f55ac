"""The design's "Confirmation": when a canary that gets no answer is proof, and when it is none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from stanch.core.confirm import Canary, Evidence, Outcome, Paused, judge
from stanch.core.sample import Lifecycle, Role, Sample
from stanch.core.verdict import Answer, Signature, State, Verdict
from tests.core.build import POLICY, sample

pytestmark = pytest.mark.unit
row = pytest.param

TIMED_OUT = Canary(Outcome.TIMED_OUT, 30.0)
NO_PROGRESS = Verdict(300.0, "decode-3", Role.DECODE, State.FAULT, Signature.NO_PROGRESS, 300.0)
STILL = sample(301.0, 0.82, 4)


@pytest.mark.parametrize(
    ("before", "after", "health_ok", "paused", "words"),
    [
        row(STILL, [STILL], True, Paused.NO, None, id="not-paused"),
        row(STILL, [STILL], True, Paused.NOT_SERVED, None, id="pause-routes-not-served"),
        row(STILL, [STILL], False, Paused.NO, "/health did not answer", id="no-health"),
        row(STILL, [STILL], True, Paused.YES, "is paused", id="paused"),
        row(STILL, [STILL], True, Paused.UNKNOWN, "could not be found out", id="pause-unknown"),
        row(STILL, [], True, Paused.NO, "could not be read", id="no-reading"),
        row(
            STILL,
            [Sample(302.0, "decode-3", blind="refused")],
            True,
            Paused.NO,
            "could not be read",
            id="blind-after",
        ),
        row(
            Sample(301.0, "decode-3", blind="refused"),
            [STILL],
            True,
            Paused.NO,
            "could not be read",
            id="blind-before",
        ),
        row(
            STILL,
            [sample(302.0, 0.83, 4), STILL],
            True,
            Paused.NO,
            "was working",
            id="usage-rose-in-the-middle",
        ),
        row(STILL, [sample(302.0, 0.82, 4, iterations=901.0)], True, Paused.NO, "was working", id="iterated"),
        row(
            STILL,
            [sample(302.0, 0.82, 4, prompt_tokens=5001.0)],
            True,
            Paused.NO,
            "was working",
            id="read-a-prompt",
        ),
        row(
            STILL,
            [sample(302.0, 0.82, 4, generation_tokens=1001.0)],
            True,
            Paused.NO,
            "was working",
            id="made-a-token",
        ),
        row(STILL, [sample(302.0, 0.82, 4, waiting=1)], True, Paused.NO, None, id="the-canary-waits"),
        row(
            replace(STILL, iterations=None),
            [replace(STILL, iterations=None)],
            True,
            Paused.NO,
            "long prefill",
            id="iterations-absent",
        ),
        row(
            STILL, [replace(STILL, iterations=None)], True, Paused.NO, "long prefill", id="iterations-vanish"
        ),
        row(
            replace(STILL, iterations=-1.0),
            [replace(STILL, iterations=-1.0)],
            True,
            Paused.NO,
            "long prefill",
            id="iterations-negative",
        ),
        row(
            STILL, [sample(302.0, 0.82, 4, process_start=200.0)], True, Paused.NO, "restarted", id="restarted"
        ),
        row(
            STILL,
            [replace(STILL, lifecycle=Lifecycle.PAUSED)],
            True,
            Paused.NOT_SERVED,
            "is paused",
            id="paused-by-its-gauge",
        ),
        row(
            STILL,
            [replace(STILL, lifecycle=Lifecycle.ASLEEP)],
            True,
            Paused.NOT_SERVED,
            "is asleep",
            id="asleep",
        ),
    ],
)
def test_a_canary_without_an_answer(
    before: Sample, after: Sequence[Sample], health_ok: bool, paused: Paused, words: str | None
) -> None:
    ruling = judge(NO_PROGRESS, Evidence(TIMED_OUT, before, after, health_ok, paused), POLICY)
    assert ruling.answer is (Answer.CONFIRMED if words is None else Answer.INCONCLUSIVE)
    assert ruling.cause.startswith("the canary had no answer within 30 s")
    assert (words or "nothing moved") in ruling.cause
