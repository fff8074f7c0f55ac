"""Which Events are written, and when."""

from __future__ import annotations

from typing import Any

import pytest

from stanch.edge.cluster.events import Events, Told

pytestmark = pytest.mark.unit

POD = {"apiVersion": "v1", "kind": "Pod", "name": "d0", "namespace": "shop", "uid": "u"}


def told(note: str = "one is down", reason: str = "BudgetStarved", **about: Any) -> Told:
    return Told({**POD, **about}, reason, "Wait", note, warning=True)


def written(events: Events, what: Told, now: float) -> list[tuple[str, Any]]:
    """Verb, and the note of a new Event or the count of a series."""
    found = []
    for _, request in events.tell(what, now):
        assert request.body is not None
        new = request.verb == "create"
        found.append((request.verb, request.body["note"] if new else request.body["series"]["count"]))
    return found


def test_the_same_is_written_once_and_then_counted_once_a_minute() -> None:
    events = Events("me")
    at = {now: written(events, told(), now) for now in (0.0, 5.0, 30.0, 59.0, 60.0, 65.0, 119.0, 120.0)}
    assert {now: what for now, what in at.items() if what} == {
        0.0: [("create", "one is down")],
        60.0: [("patch", 5)],
        120.0: [("patch", 8)],
    }


def test_another_text_begins_a_new_event_but_no_more_than_one_a_minute() -> None:
    events = Events("me")
    assert written(events, told("held 5 s"), 0.0) == [("create", "held 5 s")]
    assert written(events, told("held 10 s"), 5.0) == []
    assert written(events, told("held 65 s"), 60.0) == [("patch", 2), ("create", "held 65 s")]
    assert written(events, told("held 70 s"), 65.0) == []


@pytest.mark.parametrize(
    "other",
    [told(reason="Cordoned"), told(name="d1"), told(uid="v"), told(namespace="other"), told(kind="Node")],
    ids=["reason", "name", "uid", "namespace", "kind"],
)
def test_what_is_another_matter_is_another_event(other: Told) -> None:
    events = Events("me")
    written(events, told(), 0.0)
    assert [verb for verb, _ in written(events, other, 1.0)] == ["create"]


def test_after_six_quiet_minutes_it_is_news_again() -> None:
    events = Events("me")
    written(events, told(), 0.0)
    assert written(events, told(), 359.0) == [("patch", 2)]
    assert written(events, told(), 359.0 + 360.0) == [("create", "one is down")]


def test_counts_that_wait_are_written_when_something_else_is_told_or_at_the_end() -> None:
    events = Events("me")
    written(events, told(), 0.0)
    written(events, told(), 1.0)
    assert written(events, told(name="d1"), 90.0) == [("patch", 2), ("create", "one is down")]
    written(events, told(), 91.0)
    (last,) = events.due(92.0, every=True)
    assert last[1].body == {"series": {"count": 3, "lastObservedTime": "1970-01-01T00:01:31.000000Z"}}
    assert events.due(93.0, every=True) == []


def test_one_that_could_not_be_written_is_made_again() -> None:
    events = Events("me")
    ((key, request),) = events.tell(told(), 0.0)
    events.failed(key)
    ((_, again),) = events.tell(told(), 1.0)
    assert again.verb == request.verb == "create"
    assert again.body is not None
    assert request.body is not None
    assert again.body["metadata"]["name"] != request.body["metadata"]["name"]


def test_what_an_event_says_fits_the_api() -> None:
    events = Events("i" * 300)
    long = told("ä" * 2000, name="p" * 253)
    ((_, request),) = events.tell(long, 1.5)
    body: dict[str, Any] = dict(request.body or {})
    assert len(body["note"].encode()) <= 1024
    assert len(body["reportingInstance"]) <= 128
    assert len(body["metadata"]["name"]) <= 253
    assert body["metadata"]["namespace"] == request.namespace == "shop"
    assert body["eventTime"] == "1970-01-01T00:00:01.500000Z"
    assert body["type"] == "Warning"
    ((_, of_node),) = events.tell(Told({"kind": "Node", "name": "n"}, "A", "B", "c", False), 2.0)
    assert of_node.namespace == "default"
    assert of_node.body is not None
    assert of_node.body["type"] == "Normal"
