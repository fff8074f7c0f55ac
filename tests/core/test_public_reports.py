"""What people reported of their engines, as sequences: the numbers are theirs, the judgement is ours."""

from __future__ import annotations

import pytest

from stanch.core.answers import answer
from stanch.core.confirm import Canary, Evidence, Outcome, Paused, judge
from stanch.core.detector import step
from stanch.core.policy import Policy, lease_of_version
from stanch.core.sample import Role
from stanch.core.verdict import Answer, Signature, State, Verdict
from tests.core.build import POLICY, every, last, run, sample

pytestmark = pytest.mark.unit

FINISHED = Canary(Outcome.FINISHED, 0.2, 200, "", 1.0, 1.0)
SERVED = {"generation_tokens": 1001.0, "prompt_tokens": 5001.0, "iterations": 901.0, "finished": 11.0}


def is_fault(verdict: Verdict, signature: Signature) -> bool:
    return verdict.state is State.FAULT and verdict.signature is signature


@pytest.mark.parametrize("usage", [0.73, 0.79, 0.85])
def test_decodes_that_hold_most_of_the_cache_for_half_an_hour(usage: float) -> None:
    verdicts = run(every(5, 0, 1800, usage))[1]
    assert all(is_fault(v, Signature.HELD_IDLE) for v in verdicts if v.t >= 60)


def test_five_or_six_wait_with_an_empty_cache_while_health_is_200() -> None:
    """Of a vLLM without the reasons of waiting."""
    samples = [sample(5.0 * i, 0.0, 0, 5 + i % 2, waiting_deferred=None) for i in range(60)]
    assert is_fault(last(samples), Signature.QUEUE_DEADLOCK)


def test_frozen_gauges_after_every_client_left_are_cured_by_the_next_request() -> None:
    state, verdicts = run(every(5, 0, 300, 0.904, 106, 15))
    assert is_fault(verdicts[-1], Signature.NO_PROGRESS)
    before, after = sample(301, 0.904, 106, 15), sample(303, 0.0, 0, 0, **SERVED)
    ruling = judge(verdicts[-1], Evidence(FINISHED, before, [after], True, Paused.NOT_SERVED), POLICY)
    assert ruling.answer is Answer.VETOED
    state, verdict = answer(state, ruling.answer, ruling.cause)
    assert (verdict.state, verdict.signature) == (State.HEALTHY, Signature.STALE_GAUGE)
    assert step(state, sample(305, 0.0, 0, 0, **SERVED), POLICY)[1].state is State.HEALTHY


def test_a_prefill_of_an_old_version_pins_its_blocks_for_480_seconds() -> None:
    policy = Policy(lease_seconds=lease_of_version((0, 11)))
    verdicts = run(every(5, 0, 475, 0.6), policy, Role.PREFILL, quiet=9999.0)[1]
    assert all(v.state is not State.FAULT for v in verdicts)


def test_an_idle_engine_that_frees_only_at_its_next_request() -> None:
    state, verdicts = run(every(5, 0, 60, 0.4))
    assert is_fault(verdicts[-1], Signature.HELD_IDLE)
    evidence = Evidence(FINISHED, sample(61, 0.4), [sample(62, 0.0, **SERVED)], True, Paused.NOT_SERVED)
    ruling = judge(verdicts[-1], evidence, POLICY)
    assert ruling.answer is Answer.VETOED
    assert answer(state, ruling.answer, ruling.cause)[1].state is State.HEALTHY


def test_requests_wait_with_a_full_cache_and_none_is_deferred() -> None:
    assert is_fault(last(every(5, 0, 120, 1.0, 0, 12, waiting_deferred=0.0)), Signature.QUEUE_DEADLOCK)


def test_a_worker_hangs_with_requests_running() -> None:
    busy = [sample(5.0 * i, 0.3, 4, generation_tokens=1000.0 + i, iterations=900.0 + i) for i in range(12)]
    hung = every(5, 60, 360, 0.37, 4, generation_tokens=1011.0, iterations=911.0)
    verdicts = run([*busy, *hung])[1]
    assert next(v.t for v in verdicts if v.state is State.FAULT) == 360
    assert is_fault(verdicts[-1], Signature.NO_PROGRESS)
