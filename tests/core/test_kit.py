"""The engine kit's list in the detector: what it names, what it makes a fault, and what it never proves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from stanch.core.detector import EngineState, step
from stanch.core.kit import Entry, KitReport
from stanch.core.look import fault_due, look_every
from stanch.core.policy import Policy
from stanch.core.report import record, sentence
from stanch.core.sample import Lifecycle, Role, Sample
from stanch.core.turn import Memory, Reading, turn
from stanch.core.verdict import Answer, Cap, Signature, State, Verdict
from tests.core.build import POLICY, sample

pytestmark = pytest.mark.unit
row = pytest.param

PARKED = Entry(
    "cmpl-a", "cmpl-a-0-1", "WAITING_FOR_REMOTE_KVS", 130, 10, "remote_kv", False, False, False, 0.1
)
ORPHAN = replace(PARKED, id="cmpl-b", status="FINISHED_ABORTED", age_seconds=612, client_gone=True)
LEASED = replace(ORPHAN, id="cmpl-c", status="FINISHED_LENGTH_CAPPED", waits_for=None, leased=True)
PINNED = replace(LEASED, id="cmpl-d", leased=False, pinned=True)
RUNNING = replace(PARKED, id="cmpl-e", status="RUNNING", waits_for=None, age_seconds=900)
QUEUED = replace(PARKED, id="cmpl-f", status="WAITING", waits_for="capacity", blocks=0, share=0.0)
GRAMMAR = replace(QUEUED, id="cmpl-g", status="WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR", waits_for="grammar")

AT_WORK: dict[str, Any] = {"usage": 0.4, "running": 3}
HELD: dict[str, Any] = {"usage": 0.3}
BIDIRECTIONAL = replace(POLICY, kv_pin_seconds=480.0)


def aged(entry: Entry, seconds: float) -> Entry:
    return replace(entry, age_seconds=seconds)


def listed(t: float, *entries: Entry) -> KitReport:
    return KitReport(t, "boot", tuple(entries))


def look(*entries: Entry, role: Role = Role.DECODE, policy: Policy = POLICY, **reading: Any) -> Verdict:
    """The verdict of the first reading of an engine whose kit lists these."""
    found = [Reading(sample(10, **(reading or AT_WORK)), role, report=listed(10, *entries))]
    return turn(Memory(), found, policy, 10)[1].verdicts[0]


def watch(
    seconds: float, *entries: Entry, role: Role = Role.DECODE, policy: Policy = POLICY, **reading: Any
) -> Verdict:
    """The last verdict of an engine that stands still for so long, its kit's list new in every turn."""
    memory = Memory()
    for i in range(int(seconds / 5) + 1):
        t = 5.0 * i
        one = Reading(sample(t, **reading), role, policy=policy, report=listed(t, *entries))
        memory, result = turn(memory, [one], policy, t)
    return result.verdicts[0]


@pytest.mark.parametrize("role", [Role.DECODE, Role.PREFILL, Role.BOTH, Role.UNKNOWN])
@pytest.mark.parametrize(
    ("entries", "state", "signature"),
    [
        row([ORPHAN], State.FAULT, Signature.PARKED_REMOTE_KV, id="orphan"),
        row([PARKED], State.FAULT, Signature.PARKED_REMOTE_KV, id="parked"),
        row([aged(PARKED, 119)], State.SUSPECT, Signature.PARKED_REMOTE_KV, id="not-yet"),
        row([aged(PARKED, 59)], State.HEALTHY, None, id="a-transfer"),
        row([LEASED, PINNED, RUNNING, QUEUED, GRAMMAR], State.HEALTHY, None, id="wanted"),
        row([], State.HEALTHY, None, id="empty"),
    ],
)
def test_the_list_has_the_ages_so_one_look_tells(
    entries: Sequence[Entry], state: State, signature: Signature | None, role: Role
) -> None:
    """On an engine at work, which no gauge accuses; leased and pinned ones are wanted on every role."""
    verdict = look(*entries, role=role)
    assert (verdict.state, verdict.signature) == (state, signature)


