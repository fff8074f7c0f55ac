"""The simulated scheduler: who holds blocks, what the gauges say, and that nothing else can happen."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stanch.edge.demo.scheduler import (
    MOVES,
    Ask,
    Gauges,
    IllegalMoveError,
    Phase,
    Remote,
    Request,
    Scheduler,
)

pytestmark = pytest.mark.unit

PEER = Remote("prefill", "cmpl-x-0-1", "127.0.0.1", 1)


def plain(name: str, blocks: int, tokens: int = 2) -> Ask:
    """A request that needs so many blocks for its prompt."""
    return Ask(name, blocks * 32 - tokens, tokens)


def pd(name: str, blocks: int, tokens: int = 2) -> Ask:
    return Ask(name, blocks * 32 - tokens, tokens, remote=PEER)


def stepped(scheduler: Scheduler, now: float = 0.0) -> Gauges:
    return shown(scheduler.step(now).gauges)


def shown(gauges: Gauges) -> Gauges:
    """Without the last bits of the usage, where a test is not about those."""
    return replace(gauges, usage=round(gauges.usage, 6))


def parked(scheduler: Scheduler, count: int, first: int = 0, *, defect: bool = True) -> list[str]:
    """So many parked requests of ten blocks."""
    names = [f"p{number}" for number in range(first, first + count)]
    if defect:
        scheduler.plant(count)
    for name in names:
        scheduler.submit(pd(name, 10), 0.0)
    stepped(scheduler)
    return names


class TestMeasuredStates:
    """The table of the lab's notes on vLLM 0.29.0: state, running, capacity, deferred, usage."""

    def test_idle_is_zero_exactly(self) -> None:
        assert stepped(Scheduler()) == Gauges(0, 0, 0, 0.0)

    def test_parked_with_clients_waiting(self) -> None:
        scheduler = Scheduler()
        parked(scheduler, 3)
        # To the last bit: vLLM computes 1 - free / all.
        assert scheduler.gauges == Gauges(0, 0, 3, 0.30000000000000004)

    def test_the_same_after_the_clients_gave_up(self) -> None:
        scheduler = Scheduler()
        for name in parked(scheduler, 3):
            scheduler.abort(name, 1.0)
        assert stepped(scheduler) == Gauges(0, 0, 0, 0.3)
        assert stepped(scheduler, now=1e6) == Gauges(0, 0, 0, 0.3)
        assert [held.phase for held in scheduler.of(Phase.ORPHAN)] == [Phase.ORPHAN] * 3

    def test_a_big_request_waits_for_capacity_and_a_small_one_passes(self) -> None:
        scheduler = Scheduler()
        for name in parked(scheduler, 9):
            scheduler.abort(name, 1.0)
        assert stepped(scheduler).usage == 0.9
        scheduler.submit(plain("big", 13), 2.0)
        assert stepped(scheduler) == Gauges(0, 1, 0, 0.9)
        scheduler.submit(plain("canary", 1, tokens=1), 3.0)
        assert [done.ask.id for done in scheduler.step(3.0).done] == ["canary"]
        assert shown(scheduler.gauges) == Gauges(0, 1, 0, 0.9)
        scheduler.abort("big", 4.0)
        assert stepped(scheduler) == Gauges(0, 0, 0, 0.9)


def test_a_plain_request_runs_to_its_end_and_frees() -> None:
    scheduler = Scheduler()
    scheduler.submit(plain("a", 2, tokens=3), 0.0)
    first = scheduler.step(0.1)
    assert [request.ask.id for request in first.first] == ["a"]
    assert shown(first.gauges) == Gauges(1, 0, 0, 0.02)
    assert scheduler.step(0.2).tokens == 1
    last = scheduler.step(0.3)
    assert [request.tokens for request in last.done] == [3]
    assert (scheduler.free, last.gauges) == (100, Gauges())
    assert not scheduler.busy


def test_a_pd_request_is_parked_read_and_run() -> None:
    scheduler = Scheduler()
    scheduler.submit(pd("a", 10, tokens=1), 0.0)
    step = scheduler.step(0.0)
    assert [(pull.ask.id, pull.blocks, pull.remote) for pull in step.pulls] == [("a", 10, PEER)]
    assert shown(step.gauges) == Gauges(0, 0, 1, 0.1)
    scheduler.pulled("a", 0.1)
    assert [request.ask.id for request in scheduler.step(0.1).done] == ["a"]
    assert scheduler.free == 100


def test_the_defect_is_a_pull_of_nothing_and_counts_down() -> None:
    scheduler = Scheduler()
    scheduler.plant(1)
    for name in ("a", "b"):
        scheduler.submit(pd(name, 10), 0.0)
    assert [pull.blocks for pull in scheduler.step(0.0).pulls] == [0, 10]
    assert scheduler.planted == 0


def test_the_defect_ends_so_long_after_the_first_that_met_it() -> None:
    scheduler = Scheduler()
    scheduler.plant(9, seconds=3.0)
    met: list[bool] = []
    for t in (100.0, 102.5, 103.5, 100.0):
        scheduler.submit(pd(f"at-{len(met)}", 10), t)
        met += [pull.blocks == 0 for pull in scheduler.step(t).pulls]
    assert met == [True, True, False, False]


