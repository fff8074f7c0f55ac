"""Which call gets which fault."""

from __future__ import annotations

import pytest

from tests.bed.faults import (
    Call,
    CutWatch,
    Drop,
    ExpireWatch,
    Fault,
    Faults,
    Hang,
    Refuse,
    Rule,
    SilentWatch,
    parse,
    status,
)

pytestmark = pytest.mark.unit

POD = Call("patch", "pods", "", "shop", "decode-0")


@pytest.mark.parametrize(
    ("method", "path", "query", "call"),
    [
        ("GET", "/api/v1/pods", {}, Call("list", "pods")),
        ("GET", "/api/v1/namespaces/shop/pods", {}, Call("list", "pods", "", "shop")),
        ("GET", "/api/v1/namespaces/shop/pods", {"watch": "true"}, Call("watch", "pods", "", "shop")),
        ("GET", "/api/v1/namespaces/shop/pods", {"watch": "1"}, Call("watch", "pods", "", "shop")),
        ("GET", "/api/v1/namespaces/shop/pods", {"watch": "0"}, Call("list", "pods", "", "shop")),
        ("GET", "/api/v1/namespaces/shop/pods/d", {}, Call("get", "pods", "", "shop", "d")),
        ("PATCH", "/api/v1/namespaces/shop/pods/decode-0", {}, POD),
        ("DELETE", "/api/v1/namespaces/shop/pods/d", {}, Call("delete", "pods", "", "shop", "d")),
        ("DELETE", "/api/v1/namespaces/shop/pods", {}, Call("deletecollection", "pods", "", "shop")),
        (
            "POST",
            "/api/v1/namespaces/shop/pods/d/eviction",
            {},
            Call("create", "pods/eviction", "", "shop", "d"),
        ),
        (
            "PATCH",
            "/apis/stanch.dev/v1alpha1/namespaces/shop/leakincidents/i/status",
            {},
            Call("patch", "leakincidents/status", "stanch.dev", "shop", "i"),
        ),
        (
            "PUT",
            "/apis/coordination.k8s.io/v1/namespaces/s/leases/l",
            {},
            Call("update", "leases", "coordination.k8s.io", "s", "l"),
        ),
        ("GET", "/api/v1/namespaces", {}, Call("list", "namespaces")),
        ("GET", "/api/v1/namespaces/shop", {}, Call("get", "namespaces", "", "shop", "shop")),
        (
            "PUT",
            "/api/v1/namespaces/shop/finalize",
            {},
            Call("update", "namespaces/finalize", "", "shop", "shop"),
        ),
        ("GET", "/version", {}, Call("get", "")),
        ("GET", "/apis", {}, Call("get", "")),
        ("GET", "/apis/stanch.dev/v1alpha1", {}, Call("get", "")),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_request_is_read_as_rbac_reads_it(
    method: str, path: str, query: dict[str, str], call: Call
) -> None:
    assert parse(method, path, query) == call


@pytest.mark.parametrize(
    ("rule", "faulty"),
    [
        (Rule(Drop()), [True, False, False, False]),
        (Rule(Drop(), nth=2), [False, True, False, False]),
        (Rule(Drop(), nth=2, times=2), [False, True, True, False]),
        (Rule(Drop(), nth=3, times=None), [False, False, True, True]),
    ],
    ids=["first", "second", "two-from-second", "all-from-third"],
)
def test_the_nth_call_and_those_after_it(rule: Rule, faulty: list[bool]) -> None:
    faults = Faults()
    faults.add(rule)
    assert [faults.take(POD).fault is not None for _ in faulty] == faulty
    assert len(faults.hit()) == sum(faulty)


@pytest.mark.parametrize(
    ("rule", "fits"),
    [
        (Rule(Drop(), verb="patch", resource="pods"), True),
        (Rule(Drop(), verb="get", resource="pods"), False),
        (Rule(Drop(), verb="patch", resource="pods/status"), False),
        (Rule(Drop(), name="decode-0", namespace="shop"), True),
        (Rule(Drop(), name="decode-1"), False),
        (Rule(Drop(), namespace="other"), False),
    ],
    ids=["both", "other-verb", "other-subresource", "name-and-namespace", "other-name", "other-namespace"],
)
def test_only_calls_that_fit_are_counted_and_hit(rule: Rule, fits: bool) -> None:
    faults = Faults()
    faults.add(rule)
    assert (faults.take(POD).fault is not None) is fits


def test_every_rule_counts_and_the_first_that_is_due_wins() -> None:
    faults = Faults()
    faults.add(Rule(Refuse(409)), Rule(Refuse(500), nth=1, times=2))
    assert [faults.take(POD).fault for _ in range(3)] == [Refuse(409), Refuse(500), None]


def test_clear_forgets_rules_and_calls() -> None:
    faults = Faults()
    faults.add(Rule(Hang(), times=None))
    faults.take(POD)
    faults.clear()
    assert faults.take(POD).fault is None
    assert len(faults.seen) == 1


@pytest.mark.parametrize(
    "fault", [CutWatch(), SilentWatch(), ExpireWatch()], ids=lambda one: type(one).__name__
)
def test_a_fault_of_watches_needs_the_verb_watch(fault: Fault) -> None:
    with pytest.raises(ValueError, match='verb="watch"'):
        Rule(fault, verb="list")


@pytest.mark.parametrize(("nth", "times"), [(0, 1), (1, 0)], ids=["nth", "times"])
def test_counting_starts_at_one(nth: int, times: int) -> None:
    with pytest.raises(ValueError, match="from 1"):
        Rule(Drop(), nth=nth, times=times)


@pytest.mark.parametrize(
    ("code", "verb", "reason"),
    [
        (409, "patch", "Conflict"),
        (409, "create", "AlreadyExists"),
        (410, "list", "Expired"),
        (429, "create", "TooManyRequests"),
        (500, "get", "InternalError"),
        (503, "get", "ServiceUnavailable"),
    ],
)
def test_a_refusal_has_the_reason_that_the_api_server_gives(code: int, verb: str, reason: str) -> None:
    body = status(code, Call(verb, "pods"))
    assert (body["kind"], body["code"], body["reason"]) == ("Status", code, reason)
