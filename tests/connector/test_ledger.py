"""The ledger as a table of moves, and its bounds as properties."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stanch_connector.ledger import AFTER, Event, Ledger, Phase, phase_of

pytestmark = pytest.mark.unit

PARKED = "WAITING_FOR_REMOTE_KVS"
ONE = "cmpl-a-0-00000000"


def after(*events: tuple[Event, float]) -> Ledger:
    ledger = Ledger()
    for event, now in events:
        ledger.record(event, ONE, now)
    return ledger


@pytest.mark.parametrize(
    ("events", "status", "age"),
    [
        pytest.param([(Event.ADDED, 1)], "WAITING", 9, id="queued"),
        pytest.param([(Event.ADDED, 1), (Event.ALLOCATED, 4)], PARKED, 6, id="parked"),
        pytest.param([(Event.ADDED, 1), (Event.ALLOCATED, 4)], "RUNNING", 6, id="running"),
        pytest.param(
            [(Event.ADDED, 1), (Event.ALLOCATED, 4), (Event.RESUMED, 6)], "WAITING", 4, id="resumed"
        ),
        pytest.param(
            [(Event.ADDED, 1), (Event.ALLOCATED, 4), (Event.RESUMED, 6), (Event.ALLOCATED, 7)],
            "RUNNING",
            3,
            id="runs after its receive",
        ),
        pytest.param(
            [(Event.ADDED, 1), (Event.ALLOCATED, 4), (Event.PREEMPTED, 8)], "PREEMPTED", 2, id="preempted"
        ),
        pytest.param(
            [(Event.ADDED, 1), (Event.ALLOCATED, 4), (Event.FINISHED, 5)], "FINISHED_ABORTED", 5, id="orphan"
        ),
        pytest.param([(Event.ADDED, 1), (Event.FINISHED, 2), (Event.FINISHED, 9)], "FINISHED_ABORTED", 8,
                     id="aborted twice: the first counts"),
        pytest.param([(Event.ADDED, 1), (Event.FINISHED, 2), (Event.ALLOCATED, 9)], "FINISHED_ABORTED", 8,
                     id="nothing is allocated after the end"),
        pytest.param([(Event.FINISHED, 2), (Event.ADDED, 6)], "WAITING", 4, id="an id used again"),
        pytest.param([], PARKED, 0, id="never seen: from now"),
        pytest.param([(Event.ADDED, 1)], PARKED, 0, id="a missed event: from now"),
    ],
)  # fmt: skip
def test_age(events: list[tuple[Event, float]], status: str, age: float) -> None:
    assert after(*events).age(ONE, status, 10) == age


def test_a_status_first_seen_ages_from_then() -> None:
    ledger = Ledger()
    assert ledger.age(ONE, PARKED, 10) == 0
    assert ledger.age(ONE, PARKED, 25) == 15
    assert ledger.age(ONE, "RUNNING", 30) == 0
    assert ledger.age(ONE, "RUNNING", 31) == 1


@pytest.mark.parametrize("event", [Event.ALLOCATED, Event.RESUMED, Event.PREEMPTED, Event.FINISHED])
def test_what_cannot_be_changes_nothing(event: Event) -> None:
    ledger = after((Event.ADDED, 1), (Event.FINISHED, 2))
    ledger.record(event, ONE, 7, parked=True)
    assert ledger.ignored == 1
    assert ledger.was_parked(ONE) is None
    assert ledger.age(ONE, "FINISHED_ABORTED", 10) == 8


@pytest.mark.parametrize("parked", [True, False, None])
def test_it_remembers_whether_the_receive_was_under_way(parked: bool | None) -> None:
    ledger = Ledger()
    ledger.record(Event.ALLOCATED, ONE, 1)
    assert ledger.was_parked(ONE) is None
    ledger.record(Event.FINISHED, ONE, 2, parked=parked)
    assert ledger.was_parked(ONE) is parked
    ledger.age(ONE, "FINISHED_ABORTED", 3)
    assert ledger.was_parked(ONE) is parked


def test_freed_is_forgotten() -> None:
    ledger = after((Event.ADDED, 1), (Event.FREED, 2), (Event.FREED, 3))
    assert ONE not in ledger
    assert len(ledger) == 0


def test_full_keeps_the_old_ones() -> None:
    ledger = Ledger(capacity=2)
    for number in range(4):
        ledger.record(Event.ADDED, str(number), number)
    assert [str(number) in ledger for number in range(4)] == [True, True, False, False]
    assert ledger.overflowed == 2
    ledger.record(Event.FREED, "0", 5)
    ledger.record(Event.ADDED, "4", 6)
    assert "4" in ledger


def test_keep_forgets_what_the_engine_does_not_have() -> None:
    ledger = Ledger()
    for number in range(5):
        ledger.record(Event.ADDED, str(number), 0)
    assert ledger.keep({"1", "3", "9"}) == 3
    assert len(ledger) == 2


@pytest.mark.parametrize(
    ("status", "phase"),
    [
        ("WAITING", Phase.WAITING),
        ("WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR", Phase.WAITING),
        ("WAITING_FOR_STREAMING_REQ", Phase.WAITING),
        ("PREEMPTED", Phase.WAITING),
        ("WAITING_FOR_REMOTE_KVS", Phase.ALLOCATED),
        ("RUNNING", Phase.ALLOCATED),
        ("FINISHED_STOPPED", Phase.FINISHED),
        ("FINISHED_ABORTED", Phase.FINISHED),
    ],
)
def test_phase_of(status: str, phase: Phase) -> None:
    assert phase_of(status) is phase


def test_every_event_is_in_the_table() -> None:
    assert set(AFTER) | {Event.FREED} == set(Event)


STATUSES = ["WAITING", "PREEMPTED", PARKED, "RUNNING", "FINISHED_ABORTED", "FINISHED_STOPPED"]
steps = st.lists(
    st.tuples(st.sampled_from([*Event, *STATUSES]), st.integers(0, 12).map(str), st.floats(0, 5)),
    max_size=200,
)


@given(steps, st.integers(1, 8))
def test_it_is_bounded_and_no_age_exceeds_the_truth(
    moves: list[tuple[Event | str, str, float]], capacity: int
) -> None:
    ledger = Ledger(capacity)
    now = 0.0
    first_seen: dict[str, float] = {}
    for what, request_id, pause in moves:
        now += pause
        first_seen.setdefault(request_id, now)
        if isinstance(what, Event):
            ledger.record(what, request_id, now)
            if what is Event.FREED:
                del first_seen[request_id]
        else:
            assert 0 <= ledger.age(request_id, what, now) <= now - first_seen[request_id]
        assert len(ledger) <= capacity
    ledger.keep(())
    assert len(ledger) == 0
