"""The alerts over recordings of real engines: where the detector says fault they fire, and nowhere else."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from stanch.core.policy import Policy
from stanch.core.sample import Role
from stanch.core.verdict import Signature, State, Verdict
from stanch.edge.monitoring.readings import Pace
from stanch.edge.replay import judge, read_recording
from tests.monitoring.pages import RECORDINGS, scraped
from tests.monitoring.promtool import Check, World, needs_promtool, tried

pytestmark = [pytest.mark.unit, needs_promtool]

# The recordings have a page a second and scenarios of half a minute: the rules are made for that pace.
PACE = Pace(interval_seconds=1)
HOLD = Policy(lease_seconds=30).with_hold(10)
# An alert comes so much later than the verdict, or goes.
LATER = PACE.reach_seconds + 2 * PACE.interval_seconds
# HeldFloor's window is four scrapes of the slowest kind times five readings.
FLOOR_LATER = 22
# Both hold of an engine that has been idle long enough, and a verdict names one.
_ALIKE = frozenset({Signature.HELD_IDLE, Signature.HELD_FLOOR})


@dataclass(frozen=True, slots=True)
class Case:
    """target: more labels. told: the target says its role. uneven: where suspicions are not compared, because
    the detector's own hold starts anew at a gap of three seconds, or looks back less far."""

    recording: str
    role: Role
    policy: Policy = HOLD
    target: tuple[tuple[str, str], ...] = ()
    told: bool = True
    uneven: tuple[str, ...] = ()


def _firing(matchers: str) -> str:
    """1 where any such alert fires, nothing where none does."""
    return f'count(ALERTS{{alertstate="firing",{matchers}}}) > bool 0'


def _fault(verdict: Verdict) -> frozenset[Signature]:
    """The signatures of which an alert may fire now, and one must; empty where there is no fault."""
    if verdict.state is not State.FAULT or verdict.signature is None:
        return frozenset()
    return _ALIKE if verdict.signature in _ALIKE else frozenset({verdict.signature})


def _checks(case: Case) -> tuple[list[Check], dict[str, set[Signature]]]:
    """What must fire when, and the signatures of which something must fire, by scenario."""
    lines = read_recording(str(RECORDINGS / f"{case.recording}.jsonl.gz"))
    start = lines[0].t
    checks: list[Check] = []
    seen: dict[str, set[Signature]] = {}
    now: dict[str, tuple[float, frozenset[Signature]]] = {}
    for line, verdict in judge(lines, case.policy, case.role):
        t, fault = line.t - start, _fault(verdict)
        since, before = now.get(verdict.engine, (-LATER, frozenset[Signature]()))
        if fault != before:
            since = t
        now[verdict.engine] = since, fault
        uneven = line.scenario in case.uneven and verdict.state is State.SUSPECT
        # A spared reading shows no pattern, and the next one decides.
        if (
            uneven
            or verdict.spared
            or t - since < (FLOOR_LATER if verdict.signature is Signature.HELD_FLOOR else LATER)
        ):
            continue
        of = f'engine="{verdict.engine}",severity="critical"'
        if not fault:
            checks.append(Check(t, _firing(of)))
            continue
        assert verdict.signature is not None
        seen.setdefault(line.scenario or "", set()).add(verdict.signature)
        names = "|".join(f"Stanch{one.value}" for one in sorted(fault))
        checks.append(Check(t, _firing(f'alertname=~"{names}",{of}'), [{}]))
        checks.append(Check(t, _firing(f'alertname!~"{names}",{of}')))
    return checks, seen


def _world(case: Case, checks: list[Check]) -> World:
    target = {"job": "vllm", "instance": "10.0.0.1:8000", "namespace": "serving", "pod": case.role.value}
    target |= dict(case.target) | ({"role": case.role.value} if case.told else {})
    return World(scraped(case.recording, target), checks, case.policy, PACE)


DECODE = {
    "parked_clients_waiting": {Signature.DEFERRED_STALL},
    "orphans_held_idle": {Signature.HELD_IDLE},
    "orphans_with_healthy_traffic": {Signature.HELD_IDLE, Signature.HELD_FLOOR},
    "leak_to_90_percent": {Signature.HELD_FLOOR},
    "big_request_waits_for_capacity": {Signature.QUEUE_DEADLOCK},
    "full_idle": {Signature.HELD_IDLE},
    "decode_worker_frozen_while_running": {Signature.HELD_IDLE},
}


@pytest.mark.parametrize(
    ("case", "faults"),
    [
        pytest.param(
            Case("0.29.0/decode", Role.DECODE, uneven=("leak_to_90_percent", "frozen_peer")),
            DECODE,
            id="decode",
        ),
        pytest.param(
            Case("0.29.0/decode", Role.DECODE, told=False, uneven=("leak_to_90_percent", "frozen_peer")),
            DECODE,
            id="decode by its counters",
        ),
        pytest.param(Case("0.29.0/prefill", Role.PREFILL), {}, id="prefill within its lease"),
        pytest.param(
            Case("0.29.0/prefill", Role.PREFILL, told=False),
            {},
            id="prefill by its counters, within its lease",
        ),
        pytest.param(
            Case("0.29.0-own/worker_frozen", Role.DECODE),
            {"worker_frozen": {Signature.NO_PROGRESS}},
            id="frozen worker",
        ),
        pytest.param(Case("0.29.0-own/chunked_prefill", Role.DECODE), {}, id="long chunked prefill"),
        pytest.param(
            Case(
                "0.29.0-own/bidirectional_pinned",
                Role.DECODE,
                replace(HOLD, kv_pin_seconds=60),
                (("bidirectional", "true"),),
            ),
            {},
            id="pinned turns",
        ),
        pytest.param(
            Case("0.29.0-own/data_parallel_leak", Role.DECODE),
            {"rank_1_leaks": {Signature.HELD_IDLE}},
            id="one of two ranks",
        ),
        pytest.param(
            Case("0.29.0-own/grammar_wait", Role.DECODE, Policy().with_hold(40)), {}, id="short grammar wait"
        ),
        pytest.param(
            Case("0.29.0-own/grammar_wait", Role.DECODE),
            {"grammar_wait": {Signature.DEFERRED_STALL}},
            id="long grammar wait",
        ),
    ],
)
def test_fires_where_the_detector_finds_a_fault(
    case: Case, faults: dict[str, set[Signature]], tmp_path: Path
) -> None:
    checks, seen = _checks(case)
    assert checks, "something was compared"
    assert tried(_world(case, checks), tmp_path) == ""
    assert seen == faults


def test_a_prefill_within_its_lease_is_not_even_warned_of(tmp_path: Path) -> None:
    case = Case("0.29.0/prefill", Role.PREFILL)
    quiet = _firing('alertname!="StanchTransferFault"')
    assert tried(_world(case, [Check(t, quiet) for t in range(375)]), tmp_path) == ""


def test_pinned_turns_that_nobody_told_of_look_like_a_leak(tmp_path: Path) -> None:
    case = Case("0.29.0-own/bidirectional_pinned", Role.DECODE)
    assert tried(_world(case, [Check(30, _firing('alertname="StanchHeldIdle"'), [{}])]), tmp_path) == ""
