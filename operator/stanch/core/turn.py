"""One whole turn over a fleet: what one engine's page cannot tell is judged here. Pure.

A prefill holds blocks for its decodes, so it is no patient while one of them waits; a failing or restarted
prefill makes leaks on its decodes likelier, so their holds are shortened for a while (arming).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from stanch.core.answers import answer
from stanch.core.confirm_list import judge_list
from stanch.core.detector import EngineState, step
from stanch.core.kit import WAITS_FOR_KV, KitReport, usable
from stanch.core.policy import Policy
from stanch.core.sample import Role, Sample, problem
from stanch.core.verdict import Answer, State, Verdict, Warn

_FRESH = EngineState()


@dataclass(frozen=True, slots=True)
class Reading:
    """One engine's sample with what is known of the engine. policy: its own, where it differs. report: the
    newest word of its kit."""

    sample: Sample
    role: Role = Role.DECODE
    deployment: str = ""
    policy: Policy | None = None
    report: KitReport | None = None


@dataclass(frozen=True, slots=True)
class Deployment:
    """quiet_since: since when no decode waits or parks; None while one does, or cannot be read, or an engine
    whose role is not known does.
    armed_until: until when what its prefills went through shortens its decodes' holds."""

    quiet_since: float | None = None
    armed_until: float | None = None


@dataclass(frozen=True, slots=True)
class Memory:
    """What is remembered of all engines; an engine that is not read in a turn is forgotten."""

    engines: Mapping[str, EngineState] = field(default_factory=dict)
    deployments: Mapping[str, Deployment] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Turn:
    """verdicts: in the order of the readings. blind_fleet: more than half are blind, so nothing may act."""

    now: float
    verdicts: tuple[Verdict, ...]
    blind_fleet: bool


def turn(memory: Memory, readings: Sequence[Reading], policy: Policy, now: float) -> tuple[Memory, Turn]:
    """Judge one reading of every engine. Raises ValueError where an engine is read twice."""
    deployments = _decodes(memory, readings, policy, now)
    armed_policies: dict[Policy, Policy] = {}
    engines: dict[str, EngineState] = {}
    verdicts = []
    arm: set[str] = set()
    for reading in readings:
        name = reading.sample.engine
        if name in engines:
            raise ValueError(f"engine {name} is read twice in one turn")
        before = memory.engines.get(name, _FRESH)
        own = reading.policy or policy
        known = deployments.get(reading.deployment)
        armed = (before.trends.transfer_until is not None and now < before.trends.transfer_until) or (
            reading.role is Role.DECODE
            and known is not None
            and known.armed_until is not None
            and now < known.armed_until
        )
        if armed:
            own = armed_policies.setdefault(own, replace(own, armed=True))
        quiet = None
        if known is not None:
            quiet = 0.0 if known.quiet_since is None else now - known.quiet_since
        after, verdict = step(before, reading.sample, own, reading.role, quiet, reading.report)
        if verdict.state is State.FAULT and reading.report is not None:
            after, verdict = _asked(after, verdict, reading, own)
        if armed and Warn.TRANSFER_FAULT not in verdict.warnings:
            verdict = replace(verdict, warnings=(*verdict.warnings, Warn.TRANSFER_FAULT))
        if reading.role is not Role.DECODE and _troubled(before, after):
            arm.add(reading.deployment)
        engines[name] = after
        verdicts.append(verdict)
    until = now + policy.transfer_fault_seconds
    for name in arm & deployments.keys():
        deployments[name] = replace(deployments[name], armed_until=until)
    blind = sum(v.state is State.BLIND for v in verdicts)
    return Memory(engines, deployments), Turn(now, tuple(verdicts), blind * 2 > len(verdicts))


def _asked(
    state: EngineState, verdict: Verdict, reading: Reading, policy: Policy
) -> tuple[EngineState, Verdict]:
    """With what the kit's list proves: it is the confirmation, where the engine has one."""
    report = usable(reading.report, reading.sample.t, policy, state.restarted_t)
    if verdict.spared or report is None or report.entries is None:
        return state, verdict
    ruling = judge_list(verdict, report, policy)
    if ruling.answer is Answer.INCONCLUSIVE:
        return state, verdict
    return answer(state, ruling.answer, ruling.cause)


def _troubled(before: EngineState, after: EngineState) -> bool:
    """Whether the engine restarted, or its transfers or notifications failed, since the last reading."""
    return (after.restarted_t != before.restarted_t and after.restarted_t is not None) or (
        after.trends.transfer_until != before.trends.transfer_until
        and after.trends.transfer_until is not None
    )


def _decodes(
    memory: Memory, readings: Sequence[Reading], policy: Policy, now: float
) -> dict[str, Deployment]:
    """The deployments whose decodes are known, with how long those have been quiet.

    An engine whose role is not known may be one more decode: it can make them unquiet, not known.
    """
    known: dict[str, None] = {}
    unquiet: set[str] = set()
    for reading in readings:
        if reading.role in (Role.DECODE, Role.BOTH):
            known[reading.deployment] = None
        if reading.role is not Role.PREFILL and not _is_quiet(reading, reading.policy or policy):
            unquiet.add(reading.deployment)
    found = {}
    for name in known:
        old = memory.deployments.get(name, Deployment())
        since = None if name in unquiet else now if old.quiet_since is None else old.quiet_since
        found[name] = old if since == old.quiet_since else replace(old, quiet_since=since)
    return found


def _is_quiet(reading: Reading, policy: Policy) -> bool:
    """Whether this decode surely has nothing waiting or parked. One that holds blocks for nobody may have, as
    far as its gauges go; its kit's list tells."""
    sample = reading.sample
    if problem(sample) is not None or sample.waiting != 0:
        return False
    report = usable(reading.report, sample.t, policy)
    if report is not None and report.entries is not None:
        return not any(e.waits_for == WAITS_FOR_KV for e in report.entries)
    return bool(sample.running) or (sample.usage or 0.0) < policy.floor_ratio
