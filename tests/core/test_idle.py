"""The rare idle canary: who gets one, and what its silence makes of an engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from stanch.core.answers import answer
from stanch.core.detector import EngineState, step
from stanch.core.fleet import CordonMark, Fleet
from stanch.core.idle import AT_ONCE, about, silent, whom
from stanch.core.plan_limits import Limits, Mode
from stanch.core.policy import Policy
from stanch.core.report import sentence
from stanch.core.sample import Lifecycle, Role, Sample
from stanch.core.verdict import Answer, Signature, State, Verdict
from tests.core.plan_world import START, Sim, World

pytestmark = pytest.mark.unit
row = pytest.param

HOURLY = Limits(idle_every_seconds=3600.0)
IDLE = Verdict(START, "d1", Role.DECODE, State.HEALTHY, idle_seconds=4000.0, usage=0.0, running=0, waiting=0)
PAGE = Sample(START, "d1", usage=0.0, running=0, waiting=0, generation_tokens=7, iterations=9)


def asked(
    verdict: Verdict = IDLE,
    sample: Sample = PAGE,
    *,
    limits: Limits = HOURLY,
    sim: Sim | None = None,
    busy: frozenset[str] = frozenset(),
    before: float | None = None,
    stop: str | None = None,
) -> list[str]:
    fleet = replace(World({"d1": sim or Sim("d1")}).facts(), stop=stop)
    last = {} if before is None else {"d1": START - before}
    return whom(fleet, [(verdict, sample)], busy, limits, last, START)


@pytest.mark.parametrize(
    ("how", "due"),
    [
        row(lambda: asked(), True, id="idle for long enough"),
        row(lambda: asked(replace(IDLE, idle_seconds=3599.0)), False, id="not for long enough"),
        row(lambda: asked(before=3600.0), True, id="asked an hour ago"),
        row(lambda: asked(before=3599.0), False, id="asked less than an hour ago"),
        row(lambda: asked(limits=Limits()), False, id="nobody wants it"),
        row(lambda: asked(limits=replace(HOURLY, canary=False)), False, id="no canary allowed"),
        row(lambda: asked(limits=replace(HOURLY, mode=Mode.DISABLED)), False, id="disabled"),
        row(lambda: asked(stop="somebody said so"), False, id="all is stopped"),
        row(lambda: asked(replace(IDLE, running=1)), False, id="a request runs"),
        row(lambda: asked(replace(IDLE, waiting=1)), False, id="a request waits"),
        row(lambda: asked(replace(IDLE, running=None)), False, id="running is not known"),
        row(lambda: asked(replace(IDLE, state=State.SUSPECT)), False, id="a suspect is asked otherwise"),
        row(lambda: asked(replace(IDLE, state=State.BLIND)), False, id="blind"),
        row(lambda: asked(replace(IDLE, lifecycle=Lifecycle.ASLEEP)), False, id="asleep"),
        row(lambda: asked(replace(IDLE, role=Role.PREFILL)), False, id="a prefill"),
        row(lambda: asked(replace(IDLE, role=Role.UNKNOWN)), False, id="a role that is not known"),
        row(lambda: asked(sample=replace(PAGE, generation_tokens=0)), False, id="no token yet"),
        row(lambda: asked(sample=replace(PAGE, generation_tokens=None)), False, id="tokens not known"),
        row(lambda: asked(busy=frozenset({"d1"})), False, id="an incident is open"),
        row(lambda: asked(sim=Sim("d1", not_ready=True)), False, id="not ready"),
        row(lambda: asked(sim=Sim("d1", leaving="a rollout")), False, id="leaving"),
        row(lambda: asked(sim=Sim("d1", conflict="another watch")), False, id="a conflict"),
        row(lambda: asked(sim=Sim("d1", cordon=CordonMark("me", 0))), False, id="cordoned by somebody"),
        row(lambda: asked(sim=Sim("d9")), False, id="of no unit"),
    ],
)
def test_who_gets_one(how: Callable[[], list[str]], due: bool) -> None:
    assert how() == (["d1"] if due else [])


def test_a_few_at_a_time_those_idle_for_longest_first() -> None:
    names = [f"d{n}" for n in range(10)]
    facts = World({name: Sim(name) for name in names}).facts()
    found = [
        (replace(IDLE, engine=name, idle_seconds=4000.0 + n), replace(PAGE, engine=name))
        for n, name in enumerate(names)
    ]
    assert whom(facts, found, (), HOURLY, {}, START) == ["d9", "d8", "d7", "d6"]
    assert AT_ONCE == 4
    just = dict.fromkeys(["d9", "d8"], START)
    assert whom(facts, found, (), HOURLY, just, START) == ["d7", "d6", "d5", "d4"]


def test_a_fleet_that_is_mostly_blind_is_left_alone() -> None:
    facts = World({name: Sim(name) for name in ("d1", "d2", "d3")}).facts()
    blind = [(replace(IDLE, engine=name, state=State.BLIND), PAGE) for name in ("d2", "d3")]
    assert whom(facts, [(IDLE, PAGE), *blind], (), HOURLY, {}, START) == []
    assert whom(facts, [(IDLE, PAGE), blind[0]], (), HOURLY, {}, START) == ["d1"]
    assert whom(Fleet((), START), [], (), HOURLY, {}, START) == []


# What silence makes of it

POLICY = Policy()
IDLES = replace(PAGE, t=0.0, usage=0.01, prompt_tokens=3)


def at(t: float, **more: object) -> Sample:
    return replace(IDLES, t=t, **more)  # type: ignore[arg-type]


def unanswered() -> EngineState:
    """Idle for a while; a canary of t = 10 had no answer within its 30 s."""
    state = EngineState()
    for t in (0.0, 5.0, 10.0, 15.0, 20.0, 25.0, 30.0, 35.0, 40.0):
        state, verdict = step(state, at(t), POLICY)
        assert verdict.state is State.HEALTHY
    return silent(state, 10.0)


def after(*samples: Sample) -> list[tuple[State, Signature | None]]:
    state, found = unanswered(), []
    for sample in samples:
        state, verdict = step(state, sample, POLICY)
        found.append((verdict.state, verdict.signature))
    return found


FAULT = (State.FAULT, Signature.NO_PROGRESS)
WELL = (State.HEALTHY, None)


def test_a_canary_without_an_answer_is_a_fault_as_long_as_nothing_moves() -> None:
    assert after(at(45.0), at(50.0), at(55.0)) == [FAULT, FAULT, FAULT]


@pytest.mark.parametrize(
    "moved",
    [
        {"generation_tokens": 8},
        {"prompt_tokens": 4},
        {"iterations": 10},
        {"usage": 0.02},
        {"waiting": 1, "waiting_deferred": 0},
        {"generation_tokens": 1},
    ],
    ids=["a token", "a prompt token", "an iteration", "a block", "a request waits", "another process"],
)
def test_whatever_moves_ends_it(moved: dict[str, object]) -> None:
    still = {key: value for key, value in moved.items() if key not in ("waiting", "waiting_deferred")}
    first, second = after(at(45.0, **moved), at(50.0, **still))
    assert first != FAULT
    assert second != FAULT


@pytest.mark.parametrize(
    "between",
    [Sample(45.0, "d1", blind="refused"), at(45.0, lifecycle=Lifecycle.ASLEEP)],
    ids=["blind", "asleep"],
)
def test_what_is_not_seen_to_stand_still_is_no_fault(between: Sample) -> None:
    assert after(between, at(50.0))[1] == WELL


def test_a_gap_ends_it() -> None:
    assert after(at(60.0)) == [WELL]


def test_an_answer_ends_it_at_once() -> None:
    state, _ = step(unanswered(), at(45.0), POLICY)
    state, verdict = answer(state, Answer.VETOED, "it answered a canary, so it does make progress")
    assert verdict.state is State.HEALTHY
    assert step(state, at(50.0), POLICY)[1].state is State.HEALTHY


def test_it_is_said_in_words() -> None:
    _, verdict = step(unanswered(), at(45.0), POLICY)
    assert (verdict.held_seconds, verdict.limit_seconds) == (35.0, 30.0)
    said = sentence(verdict)
    assert said.startswith("d1 is idle and has left a canary without an answer for 35 s (limit 30 s)")


def test_it_is_asked_whether_it_makes_progress_at_all() -> None:
    about_it = about(IDLE, POLICY)
    assert (about_it.state, about_it.signature, about_it.limit_seconds) == (*FAULT, 30.0)
