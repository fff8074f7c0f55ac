"""What happened to an incident, and the log lines of it."""

from __future__ import annotations

import inspect
import io
import json
import logging
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from stanch.api.convert import incident_of, status_of
from stanch.api.incident import LeakIncident, LeakIncidentStatus
from stanch.core.history import Ending, Incident, StepName, StepOutcome, Trigger
from stanch.edge.changes import changes
from stanch.edge.journal import Journal, LibraryLog, note, record
from tests.edge.incidents import T, done, made, stuck

pytestmark = pytest.mark.unit
row = pytest.param

ASKED = Incident("person-1", "decode-0", "", T, Trigger.PERSON)
CONFIRMED = done(made(), "the kit lists 2")
CORDONED = CONFIRMED.begin(StepName.CORDON, T + 2)


@pytest.mark.parametrize(
    ("before", "after", "kinds"),
    [
        row(None, made(), "incident-opened step-begun", id="made"),
        row(None, CONFIRMED, "incident-opened step-ended", id="made-and-confirmed-in-one-turn"),
        row(made(), CONFIRMED, "step-ended", id="confirmed"),
        row(CONFIRMED, CORDONED, "step-begun", id="begun"),
        row(CORDONED, CORDONED, "", id="nothing"),
        row(made(), CORDONED, "step-ended step-begun", id="two-steps-in-one-turn"),
        row(ASKED, ASKED, "", id="a-persons-that-was-not-looked-at"),
        row(ASKED, ASKED.begin(StepName.CONFIRM, T), "incident-opened step-begun", id="a-persons"),
        row(
            ASKED,
            ASKED.close(Ending.NOT_WATCHED, "no LeakWatch selects it", T),
            "incident-opened incident-ended",
            id="a-persons-that-nobody-watches",
        ),
        row(
            replace(CORDONED, stuck=(stuck("a"),)),
            replace(CORDONED, stuck=(stuck("a", 900), stuck("b"))),
            "stuck-request",
            id="one-more-stuck",
        ),
        row(CONFIRMED, replace(CONFIRMED, wait="Cooldown: 12 s"), "incident-waits", id="waits"),
        row(
            replace(CONFIRMED, wait="Cooldown: 12 s"),
            replace(CONFIRMED, wait="Cooldown: 7 s"),
            "",
            id="waits-for-the-same",
        ),
        row(replace(CONFIRMED, wait="Cooldown: 12 s"), CONFIRMED, "", id="waits-no-more"),
        row(
            CORDONED,
            CORDONED.close(Ending.POD_GONE, "it is gone", T + 9),
            "step-ended incident-ended",
            id="ends-in-a-step",
        ),
    ],
)
def test_changes(before: Incident | None, after: Incident, kinds: str) -> None:
    assert [one.kind.value for one in changes(before, after)] == kinds.split()


def lines(before: Incident | None, after: Incident) -> list[dict[str, object]]:
    return [dict(record(change, "shop/decodes", T + 9)) for change in changes(before, after)]


def test_a_step_is_one_line() -> None:
    (line,) = lines(CORDONED, done(CORDONED, "the endpoint is not ready", 1.25))
    assert line == {
        "schema": "stanch.log/1",
        "time": "2027-01-15T08:00:09.000000Z",
        "level": "info",
        "event": "step-ended",
        "watch": "shop/decodes",
        "incident": "shop/decode-0-0badcafe-1",
        "pod": "decode-0",
        "pod_uid": "uid-0",
        "unit": "shop/decode-0",
        "container_id": "c1",
        "step": "Cordon",
        "outcome": "Done",
        "seconds": 1.25,
        "message": "the endpoint is not ready",
    }


def test_each_stuck_request_is_a_line_once() -> None:
    after = replace(CONFIRMED, stuck=(stuck("a", refusal=None), stuck("b\n\x1b[31m", peer="shop/prefill-0")))
    found = [line for line in lines(made(), after) if line["event"] == "stuck-request"]
    assert [line["request"] for line in found] == ["cmpl-a", "cmpl-b??[31m"]
    assert (found[1]["peer"], found[0]["blocks"], found[0]["age_seconds"]) == ("shop/prefill-0", 10, 600.0)
    assert [line["event"] for line in lines(after, replace(after, wait=""))] == []


def test_more_stuck_requests_than_a_status_holds_are_not_told_anew_at_every_turn() -> None:
    """Nor is one whose id is longer than a status holds; its client chose it."""
    many = tuple(
        stuck("x" * 400 if number == 149 else str(number), age=float(number)) for number in range(150)
    )
    after = replace(CONFIRMED, stuck=many)
    assert len([line for line in lines(made(), after) if line["event"] == "stuck-request"]) == 150
    raw = {
        "metadata": {"name": after.name, "namespace": "shop"},
        "spec": {"podRef": {"name": after.pod_name}},
    }
    status = status_of(after, LeakIncidentStatus())
    read = incident_of(LeakIncident.model_validate({**raw, "status": status.model_dump(by_alias=True)}))
    assert len(read.stuck) == 100
    assert [line["event"] for line in lines(read, replace(read, stuck=many))] == []
    more = replace(read, stuck=(*many, stuck("new", age=900.0)))
    assert [line["request"] for line in lines(read, more)] == ["cmpl-new"]


