"""What Events say, about what, and which of them are the same one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stanch.core.history import Ending, Incident, StepName, StepOutcome
from stanch.core.plan_conditions import Said
from stanch.edge.changes import changes
from stanch.edge.events_text import NOTE_CHARS, EventText, of_change, of_conditions
from tests.edge.incidents import T, done, made, stuck

pytestmark = pytest.mark.unit
row = pytest.param

CONFIRMED = done(made(), "confirmed")


def texts(before: Incident | None, after: Incident) -> list[EventText]:
    return [text for change in changes(before, after) for text in of_change(change, "decodes", "uid-w")]


def told(before: Incident | None, after: Incident) -> list[tuple[str, str, str, str]]:
    return [
        (text.kind, "Warning" if text.warning else "Normal", text.reason, text.note)
        for text in texts(before, after)
    ]


def step(name: StepName, outcome: StepOutcome, detail: str) -> tuple[Incident, Incident]:
    before = CONFIRMED.begin(name, T + 2)
    return before, before.finish(outcome, detail, T + 5)


LEAK = "HeldIdle, 74 % of the KV cache held, for 75 s"


def test_a_confirmed_leak_is_told_on_the_pod_and_on_the_watch() -> None:
    note = f"{LEAK}; the engine kit lists them; leakincident decode-0-0badcafe-1"
    assert told(None, CONFIRMED) == [
        ("Pod", "Warning", "LeakConfirmed", note),
        ("LeakWatch", "Warning", "LeakConfirmed", f"decode-0: {note}"),
    ]
    pod, watch = texts(None, CONFIRMED)
    assert (pod.action, watch.action) == ("Confirm", "Confirm")
    assert pod.regarding("shop") == {
        "apiVersion": "v1",
        "kind": "Pod",
        "namespace": "shop",
        "name": "decode-0",
        "uid": "uid-0",
    }
    assert watch.regarding("shop") == {
        "apiVersion": "stanch.dev/v1alpha1",
        "kind": "LeakWatch",
        "namespace": "shop",
        "name": "decodes",
        "uid": "uid-w",
    }


@pytest.mark.parametrize(
    ("name", "outcome", "detail", "wanted"),
    [
        row(StepName.CORDON, StepOutcome.DONE, "not ready", ("Normal", "Cordoned", "not ready"), id="done"),
        row(StepName.UNCORDON, StepOutcome.DONE, "", ("Normal", "Uncordoned", "Uncordon"), id="no-detail"),
        row(
            StepName.CORDON,
            StepOutcome.FAILED,
            "its endpoint stayed ready",
            ("Warning", "CordonFailed", "its endpoint stayed ready"),
            id="failed",
        ),
        row(
            StepName.DRAIN,
            StepOutcome.INTERRUPTED,
            "its cordon ran out",
            ("Warning", "DrainInterrupted", "its cordon ran out"),
            id="interrupted",
        ),
    ],
)
def test_a_step_is_told_on_the_pod(
    name: StepName, outcome: StepOutcome, detail: str, wanted: tuple[str, str, str]
) -> None:
    assert told(*step(name, outcome, detail)) == [("Pod", *wanted)]


def test_what_lasts_is_told_when_it_begins() -> None:
    restarting = CONFIRMED.begin(StepName.RESTART, T)
    assert told(CONFIRMED, restarting) == [
        ("Pod", "Normal", "Restarting", f"restarting its container in place, because {LEAK}")
    ]
    assert told(CONFIRMED, CONFIRMED.begin(StepName.DRAIN, T)) == []


def test_a_capture_names_the_stuck_requests_the_longest_stuck_first_and_within_bounds() -> None:
    many = tuple(stuck(f"request-{number:03}", float(number)) for number in range(100))
    before = replace(CONFIRMED, stuck=many).begin(StepName.CAPTURE, T)
    (text,) = texts(before, done(before))
    assert text.note.startswith("100 stuck requests: cmpl-request-099, cmpl-request-098, ")
    assert len(text.note) == NOTE_CHARS
    assert text.note.endswith("...")


def test_a_wait_is_a_warning_on_both() -> None:
    waits = replace(CONFIRMED, wait="BudgetStarved: 1 of 1 is unavailable: decode-1")
    assert told(CONFIRMED, waits) == [
        ("Pod", "Warning", "BudgetStarved", "1 of 1 is unavailable: decode-1"),
        ("LeakWatch", "Warning", "BudgetStarved", "decode-0: 1 of 1 is unavailable: decode-1"),
    ]


@pytest.mark.parametrize(
    ("ending", "kind"),
    [
        (Ending.RESOLVED, "Normal"),
        (Ending.RECOVERED, "Normal"),
        (Ending.GAVE_UP, "Warning"),
        (Ending.ESCALATED, "Warning"),
        (Ending.NOT_WATCHED, "Warning"),
    ],
)
def test_an_end(ending: Ending, kind: str) -> None:
    assert told(CONFIRMED, CONFIRMED.close(ending, "because", T)) == [
        ("Pod", kind, ending.value, "because"),
        ("LeakWatch", kind, ending.value, "decode-0: because"),
    ]


def test_an_engine_that_says_that_nothing_is_stuck_confirms_no_leak() -> None:
    asked = done(CONFIRMED.begin(StepName.RELEASE, T), "the engine says done").begin(StepName.CONFIRM, T)
    freed = done(asked, "its list is empty").close(Ending.RESOLVED, "its list is empty", T, "Released")
    assert told(asked, freed) == [
        ("Pod", "Normal", "Resolved", "its list is empty"),
        ("LeakWatch", "Normal", "Resolved", "decode-0: its list is empty"),
    ]


def test_a_question_that_came_to_nothing_is_told() -> None:
    given_up = CONFIRMED.begin(StepName.CONFIRM, T).close(Ending.GAVE_UP, "no answer", T)
    assert ("Pod", "Warning", "ConfirmInterrupted", "no answer") in told(CONFIRMED, given_up)


def test_dry_run_is_one_event_that_lists_the_steps() -> None:
    would = CONFIRMED
    for name in (StepName.CORDON, StepName.DRAIN, StepName.RESTART):
        would = would.begin(name, T).finish(StepOutcome.WOULD_DO, "", T)
    ended = would.close(Ending.WOULD_DO, "would restart decode-0 in place", T)
    assert told(CONFIRMED, ended)[0] == (
        "Pod",
        "Normal",
        "WouldDo",
        "would restart decode-0 in place (Cordon, Drain, Restart)",
    )
    assert len(told(CONFIRMED, ended)) == 2


def test_what_a_server_says_stays_printable() -> None:
    found = made()
    bad = done(replace(found, evidence=replace(found.evidence, cause="\x1b[31mred\nline")))
    assert "\x1b" not in texts(found, bad)[0].note
    assert "?[31mred line" in texts(found, bad)[0].note


class TestConditions:
    READY = Said("Ready", True, "Watching", "2 of 2 engines are read")
    FINE = Said("Degraded", False, "AsExpected")
    BROKEN = Said("Degraded", True, "BreakerOpen", "3 repairs failed")

    def told(self, before: tuple[Said, ...] | None, *said: Said) -> list[tuple[str, str, str]]:
        return [
            ("Warning" if t.warning else "Normal", t.reason, t.note)
            for t in of_conditions(before, said, "decodes", "uid-w")
        ]

    def test_the_first_turn_tells_only_what_is_not_as_it_should_be(self) -> None:
        assert self.told(None, self.READY, self.FINE) == []
        assert self.told(None, self.READY, self.BROKEN) == [
            ("Warning", "BreakerOpen", "Degraded is True: 3 repairs failed")
        ]

    def test_what_turned(self) -> None:
        before = (self.READY, self.FINE)
        assert self.told(before, self.READY, self.BROKEN) == [
            ("Warning", "BreakerOpen", "Degraded is True: 3 repairs failed")
        ]
        assert self.told((self.READY, self.BROKEN), self.READY, self.FINE) == [
            ("Normal", "DegradedOver", "Degraded is False: AsExpected")
        ]
        blind = Said("Ready", False, "AllBlind", "no engine can be read")
        assert self.told((blind,), self.READY) == [
            ("Normal", "Ready", "Ready is True: 2 of 2 engines are read")
        ]

    def test_what_stays_is_not_told_again(self) -> None:
        assert self.told((self.BROKEN,), replace(self.BROKEN, message="4 repairs failed")) == []

    def test_leaks_have_events_of_their_own(self) -> None:
        assert self.told((), Said("Leaking", True, "IncidentOpen", "x")) == []
