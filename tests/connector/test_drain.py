"""Draining: what passes, when it is at rest, and that it ends by itself."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stanch_connector import contract
from stanch_connector.apiserver.drain import Drain, Settle, draining, extend, passes, settle, start

pytestmark = pytest.mark.unit

BOOT = "b00t"
PASSES = {
    "completions": ("/v1/completions", None, False),
    "chat": ("/v1/chat/completions", "req-1", False),
    "a route nobody knows": ("/inference/v1/generate", None, False),
    "health": ("/health", None, True),
    "metrics": ("/metrics", None, True),
    "metrics, filtered": ("/metrics/", None, True),
    "ready": (contract.ROUTE_READY, None, True),
    "state": (contract.ROUTE_STATE, None, True),
    "command": (contract.ROUTE_COMMAND, None, True),
    "models": ("/v1/models", None, True),
    "what only begins like health": ("/healthcheck", None, False),
    "the operator's canary": ("/v1/completions", f"{contract.CANARY_PREFIX}{BOOT}", True),
    "the operator's second canary": ("/v1/completions", f"{contract.CANARY_PREFIX}{BOOT}-2", True),
    "a canary for another boot id": ("/v1/completions", f"{contract.CANARY_PREFIX}other", False),
    "a boot id that only begins so": ("/v1/completions", f"{contract.CANARY_PREFIX}{BOOT}x", False),
    "a canary of nobody": ("/v1/completions", contract.CANARY_PREFIX, False),
    "the prefix in the middle": ("/v1/completions", f"x-{contract.CANARY_PREFIX}{BOOT}", False),
}


@pytest.mark.parametrize(("path", "request_id", "expected"), PASSES.values(), ids=PASSES.keys())
def test_passes(path: str, request_id: str | None, expected: bool) -> None:
    assert passes(path, request_id, BOOT) is expected


def test_without_a_boot_id_no_canary_passes() -> None:
    assert not passes("/v1/completions", contract.CANARY_PREFIX, "")


LIVES = {
    "until its deadline": ([("start", 10.0)], None, 10.0),
    "the later of two": ([("start", 10.0), ("start", 5.0)], None, 10.0),
    "a lease that ends before adds nothing": ([("start", 10.0)], 8.0, 10.0),
    "as long as the cordon lives": ([("start", 10.0)], 31.0, 31.0),
}


@pytest.mark.parametrize(("orders", "cordon_ends_at", "ends"), LIVES.values(), ids=LIVES.keys())
def test_ends_by_itself(orders: list[tuple[str, float]], cordon_ends_at: float | None, ends: float) -> None:
    drain = Drain()
    for _, deadline in orders:
        drain = start(drain, deadline, 0.0)
    drain = extend(drain, cordon_ends_at, 1.0)
    assert [draining(drain, now) for now in (ends - 0.01, ends)] == [True, False]


def test_one_that_ended_does_not_come_back_with_a_later_cordon() -> None:
    drain = extend(start(Drain(), 10.0, 0.0), 50.0, 10.0)
    assert not draining(drain, 10.0)


def test_one_that_was_never_ordered_is_not_made_by_a_cordon() -> None:
    assert not draining(extend(Drain(), 50.0, 10.0), 11.0)


@settings(deadline=None)
@given(st.floats(0.1, 100), st.lists(st.tuples(st.floats(0, 40), st.none() | st.floats(0, 300)), max_size=20))
def test_never_longer_than_its_deadline_or_the_last_lease(
    deadline: float, turns: list[tuple[float, float | None]]
) -> None:
    drain, now, last = start(Drain(), deadline, 0.0), 0.0, deadline
    for gap, ends_at in turns:
        now += gap
        drain = extend(drain, ends_at, now)
        last = max(last, ends_at or 0.0)
        assert not draining(drain, max(now, last))


REST = {
    "two zeros": ([(0.0, 0), (0.3, 0), (0.5, 0)], [False, False, True]),
    "not before it settled": ([(0.0, 0), (0.1, 0), (0.29, 0), (0.31, 0)], [False] * 4),
    "zeros too near": ([(0.3, 0), (0.4, 0), (0.49, 0), (0.51, 0)], [False, False, False, True]),
    "one that arrives between": ([(0.3, 0), (0.4, 1), (0.5, 0), (0.6, 0), (0.75, 0)], [False] * 4 + [True]),
    "never at rest": ([(0.3, 2), (10.0, 1), (60.0, 1)], [False] * 3),
}


@pytest.mark.parametrize(("readings", "expected"), REST.values(), ids=REST.keys())
def test_settles(readings: list[tuple[float, int]], expected: list[bool]) -> None:
    state, got = Settle(0.0), []
    for now, count in readings:
        state, rested = settle(state, count, now)
        got.append(rested)
    assert got == expected
