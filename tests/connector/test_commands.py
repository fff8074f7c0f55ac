"""The command machine: texts in, at most one order each out."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stanch_connector.apiserver import commands
from stanch_connector.apiserver.commands import Book, Order, ReleaseArgs
from stanch_connector.contract import Outcome

pytestmark = pytest.mark.unit

BOOT = "b00t"


def text(name: object = "c-1", verb: object = "drain", boot: object = BOOT, **more: object) -> str:
    return json.dumps({"id": name, "verb": verb, "bootId": boot, **more})


ORDERS: dict[str, tuple[str, Order]] = {
    "drain": (text(deadlineSeconds=10), Order("c-1", "drain", 110.0)),
    "undrain": (text(verb="undrain"), Order("c-1", "undrain", 160.0)),
    "restart, deadline not said": (text(verb="restart"), Order("c-1", "restart", 160.0)),
    "release of all": (text(verb="release"), Order("c-1", "release", 160.0, ReleaseArgs())),
    "release of some": (
        text(verb="release", args={"ids": ["a", "b"], "olderThanSeconds": 120, "dryRun": True}),
        Order("c-1", "release", 160.0, ReleaseArgs(("a", "b"), 120.0, True)),
    ),
    "release of none": (
        text(verb="release", args={"ids": []}),
        Order("c-1", "release", 160.0, ReleaseArgs(())),
    ),
    "unknown keys outside args": (text(verb="undrain", future={"x": 1}), Order("c-1", "undrain", 160.0)),
}


@pytest.mark.parametrize(("given_text", "order"), ORDERS.values(), ids=ORDERS.keys())
def test_order(given_text: str, order: Order) -> None:
    book, got, outcome = commands.take(Book(BOOT), given_text, 100.0)
    assert got == order
    assert outcome == {"id": "c-1", "verb": order.verb, "state": "accepted"}
    assert commands.outcomes(book) == [outcome]


NOT_CARRIED_OUT: dict[str, tuple[str, str]] = {
    "another boot id": (text(boot="other"), "ignored"),
    "no boot id": (json.dumps({"id": "c-1", "verb": "drain"}), "ignored"),
    "a boot id that is no text": (text(boot=["b00t"]), "ignored"),
    "unknown verb": (text(verb="explode"), "ignored"),
    "a verb that is a list": (text(verb=["drain"]), "ignored"),
    "expired at once": (text(deadlineSeconds=0), "failed"),
    "a deadline in words": (text(deadlineSeconds="10"), "refused"),
    "a negative deadline": (text(deadlineSeconds=-1), "refused"),
    "a deadline that is true": (text(deadlineSeconds=True), "refused"),
    "a deadline of a day": (text(deadlineSeconds=86_400), "refused"),
    "args that are a list": (text(args=[]), "refused"),
    "ids that are one text": (text(verb="release", args={"ids": "a"}), "refused"),
    "ids with a number": (text(verb="release", args={"ids": [1]}), "refused"),
    "an empty id among them": (text(verb="release", args={"ids": [""]}), "refused"),
    "too many ids": (text(verb="release", args={"ids": ["a"] * 10_001}), "refused"),
    "a filter that this kit does not know": (text(verb="release", args={"onlyRank": 1}), "refused"),
    "an age in words": (text(verb="release", args={"olderThanSeconds": "1"}), "refused"),
    "a dry run of 1": (text(verb="release", args={"dryRun": 1}), "refused"),
}


@pytest.mark.parametrize(("given_text", "state"), NOT_CARRIED_OUT.values(), ids=NOT_CARRIED_OUT.keys())
def test_not_carried_out(given_text: str, state: str) -> None:
    book, order, outcome = commands.take(Book(BOOT), given_text, 0.0)
    assert (order, outcome["id"], outcome["state"]) == (None, "c-1", state)
    assert outcome["reason"]
    assert commands.outcomes(book) == [outcome]


MALFORMED = {
    "empty": "",
    "not JSON": "drain",
    "a list": "[]",
    "no id": json.dumps({"verb": "drain", "bootId": BOOT}),
    "an empty id": text(name=""),
    "a number": text(name=7),
    "an id with a line break": text(name="a\nb"),
    "a long id": text(name="x" * 129),
    "Infinity": '{"id":"c","verb":"drain","bootId":"b00t","deadlineSeconds":Infinity}',
}


@pytest.mark.parametrize("given_text", MALFORMED.values(), ids=MALFORMED.keys())
def test_malformed_is_counted_once_in_the_file(given_text: str) -> None:
    book = Book(BOOT)
    for now in (0.0, 0.5):
        book, order = commands.watch(book, given_text, now)
        assert order is None
    assert (book.malformed, commands.outcomes(book)) == (1, [])


def test_the_same_id_is_carried_out_once_whatever_comes_between() -> None:
    book, orders = Book(BOOT), []
    for now, given_text in enumerate(
        [text(), text(), None, text(), text(name="c-2"), text(verb="restart"), "{", text()]
    ):
        book, order = commands.watch(book, given_text, float(now))
        orders += [order.id] if order else []
    assert orders == ["c-1", "c-2"]


def test_an_ignored_id_may_come_again_for_this_process() -> None:
    book, order = commands.watch(Book(BOOT), text(boot="other"), 0)
    book, order = commands.watch(book, text(), 1)
    assert order is not None
    assert [outcome["state"] for outcome in commands.outcomes(book)] == ["accepted"]


def test_a_known_id_keeps_its_outcome_whatever_boot_id_it_comes_with() -> None:
    book, _, first = commands.take(Book(BOOT), text(), 0)
    book, order, second = commands.take(book, text(boot="other"), 1)
    assert (order, second) == (None, first)


def test_without_a_boot_id_nothing_is_carried_out() -> None:
    assert commands.take(Book(""), text(boot=""), 0)[1] is None


STEPS: dict[str, tuple[list[Outcome], str]] = {
    "accepted, done": ([{"id": "c-1", "state": "done"}], "done"),
    "through running": ([{"id": "c-1", "state": "running"}, {"id": "c-1", "state": "refused"}], "refused"),
    "the end is the end": ([{"id": "c-1", "state": "done"}, {"id": "c-1", "state": "failed"}], "done"),
    "not back to running": ([{"id": "c-1", "state": "done"}, {"id": "c-1", "state": "running"}], "done"),
    "not back to accepted": (
        [{"id": "c-1", "state": "running"}, {"id": "c-1", "state": "accepted"}],
        "running",
    ),
    "of an unknown id": ([{"id": "c-9", "state": "done"}], "accepted"),
    "without a state": ([{"id": "c-1"}], "accepted"),
}


@pytest.mark.parametrize(("reports", "state"), STEPS.values(), ids=STEPS.keys())
def test_report(reports: list[Outcome], state: str) -> None:
    book = commands.take(Book(BOOT), text(), 0)[0]
    for outcome in reports:
        book = commands.report(book, outcome)
    assert [outcome["state"] for outcome in commands.outcomes(book)] == [state]


def test_expired_is_failed_and_what_was_released_after_all_is_told() -> None:
    book = commands.take(Book(BOOT), text(verb="release", deadlineSeconds=5), 10)[0]
    assert commands.expire(book, 14.9) is book
    book = commands.expire(book, 15)
    assert commands.outcomes(book)[0]["state"] == "failed"
    book = commands.report(book, {"id": "c-1", "state": "done", "released": ["a"], "refused": {"b": "x"}})
    outcome = commands.outcomes(book)[0]
    assert (outcome["state"], outcome["released"], outcome["refused"]) == ("failed", ["a"], {"b": "x"})


def test_a_restart_does_not_fail_at_its_deadline() -> None:
    book = commands.take(Book(BOOT), text(verb="restart", deadlineSeconds=5), 10)[0]
    assert commands.expire(book, 1000) is book


def test_the_last_outcomes_are_kept_and_what_is_under_way_is_never_pushed_out() -> None:
    book = commands.take(Book(BOOT), text(name="slow", deadlineSeconds=3600), 0)[0]
    for number in range(100):
        book = commands.take(book, text(name=f"n-{number}", boot="other"), 0)[0]
    names = [outcome["id"] for outcome in commands.outcomes(book)]
    assert names == ["slow", *(f"n-{number}" for number in range(69, 100))]


def test_ids_are_remembered_beyond_the_outcomes() -> None:
    book = commands.take(Book(BOOT), text(name="first", deadlineSeconds=0), 0)[0]
    for number in range(1000):
        book = commands.take(book, text(name=f"n-{number}", deadlineSeconds=0), 0)[0]
    book, order, outcome = commands.take(book, text(name="first"), 0)
    assert (order, outcome["reason"]) == (None, "seen before")


TEXTS = st.one_of(
    st.none(),
    st.text(max_size=20),
    st.builds(
        lambda name, verb, boot, seconds: text(name, verb, boot, deadlineSeconds=seconds),
        st.integers(0, 5).map(str),
        st.sampled_from([*commands.VERBS, "explode", None]),
        st.sampled_from([BOOT, BOOT, "other", "", None]),
        st.sampled_from([-1, 0, 1, 30, 1e9]),
    ),
    st.recursive(
        st.none() | st.booleans() | st.floats(allow_nan=False) | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(["id", "verb", "bootId", "args"]), inner)
        ),
        max_leaves=8,
    ).map(json.dumps),
)


@settings(deadline=None)
@given(st.lists(st.tuples(st.floats(0, 40), TEXTS, st.booleans()), max_size=40))
def test_once_only_ours_and_always_an_end(events: list[tuple[float, str | None, bool]]) -> None:
    book, now, carried_out = Book(BOOT), 0.0, []
    for gap, given_text, by_post in events:
        now += gap
        book = commands.expire(book, now)
        if by_post and given_text is not None:
            book, order, _ = commands.take(book, given_text, now)
        else:
            book, order = commands.watch(book, given_text, now)
        if order is not None:
            said: dict[str, Any] = json.loads(given_text or "")
            assert said["bootId"] == BOOT
            assert now < order.deadline <= now + commands.MAX_DEADLINE_SECONDS
            carried_out.append(order.id)
    assert len(carried_out) == len(set(carried_out))
    ended = commands.expire(book, now + commands.MAX_DEADLINE_SECONDS)
    assert all(o["state"] != "accepted" or o["verb"] == "restart" for o in commands.outcomes(ended))
    assert len(ended.entries) <= commands.KEPT_OUTCOMES
