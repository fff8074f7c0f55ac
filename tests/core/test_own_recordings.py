"""Recordings of our own test bed (vLLM 0.29.0; how each was made: tests/data/recordings/README.md)."""

from __future__ import annotations

from pathlib import Path

import pytest

from stanch.core.policy import Policy
from stanch.core.report import sentence
from stanch.core.sample import Role
from stanch.core.verdict import Signature, State, Verdict
from stanch.edge.replay import judge, read_recording

pytestmark = pytest.mark.unit

RECORDINGS = Path(__file__).parents[1] / "data" / "recordings" / "0.29.0-own"
HOLD = Policy().with_hold(10)


def replayed(name: str, policy: Policy = HOLD) -> list[tuple[str, Verdict]]:
    lines = read_recording(str(RECORDINGS / f"{name}.jsonl.gz"))
    return [(line.scenario or "", verdict) for line, verdict in judge(lines, policy, Role.DECODE)]


def test_a_worker_frozen_while_requests_run_is_no_progress() -> None:
    found = replayed("worker_frozen")
    faults = [(scenario, v.signature) for scenario, v in found if v.state is State.FAULT]
    assert set(faults) == {("worker_frozen", Signature.NO_PROGRESS)}
    frozen = [v for scenario, v in found if scenario == "worker_frozen"]
    assert frozen[-1].state is State.FAULT
    assert all(v.state is State.HEALTHY for scenario, v in found if scenario != "worker_frozen")


def test_a_chunked_prefill_longer_than_the_hold_is_nothing() -> None:
    assert {v.state for _, v in replayed("chunked_prefill")} == {State.HEALTHY}


def test_pinned_turns_are_nothing_where_the_pin_is_known() -> None:
    policy = Policy(kv_pin_seconds=60).with_hold(10)
    found = replayed("bidirectional_pinned", policy)
    assert all(v.state is not State.FAULT for _, v in found)
    assert any(v.signature is Signature.HELD_IDLE and v.held_seconds > 40 for _, v in found)
    # The default pin of vLLM, which is what is reckoned with where nothing is known.
    assert all(
        v.state is not State.FAULT for _, v in replayed("bidirectional_pinned", Policy(kv_pin_seconds=480))
    )


def test_of_two_ranks_the_leaking_one_alone_is_a_fault() -> None:
    found = [v for _, v in replayed("data_parallel_leak")]
    assert {v.engine for v in found} == {"0", "1"}
    assert {v.state for v in found if v.engine == "0"} == {State.HEALTHY}
    last = [v for v in found if v.engine == "1"][-1]
    assert (last.state, last.signature) == (State.FAULT, Signature.HELD_IDLE)


def test_waiting_for_a_grammar_is_nothing_while_shorter_than_the_hold() -> None:
    assert all(v.state is not State.FAULT for _, v in replayed("grammar_wait", Policy().with_hold(40)))


def test_a_longer_wait_for_a_grammar_is_a_stall_whose_sentence_names_it() -> None:
    faults = [v for _, v in replayed("grammar_wait") if v.state is State.FAULT]
    assert {v.signature for v in faults} == {Signature.DEFERRED_STALL}
    assert all(word in sentence(faults[-1]) for word in ("grammar", "LoRA", "streaming session"))
