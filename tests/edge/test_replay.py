"""Recordings: what is read of them, what is refused, and that they are judged like live engines."""

from __future__ import annotations

import gzip
import io
import json
import sys
from pathlib import Path

import pytest

from stanch.core.policy import Policy
from stanch.core.sample import Role
from stanch.core.verdict import Signature, State
from stanch.edge.errors import FileError
from stanch.edge.replay import Line, judge, median_step, read_recording
from tests.edge.pages import page

pytestmark = pytest.mark.unit
row = pytest.param

LEAK = page(num_requests_running=0, num_requests_waiting=0, kv_cache=0.82).decode()
IDLE = page(num_requests_running=0, num_requests_waiting=0, kv_cache=0).decode()
RANKS = LEAK + IDLE.replace('engine="0"', 'engine="1"')
HOLD = Policy().with_hold(10.0)


def line(t: object = 0, body: object = LEAK, **more: object) -> str:
    return json.dumps({"t": t, "scenario": "leak", "body": body, "error": None} | more)


def every(count: int, step: float = 1.0) -> str:
    return "".join(line(n * step) + "\n" for n in range(count))


def read(folder: Path, data: str | bytes, stem: str | None = None) -> list[Line]:
    path = folder / "r.jsonl"
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return read_recording(str(path), stem)


@pytest.mark.parametrize(
    "data",
    [
        row(every(3), id="plain"),
        row(gzip.compress(every(3).encode()), id="gzip-told-by-its-bytes-not-its-name"),
        row(gzip.compress(every(2).encode()) + gzip.compress((line(2) + "\n").encode()), id="two-gzips"),
        row(every(3).rstrip("\n"), id="no-newline-at-the-end"),
        row("\n" + every(3).replace("\n", "\r\n\r\n"), id="blank-lines-and-carriage-returns"),
        row("\ufeff" + every(3), id="byte-order-mark"),
    ],
)
def test_a_recording(tmp_path: Path, data: str | bytes) -> None:
    lines = read(tmp_path, data)
    assert [(one.t, one.scenario, [s.usage for s in one.samples]) for one in lines] == [
        (float(n), "leak", [0.82]) for n in range(3)
    ]


class Stdin(io.TextIOWrapper):
    """Standard input with these bytes."""

    def __init__(self, data: bytes) -> None:
        super().__init__(io.BufferedReader(io.BytesIO(data)))


@pytest.mark.parametrize("zipped", [False, True], ids=["plain", "gzip"])
def test_standard_input(monkeypatch: pytest.MonkeyPatch, zipped: bool) -> None:
    data = every(3).encode()
    monkeypatch.setattr(sys, "stdin", Stdin(gzip.compress(data) if zipped else data))
    assert [one.t for one in read_recording("-")] == [0, 1, 2]


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        row("", ": is empty", id="empty"),
        row("\n \n", ": is empty", id="blank"),
        row(gzip.compress(b""), ": is empty", id="empty-gzip"),
        row(every(2) + "{\n", ":3: is not JSON: ", id="half-a-line"),
        row(every(1) + "what?\n", ":2: is not JSON: ", id="text"),
        row(b'{"t": 0, "body": "\xff"}\n', ":1: is not JSON: ", id="latin-1"),
        row("[" * 100_000, ":1: is not JSON: ", id="deep"),
        row(every(1) + "\n[]\n", ":3: is not a JSON object with t, scenario, body and error", id="list"),
        row("3\n", ":1: is not a JSON object", id="number"),
        row('{"body": null}\n', ":1: t must be a number of seconds, not null", id="no-t"),
        row(line("0"), ':1: t must be a number of seconds, not "0"', id="t-text"),
        row(line(True), ":1: t must be a number of seconds, not true", id="t-boolean"),
        row('{"t": NaN}', ":1: t must be a number of seconds, not NaN", id="t-nan"),
        row('{"t": 1e999}', ":1: t must be a number of seconds, not Infinity", id="t-infinite"),
        row('{"t": 1' + "0" * 400 + "}", ":1: t must be a number of seconds, not 1000", id="t-huge"),
        row(line(0, 5), ":1: body must be the text of a /metrics page or null", id="body-number"),
        row(line(0, {"a": 1}), ":1: body must be the text", id="body-object"),
        row(gzip.compress(every(50).encode())[:-20], ": the gzip data is damaged or cut off", id="cut-gzip"),
        row(gzip.compress(every(5).encode())[:12] + b"\0" * 40, ": the gzip data is damaged", id="bad-gzip"),
        row(b"\x1f\x8b\x00nothing more", ": cannot be read: Unknown", id="gzip-by-its-first-two-bytes-alone"),
    ],
)
def test_what_is_refused(tmp_path: Path, data: str | bytes, expected: str) -> None:
    with pytest.raises(FileError) as caught:
        read(tmp_path, data)
    assert str(caught.value).removeprefix(str(tmp_path / "r.jsonl")).startswith(expected)