def test_the_sentence_and_the_data_name_the_requests() -> None:
    stuck = [replace(ORPHAN, remote_engine="prefill-3"), PARKED, aged(replace(PARKED, id="x"), 121)]
    verdict = look(RUNNING, *stuck, aged(replace(PARKED, id="young"), 3))
    assert verdict.confirmation is Answer.CONFIRMED
    assert sentence(verdict, one_look=True) == (
        "decode-3 has requests that are stuck, the longest for 612 s (limit 120 s); 3 requests hold 30 "
        "blocks of 100: cmpl-b (10 min, from engine prefill-3, its client has gone), cmpl-a (130 s, its "
        "client waits), x (121 s, its client waits); confirmed: the engine kit lists them"
    )
    data: Any = record(verdict)["stuck"]
    assert (data["count"], data["blocks"], data["total_blocks"], data["oldest_seconds"]) == (3, 30, 100, 612)
    assert [one["id"] for one in data["requests"]] == ["cmpl-b", "cmpl-a", "x"]
    assert data["requests"][0]["remote_engine"] == "prefill-3"


def test_many_are_counted_and_a_few_named() -> None:
    verdict = look(*(aged(replace(PARKED, id=f"r{i}"), 200 + i) for i in range(150)))
    assert verdict.stuck is not None
    assert (verdict.stuck.count, len(verdict.stuck.named), verdict.stuck.named[0].id) == (150, 100, "r149")
    assert "150 requests hold 1500 blocks of 100: r149" in sentence(verdict)
    assert "and 145 more" in sentence(verdict)


def test_other_verdicts_name_the_stuck_too() -> None:
    assert "; 1 request holds 10 blocks of 100: cmpl-b (20 s, " in sentence(
        watch(20, aged(ORPHAN, 20), **HELD)
    )


class TestWhatCounts:
    """A list counts near its own time and of the same process; what is not there proves nothing."""

    @pytest.mark.parametrize(
        ("report", "unlisted"),
        [
            row(None, None, id="not-asked"),
            row(
                KitReport(60, problem="it has no engine kit", absent=True),
                "it has no engine kit",
                id="no-kit",
            ),
            row(KitReport(60, problem="rank 0 did not answer its kit"), "rank 0 did not", id="missing-rank"),
            row(listed(44, ORPHAN), None, id="too-old"),
            row(listed(76, ORPHAN), None, id="of-another-time"),
        ],
    )
    def test_without_a_list_all_is_as_without_a_kit(
        self, report: KitReport | None, unlisted: str | None
    ) -> None:
        state, plain = EngineState(), EngineState()
        for i in range(13):
            state, told = step(state, sample(5 * i, **HELD), POLICY, report=report)
            plain, alone = step(plain, sample(5 * i, **HELD), POLICY)
        assert (told.state, told.signature, told.held_seconds) == (State.FAULT, Signature.HELD_IDLE, 60)
        assert replace(told, unlisted=None, no_kit=False) == alone
        assert (told.unlisted or "").startswith(unlisted or "")
        assert ("is not known: rank 0" in sentence(told)) == (report is not None and "rank" in str(unlisted))

    def test_a_list_of_the_process_before_is_none(self) -> None:
        state, _ = step(EngineState(), sample(0, **AT_WORK), POLICY)
        again = sample(10, **AT_WORK, process_start=9.0)
        assert step(state, again, POLICY, report=listed(8, ORPHAN))[1].state is State.HEALTHY
        assert step(state, again, POLICY, report=listed(11, ORPHAN))[1].state is State.FAULT

    def test_a_blind_reading_stays_blind(self) -> None:
        assert look(ORPHAN, usage=None).state is State.BLIND

    def test_a_fault_ends_with_the_list_that_no_longer_shows_it(self) -> None:
        """The blocks and the counters stand still, and yet it is not spared."""
        state, verdict = step(EngineState(), sample(0, **HELD), POLICY, report=listed(0, ORPHAN))
        assert verdict.signature is Signature.PARKED_REMOTE_KV
        _, verdict = step(state, sample(5, **HELD), POLICY, report=listed(5))
        assert (verdict.state, verdict.signature) == (State.SUSPECT, Signature.HELD_IDLE)

    def test_a_draining_engine_is_no_patient(self) -> None:
        report = replace(listed(0, ORPHAN), draining=True)
        verdict = step(EngineState(), sample(0, **HELD), POLICY, report=report)[1]
        assert (verdict.state, verdict.lifecycle) == (State.HEALTHY, Lifecycle.DRAINING)

    def test_arming_shortens_it_to_90_s(self) -> None:
        assert look(aged(PARKED, 95), policy=replace(POLICY, armed=True)).state is State.FAULT


