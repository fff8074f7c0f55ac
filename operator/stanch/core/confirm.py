"""What the engine's own answer to one small request proves: confirmed, vetoed or inconclusive. Pure.

A canary is one request of one token to the suspect itself. It forces a step, so gauges refresh and pending
frees happen; then the engine is read again. Anything that is not proof is inconclusive, and nothing is done.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from stanch.core.policy import PIN_MARGIN_SECONDS, Policy
from stanch.core.report import percent
from stanch.core.sample import Role, Sample, counted, problem
from stanch.core.signatures import Move, canary_cost, movement, restarted
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
    return _undecided(f"the canary {_END[canary.outcome]}{status}{detail}, which proves nothing")


_END = {
    Outcome.REJECTED: "was rejected",
    Outcome.FAILED: "failed",
    Outcome.UNREACHABLE: "had no answer",
}
_QUEUES = (Signature.QUEUE_DEADLOCK, Signature.DEFERRED_STALL)


def _undecided(cause: str, *, restart_hold: bool = False) -> Ruling:
    return Ruling(Answer.INCONCLUSIVE, cause, restart_hold)


def _barred(verdict: Verdict, policy: Policy) -> str | None:
    """Why a canary may not confirm this signature here, whatever it shows (it may still veto)."""
    if verdict.role is Role.UNKNOWN:
        return "the role is not known, and on a prefill engine the same page is a lease"
    if verdict.role is not Role.DECODE and verdict.signature is not Signature.PRODUCER_STRANDED:
        kind = "an engine that also prefills" if verdict.role is Role.BOTH else "a prefill engine"
        return f"a canary proves nothing about {verdict.signature_name} on {kind}"
    if verdict.signature is Signature.PRODUCER_STRANDED and verdict.held_seconds < 2 * policy.lease:
        return f"what a prefill holds may be leased for {2 * policy.lease:.0f} s"
    if verdict.signature is Signature.PRODUCER_STRANDED and verdict.cap is not None:
        return "a decode may still read what a prefill holds"
    if policy.may_be_bidirectional:
        pin = policy.kv_pin_seconds + PIN_MARGIN_SECONDS
        if verdict.signature is Signature.HELD_FLOOR:
            return "the engine may be bidirectional, and then finished turns stay pinned"
        pinned = (Signature.HELD_IDLE, Signature.QUEUE_DEADLOCK)
        if verdict.signature in pinned and verdict.held_seconds < pin:
            return f"the engine may be bidirectional, and its pins end only after {pin:.0f} s"
    return None


def _finished(verdict: Verdict, evidence: Evidence, policy: Policy) -> Ruling:
    before, after = evidence.before, evidence.after[-1] if evidence.after else None
    if after is None or (unfit := problem(after)) is not None or problem(before) is not None:
        why = "no reading" if after is None else unfit or problem(before)
        return _undecided(f"the canary was answered, but the engine could not be read around it: {why}")
    if restarted(before, after):
        return _undecided("the engine restarted meanwhile")
    canary = evidence.canary
    shown = _shown(canary, before, after)
    if verdict.signature is Signature.NO_PROGRESS:
        return Ruling(Answer.VETOED, "it answered a canary, so it does make progress") if shown else _unseen()
    move, _ = movement(before, after, canary_cost(canary.generation_tokens, canary.prompt_tokens))
    judge_it = _queue if verdict.signature in _QUEUES else _held
    if (early := judge_it(verdict, before, after, move, policy)) is not None:
        return early
    if not shown:
        return _unseen()
    if (bar := _barred(verdict, policy)) is not None:
        return _undecided(f"the canary was answered and nothing was freed, yet {bar}")
    took = f"a canary was answered in {canary.seconds:.1f} s"
    if verdict.signature in _QUEUES:
        return Ruling(Answer.CONFIRMED, f"{took}, yet the queue stands")
    return Ruling(Answer.CONFIRMED, f"{took} and freed nothing: {percent(after.usage)} still held")


def _shown(canary: Canary, before: Sample, after: Sample) -> bool:
    """Whether the canary's token is on the page: then that is this engine's, and newer than the answer."""
    for then, now, own in (
        (before.generation_tokens, after.generation_tokens, canary.generation_tokens),
        (before.prompt_tokens, after.prompt_tokens, canary.prompt_tokens),
    ):
        then, now = counted(then), counted(now)
        if then is not None and now is not None:
            return now - then >= max(own, 1.0)
    return False


def _unseen() -> Ruling:
    why = "the page is stale, or another engine answered"
    return _undecided(f"the canary was answered, but its token is not on the page: {why}")


def _queue(verdict: Verdict, before: Sample, after: Sample, move: Move, policy: Policy) -> Ruling | None:
    """What a finished canary says of a queue that stood still; None: it still stands."""
    if move.progressed or after.running:
        return Ruling(Answer.VETOED, "after a canary the queue moved")
    if not after.waiting and (after.usage or 0.0) < policy.floor_ratio:
        return Ruling(Answer.VETOED, "after a canary nothing waits and nothing is held")
    if (after.waiting or 0.0) < (before.waiting or 0.0) or not after.waiting:
        # Clients that give up make a queue shorter, and their blocks may be held for ever.
        return _undecided("requests left the queue while the canary ran, yet none was served")
    return _fell(before.usage, after.usage)


def _held(verdict: Verdict, before: Sample, after: Sample, move: Move, policy: Policy) -> Ruling | None:
    """What a finished canary says of held blocks; None: they are held as before."""
    if (after.usage or 0.0) < policy.floor_ratio:
        return Ruling(
            Answer.VETOED,
            f"after a canary it holds {percent(after.usage)}, not {percent(verdict.usage)}: nothing leaked",
        )
    if after.running or after.waiting:
        return _undecided("requests arrived while the canary ran")
    if verdict.signature is Signature.HELD_FLOOR:
        # The leak under traffic: what a busy moment held says nothing, so compare with the idle ones.
        busy = before.running or before.waiting
        return _fell(verdict.floor_usage if busy else before.usage, after.usage)
    if move.progressed:
        # That the engine serves does not free what it holds: no veto.
        return _undecided("requests were served while the canary ran")
    return _fell(before.usage, after.usage)


def _fell(before: float | None, after: float | None) -> Ruling | None:
    if before is None or after is None or after >= before:
        return None
    return _undecided(
        f"after a canary the usage fell from {percent(before)} to {percent(after)}", restart_hold=True
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
    if any(restarted(evidence.before, r) for r in evidence.after):
        return _undecided(f"{lead}, but the engine restarted meanwhile")
    if (state := next((r.lifecycle for r in readings if r.lifecycle is not None), None)) is not None:
        return _undecided(f"{lead}, but the engine is {state.value}")
    if any(counted(r.iterations) is None for r in readings):
        return _undecided(f"{lead}, but without an iteration counter a long prefill cannot be ruled out")
    shows = {(r.usage, r.iterations, r.generation_tokens, r.prompt_tokens) for r in readings}
    if len(shows) > 1:
        return _undecided(f"{lead}, but the engine was working meanwhile")
    if (bar := _barred(verdict, policy)) is not None:
        return _undecided(f"{lead}, yet {bar}")
    return Ruling(Answer.CONFIRMED, f"{lead} while /health answered and nothing moved")
