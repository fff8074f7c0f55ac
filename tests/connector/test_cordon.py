"""The cordon lease: samples of the annotation in, ready or not out."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stanch_connector.apiserver.cordon import MAX_LEASE_SECONDS, Lease, cordoned, incident_of, step

pytestmark = pytest.mark.unit


def beat(number: int, lease: object = 30, incident: str = "li-1") -> str:
    return json.dumps({"incident": incident, "beat": number, "leaseSeconds": lease})


def play(*readings: tuple[float, str | None]) -> Lease:
    lease = Lease()
    for now, text in readings:
        lease = step(lease, text, now)
    return lease


SEQUENCES = {
    "no annotation": ([(0, None)], {0: False}),
    "appears while the kit watches": ([(0, None), (5, beat(1))], {5: True, 34.9: True, 35: False}),
    "there at the start: not counted": ([(0, beat(1)), (0.5, beat(1)), (100, beat(1))], {100: False}),
    "there at the start, then changes": ([(0, beat(7)), (9, beat(8))], {9: True, 38.9: True, 39: False}),
    "renewed": ([(0, None), (1, beat(1)), (11, beat(2)), (21, beat(3))], {50.9: True, 51: False}),
    "the same beat is no renewal": (
        [(0, None), (1, beat(1)), (30, beat(1)), (31, beat(1))],
        {30.9: True, 31: False},
    ),
    "the same beat in other words": (
        [(0, None), (1, beat(1)), (20, '{"leaseSeconds":300,"beat":1,"incident":"li-1"}')],
        {30.9: True, 31: False},
    ),
    "gaps and steps back count": (
        [(0, None), (1, beat(9)), (20, beat(30)), (40, beat(2))],
        {69: True, 70: False},
    ),
    "another incident's same beat": (
        [(0, None), (1, beat(1)), (20, beat(1, incident="li-2"))],
        {49: True, 50: False},
    ),
    "removed": ([(0, None), (1, beat(1)), (2, None)], {2: False}),
    "removed and put back": ([(0, None), (1, beat(1)), (2, None), (3, beat(1))], {3: True, 33: False}),
    "comes back after it ran out": ([(0, None), (1, beat(1)), (90, beat(2))], {90: True, 120: False}),
    "malformed does not end it": ([(0, None), (1, beat(1)), (2, "{")], {2: True, 31: False}),
    "malformed does not start it": ([(0, None), (1, '{"beat": "1"}')], {1: False}),
    "malformed, then well-formed": ([(0, "nonsense"), (1, beat(1))], {1: False}),
    "the shorter lease wins": ([(0, None), (1, beat(1, 100)), (2, beat(2, 5))], {6: True, 7: False}),
    "a lease without an end is cut": ([(0, None), (1, beat(1, 1e9))], {MAX_LEASE_SECONDS: True, 302: False}),
    "leaseSeconds not said": ([(0, None), (1, '{"incident":"x","beat":1}')], {30: True, 31: False}),
    "unknown keys": ([(0, None), (1, '{"incident":"x","beat":1,"new":[1]}')], {1: True}),
}


@pytest.mark.parametrize(("readings", "expected"), SEQUENCES.values(), ids=SEQUENCES.keys())
def test_sequence(readings: list[tuple[float, str | None]], expected: dict[float, bool]) -> None:
    lease = play(*readings)
    assert {now: cordoned(lease, now) for now in expected} == expected


MALFORMED = {
    "empty": "",
    "not JSON": "beat 1",
    "a list": "[1]",
    "no beat": '{"incident":"x"}',
    "a beat that is true": '{"beat":true}',
    "a fraction": '{"beat":1.5}',
    "an incident that is none": '{"beat":1,"incident":7}',
    "no lease": '{"beat":1,"leaseSeconds":0}',
    "a negative lease": '{"beat":1,"leaseSeconds":-1}',
    "a lease in words": '{"beat":1,"leaseSeconds":"30"}',
    "NaN": '{"beat":1,"leaseSeconds":NaN}',
    "infinite": '{"beat":1,"leaseSeconds":1e999}',
    "null": '{"beat":1,"leaseSeconds":null}',
    "too long": '{"beat":1,"x":"' + "y" * (1 << 20) + '"}',
    "too deep": "[" * 60_000,
    "a number of ten thousand digits": '{"beat":' + "9" * 10_000 + ',"leaseSeconds":-1}',
}


@pytest.mark.parametrize("text", MALFORMED.values(), ids=MALFORMED.keys())
def test_malformed_is_counted_once(text: str) -> None:
    lease = play((0, None), (1, text), (2, text))
    assert (lease.malformed, cordoned(lease, 2)) == (1, False)


def test_incident_is_told_while_it_holds() -> None:
    lease = play((0, None), (1, beat(1)))
    assert [incident_of(lease, now) for now in (1, 31)] == ["li-1", None]


READINGS = st.lists(
    st.tuples(
        st.floats(0, 20),
        st.one_of(
            st.none(),
            st.sampled_from(["{", '{"beat":true}', ""]),
            st.builds(
                beat, st.integers(0, 3), st.sampled_from([1, 10, 30, 10_000]), st.sampled_from(["a", "b"])
            ),
        ),
    ),
    max_size=30,
)


@settings(deadline=None)
@given(READINGS, st.floats(0, 400))
def test_never_longer_than_the_lease_after_the_last_change(
    readings: list[tuple[float, str | None]], later: float
) -> None:
    """An account of its own: the last change of a well-formed (incident, beat), or of absence to presence."""
    lease, now = Lease(), 0.0
    known: object = "unknown"
    ends = -1.0
    for gap, text in readings:
        now += gap
        lease = step(lease, text, now)
        if text is None:
            known, ends = None, -1.0
        elif text.startswith('{"incident"'):
            value = json.loads(text)
            key = (value["incident"], value["beat"])
            if known != "unknown" and key != known:
                ends = now + min(value["leaseSeconds"], MAX_LEASE_SECONDS)
            known = key
        assert cordoned(lease, now + later) == (now + later < ends)