class TestBidirectional:
    """Pins are told from leaks by the list."""

    def test_pinned_turns_are_no_leak(self) -> None:
        assert watch(400, PINNED, PINNED, PINNED, policy=BIDIRECTIONAL, **HELD).state is State.SUSPECT

    def test_where_nothing_is_pinned_the_pin_time_is_not_waited_for(self) -> None:
        verdict = watch(
            65, aged(ORPHAN, 65), policy=replace(BIDIRECTIONAL, parked_remote_kv_seconds=600), **HELD
        )
        assert (verdict.signature, verdict.limit_seconds) == (Signature.HELD_IDLE, 60)
        assert (verdict.state, verdict.confirmation) == (State.FAULT, Answer.CONFIRMED)

    @pytest.mark.parametrize(
        ("entries", "state", "cap"),
        [
            row([replace(ORPHAN, share=0.3)], State.FAULT, None, id="left-behind"),
            row([replace(ORPHAN, share=0.01)], State.SUSPECT, Cap.MAY_BE_PINNED, id="too-little"),
            row([PINNED], State.SUSPECT, Cap.MAY_BE_PINNED, id="pinned"),
        ],
    )
    def test_held_floor_may_be_a_fault(self, entries: Sequence[Entry], state: State, cap: Cap | None) -> None:
        policy = replace(BIDIRECTIONAL, parked_remote_kv_seconds=86_400.0)
        memory = Memory()
        for i in range(200):
            t = 5.0 * i
            one: Sample = sample(t, **HELD, generation_tokens=1000.0 + i)
            memory, result = turn(memory, [Reading(one, report=listed(t, *entries))], policy, t)
        verdict = result.verdicts[0]
        assert (verdict.signature, verdict.state, verdict.cap) == (Signature.HELD_FLOOR, state, cap)

    @pytest.mark.parametrize(
        ("entries", "state"),
        [row([QUEUED], State.FAULT, id="nothing-pinned"), row([QUEUED, PINNED], State.SUSPECT, id="pinned")],
    )
    def test_a_queue_waits_for_the_pins_that_there_are(self, entries: Sequence[Entry], state: State) -> None:
        verdict = watch(150, *entries, policy=BIDIRECTIONAL, usage=0.9, waiting=1, waiting_deferred=0.0)
        assert (verdict.signature, verdict.state) == (Signature.QUEUE_DEADLOCK, state)


class TestConfirmation:
    """The list is the confirmation, where it shows what the signature claims."""

    @pytest.mark.parametrize(
        ("entries", "expected"),
        [
            row([aged(ORPHAN, 60)], (State.FAULT, Answer.CONFIRMED), id="the-holder-is-named"),
            row([aged(ORPHAN, 20)], (State.FAULT, None), id="too-young-to-be-it"),
            row([replace(ORPHAN, age_seconds=100, share=0.01)], (State.FAULT, None), id="too-small-to-be-it"),
            row([], (State.FAULT, None), id="nobody-is-named"),
            row([aged(PINNED, 70)] * 3, (State.HEALTHY, Answer.VETOED), id="kept-for-a-reader"),
            row([aged(PINNED, 70), RUNNING], (State.FAULT, None), id="it-runs-again"),
        ],
    )
    def test_held_idle(self, entries: Sequence[Entry], expected: tuple[State, Answer | None]) -> None:
        verdict = watch(60, *entries, **HELD)
        if expected[0] is State.FAULT and entries and entries[0].pinned:
            assert verdict.limit_seconds == 60
        assert (verdict.state, verdict.confirmation) == expected

    def test_an_overdue_pin_is_not_explained(self) -> None:
        verdict = watch(60, *[aged(PINNED, 9999)] * 3, **HELD)
        assert (verdict.state, verdict.confirmation) == (State.FAULT, None)

    @pytest.mark.parametrize(
        ("entries", "answer"),
        [
            row([QUEUED], Answer.CONFIRMED, id="it-waits"),
            row([aged(QUEUED, 5)], None, id="another-one"),
            row([QUEUED, RUNNING], None, id="something-runs"),
            row([QUEUED, LEASED], None, id="leases-in-the-way"),
            row([], None, id="nothing-waits"),
        ],
    )
    def test_a_queue(self, entries: Sequence[Entry], answer: Answer | None) -> None:
        verdict = watch(120, *entries, usage=0.2, waiting=1, waiting_deferred=0.0)
        assert (verdict.state, verdict.confirmation) == (State.FAULT, answer)

    def test_a_deferred_stall_of_grammars_is_not_confirmed(self) -> None:
        verdict = watch(120, GRAMMAR, usage=0.2, waiting=1, waiting_deferred=1.0)
        assert (verdict.signature, verdict.confirmation) == (Signature.DEFERRED_STALL, None)

    def test_a_stall_says_nothing_of_no_progress(self) -> None:
        verdict = watch(300, RUNNING, usage=0.2, running=1)
        assert (verdict.signature, verdict.confirmation) == (Signature.NO_PROGRESS, None)


