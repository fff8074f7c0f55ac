"""Draining: new requests are turned away, open ones run to their end. Pure; `now` is the monotonic clock.

A drain ends by itself (law 7): at its deadline, or, where a cordon lease lives then, with that lease. An
operator that dies after it ordered a drain leaves an engine that serves again within one lease.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from stanch_connector.contract import CANARY_PREFIX

# Served while draining: what tells about the engine or helps it drain, on vLLM 0.20 to 0.33. All else is
# work.
PASSING_PATHS = (
    "/health",
    "/metrics",
    "/ping",
    "/version",
    "/load",
    "/server_info",
    "/is_paused",
    "/is_sleeping",
    "/abort_requests",
    "/v1/models",
    "/stanch/v1",
)
_BELOW = tuple(path + "/" for path in PASSING_PATHS)

# Two readings of zero, this far apart, after this long: requests that were prefilled keep arriving at the
# pod's IP after a cordon (measured with kube-proxy 1.35: up to 0.7 s for the routing, 0.3 s and 0.2 s were
# enough).
SETTLE_SECONDS = 0.3
ZERO_APART_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class Settle:
    """Whether the engine has come to rest. since: when new requests began to be refused. zero_since: when the
    first zero of an unbroken row was read, after the settling time."""

    since: float
    zero_since: float | None = None


def settle(state: Settle, open_requests: int, now: float) -> tuple[Settle, bool]:
    """One reading. True: nothing is open and nothing arrived between two readings far enough apart."""
    if open_requests > 0:
        return replace(state, zero_since=None), False
    if now - state.since < SETTLE_SECONDS:
        return state, False
    if state.zero_since is None:
        return replace(state, zero_since=now), False
    return state, now - state.zero_since >= ZERO_APART_SECONDS


@dataclass(frozen=True, slots=True)
class Drain:
    """until: the drain holds before this moment; None where nothing was ordered. rest: whether the engine has
    come to rest in it; an order that follows begins with that."""

    until: float | None = None
    rest: Settle = Settle(0.0)


def start(drain: Drain, deadline: float, now: float) -> Drain:
    """Draining until `deadline`, or longer where an earlier order already says so."""
    if draining(drain, now) and drain.until is not None:
        return replace(drain, until=max(drain.until, deadline))
    return Drain(deadline, Settle(now))


def extend(drain: Drain, cordon_ends_at: float | None, now: float) -> Drain:
    """A drain that holds goes on as long as the cordon lease does; one that has ended does not come back."""
    if drain.until is None or cordon_ends_at is None or now >= min(drain.until, cordon_ends_at):
        return drain
    return replace(drain, until=max(drain.until, cordon_ends_at))


def draining(drain: Drain, now: float) -> bool:
    return drain.until is not None and now < drain.until


def rests(drain: Drain, open_requests: int, now: float) -> tuple[Drain, bool]:
    """One reading. True: it holds, and the engine has come to rest in it."""
    if not draining(drain, now):
        return drain, False
    rest, rested = settle(drain.rest, open_requests, now)
    return replace(drain, rest=rest), rested


def is_work(path: str) -> bool:
    """Whether a request for this path (below the root path) is work for the engine."""
    return path not in PASSING_PATHS and not path.startswith(_BELOW)


def passes(path: str, request_id: str | None, boot_id: str) -> bool:
    """Whether a draining engine serves this: a path that is not work, or the operator's own canary, whose
    X-Request-Id is CANARY_PREFIX and this process's boot id, and nothing or "-" and more after it."""
    if not is_work(path):
        return True
    if not boot_id or request_id is None:
        return False
    canary = CANARY_PREFIX + boot_id
    return request_id == canary or request_id.startswith(canary + "-")