def test_what_opened_it() -> None:
    opened = lines(None, made())[0]
    wanted = {
        "signature": "HeldIdle",
        "usage": 0.74,
        "held_seconds": 75.0,
        "engines": ["decode-0"],
        "episode": 1,
    }
    assert wanted.items() <= opened.items()
    assert (opened["level"], opened["trigger"], opened["message"]) == (
        "warning",
        "Watchdog",
        "the engine kit lists them",
    )


def test_what_is_not_known_is_null() -> None:
    opened = lines(None, replace(ASKED.begin(StepName.CONFIRM, T)))[0]
    assert (opened["signature"], opened["usage"], opened["container_id"]) == (None, None, None)


@pytest.mark.parametrize(
    ("ending", "level"),
    [
        (Ending.RESOLVED, "info"),
        (Ending.GAVE_UP, "warning"),
        (Ending.ESCALATED, "error"),
        (Ending.FAILED, "error"),
    ],
)
def test_how_it_ended(ending: Ending, level: str) -> None:
    (line,) = lines(CONFIRMED, CONFIRMED.close(ending, "because", T + 30, "Why"))
    assert (line["ending"], line["level"], line["code"], line["seconds"], line["message"]) == (
        ending.value,
        level,
        "Why",
        30.0,
        "because",
    )


def test_a_failed_step_warns() -> None:
    failed = CORDONED.finish(StepOutcome.FAILED, "CordonIneffective", T + 40)
    (line,) = lines(CORDONED, failed)
    assert (line["level"], line["outcome"], line["seconds"]) == ("warning", "Failed", 38.0)


def test_a_wait_is_told_with_its_reason() -> None:
    (line,) = lines(CONFIRMED, replace(CONFIRMED, wait="BudgetStarved: 1 of 1 unavailable: decode-1"))
    assert (line["reason"], line["message"]) == ("BudgetStarved", "1 of 1 unavailable: decode-1")


class TestJournal:
    def test_a_record_is_one_line_of_ascii(self) -> None:
        stream = io.StringIO()
        Journal(stream).write(note("info", "started", T, "ready\nto go: ä", lease="stanch"))
        text = stream.getvalue()
        assert text.isascii()
        assert text.count("\n") == 1
        assert json.loads(text)["message"] == "ready\nto go: ä"

    def test_lines_of_several_threads_are_whole(self, tmp_path: Path) -> None:
        with (tmp_path / "log").open("w") as stream:
            journal = Journal(stream)

            def say(name: int) -> None:
                for number in range(50):
                    journal.write(note("info", "x", T, "m" * 300, thread=name, number=number))

            threads = [threading.Thread(target=say, args=(name,)) for name in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        found = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
        assert sorted((one["thread"], one["number"]) for one in found) == [
            (name, number) for name in range(8) for number in range(50)
        ]

    def test_a_log_that_cannot_be_written_is_counted_and_nothing_else(self) -> None:
        with suppress(OSError), Path("/dev/full").open("w") as full:
            journal = Journal(full)
            journal.write(note("info", "x", T, "1"), note("info", "x", T, "2"))
            assert journal.lost == 2
        journal.write(note("info", "x", T, "3"))
        assert journal.lost == 3


@pytest.fixture
def library() -> Iterator[tuple[logging.Logger, io.StringIO]]:
    """A library's logger, and the operator's log."""
    stream, logger = io.StringIO(), logging.getLogger("kopf.of-a-test")
    handler = LibraryLog(Journal(stream))
    logger.addHandler(handler)
    # Its own, whatever another test of this process has set for all of kopf.
    logger.setLevel(logging.WARNING)
    yield logger, stream
    logger.setLevel(logging.NOTSET)
    logger.removeHandler(handler)


def test_what_a_library_logs_is_a_line_of_the_log(library: tuple[logging.Logger, io.StringIO]) -> None:
    logger, stream = library
    logger.info("nobody asks for this")
    logger.warning("one %s", "two\nlines")
    try:
        raise ValueError("why")
    except ValueError:
        logger.exception("it failed")
    logger.error("Request attempt #1/9 failed; will retry: GET https://10.96.0.1:443/apis -> Too many")
    warned, failed, again = [json.loads(line) for line in stream.getvalue().splitlines()]
    wanted = {"schema": "stanch.log/1", "event": "library", "logger": "kopf.of-a-test", "trace": None}
    assert warned.items() >= {**wanted, "level": "warning", "message": "one two\nlines"}.items()
    assert (failed["level"], failed["message"]) == ("error", "it failed")
    assert failed["trace"].endswith("ValueError: why")
    assert again["level"] == "info"


def test_words_that_do_not_fit_stop_nobody(
    library: tuple[logging.Logger, io.StringIO], capsys: pytest.CaptureFixture[str]
) -> None:
    logger, stream = library
    (handler,) = logger.handlers
    # pytest's own handler would raise.
    handler.handle(logger.makeRecord(logger.name, logging.WARNING, "", 1, "%s and %s", ("one",), None))
    logger.warning("after it")
    assert [json.loads(line)["message"] for line in stream.getvalue().splitlines()] == ["after it"]
    assert "not enough arguments" in capsys.readouterr().err


@pytest.mark.skipif(sys.version_info < (3, 11), reason="kopf needs Python 3.11")
def test_kopf_still_says_so_when_it_asks_again() -> None:
    from kopf._cogs.clients import api

    source = inspect.getsource(api.request)
    assert [words in source for words in ("; will retry: ", "; will re-authenticate: ")] == [True, True]
