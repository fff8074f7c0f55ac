"""What the engine kit's list proves of a verdict: confirmed, vetoed or inconclusive. Pure.

The list names every request of the engine, so it shows who holds what; it does not show whether steps are
made, nor blocks that no request refers to. What it does not prove is left to the canary.
"""

from __future__ import annotations

from collections.abc import Sequence

from stanch.core.confirm import Ruling
from stanch.core.kit import WAITS_FOR_KV, Entry, KitReport, share
from stanch.core.policy import PIN_MARGIN_SECONDS, Policy
from stanch.core.report import age_text, percent
from stanch.core.verdict import Answer, Signature, Verdict


def judge_list(verdict: Verdict, report: KitReport, policy: Policy) -> Ruling:
    """What the list says of the verdict's signature. Without a list that is nothing."""
    if report.entries is None:
        return Ruling(Answer.INCONCLUSIVE, report.problem or "the engine kit gave no list")
    if verdict.signature is Signature.PARKED_REMOTE_KV:
        return _parked(verdict, report)
    if verdict.signature in (Signature.HELD_IDLE, Signature.HELD_FLOOR):
        return _held(verdict, report, policy)
    if verdict.signature is Signature.QUEUE_DEADLOCK:
        return _queue(verdict, report.entries, policy)
    if verdict.signature is Signature.PRODUCER_STRANDED:
        return _stranded(verdict, report.entries, policy)
    if verdict.signature is Signature.DEFERRED_STALL:
        return Ruling(Answer.INCONCLUSIVE, f"of those that wait, by the kit's list, {_waits(report.entries)}")
    return Ruling(Answer.INCONCLUSIVE, f"the kit's list proves nothing about {verdict.signature_name}")


def _parked(verdict: Verdict, report: KitReport) -> Ruling:
    limit = verdict.limit_seconds
    if limit is not None and report.stuck(limit):
        return Ruling(Answer.CONFIRMED, "the engine kit lists them")
    return Ruling(
        Answer.VETOED if not report.stuck() else Answer.INCONCLUSIVE,
        "the engine kit lists no request that has been stuck for so long",
    )


def _held(verdict: Verdict, report: KitReport, policy: Policy) -> Ruling:
    entries = report.entries or ()
    if any(e.status == "RUNNING" for e in entries) and verdict.signature is Signature.HELD_IDLE:
        return Ruling(Answer.INCONCLUSIVE, "requests run by the kit's list")
    left = report.stuck(policy.held_idle_seconds)
    if share(left) >= policy.floor_ratio:
        return Ruling(Answer.CONFIRMED, "the engine kit lists the requests that hold it")
    pin = max(policy.kv_pin_seconds + PIN_MARGIN_SECONDS, policy.lease)
    kept = [e for e in entries if (e.leased or e.pinned) and e.age_seconds < pin]
    if not report.stuck() and share(kept) > (verdict.usage or 0.0) - policy.floor_ratio:
        return Ruling(
            Answer.VETOED,
            f"its kit's list says that {_count(kept)} may still be read from it, and holds that",
        )
    named, shown = percent(share(report.stuck())), percent(verdict.usage)
    return Ruling(
        Answer.INCONCLUSIVE,
        f"by the kit's list stuck requests hold {named} of the KV cache, by the gauge {shown} are held",
    )


def _queue(verdict: Verdict, entries: Sequence[Entry], policy: Policy) -> Ruling:
    if running := [e for e in entries if e.status == "RUNNING"]:
        return Ruling(Answer.INCONCLUSIVE, f"by the kit's list {_count(running)} run")
    waiting = [e for e in entries if not e.client_gone and e.waits_for != WAITS_FOR_KV]
    old = [e for e in waiting if e.age_seconds >= (verdict.limit_seconds or 0.0)]
    if not old:
        return Ruling(Answer.INCONCLUSIVE, "by the kit's list nothing has waited for so long")
    if kept := [e for e in entries if e.leased or e.pinned]:
        return Ruling(
            Answer.INCONCLUSIVE,
            f"by the kit's list {_count(kept)} are kept for a reader and may be in the way",
        )
    age = age_text(max(e.age_seconds for e in old))
    return Ruling(Answer.CONFIRMED, f"the engine kit lists {_count(old)} that wait, for up to {age}")


def _stranded(verdict: Verdict, entries: Sequence[Entry], policy: Policy) -> Ruling:
    if verdict.cap is not None:
        return Ruling(Answer.INCONCLUSIVE, "a decode may still read what a prefill holds")
    old = [e for e in entries if e.leased and e.age_seconds >= 2 * policy.lease]
    if share(old) >= policy.floor_ratio:
        age = age_text(max(e.age_seconds for e in old))
        return Ruling(
            Answer.CONFIRMED, f"the engine kit lists {_count(old)} that nobody read, for up to {age}"
        )
    return Ruling(Answer.INCONCLUSIVE, "the kit's list names no request that nobody has read for so long")


def _waits(entries: Sequence[Entry]) -> str:
    """ "2 wait for remote_kv, 1 for grammar"; what has no reason is left out."""
    counts: dict[str, int] = {}
    for entry in entries:
        if entry.waits_for and not entry.client_gone:
            counts[entry.waits_for] = counts.get(entry.waits_for, 0) + 1
    return ", ".join(f"{count} for {reason}" for reason, count in sorted(counts.items())) or "none is left"


def _count(entries: Sequence[Entry]) -> str:
    return f"{len(entries)} request{'' if len(entries) == 1 else 's'}"
