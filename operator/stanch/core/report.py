"""Verdicts as a sentence and as data. Pure; the form of the data is documented in docs/output.md."""

from __future__ import annotations

from stanch.core.kit import Entry, Stuck
from stanch.core.sample import Role
from stanch.core.verdict import Answer, Cap, Signature, State, Verdict

SCHEMA = "stanch.verdict/1"

_CAPS = {
    Cap.NO_FLEET: "only a suspicion, since what a prefill may hold depends on its decodes: name them too",
    Cap.DECODE_WAITS: "only a suspicion, since a decode of its deployment, or an engine that may be one, "
    "waits, parks or holds blocks, or just did",
    Cap.MAY_BE_PINNED: "only a suspicion, since a bidirectional decode pins its finished turns",
    Cap.ROLE_UNKNOWN: "only a suspicion, since its role is not known: say whether it is decode or prefill",
}

# So many requests a sentence names; the data names more.
_SPOKEN = 5

_OTHER_CAUSES = (
    "a KV transfer that never ends looks like this, and so do a grammar that compiles, a LoRA limit and "
    "an idle streaming session"
)


def record(verdict: Verdict, *, one_look: bool = False) -> dict[str, object]:
    """One verdict as JSON-ready data (schema stanch.verdict/1); keys may be added, none are removed."""
    return {
        "schema": SCHEMA,
        "t": verdict.t,
        "engine": verdict.engine,
        "role": verdict.role.value,
        "state": verdict.state.value,
        "signature": verdict.signature.value if verdict.signature else None,
        "held_seconds": round(verdict.held_seconds, 3),
        "usage": verdict.usage,
        "running": verdict.running,
        "waiting": verdict.waiting,
        "warnings": [w.value for w in verdict.warnings],
        "confirmation": verdict.confirmation.value if verdict.confirmation else None,
        "reason": sentence(verdict, one_look=one_look),
        "limit_seconds": verdict.limit_seconds,
        "idle_seconds": None if verdict.idle_seconds is None else round(verdict.idle_seconds, 3),
        "deferred": verdict.deferred,
        "floor_usage": verdict.floor_usage,
        "readings": verdict.readings,
        "cap": verdict.cap.value if verdict.cap else None,
        "cause": verdict.cause,
        "lifecycle": verdict.lifecycle.value if verdict.lifecycle else None,
        "stuck": None if verdict.stuck is None else stuck_record(verdict.stuck),
        "unlisted": verdict.unlisted,
    }


def stuck_record(stuck: Stuck) -> dict[str, object]:
    """The stuck requests of a verdict as data."""
    return {
        "count": stuck.count,
        "blocks": stuck.blocks,
        "total_blocks": stuck.total_blocks,
        "oldest_seconds": stuck.oldest_seconds,
        "requests": [
            {
                "id": entry.id,
                "scheduler_id": entry.scheduler_id,
                "status": entry.status,
                "age_seconds": entry.age_seconds,
                "blocks": entry.blocks,
                "remote_engine": entry.remote_engine,
                "client_gone": entry.client_gone,
            }
            for entry in stuck.named
        ],
    }


def sentence(verdict: Verdict, *, one_look: bool = False) -> str:
    """The verdict in one sentence. one_look: it rests on a single reading, and says what that hides."""
    if verdict.state is State.BLIND:
        return f"cannot tell about {verdict.engine}: {verdict.cause}"
    if verdict.state is State.HEALTHY:
        return _healthy(verdict, one_look)
    if verdict.spared:
        return (
            f"{verdict.engine} showed {verdict.signature_name} for {verdict.held_seconds:.0f} s"
            f"{_limit(verdict)} until this reading, which does not; nothing moved since, so one more decides"
        )
    text = _pattern(verdict)
    if one_look and verdict.stuck is None and verdict.signature is not Signature.PARKED_REMOTE_KV:
        what = "watch it with"
        if verdict.signature is Signature.PRODUCER_STRANDED:
            text += "; a prefill holds blocks for its decodes until its lease ends"
            what = "watch them together,"
        text += f"; one look cannot tell for how long: {what} --for {_watch_for(verdict)}"
    elif not one_look or verdict.signature is Signature.PARKED_REMOTE_KV:
        text += _limit(verdict)  # else the list below says for how long, of each
    if verdict.signature is Signature.HELD_FLOOR:
        text += ": a leak under traffic"
    if verdict.stuck is not None:
        text += f"; {_held_by(verdict.stuck)}: {_named(verdict.stuck)}"
    cap = verdict.cap
    if one_look and verdict.role is Role.UNKNOWN and verdict.signature is not Signature.NO_PROGRESS:
        cap = Cap.ROLE_UNKNOWN  # asked for at once, not only when the hold has passed
    if cap is not None:
        text += f"; {_CAPS[cap]}"
    if verdict.signature is Signature.DEFERRED_STALL and verdict.stuck is None:
        text += f"; {_OTHER_CAUSES}"
    if verdict.confirmation is Answer.CONFIRMED:
        text += f"; confirmed: {verdict.cause}" if verdict.cause else "; confirmed by the engine"
    elif verdict.confirmation is Answer.INCONCLUSIVE:
        text += f"; asking the engine was inconclusive: {verdict.cause}" if verdict.cause else ""
    elif verdict.cause is not None:
        text += f"; {verdict.cause}"
    if verdict.unlisted is not None and not verdict.no_kit:
        text += f"; which requests these are is not known: {verdict.unlisted}"
    return text