def test_a_line_beyond_all_bounds(tmp_path: Path) -> None:
    """65 MB, kept small by gzip."""
    with pytest.raises(FileError, match=r":2: is longer than 64 MB$"):
        read(tmp_path, gzip.compress(every(1).encode() + b"x" * (65 << 20), 1))


@pytest.mark.parametrize(
    ("name", "expected"),
    [row("missing", "No such file or directory", id="missing"), row(".", "Is a directory", id="directory")],
)
def test_what_is_no_file(tmp_path: Path, name: str, expected: str) -> None:
    with pytest.raises(FileError, match=expected):
        read_recording(str(tmp_path / name))


@pytest.mark.parametrize(
    ("body", "error", "cause"),
    [
        row(None, "ConnectionRefusedError", "no page was recorded (ConnectionRefusedError)", id="no-body"),
        row(None, None, "no page was recorded (no reason)", id="no-reason"),
        row("", None, "the page is empty", id="empty"),
        row("<html>\n", None, "the page has a line that does not start with", id="html"),
        row(LEAK[:-5], None, "the page is cut off inside a line", id="cut"),
        row("\ud800\n", None, "the page has bytes that are not UTF-8", id="half-a-surrogate"),
    ],
)
def test_a_page_that_cannot_be_used_is_blind(
    tmp_path: Path, body: str | None, error: str | None, cause: str
) -> None:
    """Under the names of the engines that were seen, "?" before any was."""
    recording = "\n".join([line(0, body, error=error), line(1, RANKS), line(2, body, error=error)])
    judged = [
        (v.t, v.engine, v.state, v.cause) for _, v in judge(read(tmp_path, recording), HOLD, Role.DECODE)
    ]
    blind = [one for one in judged if one[2] is State.BLIND]
    assert [(t, engine) for t, engine, _, _ in blind] == [(0, "?"), (2, "0"), (2, "1")]
    assert all(why is not None and why.startswith(cause) for *_, why in blind)


@pytest.mark.parametrize(
    ("stem", "names"),
    [
        row(None, ["?", "0", "1"], id="one-file"),
        row("decode", ["decode/?", "decode/0", "decode/1"], id="several"),
    ],
)
def test_what_its_engines_are_called(tmp_path: Path, stem: str | None, names: list[str]) -> None:
    lines = read(tmp_path, line(0, None) + "\n" + line(1, RANKS), stem)
    assert [sample.engine for one in lines for sample in one.samples] == names


@pytest.mark.parametrize(
    ("scenario", "expected"),
    [row("idle", "idle", id="text"), row(3, None, id="number"), row("\ud800x", "?x", id="half-a-surrogate")],
)
def test_its_scenario(tmp_path: Path, scenario: object, expected: str | None) -> None:
    assert read(tmp_path, line(0, scenario=scenario))[0].scenario == expected


def test_a_time_that_does_not_increase_is_blind(tmp_path: Path) -> None:
    lines = read(tmp_path, "".join(line(t) + "\n" for t in (0, 1, 2, 2, 1, 3)))
    states = [v.state for _, v in judge(lines, HOLD, Role.DECODE)]
    assert states == [State.SUSPECT] * 3 + [State.BLIND] * 2 + [State.SUSPECT]


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        row([], None, id="nothing"),
        row([5], None, id="one"),
        row([5, 5], None, id="the-same"),
        row([0, 1, 2, 60], 1.0, id="median"),
        row([0, 2, 1, 3], 2.0, id="backwards-does-not-count"),
    ],
)
def test_the_median_step(times: list[float], expected: float | None) -> None:
    assert median_step([Line(t, None, ()) for t in times]) == expected


def test_the_step_is_the_interval(tmp_path: Path) -> None:
    """One reading a minute is no gap where that is how it was recorded."""
    lines = read(tmp_path, every(4, 60.0))
    verdict = [v for _, v in judge(lines, Policy(), Role.DECODE)][-1]
    assert (verdict.state, verdict.signature, verdict.held_seconds) == (
        State.FAULT,
        Signature.HELD_IDLE,
        180.0,
    )


def test_one_of_two_ranks_leaks(tmp_path: Path) -> None:
    lines = read(tmp_path, "".join(line(n, RANKS) + "\n" for n in range(12)))
    last = {v.engine: v.state for _, v in judge(lines, HOLD, Role.DECODE)}
    assert last == {"0": State.FAULT, "1": State.HEALTHY}
