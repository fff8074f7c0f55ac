"""Samples in, verdicts out: the signatures, their holds, and the laws of the detector."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from stanch.core.answers import answer, ask
from stanch.core.detector import EngineState, step
from stanch.core.phases import TRANSITIONS, Event, IllegalTransitionError, Phase, advance
from stanch.core.policy import Policy
from stanch.core.sample import Lifecycle, Role
from stanch.core.verdict import Answer, Cap, Signature, State
from tests.core.build import POLICY, every, last, run, sample

pytestmark = pytest.mark.unit

IDLE_LEAK = {"usage": 0.82}


@pytest.mark.parametrize(
    ("reading", "seconds", "signature"),
    [
        pytest.param({"usage": 0.82}, 60, Signature.HELD_IDLE, id="held-idle"),
        pytest.param({"usage": 0.05}, 60, Signature.HELD_IDLE, id="held-idle-at-the-floor"),
        pytest.param(
            {"usage": 0.3, "waiting": 3, "waiting_deferred": 3.0},
            120,
            Signature.DEFERRED_STALL,
            id="deferred",
        ),
        pytest.param(
            {"usage": 0.0, "waiting": 1, "waiting_deferred": 1.0}, 120, Signature.DEFERRED_STALL, id="grammar"
        ),
        pytest.param(
            {"usage": 0.3, "waiting": 3, "waiting_deferred": None},
            120,
            Signature.DEFERRED_STALL,
            id="no-reasons",
        ),
        pytest.param(
            {"usage": 0.9, "waiting": 1, "waiting_deferred": 0.0},
            120,
            Signature.QUEUE_DEADLOCK,
            id="capacity",
        ),
        pytest.param(
            {"usage": 0.9, "waiting": 4, "waiting_deferred": 3.0},
            120,
            Signature.QUEUE_DEADLOCK,
            id="one-of-four",
        ),
        pytest.param(
            {"usage": 0.0, "waiting": 5, "waiting_deferred": None},
            120,
            Signature.QUEUE_DEADLOCK,
            id="empty-cache",
        ),
        pytest.param({"usage": 0.4, "running": 7}, 300, Signature.NO_PROGRESS, id="no-progress"),
        pytest.param(
            {"usage": 0.0, "running": 1, "generation_tokens": 0.0},
            900,
            Signature.NO_PROGRESS,
            id="warming-up",
        ),
    ],
)
def test_it_is_a_fault_from_its_hold_on_and_not_before(
    reading: dict[str, Any], seconds: int, signature: Signature
) -> None:
    before = last(every(5, 0, seconds - 5, **reading))
    assert (before.state, before.signature) == (State.SUSPECT, signature)
    at = last(every(5, 0, seconds, **reading))
    assert (at.state, at.signature, at.held_seconds) == (State.FAULT, signature, seconds)
    assert at.limit_seconds == seconds


@pytest.mark.parametrize(
    "reading",
    [
        pytest.param({"usage": 0.049}, id="under-the-floor"),
        pytest.param({"usage": 0.9, "running": 3, "iterations": None}, id="running-without-iterations"),
        pytest.param({"usage": 0.9, "lifecycle": Lifecycle.ASLEEP}, id="asleep"),
        pytest.param({"usage": 0.9, "waiting": 3, "lifecycle": Lifecycle.PAUSED}, id="paused"),
        pytest.param({"usage": 0.9, "running": 3, "lifecycle": Lifecycle.DRAINING}, id="draining"),
        pytest.param({"usage": 0.9, "lifecycle": Lifecycle.LOADING}, id="loading"),
    ],
)
def test_it_is_healthy_for_ever(reading: dict[str, Any]) -> None:
    assert {v.state for v in run(every(5, 0, 2000, **reading))[1]} == {State.HEALTHY}


@pytest.mark.parametrize("bad", [math.nan, -1.0, math.inf], ids=["nan", "negative", "inf"])
def test_an_optional_value_that_makes_no_sense_is_absent(bad: float) -> None:
    verdict = last(every(5, 0, 120, 0.3, 0, 3, waiting_deferred=bad))
    assert (verdict.state, verdict.signature, verdict.deferred) == (
        State.FAULT,
        Signature.DEFERRED_STALL,
        None,
    )


def test_one_look_is_never_more_than_a_suspicion() -> None:
    policy = POLICY.with_hold(1)
    for reading in ({"usage": 1.0}, {"usage": 0.3, "waiting": 3, "waiting_deferred": 3.0}, {"waiting": 9}):
        assert last([sample(0, **reading)], policy).state is State.SUSPECT
    assert last([sample(0, usage=1.0, running=3)], policy).state is State.HEALTHY


MISSING_OR_WRONG = [
    pytest.param({"usage": None}, "usage is missing", id="no-usage"),
    pytest.param({"running": None}, "running is missing", id="no-running"),
    pytest.param({"waiting": None}, "waiting is missing", id="no-waiting"),
    pytest.param(
        {"generation_tokens": None, "prompt_tokens": None}, "token counters are missing", id="no-tokens"
    ),
    pytest.param({"generation_tokens": math.nan, "prompt_tokens": None}, "counter is nan", id="nan-tokens"),
    pytest.param({"usage": math.nan}, "usage is nan", id="nan-usage"),
    pytest.param({"usage": math.inf}, "usage is inf", id="inf-usage"),
    pytest.param({"usage": -0.1}, "usage is negative", id="negative-usage"),
    pytest.param({"usage": 1.2}, "more than the whole cache", id="usage-above-one"),
    pytest.param({"usage": 82.0}, "more than the whole cache", id="usage-in-per-cent"),
    pytest.param({"running": -1}, "running is negative", id="negative-running"),
    pytest.param({"waiting": math.nan}, "waiting is nan", id="nan-waiting"),
    pytest.param({"blind": "the connection was refused"}, "refused", id="no-page"),
    pytest.param({"age_seconds": 16.0}, "16 s old", id="stale"),
]


@pytest.mark.parametrize(("reading", "cause"), MISSING_OR_WRONG)
def test_missing_is_never_zero(reading: dict[str, Any], cause: str) -> None:
    bad = last([*every(5, 0, 55, **IDLE_LEAK), sample(60, **{**IDLE_LEAK, **reading})])
    assert (bad.state, bad.signature, bad.held_seconds) == (State.BLIND, Signature.BLIND, 0)
    assert bad.cause is not None
    assert cause in bad.cause
    assert (bad.usage, bad.running, bad.waiting) == (None, None, None)


@pytest.mark.parametrize("counter", ["generation_tokens", "prompt_tokens"])
def test_one_token_counter_is_enough(counter: str) -> None:
    assert last(every(5, 0, 60, **{**IDLE_LEAK, counter: None})).state is State.FAULT


def test_time_in_blind_does_not_count() -> None:
    samples = [*every(5, 0, 50, **IDLE_LEAK), sample(55, usage=None), *every(5, 60, 70, **IDLE_LEAK)]
    _, verdicts = run(samples)
    # 50 s before; the ten seconds around the blind reading do not count; then 10 s.
    assert (verdicts[-1].state, verdicts[-1].held_seconds) == (State.FAULT, 60)
    assert verdicts[-2].state is State.SUSPECT


@pytest.mark.parametrize(
    ("pause", "held"), [(15.0, 65.0), (15.5, 0.0)], ids=["three-intervals", "a-little-more"]
)
def test_a_gap_over_three_intervals_restarts_the_hold(pause: float, held: float) -> None:
    after = last([*every(5, 0, 50, **IDLE_LEAK), sample(50 + pause, **IDLE_LEAK)])
    assert after.held_seconds == held
    assert after.signature is Signature.HELD_IDLE


@pytest.mark.parametrize("counter", ["generation_tokens", "prompt_tokens"])
def test_a_token_restarts_the_hold(counter: str) -> None:
    more = {counter: 9000.0}
    _, verdicts = run([*every(5, 0, 100, **IDLE_LEAK), *every(5, 105, 165, **IDLE_LEAK, **more)])
    assert verdicts[20].state is State.FAULT
    assert (verdicts[21].state, verdicts[21].held_seconds) == (State.HEALTHY, 0)
    assert verdicts[-1].held_seconds == 60


@pytest.mark.parametrize(
    "restart",
    [
        pytest.param({"process_start": 500.0}, id="start-time"),
        pytest.param({"generation_tokens": 0.0}, id="falling-counter"),
        pytest.param({"finished": 3.0}, id="falling-requests"),
        pytest.param({"container_id": "b"}, id="container"),
    ],
)
def test_a_restart_forgets_everything(restart: dict[str, Any]) -> None:
    before = every(5, 0, 100, **{**IDLE_LEAK, "container_id": "a"})
    state, verdicts = run([*before, sample(105, **{**IDLE_LEAK, **restart})])
    assert verdicts[-2].state is State.FAULT
    assert (verdicts[-1].state, verdicts[-1].held_seconds) == (State.SUSPECT, 0)
    assert state.restarted_t == 105
    assert state.floor.held == 0


def test_an_older_reading_is_blind_and_the_same_one_changes_nothing() -> None:
    state, verdicts = run(every(5, 0, 60, **IDLE_LEAK))
    same, verdict = step(state, state.seen or sample(0), POLICY)
    assert same is state
    assert verdict == verdicts[-1]
    assert step(state, sample(60, **IDLE_LEAK), POLICY)[1].state is State.BLIND
    assert step(state, sample(30, **IDLE_LEAK), POLICY)[1].state is State.BLIND


def test_several_engines_behind_one_address_are_no_engine() -> None:
    samples = [sample(5.0 * i, usage=0.5, process_start=float(1 + 99 * (i % 2))) for i in range(20)]
    _, verdicts = run(samples)
    assert all(v.state is not State.FAULT for v in verdicts)
    assert verdicts[-1].state is State.BLIND
    assert "several engines" in (verdicts[-1].cause or "")


def test_a_fault_outlives_one_reading_in_which_nothing_moved() -> None:
    stuck = every(5, 0, 120, usage=0.9, waiting=1)
    _, verdicts = run([*stuck, *every(5, 125, 130, usage=0.9)])
    assert [(v.state, v.signature) for v in verdicts[-3:]] == [
        (State.FAULT, Signature.QUEUE_DEADLOCK),
        (State.FAULT, Signature.QUEUE_DEADLOCK),
        (State.SUSPECT, Signature.HELD_IDLE),
    ]
    assert [v.spared for v in verdicts[-3:]] == [False, True, False]


@pytest.mark.parametrize(
    "reading",
    [
        pytest.param({"usage": 0.0}, id="freed"),
        pytest.param({"usage": 0.5}, id="freed-in-part"),
        pytest.param({"usage": 0.9, "generation_tokens": 1001.0}, id="a-token"),
        pytest.param({"usage": 0.9, "lifecycle": Lifecycle.ASLEEP}, id="asleep"),
    ],
)
def test_a_sign_of_life_ends_a_fault_at_once(reading: dict[str, Any]) -> None:
    assert last([*every(5, 0, 120, usage=0.9, waiting=1), sample(125, **reading)]).state is not State.FAULT


class TestHeldFloor:
    """A leak under traffic: tokens move, yet no idle moment shows the cache free."""

    @staticmethod
    def traffic(start: float, end: float, low: float, every_n: int = 3) -> list[Any]:
        """Readings every 5 s: every third one idle with usage `low`, the others running above it."""
        found = []
        for i in range(int((end - start) / 5) + 1):
            t = start + 5 * i
            idle = i % every_n == 0
            found.append(
                sample(
                    t,
                    low if idle else low + 0.2,
                    0 if idle else 2,
                    generation_tokens=1000.0 + t,
                    iterations=t,
                )
            )
        return found

    def test_it_is_found_in_a_quarter_of_an_hour(self) -> None:
        _, verdicts = run(self.traffic(0, 1000, 0.3))
        faults = [v for v in verdicts if v.state is State.FAULT]
        assert faults[0].signature is Signature.HELD_FLOOR
        assert faults[0].t == 900
        assert faults[0].floor_usage == pytest.approx(0.3)
        assert faults[0].readings == 61

    def test_one_idle_reading_under_the_floor_starts_it_anew(self) -> None:
        samples = [
            *self.traffic(0, 600, 0.3),
            sample(605, 0.0, 0, generation_tokens=1603.0),
            *self.traffic(610, 1500, 0.3),
        ]
        assert all(v.state is not State.FAULT for v in run(samples)[1])

    def test_too_few_idle_readings_are_no_proof(self) -> None:
        assert all(v.state is not State.FAULT for v in run(self.traffic(0, 3000, 0.3, every_n=60))[1])

    def test_the_window_holds_exactly_its_readings(self) -> None:
        """One idle reading 895 s before the last, nineteen at the end: twenty in the window."""
        idle_at = {1000, *range(1500, 1595, 5)}
        samples = [
            sample(float(t), 0.3, int(t not in idle_at), generation_tokens=1000.0 + t, iterations=float(t))
            for t in range(0, 1905, 5)
        ]
        found = {v.t: v.state for v in run(samples)[1]}
        assert (found[1590], found[1895], found[1900]) == (State.FAULT, State.FAULT, State.FAULT)
        assert run([*samples[:-1], replace(samples[-1], t=1905.0)])[1][-1].state is State.SUSPECT

    @pytest.mark.parametrize("interval", [2.0, 5.0, 60.0])
    def test_a_window_that_is_shorter_than_its_readings_is_as_long_as_those(self, interval: float) -> None:
        """--hold-seconds 10 with an --interval of which ten seconds hold fewer than five readings."""
        policy = replace(Policy().with_hold(10), interval_seconds=interval)
        samples = [sample(i * interval, 0.3, generation_tokens=1000.0 + i) for i in range(7)]
        found = [v.t / interval for v in run(samples, policy)[1] if v.state is State.FAULT]
        assert found == [5, 6]

    def test_a_restart_starts_it_anew(self) -> None:
        after = [replace(s, process_start=700.0) for s in self.traffic(605, 1400, 0.3)]
        assert all(v.state is not State.FAULT for v in run([*self.traffic(0, 600, 0.3), *after])[1])

    def test_where_turns_are_pinned_it_stays_a_suspicion(self) -> None:
        verdict = last(self.traffic(0, 3000, 0.3), Policy(kv_pin_seconds=480))
        assert (verdict.state, verdict.cap) == (State.SUSPECT, Cap.MAY_BE_PINNED)


def test_a_pinned_turn_is_no_leak_before_its_pin_and_margin() -> None:
    policy = Policy(kv_pin_seconds=480)
    assert all(v.state is not State.FAULT for v in run(every(5, 0, 505, **IDLE_LEAK), policy)[1])
    assert last(every(5, 0, 510, **IDLE_LEAK), policy).state is State.FAULT


@pytest.mark.parametrize(("usage", "limit"), [(0.38, 510), (0.0, 120)], ids=["beside-pins", "nothing-pinned"])
def test_a_queue_may_wait_for_pinned_turns_to_run_out(usage: float, limit: int) -> None:
    verdict = last(every(5, 0, limit, usage, 0, 1), Policy(kv_pin_seconds=480))
    assert (verdict.state, verdict.signature) == (State.FAULT, Signature.QUEUE_DEADLOCK)
    assert last(every(5, 0, limit - 5, usage, 0, 1), Policy(kv_pin_seconds=480)).state is State.SUSPECT


@pytest.mark.parametrize("role", [Role.PREFILL, Role.BOTH])
@pytest.mark.parametrize(
    ("reading", "signature"),
    [
        pytest.param({"usage": 0.8}, Signature.PRODUCER_STRANDED, id="holding"),
        pytest.param(
            {"usage": 0.8, "waiting": 2, "waiting_deferred": 0.0}, Signature.QUEUE_DEADLOCK, id="queue"
        ),
    ],
)
@pytest.mark.parametrize(
    ("quiet", "state", "why"),
    [
        pytest.param(None, State.SUSPECT, Cap.NO_FLEET, id="decodes-unknown"),
        pytest.param(0.0, State.SUSPECT, Cap.DECODE_WAITS, id="a-decode-waits"),
        pytest.param(2000.0, State.FAULT, None, id="decodes-quiet"),
    ],
)
def test_a_producer_is_judged_with_its_decodes(
    role: Role,
    reading: dict[str, Any],
    signature: Signature,
    quiet: float | None,
    state: State,
    why: Cap | None,
) -> None:
    policy = Policy(lease_seconds=30)
    limit = 120 if signature is Signature.QUEUE_DEADLOCK else 60
    verdict = last(every(5, 0, limit, **reading), policy, role, quiet)
    assert (verdict.state, verdict.signature, verdict.cap) == (state, signature, why)
    early = last(every(5, 0, limit - 5, **reading), policy, role, 2000.0)
    assert early.state is State.SUSPECT


def test_a_prefill_within_its_lease_is_not_worth_a_word() -> None:
    policy = Policy(lease_seconds=30)
    verdicts = run(every(5, 0, 60, 0.4), policy, Role.PREFILL, 9999.0)[1]
    assert {v.state for v in verdicts if v.t < 30} == {State.HEALTHY}
    assert {v.state for v in verdicts if 30 <= v.t < 60} == {State.SUSPECT}
    assert verdicts[-1].state is State.FAULT


def test_a_producer_may_have_requests_deferred() -> None:
    reading = {"usage": 0.5, "waiting": 2, "waiting_deferred": 2.0}
    assert last(every(5, 0, 3000, **reading), POLICY, Role.PREFILL, 9999.0).state is State.HEALTHY


@pytest.mark.parametrize("reading", [{"usage": 0.8}, {"usage": 0.3, "waiting": 3}], ids=["holding", "queue"])
def test_without_a_role_it_is_never_more_than_a_suspicion(reading: dict[str, Any]) -> None:
    verdict = last(every(5, 0, 5000, **reading), POLICY, Role.UNKNOWN)
    assert (verdict.state, verdict.cap) == (State.SUSPECT, Cap.ROLE_UNKNOWN)


def test_a_queue_that_gives_blocks_back_moves() -> None:
    """One slow transfer after another: no single request waits for as long as something does."""
    waits = [sample(5.0 * i, 0.3 if (i // 12) % 2 else 0.2, 0, 2, waiting_deferred=2.0) for i in range(120)]
    assert all(v.state is not State.FAULT for v in run(waits)[1])


@pytest.mark.parametrize("role", [Role.DECODE, Role.PREFILL])
def test_blocks_that_are_given_back_start_the_hold_anew(role: Role) -> None:
    """Usage falls by one in a hundred every 5 s: pins, leases or slow transfers end one after another."""
    falling = [sample(5.0 * i, 0.6 - 0.01 * i) for i in range(55)]
    assert all(v.state is not State.FAULT for v in run(falling, Policy(lease_seconds=30), role, 9999.0)[1])
    stuck = every(5, 275, 340, 0.06)
    assert last([*falling, *stuck], Policy(lease_seconds=30), role, 9999.0).state is State.FAULT


def test_readings_too_far_apart_say_so() -> None:
    verdict = last([sample(0, **IDLE_LEAK), sample(4, **IDLE_LEAK)], Policy(interval_seconds=1))
    assert (verdict.state, verdict.held_seconds) == (State.SUSPECT, 0)
    assert "4 s ago, more than three intervals" in (verdict.cause or "")


def test_a_usage_that_is_rounded_above_one_is_one() -> None:
    assert last([sample(0, usage=1.0005)]).usage == 1


def test_a_long_chunked_prefill_is_nothing() -> None:
    """Neither tokens nor iterations move for ten minutes, but each chunk takes blocks."""
    samples = [sample(5.0 * i, 0.1 + 0.005 * (i // 3), 1) for i in range(120)]
    assert {v.state for v in run(samples)[1]} == {State.HEALTHY}


def test_two_equal_readings_of_a_busy_engine_are_not_worth_a_word() -> None:
    assert last(every(5, 0, 145, 0.4, 7)).state is State.HEALTHY
    assert last(every(5, 0, 150, 0.4, 7)).state is State.SUSPECT


class TestAnswers:
    def fault(self) -> EngineState:
        return run(every(5, 0, 60, **IDLE_LEAK))[0]

    def test_a_confirmed_fault_stays_one_and_says_so(self) -> None:
        state, verdict = answer(self.fault(), Answer.CONFIRMED, "it said so")
        assert (verdict.state, verdict.confirmation) == (State.FAULT, Answer.CONFIRMED)
        _, after = step(state, sample(65, **IDLE_LEAK), POLICY)
        assert (after.state, after.confirmation, after.held_seconds) == (State.FAULT, Answer.CONFIRMED, 65)

    def test_a_veto_makes_it_healthy_and_restarts_the_hold(self) -> None:
        state, verdict = answer(self.fault(), Answer.VETOED, "the gauge was stale")
        assert (verdict.state, verdict.signature) == (State.HEALTHY, Signature.STALE_GAUGE)
        _, after = step(state, sample(65, **IDLE_LEAK), POLICY)
        assert (after.state, after.held_seconds, after.confirmation) == (State.SUSPECT, 0, None)

    def test_a_gap_ends_a_confirmation(self) -> None:
        """What was confirmed is the hold before it."""
        state, _ = answer(self.fault(), Answer.CONFIRMED, "it said so")
        _, after = step(state, sample(600, **IDLE_LEAK), POLICY)
        assert (after.state, after.held_seconds, after.confirmation) == (State.SUSPECT, 0, None)

    @pytest.mark.parametrize(("restart", "held"), [(False, 65), (True, 0)], ids=["unchanged", "weaker"])
    def test_an_inconclusive_answer_leaves_the_state(self, restart: bool, held: float) -> None:
        state, verdict = answer(self.fault(), Answer.INCONCLUSIVE, "HTTP 503", restart_hold=restart)
        assert (verdict.state, verdict.confirmation) == (State.FAULT, Answer.INCONCLUSIVE)
        assert step(state, sample(65, **IDLE_LEAK), POLICY)[1].held_seconds == held

    def test_a_canary_is_no_progress(self) -> None:
        state = ask(self.fault(), 1, 1)
        own = {"generation_tokens": 1001.0, "prompt_tokens": 5001.0, "iterations": 901.0, "finished": 11.0}
        state, verdict = step(state, sample(65, **IDLE_LEAK, **own), POLICY)
        assert (verdict.state, verdict.held_seconds) == (State.FAULT, 65)
        # The next token is somebody's.
        own["generation_tokens"] = 1002.0
        assert step(state, sample(70, **IDLE_LEAK, **own), POLICY)[1].state is State.HEALTHY

    @pytest.mark.parametrize("what", list(Answer))
    @pytest.mark.parametrize(
        "samples", [[], [sample(0)], [sample(0, usage=None)]], ids=["new", "healthy", "blind"]
    )
    def test_there_is_nothing_to_answer(self, what: Answer, samples: list[Any]) -> None:
        state, _ = run(samples)
        with pytest.raises(IllegalTransitionError, match="cannot happen to an engine that is"):
            answer(state, what, "")
        assert state == run(samples)[0]


@pytest.mark.parametrize("phase", list(Phase))
@pytest.mark.parametrize("event", list(Event))
def test_every_transition_is_in_the_table_or_raises(phase: Phase, event: Event) -> None:
    if (phase, event) in TRANSITIONS:
        assert advance(phase, event) is TRANSITIONS[phase, event]
    else:
        with pytest.raises(IllegalTransitionError):
            advance(phase, event)


def test_the_state_of_an_engine_stays_small() -> None:
    """A day of the fullest history: every reading idle and above the floor."""
    state, sizes = EngineState(), []
    for i in range(17_280):
        moving = {"generation_tokens": 1000.0 + i, "iterations": 900.0 + i}
        state, _ = step(state, sample(5.0 * i, 0.3 + 0.0001 * (i % 7), 0, **moving), POLICY)
        sizes.append(len(state.floor.times) + len(state.trends.creep_lows))
    assert max(sizes) == POLICY.held_floor_readings + POLICY.creep_buckets
