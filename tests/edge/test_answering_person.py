"""What a person suspects: the watch's own holds are the watchdog's patience, not the proof."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from stanch.core.history import Confirmation, Incident, Trigger
from stanch.core.policy import Policy
from stanch.core.verdict import Answer, Signature, State
from stanch.edge.answering import answer_of
from tests.edge.fake_kit import FakeKit, entry
from tests.edge.fake_vllm import FakeVllm, Rank
from tests.edge.live_scene import play, scene
from tests.edge.test_live_kit import settle

pytestmark = pytest.mark.unit
row = pytest.param

# A watch whose watchdog would wait for an hour.
PATIENT = Policy(canary_seconds=1.0, parked_remote_kv_seconds=3600.0, held_idle_seconds=3600.0)
RUNNING = Rank(usage=0.3, running=2)
NO_WAY: dict[str, Any] = {
    "way": None,
    "releasable": False,
    "refusal": "a read is under way",
    "refusalKind": "reading",
}


def asked(
    trigger: Trigger,
    server: FakeKit | None,
    rank: Rank = RUNNING,
    *,
    policy: Policy = PATIENT,
    turns: int = 2,
) -> Confirmation:
    """What the engine is taken to have said after so many turns of 5 s."""
    found = list[Confirmation]()

    async def script() -> None:
        fake = FakeVllm(replace(rank))
        fake.kit = server
        async with scene(fake, policy=policy) as s:
            if server is not None:
                await s.live.learn()
            for _ in range(turns):
                (judged,) = await s.step()
                await settle(s)
            of = Incident("d0-x7k2p", "d0", "u", s.now, trigger)
            boot = None if server is None else server.boot_id
            found.append(await answer_of(s.live, judged.verdict.engine, judged, of, "c1", boot, canary=True))

    play(script)
    return found[0]


@pytest.mark.parametrize(
    ("differs", "answer"),
    [
        row({"ageSeconds": 20.0}, Answer.CONFIRMED, id="every-rank-says-that-nothing-ends-it"),
        row({"ageSeconds": 20.0, **NO_WAY}, Answer.INCONCLUSIVE, id="it-may-be-on-its-way"),
        row({"ageSeconds": 95.0, **NO_WAY}, Answer.CONFIRMED, id="no-honest-transfer-takes-so-long"),
        row({"ageSeconds": 2.0}, Answer.INCONCLUSIVE, id="just-come"),
        row({"ageSeconds": 95.0, "leased": True, "waitsFor": None}, Answer.VETOED, id="leased"),
    ],
)
def test_by_the_list_it_is_stuck_long_before_the_watchdog_would_say_so(
    differs: dict[str, Any], answer: Answer
) -> None:
    said = asked(Trigger.PERSON, FakeKit(entry(**differs)))
    assert said.answer is answer, said.cause
    assert bool(said.stuck) is (answer is Answer.CONFIRMED)


def test_an_alert_is_a_machine_s_word_and_waits_as_the_watchdog_does() -> None:
    assert asked(Trigger.ALERT, FakeKit(entry(ageSeconds=600.0))).answer is Answer.INCONCLUSIVE


def test_in_push_mode_an_honest_registration_still_has_its_time() -> None:
    server = FakeKit(entry(ageSeconds=400.0, **NO_WAY), connector="NixlPushConnector")
    assert asked(Trigger.PERSON, server).answer is Answer.INCONCLUSIVE
    server = FakeKit(entry(ageSeconds=520.0, **NO_WAY), connector="NixlPushConnector")
    assert asked(Trigger.PERSON, server).answer is Answer.CONFIRMED


@pytest.mark.parametrize(
    ("turns", "answer"), [(4, Answer.INCONCLUSIVE), (21, Answer.CONFIRMED)], ids=["15 s", "100 s"]
)
def test_without_a_kit_what_is_held_must_have_been_seen_for_long_enough(turns: int, answer: Answer) -> None:
    said = asked(Trigger.PERSON, None, Rank(usage=0.3), turns=turns)
    assert said.answer is answer, said.cause


def test_a_shorter_hold_of_the_watch_stays() -> None:
    short = Policy(canary_seconds=1.0, parked_remote_kv_seconds=30.0)
    assert asked(Trigger.PERSON, FakeKit(entry(ageSeconds=35.0, **NO_WAY)), policy=short).answer is (
        Answer.CONFIRMED
    )


def test_the_watchdog_s_own_verdict_is_as_patient_as_before() -> None:
    async def script() -> None:
        fake = FakeVllm(replace(RUNNING))
        fake.kit = FakeKit(entry(ageSeconds=600.0))
        async with scene(fake, policy=PATIENT) as s:
            for _ in range(4):
                (judged,) = await s.step()
                await settle(s)
        assert (judged.verdict.state, judged.verdict.signature) != (State.FAULT, Signature.PARKED_REMOTE_KV)

    play(script)
