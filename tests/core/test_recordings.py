"""The recordings of real vLLM 0.29.0 engines, judged with a hold of 10 s: what the answers must be."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from stanch.core.policy import Policy
from stanch.core.sample import Role
from stanch.core.verdict import Signature, State, Verdict
from stanch.edge.replay import judge, read_recording

pytestmark = pytest.mark.unit

RECORDINGS = Path(__file__).parents[1] / "data" / "recordings" / "0.29.0"
HOLD = 10
# A hold begins with the first reading of a scenario; a second more is one interval.
JUDGED_FROM = 11.0


@cache
def verdicts(role: Role) -> dict[str, list[tuple[float, Verdict]]]:
    """Scenario -> (seconds since its first sample, verdict) of each of its lines."""
    found: dict[str, list[tuple[float, Verdict]]] = {}
    starts: dict[str, float] = {}
    lines = read_recording(str(RECORDINGS / f"{role.value}.jsonl.gz"))
    for line, verdict in judge(lines, Policy().with_hold(HOLD), role):
        assert line.scenario is not None
        start = starts.setdefault(line.scenario, line.t)
        found.setdefault(line.scenario, []).append((line.t - start, verdict))
    return found


def judged(role: Role, scenario: str) -> list[Verdict]:
    found = [verdict for since, verdict in verdicts(role)[scenario] if since >= JUDGED_FROM]
    assert found, f"nothing of {scenario} is left to judge"
    return found


@pytest.mark.parametrize(
    "scenario", ["idle", "healthy", "generating_then_client_gone", "producer_holds_lease", "idle_end"]
)
def test_a_healthy_decode_is_never_a_fault(scenario: str) -> None:
    assert all(v.state is not State.FAULT for _, v in verdicts(Role.DECODE)[scenario])


@pytest.mark.parametrize("scenario", ["idle", "healthy", "producer_holds_lease", "peer_thawed", "idle_end"])
def test_a_decode_that_holds_nothing_is_healthy(scenario: str) -> None:
    assert all(v.state is State.HEALTHY for _, v in verdicts(Role.DECODE)[scenario])


@pytest.mark.parametrize(
    ("scenario", "signature"),
    [
        ("parked_clients_waiting", Signature.DEFERRED_STALL),
        ("orphans_held_idle", Signature.HELD_IDLE),
        ("full_idle", Signature.HELD_IDLE),
        ("big_request_waits_for_capacity", Signature.QUEUE_DEADLOCK),
    ],
)
def test_a_stuck_decode_is_a_fault_of_its_signature(scenario: str, signature: Signature) -> None:
    assert {(v.state, v.signature) for v in judged(Role.DECODE, scenario)} == {(State.FAULT, signature)}


def test_a_leak_under_traffic_stays_a_fault() -> None:
    lines = verdicts(Role.DECODE)["orphans_with_healthy_traffic"]
    half = lines[-1][0] / 2
    second_half = [v for since, v in lines if since >= half]
    assert all(v.state is State.FAULT for v in second_half)
    assert {v.signature for v in second_half} <= {Signature.HELD_FLOOR, Signature.HELD_IDLE}


def test_no_held_idle_within_the_hold_of_a_token() -> None:
    for lines in verdicts(Role.DECODE).values():
        for _, v in lines:
            if v.signature is Signature.HELD_IDLE and v.state is State.FAULT:
                assert v.idle_seconds is not None
                assert v.idle_seconds >= HOLD


@pytest.mark.parametrize(
    ("scenario", "signatures"),
    [
        ("leak_to_90_percent", {Signature.HELD_IDLE, Signature.HELD_FLOOR}),
        ("frozen_peer", {Signature.DEFERRED_STALL, Signature.HELD_IDLE}),
    ],
)
def test_how_it_ends(scenario: str, signatures: set[Signature]) -> None:
    last = verdicts(Role.DECODE)[scenario][-1][1]
    assert last.state is State.FAULT
    assert last.signature in signatures


def test_a_restart_is_blind_while_down_and_carries_nothing_over() -> None:
    lines = [v for _, v in verdicts(Role.DECODE)["decode_restart"]]
    up = [v for v in lines if v.state is not State.BLIND]
    assert [v.state for v in lines] == [State.BLIND] * (len(lines) - len(up)) + [State.HEALTHY] * len(up)
    assert up, "it came back within the scenario"
    assert all(v.held_seconds == 0 for v in lines)


def _prefill() -> Iterator[Verdict]:
    for lines in verdicts(Role.PREFILL).values():
        yield from (v for _, v in lines)


def test_a_prefill_within_its_lease_is_never_a_fault() -> None:
    assert all(v.state is not State.FAULT for v in _prefill())
    held = [v for v in _prefill() if v.usage and not v.running and not v.waiting]
    assert held, "it does hold for its lease"
    assert {v.state for v in held} == {State.HEALTHY}
