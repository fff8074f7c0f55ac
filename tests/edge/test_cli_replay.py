"""`stanch replay`: a timeline for people, objects for programs, from files and from standard input."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from stanch.edge.cli import commands
from tests.edge.cli import Done, into_nothing, stanch
from tests.edge.pages import RECORDINGS, page

pytestmark = pytest.mark.unit
row = pytest.param

KEYS = {
    *("schema", "t", "engine", "role", "state", "signature", "held_seconds", "usage", "running", "waiting"),
    *("warnings", "confirmation", "reason", "scenario"),
}
LEAK = page(num_requests_running=0, num_requests_waiting=0, kv_cache=0.82).decode()
HOLD = ("--role", "decode", "--hold-seconds", "10")


def recording(bodies: Sequence[str | None], scenario: str | None = "leak") -> str:
    lines = [
        {"t": t, "scenario": scenario, "body": body, "error": "TimeoutError"} for t, body in enumerate(bodies)
    ]
    return "".join(json.dumps(line) + "\n" for line in lines)


def replay(capsys: pytest.CaptureFixture[str], *arguments: str) -> Done:
    code = commands.run(["replay", *arguments], debug=True)
    out, err = capsys.readouterr()
    return Done(code, out, err)


@pytest.fixture
def leak(tmp_path: Path) -> Path:
    path = tmp_path / "decode-3.jsonl"
    path.write_text(recording([None, *[LEAK] * 13]))
    return path


def test_the_timeline_has_each_change_once(leak: Path, capsys: pytest.CaptureFixture[str]) -> None:
    done = replay(capsys, str(leak), *HOLD)
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines() == [
        "      0.0 s  leak  BLIND: cannot tell about ?: no page was recorded (TimeoutError)",
        "      1.0 s  leak  SUSPECT HeldIdle: 0 holds 82 % of its KV cache with nothing running or waiting"
        " (limit 10 s)",
        "     11.0 s  leak  FAULT HeldIdle: 0 holds 82 % of its KV cache with nothing running or waiting"
        " and no token for 10 s (limit 10 s)",
    ]


def test_the_objects(leak: Path, capsys: pytest.CaptureFixture[str]) -> None:
    done = replay(capsys, str(leak), *HOLD, "--output", "json")
    assert (done.code, done.err, len(done.objects)) == (0, "", 14)
    assert all(set(found) >= KEYS for found in done.objects)
    assert {found["schema"] for found in done.objects} == {"stanch.verdict/1"}
    assert [found["t"] for found in done.objects] == list(range(14))
    assert [found["state"] for found in done.objects] == ["blind"] + ["suspect"] * 10 + ["fault"] * 3
    blind, fault = done.objects[0], done.objects[-1]
    shown = ("engine", "signature", "held_seconds", "usage", "running", "waiting", "scenario")
    assert [blind[key] for key in shown] == ["?", "Blind", 0, None, None, None, "leak"]
    assert [fault[key] for key in shown] == ["0", "HeldIdle", 12, 0.82, 0, 0, "leak"]


def test_a_recording_without_scenarios_says_null(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "r"
    path.write_text(recording([LEAK], scenario=None))
    assert replay(capsys, str(path), *HOLD, "--output", "json").objects[0]["scenario"] is None


@pytest.mark.parametrize(
    ("names", "engines"),
    [
        row(["a.jsonl"], ["0"], id="one"),
        row(["a.jsonl", "b.jsonl.gz"], ["a/0", "b/0"], id="several"),
        row(["x/a.jsonl", "y/a.jsonl"], ["{}/x/a.jsonl/0", "{}/y/a.jsonl/0"], id="the-same-stem"),
    ],
)
def test_the_names_of_its_engines(
    tmp_path: Path, names: Sequence[str], engines: Sequence[str], capsys: pytest.CaptureFixture[str]
) -> None:
    for name in names:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        data = recording([LEAK]).encode()
        path.write_bytes(gzip.compress(data) if name.endswith("gz") else data)
    done = replay(capsys, *(str(tmp_path / name) for name in names), *HOLD, "--output", "json")
    assert [found["engine"] for found in done.objects] == [engine.format(tmp_path) for engine in engines]


@pytest.mark.parametrize(
    ("options", "states"),
    [
        row(("--hold-seconds", "10"), {"suspect", "fault"}, id="hold"),
        row((), {"suspect"}, id="the-default-hold-is-longer"),
        row(("--policy", "{}"), {"suspect", "fault"}, id="policy"),
        row(("--policy", "{}", "--hold-seconds", "60"), {"suspect"}, id="hold-seconds-win-over-the-policy"),
        row(("--hold-seconds", "10", "--kv-pin-seconds", "480"), {"suspect"}, id="pin"),
    ],
)
def test_the_options_of_the_judgement(
    tmp_path: Path, options: Sequence[str], states: set[str], capsys: pytest.CaptureFixture[str]
) -> None:
    policy, path = tmp_path / "policy.yaml", tmp_path / "r.jsonl"
    policy.write_text("heldIdleSeconds: 10\n")
    path.write_text(recording([LEAK] * 15))
    more = [option.format(policy) for option in options]
    done = replay(capsys, str(path), "--role", "decode", *more, "--output", "json")
    assert {found["state"] for found in done.objects} == states


def test_a_bad_second_file_leaves_nothing_on_standard_output(
    leak: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = tmp_path / "bad.jsonl"
    bad.write_text(recording([LEAK]) + "{\n")
    done = replay(capsys, str(leak), str(bad), *HOLD)
    assert (done.code, done.out) == (65, "")
    assert done.err.startswith(f"{bad}:2: is not JSON: ")


def test_nothing_in_a_recording_moves_the_cursor(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "r.jsonl"
    path.write_text(recording([LEAK.replace('engine="0"', 'engine="\x1b[2J\x07"')], scenario="\x1b]0;x\x07"))
    done = replay(capsys, str(path), *HOLD)
    assert (done.code, done.out.strip().isprintable()) == (0, True)
    assert "holds 82 %" in done.out


@pytest.mark.parametrize("zipped", [False, True], ids=["plain", "gzip"])
def test_standard_input(zipped: bool) -> None:
    data = recording([LEAK] * 3).encode()
    done = asyncio.run(stanch("replay", "-", *HOLD, stdin=gzip.compress(data) if zipped else data))
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("      0.0 s  leak  SUSPECT HeldIdle: 0 holds 82 %")


@pytest.mark.parametrize(
    ("encoding", "output", "expected"),
    [
        row("ascii", "json", '"scenario": "l\\u00e4ck \\u2192"', id="json"),
        row("latin-1", "table", "\\u2192  SUSPECT", id="lines"),
    ],
)
def test_an_encoding_that_has_not_every_letter(
    tmp_path: Path, encoding: str, output: str, expected: str
) -> None:
    path = tmp_path / "r.jsonl"
    path.write_text(recording([LEAK], scenario="läck →"))
    environment = {"PYTHONIOENCODING": encoding}
    done = asyncio.run(stanch("replay", str(path), *HOLD, "--output", output, environment=environment))
    assert (done.code, done.err) == (0, "")
    assert expected in done.out


def test_it_ends_quietly_when_its_reader_has_gone() -> None:
    """The lab's six minutes, which do not fit into the pipe."""
    path = str(RECORDINGS / "0.29.0" / "decode.jsonl.gz")
    done = asyncio.run(into_nothing("replay", path, *HOLD, "--output", "json"))
    assert (done.code, done.err) == (0, "")