class TestFleet:
    """A decode that holds blocks is quiet, if its list shows that nothing of it waits for KV."""

    @pytest.mark.parametrize(
        ("decode", "state"),
        [
            row([PINNED], State.FAULT, id="pinned-only"),
            row([aged(ORPHAN, 20)], State.SUSPECT, id="an-orphan-keeps-the-lease"),
            row(None, State.SUSPECT, id="no-list"),
        ],
    )
    def test_producer_stranded(self, decode: Sequence[Entry] | None, state: State) -> None:
        policy, memory = replace(POLICY, lease_seconds=30.0), Memory()
        for i in range(20):
            t = 5.0 * i
            prefill: Sample = replace(sample(t, **HELD), engine="p")
            other = None if decode is None else listed(t, *decode)
            pair = [
                Reading(prefill, Role.PREFILL, report=listed(t, aged(replace(LEASED, share=0.3), t))),
                Reading(sample(t, **HELD), Role.DECODE, report=other),
            ]
            memory, result = turn(memory, pair, policy, t)
        verdict = result.verdicts[0]
        assert (verdict.signature, verdict.state) == (Signature.PRODUCER_STRANDED, state)
        assert (verdict.confirmation is Answer.CONFIRMED) == (state is State.FAULT)


@pytest.mark.parametrize(
    ("reading", "seconds"),
    [
        row({"usage": 0.0}, None, id="empty"),
        row({"usage": 0.4, "running": 3}, 600, id="at-work"),
        row({"usage": 0.4, "running": 3, "waiting": 2, "waiting_deferred": 1.0}, 30, id="parked"),
        row({"usage": 0.4, "running": 3, "waiting": 2, "waiting_deferred": None}, 30, id="maybe-parked"),
        row({"usage": 0.4, "running": 3, "waiting": 2, "waiting_deferred": 0.0}, 600, id="queued"),
        row({"usage": 0.4}, 5, id="suspect"),
        row({"usage": None}, None, id="blind"),
    ],
)
def test_how_often_the_list_is_looked_at(reading: dict[str, Any], seconds: float | None) -> None:
    verdict = step(EngineState(), sample(0, **reading), POLICY)[1]
    assert look_every(verdict, POLICY) == seconds


def test_when_a_fault_is_due() -> None:
    def verdict(held: float, limit: float | None, state: State = State.SUSPECT, **more: Any) -> Verdict:
        return Verdict(100.0, "d0", Role.DECODE, state, held_seconds=held, limit_seconds=limit, **more)

    soon, later = verdict(52.0, 60.0), verdict(1.0, 120.0)
    assert fault_due([later, soon], now=100.0) == 8.0
    assert fault_due([soon], now=103.0) == 5.0
    assert fault_due([soon], now=120.0) == 0.0  # due, and only not read since
    fault, healthy = verdict(70.0, 60.0, State.FAULT), verdict(0.0, None, State.HEALTHY)
    assert fault_due([fault, healthy], now=100.0) is None
    # Held for long enough, and no fault for another reason: it is not due at any time.
    assert fault_due([verdict(70.0, 60.0, cap=Cap.DECODE_WAITS)], now=100.0) is None
    assert fault_due([verdict(900.0, 900.0, readings=7)], now=100.0) is None