def test_an_orphan_whose_read_is_reported_late_frees() -> None:
    """A thawed peer: only the defect's requests are never reported."""
    scheduler = Scheduler()
    (name,) = parked(scheduler, 1, defect=False)
    scheduler.abort(name, 1.0)
    assert stepped(scheduler).usage == 0.1
    scheduler.pulled(name, 2.0)
    assert stepped(scheduler).usage == 0.0


def test_a_failed_read_ends_the_request() -> None:
    scheduler = Scheduler()
    (name,) = parked(scheduler, 1, defect=False)
    scheduler.pull_failed(name, 1.0)
    assert stepped(scheduler) == Gauges()


@pytest.mark.parametrize(
    ("at", "read", "usage", "expired"),
    [
        pytest.param(29.9, False, 0.1, 0, id="within the lease: held"),
        pytest.param(30.0, False, 0.0, 1, id="at its end: freed and counted"),
        pytest.param(1.0, True, 0.0, 0, id="read: freed at once"),
    ],
)
def test_a_prefill_holds_until_read_or_expired(at: float, read: bool, usage: float, expired: int) -> None:
    scheduler = Scheduler()
    scheduler.submit(Ask("a", 319, 1, keep=True), 0.0)
    assert [request.ask.id for request in scheduler.step(0.0).done] == ["a"]
    assert shown(scheduler.gauges) == Gauges(0, 0, 0, 0.1)
    assert scheduler.next_expiry == 30.0
    assert scheduler.read("a", at) is True if read else not read
    step = scheduler.step(at)
    assert (shown(step.gauges).usage, step.expired) == (usage, expired)
    assert scheduler.read("a", at) is (usage > 0)


def test_gauges_change_on_a_step_only() -> None:
    scheduler = Scheduler()
    scheduler.submit(plain("a", 3), 0.0)
    stepped(scheduler)
    before = scheduler.gauges
    scheduler.abort("a", 1.0)
    assert scheduler.free == 100
    assert scheduler.gauges == before
    assert scheduler.busy, "the abort is shown by one more step"
    assert stepped(scheduler) == Gauges()


def test_who_does_not_fit_while_running_starts_again_later() -> None:
    scheduler = Scheduler(blocks=4)
    scheduler.submit(Ask("a", 64, 60), 0.0)
    scheduler.submit(Ask("b", 64, 60), 0.0)
    answered: list[str] = []
    preempted = 0
    for number in range(400):
        step = scheduler.step(float(number))
        answered += [request.ask.id for request in step.done]
        preempted += step.preempted
    assert sorted(answered) == ["a", "b"]
    assert preempted > 0
    assert scheduler.free == 4


def test_an_id_is_taken_once() -> None:
    scheduler = Scheduler()
    scheduler.submit(plain("a", 1), 0.0)
    with pytest.raises(ValueError, match="a exists"):
        scheduler.submit(plain("a", 1), 0.0)


@pytest.mark.parametrize(
    ("before", "after"),
    [(a, b) for a in Phase for b in Phase if b not in MOVES[a]],
    ids=lambda phase: phase.name.lower(),
)
def test_an_illegal_move_raises_and_changes_nothing(before: Phase, after: Phase) -> None:
    scheduler = Scheduler()
    request = Request(plain("a", 1), before, since=0.0, arrived=0.0, blocks=1)
    if before is not Phase.GONE:
        scheduler._requests["a"] = request
    untouched = copy.deepcopy(scheduler)
    with pytest.raises(IllegalMoveError):
        scheduler._move(request, after, 1.0)
    assert scheduler == untouched


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["plain", "pd", "keep", "defect", "abort", "pulled", "failed", "read", "step"]),
            st.integers(0, 9),
        ),
        max_size=60,
    )
)
@settings(max_examples=200, deadline=None)
def test_blocks_are_never_lost_or_made(moves: list[tuple[str, int]]) -> None:
    """Whatever happens in whatever order: 0 <= free <= all, and after all have left only orphans hold any."""
    scheduler = Scheduler(blocks=20, lease_seconds=5.0)
    for number, (move, which) in enumerate(moves):
        now, name = float(number), f"r{which}"
        if move in ("plain", "pd", "keep", "defect"):
            if move == "defect":
                scheduler.plant(1)
            remote = PEER if move in ("pd", "defect") else None
            scheduler.submit(Ask(f"{name}-{number}", 40 * which + 1, which + 1, move == "keep", remote), now)
        elif move == "step":
            scheduler.step(now)
        else:
            known = [request.ask.id for request in scheduler.of(*Phase)]
            target = known[which % len(known)] if known else "nobody"
            if move == "abort":
                scheduler.abort(target, now)
            elif move == "read":
                scheduler.read(target, now)
            else:
                (scheduler.pulled if move == "pulled" else scheduler.pull_failed)(target, now)
        assert 0 <= scheduler.free <= 20
    for request in scheduler.of(Phase.WAITING, Phase.RUNNING, Phase.PARKED):
        scheduler.abort(request.ask.id, 100.0)
    gauges = scheduler.step(1000.0).gauges
    assert (gauges.running, gauges.capacity, gauges.deferred) == (0, 0, 0)
    assert {request.phase for request in scheduler.of(*Phase)} <= {Phase.ORPHAN}
