"""What an engine is asked about, and what of its list belongs to the fault."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stanch.core.history import Evidence, Incident, Stuck, Trigger
from stanch.core.kit import Entry, KitReport
from stanch.core.policy import Policy
from stanch.core.sample import Lifecycle, Role, Sample
from stanch.core.verdict import Signature, State, Verdict
from stanch.edge.answering import about, over, stuck_of

pytestmark = pytest.mark.unit

POLICY = Policy()
SAMPLE = Sample(1000.0, "d0", usage=0.4, running=0, waiting=0, generation_tokens=10)
FAULT = Verdict(999.0, "d0", Role.DECODE, State.FAULT, Signature.HELD_IDLE, 75.0, 60.0, usage=0.3)
DRAINING = Verdict(999.0, "d0", Role.DECODE, State.HEALTHY, usage=0.3, lifecycle=Lifecycle.DRAINING)


def incident(signature: Signature | None, *stuck: str) -> Incident:
    ids = tuple(Stuck(name, 130.0, 10) for name in stuck)
    return Incident("i-1", "d0", "u", 900.0, evidence=Evidence(signature, 0.3, 75.0, 905.0), stuck=ids)


def entry(name: str, age: float, way: str | None = None, **differs: object) -> Entry:
    one = Entry(
        name, f"{name}-0", "WAITING_FOR_REMOTE_KVS", age, 10, "remote_kv", True, False, False, way=way
    )
    return replace(one, **differs)  # type: ignore[arg-type]


def report(*entries: Entry) -> KitReport:
    return KitReport(1000.0, "boot-1", entries)


def test_a_fault_is_asked_about_as_it_is_now() -> None:
    asked = about(FAULT, None, SAMPLE, POLICY, kit=True)
    assert (asked.signature, asked.held_seconds, asked.limit_seconds) == (Signature.HELD_IDLE, 75.0, 60.0)
    assert asked.usage == 0.4


def test_a_drained_engine_is_asked_about_what_its_incident_was_opened_for() -> None:
    asked = about(DRAINING, incident(Signature.QUEUE_DEADLOCK), SAMPLE, POLICY, kit=True)
    assert (asked.state, asked.signature) == (State.FAULT, Signature.QUEUE_DEADLOCK)
    assert asked.held_seconds == asked.limit_seconds == 120.0


@pytest.mark.parametrize(
    ("verdict", "of"),
    [
        (DRAINING, None),
        (replace(FAULT, signature=Signature.DEFERRED_STALL), None),
        (DRAINING, incident(None)),
    ],
    ids=["nothing-known", "deferred-stall", "a-person's"],
)
@pytest.mark.parametrize(
    ("kit", "signature"), [(True, Signature.PARKED_REMOTE_KV), (False, Signature.HELD_IDLE)]
)
def test_what_has_no_proof_of_its_own_is_asked_by_the_list_if_there_is_one(
    verdict: Verdict, of: Incident | None, kit: bool, signature: Signature
) -> None:
    assert about(verdict, of, SAMPLE, POLICY, kit=kit).signature is signature


def test_what_a_person_suspects_has_held_for_as_long_as_it_was_seen() -> None:
    """A canary after two seconds proves nothing, whoever asks for it."""
    young = replace(FAULT, state=State.SUSPECT, held_seconds=2.0)
    suspected = Evidence(Signature.HELD_IDLE, 0.3, 2.0)
    persons = replace(incident(None), trigger=Trigger.PERSON, evidence=suspected)
    asked = about(young, persons, SAMPLE, POLICY, kit=False)
    assert (asked.signature, asked.held_seconds, asked.limit_seconds) == (Signature.HELD_IDLE, 2.0, 60.0)
    assert about(young, persons, SAMPLE, POLICY, kit=True).signature is Signature.PARKED_REMOTE_KV


def test_what_a_person_suspected_and_the_engine_confirmed_is_asked_about_after_the_drain() -> None:
    persons = replace(incident(Signature.QUEUE_DEADLOCK), trigger=Trigger.PERSON)
    assert about(DRAINING, persons, SAMPLE, POLICY, kit=True).signature is Signature.QUEUE_DEADLOCK


def test_a_hold_that_was_shortened_when_it_was_opened_still_counts() -> None:
    opened = replace(incident(Signature.HELD_IDLE), evidence=Evidence(Signature.HELD_IDLE, 0.3, 45.0, 905.0))
    assert about(DRAINING, opened, SAMPLE, POLICY, kit=False).held_seconds == 60.0


def test_a_page_that_could_not_be_read_changes_nothing() -> None:
    asked = about(FAULT, None, Sample(1000.0, "d0", blind="refused"), POLICY, kit=True)
    assert asked.usage == 0.3


def test_young_requests_are_part_of_it_only_with_proof_that_nothing_ends_them() -> None:
    parked = about(replace(FAULT, signature=Signature.PARKED_REMOTE_KV), None, SAMPLE, POLICY, kit=True)
    found = stuck_of(
        report(
            entry("old", 130.0),
            entry("on-its-way", 20.0),
            entry("proved", 20.0, "freed"),
            entry("just-come", 2.0, "completed"),
            entry("leased", 500.0, leased=True),
        ),
        parked,
        POLICY,
    )
    assert [one.id for one in found] == ["old", "proved"]
    assert [one.releasable for one in found] == [False, True]


@pytest.mark.parametrize(
    ("entries", "ended"),
    [
        ((), True),
        ((entry("other", 3.0),), True),
        ((entry("mine", 3.0),), False),
        ((entry("other", 130.0),), False),
    ],
    ids=["nothing-parked", "others-on-their-way", "one-of-mine", "another-stuck"],
)
def test_an_incident_is_over_when_none_of_its_requests_is_left(
    entries: tuple[Entry, ...], ended: bool
) -> None:
    parked = about(replace(FAULT, signature=Signature.PARKED_REMOTE_KV), None, SAMPLE, POLICY, kit=True)
    assert over(incident(Signature.PARKED_REMOTE_KV, "mine"), report(*entries), parked) is ended


def test_only_parked_requests_are_over_by_their_names() -> None:
    asked = about(FAULT, None, SAMPLE, POLICY, kit=True)
    assert not over(incident(Signature.HELD_IDLE, "mine"), report(), asked)
    assert not over(incident(Signature.PARKED_REMOTE_KV), report(), asked)