def age_text(seconds: float) -> str:
    """An age as people read it."""
    if seconds < 600:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _held_by(stuck: Stuck) -> str:
    """ "3 requests hold 30 blocks of 100"."""
    hold, blocks = ("holds", "hold")[stuck.count != 1], f"block{'' if stuck.blocks == 1 else 's'}"
    total = "" if stuck.total_blocks is None else f" of {stuck.total_blocks}"
    return f"{_requests(stuck.count)} {hold} {stuck.blocks} {blocks}{total}"


def _named(stuck: Stuck) -> str:
    named = [_one(entry) for entry in stuck.named[:_SPOKEN]]
    more = stuck.count - len(named)
    return ", ".join(named) + (f" and {more} more" if more else "")


def _one(entry: Entry) -> str:
    words = [age_text(entry.age_seconds)]
    if entry.remote_engine is not None:
        words.append(f"from engine {entry.remote_engine}")
    words.append("its client has gone" if entry.client_gone else "its client waits")
    return f"{entry.id} ({', '.join(words)})"


def percent(ratio: float | None) -> str:
    """A ratio as people read it; under one per cent with a digit more, so that a little is not nothing."""
    if ratio is None:
        return "an unknown share"
    return f"{ratio:.1%}".replace("%", " %") if 0 < ratio < 0.0095 else f"{ratio * 100:.0f} %"


def _requests(count: float | None) -> str:
    if count is None:
        return "unknown requests"
    return f"{count:g} request{'' if count == 1 else 's'}"


def _limit(verdict: Verdict) -> str:
    if verdict.limit_seconds is None:
        return ""
    lease = ", twice its lease" if verdict.signature is Signature.PRODUCER_STRANDED else ""
    return f" (limit {verdict.limit_seconds:.0f} s{lease})"


def _watch_for(verdict: Verdict) -> int:
    return int((verdict.limit_seconds or 60.0) + 10)


def _healthy(verdict: Verdict, one_look: bool) -> str:
    name = verdict.engine
    if verdict.signature is Signature.STALE_GAUGE:
        return f"{name} is healthy: {verdict.cause}"
    if verdict.lifecycle is not None:
        return f"{name} is {verdict.lifecycle.value}, so holding KV cache and standing still mean nothing"
    used = f"{percent(verdict.usage)} of its KV cache in use"
    if verdict.running:
        text = f"{name} is at work: {verdict.running:g} running, {verdict.waiting:g} waiting, {used}"
        blind_spot = "cannot see a stall (--for 310 does)"
        if verdict.role in (Role.DECODE, Role.UNKNOWN):
            blind_spot = "cannot see a stall (--for 310 does) or a leak under traffic (--for 910)"
    elif verdict.waiting:
        text = f"{name} has {_requests(verdict.waiting)} waiting and none running, {used}"
        blind_spot = "cannot see a stall (--for 310 does)"
    elif verdict.usage and verdict.role in (Role.PREFILL, Role.BOTH):
        text = f"{name} ({verdict.role.value}) is idle and keeps {percent(verdict.usage)} of its KV cache"
        text += " for its decodes to read, as it may for its lease"
        blind_spot = "cannot tell for how long"
    else:
        between = verdict.idle_seconds == 0 and verdict.usage and not one_look
        text = f"{name} is {'between requests' if between else 'idle'} with {used}"
        blind_spot = "cannot tell whether an idle engine would answer"
    return f"{text}; one look {blind_spot}" if one_look else text


def _pattern(verdict: Verdict) -> str:
    name, held = verdict.engine, f"for {verdict.held_seconds:.0f} s"
    if verdict.signature is Signature.PARKED_REMOTE_KV:
        return f"{name} has requests that are stuck, the longest {held}"
    used = percent(verdict.usage)
    still = "no token " + held
    signature = verdict.signature
    if signature in (Signature.HELD_IDLE, Signature.PRODUCER_STRANDED):
        role = "" if verdict.role is Role.DECODE else f" ({verdict.role.value})"
        text = f"{name}{role} holds {used} of its KV cache with nothing running or waiting"
        return text if verdict.held_seconds == 0 else f"{text} and {still}"
    if signature is Signature.HELD_FLOOR:
        return (
            f"{name} held at least {percent(verdict.floor_usage)} of its KV cache in each of "
            f"{verdict.readings} idle readings over {verdict.held_seconds:.0f} s"
        )
    queue = _requests(verdict.waiting)
    if signature is Signature.DEFERRED_STALL:
        kind = "all deferred" if verdict.deferred is not None else "and blocks held for them"
        text = f"{name} has {queue} waiting, {kind}, with nothing running, {used} of its KV cache held"
        return text if verdict.held_seconds == 0 else f"{text} and {still}"
    if signature is Signature.QUEUE_DEADLOCK:
        text = f"{name} has {queue} waiting that could run, yet nothing runs, {used} of its KV cache held"
        return text if verdict.held_seconds == 0 else f"{text} and {still}"
    if signature is Signature.NO_PROGRESS and not verdict.running:
        return f"{name} is idle and has left a canary without an answer {held}"
    if signature is Signature.NO_PROGRESS:
        return (
            f"{name} runs {_requests(verdict.running)}, yet no token, no iteration and no block moved {held}"
        )
    return f"{name} shows {verdict.signature_name} {held}"
