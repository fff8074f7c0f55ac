"""What one engine's page cannot tell: a fleet in, verdicts out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from stanch.core.policy import Policy
from stanch.core.sample import Role, Sample
from stanch.core.turn import Memory, Reading, Turn, turn
from stanch.core.verdict import Cap, Signature, State, Verdict, Warn
from tests.core.build import sample

pytestmark = pytest.mark.unit

POLICY = Policy(lease_seconds=30)


class Play:
    """A fleet by name, driven turn by turn."""

    def __init__(self, policy: Policy = POLICY, **roles: Role) -> None:
        self.policy, self.roles, self.memory = policy, roles, Memory()
        self.t = 0.0
        self.result: Turn | None = None

    def turns(self, seconds: float, **readings: dict[str, Any]) -> dict[str, Verdict]:
        """A turn every 5 s for so long; an engine that is not named does nothing."""
        for _ in range(int(seconds / 5)):
            self.t += 5
            found = []
            for name, role in self.roles.items():
                one: Sample = replace(sample(self.t, **readings.get(name, {})), engine=name)
                found.append(Reading(one, role))
            self.memory, self.result = turn(self.memory, found, self.policy, self.t)
        assert self.result is not None
        return {v.engine: v for v in self.result.verdicts}


HOLDING = {"usage": 0.4}
PARKED = {"usage": 0.3, "waiting": 2, "waiting_deferred": 2.0}


def test_a_prefill_that_holds_for_a_waiting_decode_is_not_the_patient() -> None:
    play = Play(p=Role.PREFILL, d=Role.DECODE)
    verdicts = play.turns(300, p=HOLDING, d=PARKED)
    assert (verdicts["p"].state, verdicts["p"].cap) == (State.SUSPECT, Cap.DECODE_WAITS)
    assert verdicts["d"].signature is Signature.DEFERRED_STALL


@pytest.mark.parametrize(
    "decode",
    [
        pytest.param({"usage": 0.3}, id="holds-for-nobody"),
        pytest.param({"usage": None}, id="blind"),
    ],
)
def test_a_decode_that_may_still_read_keeps_its_prefill_from_being_a_fault(decode: dict[str, Any]) -> None:
    assert Play(p=Role.PREFILL, d=Role.DECODE).turns(300, p=HOLDING, d=decode)["p"].cap is Cap.DECODE_WAITS


@pytest.mark.parametrize(
    ("other", "state"),
    [
        pytest.param({}, State.FAULT, id="idle"),
        pytest.param(PARKED, State.SUSPECT, id="waits"),
        pytest.param({"usage": 0.3}, State.SUSPECT, id="holds-for-nobody"),
        pytest.param({"usage": None}, State.SUSPECT, id="blind"),
    ],
)
def test_an_engine_whose_role_is_not_known_may_be_the_decode(other: dict[str, Any], state: State) -> None:
    play = Play(p=Role.PREFILL, d=Role.DECODE, u=Role.UNKNOWN)
    verdict = play.turns(300, p=HOLDING, u=other)["p"]
    assert (verdict.state, verdict.cap) == (state, None if state is State.FAULT else Cap.DECODE_WAITS)


def test_an_engine_whose_role_is_not_known_is_no_known_decode() -> None:
    play = Play(p=Role.PREFILL, u=Role.UNKNOWN)
    assert play.turns(300, p=HOLDING)["p"].cap is Cap.NO_FLEET


def test_a_stranded_prefill_of_quiet_decodes_is_a_fault_after_two_leases() -> None:
    play = Play(p=Role.PREFILL, d1=Role.DECODE, d2=Role.DECODE)
    assert play.turns(60, p=HOLDING)["p"].state is State.SUSPECT
    verdict = play.turns(10, p=HOLDING)["p"]
    assert (verdict.state, verdict.signature) == (State.FAULT, Signature.PRODUCER_STRANDED)


def test_the_two_leases_count_from_when_the_last_decode_went_quiet() -> None:
    play = Play(p=Role.PREFILL, d=Role.DECODE)
    play.turns(200, p=HOLDING, d=PARKED)
    assert play.turns(55, p=HOLDING)["p"].state is State.SUSPECT
    assert play.turns(10, p=HOLDING)["p"].state is State.FAULT


def test_decodes_of_another_deployment_say_nothing() -> None:
    now, memory = 0.0, Memory()
    for _ in range(100):
        now += 5
        readings = [
            Reading(replace(sample(now, usage=0.4), engine="p"), Role.PREFILL, "one"),
            Reading(replace(sample(now), engine="d"), Role.DECODE, "other"),
        ]
        memory, result = turn(memory, readings, POLICY, now)
    assert result.verdicts[0].cap is Cap.NO_FLEET


@pytest.mark.parametrize(
    "trouble",
    [
        pytest.param({"process_start": 77.0}, id="a-prefill-restarts"),
        pytest.param({"failed_notifications": 1.0}, id="a-notification-fails"),
        pytest.param({"failed_transfers": 1.0}, id="a-transfer-fails"),
    ],
)
def test_a_troubled_prefill_halves_the_holds_of_its_decodes(trouble: dict[str, Any]) -> None:
    calm = {"failed_notifications": 0.0, "failed_transfers": 0.0}
    play = Play(p=Role.PREFILL, d=Role.DECODE)
    play.turns(10, p=calm)
    play.turns(5, p={**calm, **trouble})
    verdict = play.turns(95, p={**calm, **trouble}, d=PARKED)["d"]
    assert (verdict.state, verdict.limit_seconds) == (State.FAULT, 90)
    assert Warn.TRANSFER_FAULT in verdict.warnings


def test_arming_ends() -> None:
    play = Play(p=Role.PREFILL, d=Role.DECODE)
    play.turns(10)
    play.turns(700, p={"process_start": 77.0})
    verdict = play.turns(95, p={"process_start": 77.0}, d=PARKED)["d"]
    assert (verdict.state, verdict.limit_seconds, verdict.warnings) == (State.SUSPECT, 120, ())


def test_a_decode_that_restarts_arms_nobody() -> None:
    play = Play(d1=Role.DECODE, d2=Role.DECODE)
    play.turns(10)
    play.turns(5, d1={"process_start": 77.0})
    assert play.turns(35, d1={"process_start": 77.0}, d2=PARKED)["d2"].limit_seconds == 120


@pytest.mark.parametrize(
    ("policy", "limit"),
    [
        pytest.param(Policy(held_idle_seconds=400), 200, id="half"),
        pytest.param(Policy(held_idle_seconds=120), 90, id="never-below-ninety"),
        pytest.param(Policy(), 60, id="a-shorter-hold-stays"),
        pytest.param(Policy(kv_pin_seconds=480), 510, id="never-below-a-pin"),
    ],
)
def test_how_far_arming_shortens(policy: Policy, limit: float) -> None:
    play = Play(policy, d=Role.DECODE)
    play.turns(5, d={"failed_transfers": 0.0})
    verdict = play.turns(10, d={"usage": 0.5, "failed_transfers": 3.0})["d"]
    assert verdict.limit_seconds == limit


@pytest.mark.parametrize(("blind", "held"), [(1, False), (2, True)], ids=["half", "more-than-half"])
def test_a_fleet_that_is_mostly_blind_holds_everything(blind: int, held: bool) -> None:
    play = Play(a=Role.DECODE, b=Role.DECODE)
    if blind == 2:
        play.roles["c"] = Role.DECODE
    play.turns(5, **{name: {"usage": None} for name in "ab"[:blind]})
    assert play.result is not None
    assert play.result.blind_fleet is held


def test_an_engine_that_is_gone_is_forgotten() -> None:
    play = Play(a=Role.DECODE, b=Role.DECODE)
    play.turns(5)
    play.roles = {"a": Role.DECODE}
    play.turns(5)
    assert set(play.memory.engines) == {"a"}


def test_an_engine_that_is_read_twice_is_an_error() -> None:
    one = Reading(sample(0))
    with pytest.raises(ValueError, match="decode-3 is read twice"):
        turn(Memory(), [one, one], POLICY, 0)
