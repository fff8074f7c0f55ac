"""What the engine's own answer to one small request proves: confirmed, vetoed or inconclusive. Pure.

A canary is one request of one token to the suspect itself. It forces a step, so gauges refresh and pending
frees happen; then the engine is read again. Anything that is not proof is inconclusive, and nothing is done.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from stanch.core.policy import PIN_MARGIN_SECONDS, Policy
from stanch.core.sample import Role, Sample, problem
from stanch.core.signatures import canary_cost, movement, restarted
from stanch.core.verdict import Answer, Signature, Verdict


class Outcome(str, Enum):
    """What came of the canary's request."""

    FINISHED = "finished"  # its token came
    REJECTED = "rejected"  # 4xx
    FAILED = "failed"  # 5xx, or an answer that is none
    UNREACHABLE = "unreachable"  # refused, reset, no such host
    TIMED_OUT = "timed out"


class Paused(str, Enum):
    """What /is_paused said in the same turn."""

    NO = "no"
    YES = "yes"
    NOT_SERVED = "not served"  # 404: vLLM serves its pause routes in development mode only
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Canary:
    """One canary's end. seconds: until the answer or the deadline; tokens: as the answer says."""

    outcome: Outcome
    seconds: float
    status: int | None = None
    detail: str = ""
    generation_tokens: float = 0.0
    prompt_tokens: float = 0.0


@dataclass(frozen=True, slots=True)
class Evidence:
    """A canary with what was read just before it and since, oldest first, the last after its end."""

    canary: Canary
    before: Sample
    after: Sequence[Sample]
    health_ok: bool
    paused: Paused


@dataclass(frozen=True, slots=True)
class Ruling:
    """restart_hold: the pattern weakened without ending, so its time starts again."""

    answer: Answer
    cause: str
    restart_hold: bool = False


def judge(verdict: Verdict, evidence: Evidence, policy: Policy) -> Ruling:
    """What the evidence says of the verdict's signature."""
    canary = evidence.canary
    if canary.outcome is Outcome.FINISHED:
        return _finished(verdict, evidence, policy)
    if canary.outcome is Outcome.TIMED_OUT:
        return _timed_out(verdict, evidence, policy)
    status = "" if canary.status is None else f" with HTTP {canary.status}"
    detail = f" ({canary.detail})" if canary.detail else ""
    return _undecided(f"the canary was {_VERB[canary.outcome]}{status}{detail}, which proves nothing")


_VERB = {
    Outcome.REJECTED: "rejected",
    Outcome.FAILED: "answered by an error",
    Outcome.UNREACHABLE: "refused",
}


def _undecided(cause: str, *, restart_hold: bool = False) -> Ruling:
    return Ruling(Answer.INCONCLUSIVE, cause, restart_hold)


def _barred(verdict: Verdict, policy: Policy) -> str | None:
    """Why a canary may not confirm this signature here, whatever it shows (it may still veto)."""
    if verdict.role is Role.UNKNOWN:
        return "the role is not known, and on a prefill engine the same page is a lease"
    if verdict.role is not Role.DECODE and verdict.signature is not Signature.PRODUCER_STRANDED:
        return f"a canary proves nothing about {verdict.signature_name} on a {verdict.role.value} engine"
    if policy.may_be_bidirectional:
        pin = policy.kv_pin_seconds + PIN_MARGIN_SECONDS
        if verdict.signature is Signature.HELD_FLOOR:
            return "the engine may be bidirectional, and then finished turns stay pinned"
        if verdict.signature is Signature.HELD_IDLE and verdict.held_seconds < pin:
            return f"the engine may be bidirectional, and its pins end only after {pin:.0f} s"
    return None


def _finished(verdict: Verdict, evidence: Evidence, policy: Policy) -> Ruling:
    before, after = evidence.before, evidence.after[-1] if evidence.after else None
    if after is None or (unfit := problem(after)) is not None or problem(before) is not None:
        why = "no reading" if after is None else unfit or problem(before)
        return _undecided(f"the canary was answered, but the engine could not be read around it: {why}")
    if restarted(before, after):
        return _undecided("the engine restarted meanwhile")
    assert before.usage is not None and after.usage is not None  # noqa: PT018
    assert before.waiting is not None and after.waiting is not None  # noqa: PT018
    canary = evidence.canary
    move, _ = movement(before, after, canary_cost(canary.generation_tokens, canary.prompt_tokens))
    signature = verdict.signature
    if signature is Signature.NO_PROGRESS:
        return Ruling(Answer.VETOED, "it answered a canary, so it does make progress")
    if signature in (Signature.QUEUE_DEADLOCK, Signature.DEFERRED_STALL):
        if move.progressed or after.running or after.waiting < before.waiting:
            return Ruling(Answer.VETOED, "after a canary the queue moved")
    else:
        if after.usage < policy.floor_ratio:
            return Ruling(
                Answer.VETOED,
                f"after a canary it holds {after.usage:.0%}, not {before.usage:.0%}: the gauge was stale",
            )
        if signature is not Signature.HELD_FLOOR and move.progressed:
            return Ruling(Answer.VETOED, "requests were served meanwhile")
        if after.running or after.waiting:
            return _undecided("requests arrived while the canary ran")
    if after.usage < before.usage:
        return _undecided(
            f"after a canary the usage fell from {before.usage:.0%} to {after.usage:.0%}", restart_hold=True
        )
    if (bar := _barred(verdict, policy)) is not None:
        return _undecided(f"the canary was answered and nothing was freed, yet {bar}")
    return Ruling(
        Answer.CONFIRMED,
        f"a canary was answered in {canary.seconds:.1f} s and freed nothing: {after.usage:.0%} still held"
        if signature not in (Signature.QUEUE_DEADLOCK, Signature.DEFERRED_STALL)
        else f"a canary was answered in {canary.seconds:.1f} s, yet the queue stands",
    )


def _timed_out(verdict: Verdict, evidence: Evidence, policy: Policy) -> Ruling:
    lead = f"the canary had no answer within {evidence.canary.seconds:.0f} s"
    if not evidence.health_ok:
        return _undecided(f"{lead}, but /health did not answer either")
    if evidence.paused is Paused.YES:
        return _undecided(f"{lead}, but the engine is paused")
    if evidence.paused is Paused.UNKNOWN:
        return _undecided(f"{lead}, but whether the engine is paused could not be found out")
    readings = (evidence.before, *evidence.after)
    if len(readings) < 2 or any(problem(r) is not None for r in readings):
        return _undecided(f"{lead}, but the engine could not be read meanwhile")
    if evidence.before.iterations is None:
        return _undecided(f"{lead}, but without an iteration counter a long prefill cannot be ruled out")
    shows = {(r.usage, r.iterations, r.generation_tokens, r.prompt_tokens) for r in readings}
    if len(shows) > 1:
        return _undecided(f"{lead}, but the engine was working meanwhile")
    if (bar := _barred(verdict, policy)) is not None:
        return _undecided(f"{lead}, yet {bar}")
    return Ruling(Answer.CONFIRMED, f"{lead} while /health answered and nothing moved")
