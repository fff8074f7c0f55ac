"""The command line when it is used wrongly, lacks a package, or cannot write: a sentence and an exit code."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from stanch.core.policy import Policy
from stanch.edge.cli import commands
from stanch.edge.cli.options import Seconds
from stanch.edge.policy_file import load_policy
from tests.edge.cli import into_nothing, stanch

pytestmark = pytest.mark.unit
row = pytest.param

U = "http://127.0.0.1:1"


def run(arguments: Sequence[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    code = commands.run(arguments, debug=False)
    out, err = capsys.readouterr()
    return code, out, err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        row([], "Usage: stanch [OPTIONS] COMMAND", id="nothing"),
        row(["bogus"], "stanch: No such command 'bogus'.", id="no-such-command"),
        row(["check"], "stanch check: Missing argument 'URL...'.", id="no-url"),
        row(["check", U, "-x"], "stanch check: No such option '-x'.", id="no-such-option"),
        row(["check", "foo"], "'foo' must start with http:// or https://", id="no-scheme"),
        row(["check", "http://h:0"], "has port 0", id="port-0"),
        row(["check", "http://h h"], "has a space", id="space"),
        row(["check", ""], "must start with http://", id="empty-url"),
        row(["check", U, U], f"the url {U} is given twice", id="twice"),
        row(["check", U, f"{U}/metrics"], f"the url {U}/metrics is given twice", id="twice-in-other-words"),
        row(["check", U, "--role", "worker"], "'worker' is not one of", id="no-role"),
        row(["check", U, "--for", "2d"], "'2d' is not a number of seconds (allowed: above 0", id="unit"),
        row(["check", U, "--for", "1_0"], "'1_0' is not a number of seconds", id="no-number"),
        row(["check", U, "--for", "s"], "'s' is not a number of seconds", id="only-a-unit"),
        row(["check", U, "--for", "25h"], "25h is out of range (allowed: above 0 to 86400", id="too-long"),
        row(["check", U, "--for", "0"], "0 is out of range (allowed: above 0 to 86400 seconds)", id="zero"),
        row(["check", U, "--for", "-1"], "-1 is out of range", id="negative"),
        row(["check", U, "--for", "nan"], "nan is out of range", id="nan"),
        row(["check", U, "--for", "inf"], "inf is out of range", id="infinite"),
        row(["check", U, "--hold-seconds", "0.5"], "0.5 is out of range (allowed: 1 to", id="hold-too-short"),
        row(["check", U, "--interval", "0"], "0 is out of range (allowed: 0.1 to 600", id="no-interval"),
        row(["check", U, "--kv-pin-seconds", "-1"], "-1 is out of range (allowed: 0 to", id="negative-pin"),
        row(["check", U, "--output", "xml"], "'xml' is not one of 'table', 'json'", id="no-output"),
        row(["watch"], "either --target URL=ROLE (repeatable) or --targets FILE", id="watch-nothing"),
        row(["watch", "--target", f"{U}=decode", "--targets", "f"], "either --target", id="watch-both"),
        row(["watch", "--target", U], "is not URL=ROLE, such as http://10.0.0.7:8000=decode", id="no-pair"),
        row(
            ["watch", "--target", f"{U}=decode", "--target", f"{U}=auto"], "is given twice", id="watch-twice"
        ),
        row(["requests"], "Missing argument 'URL'.", id="requests-nothing"),
        row(["requests", "foo"], "'foo' must start with http:// or https://", id="requests-no-scheme"),
        row(["requests", U, "--rank", "-1"], "-1 is not in the range x>=0", id="requests-rank"),
        row(["release", U], "say what to release: IDS (`stanch requests` lists them)", id="release-nothing"),
        row(["release", U, ""], "an ID is empty", id="release-empty"),
        row(
            ["release", U, "--all", "--older-than", "5"],
            "either --all, which is of any age",
            id="release-both",
        ),
        row(["release", U, "--older-than", "2d"], "such as 120, 120s or 2m", id="release-unit"),
        row(["probe", "--prefill", U], "Missing option '--decode'.", id="probe-one-end"),
        row(["probe", "--prefill", U, "--decode", U], "is given twice", id="probe-twice-the-same"),
        row(["probe", "--prefill", U, "--decode", "x"], "must start with http://", id="probe-no-url"),
        row(["replay"], "Missing argument 'FILE...'.", id="replay-nothing"),
        row(["replay", "-"], "Missing option '--role'", id="replay-no-role"),
        row(["replay", "-", "--role", "auto"], "'auto' is not one of", id="replay-auto"),
        row(["policy", "x"], "unexpected extra argument", id="policy-argument"),
    ],
)
def test_wrong_usage(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(arguments, capsys)
    assert (code, out) == (64, "")
    assert words in err


@pytest.mark.parametrize(
    ("arguments", "content", "words"),
    [
        row(["check", U, "--policy", "FILE"], None, "FILE: cannot be read: No such file", id="no-policy"),
        row(["check", U, "--policy", "FILE"], "x: 1", "FILE:1: x is not a known key", id="bad-policy"),
        row(["watch", "--targets", "FILE"], None, "FILE: cannot be read: No such file", id="no-targets"),
        row(
            ["watch", "--targets", "FILE"],
            "targets:\n - url: x",
            "FILE:2: targets.0.url: 'x'",
            id="bad-targets",
        ),
        row(["replay", "FILE", "--role", "decode"], None, "FILE: cannot be read", id="no-recording"),
        row(
            ["replay", "FILE", "--role", "decode"], "{}\nx", "FILE:1: t must be a number", id="bad-recording"
        ),
        row(
            ["replay", "FILE", "--role", "decode", "--policy", "FILE"],
            "-",
            "FILE:1: must be a",
            id="policy-first",
        ),
        row(
            ["check", U, "--api-key-file", "FILE"],
            None,
            "FILE: the API key cannot be read: No such",
            id="no-key",
        ),
        row(["check", U, "--api-key-file", "FILE"], " \n", "FILE: holds no API key", id="empty-key"),
        row(
            ["check", U, "--api-key-file", "FILE"],
            "a\nb",
            "FILE: holds no API key: it must be one line of printable ASCII",
            id="two-keys",
        ),
    ],
)
def test_a_bad_file(
    tmp_path: Path, arguments: list[str], content: str | None, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "file"
    if content is not None:
        path.write_text(content)
    code, out, err = run([argument.replace("FILE", str(path)) for argument in arguments], capsys)
    assert (code, out) == (65, "")
    assert err.startswith(words.replace("FILE", str(path)))


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["-h"], ["--version"], ["check", "--help"], ["watch", "-h"], ["replay", "-h"]],
    ids=" ".join,
)
def test_help_is_data(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(arguments, capsys)
    assert (code, err) == (0, "")
    assert "stanch" in out


@pytest.mark.parametrize("command", ["check", "watch", "requests", "probe", "release"])
def test_one_name_for_each_secret(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """--token-file is shown only where it is the token that a release needs."""
    _, out, _ = run([command, "--help"], capsys)
    assert ("--api-key-file" in out, "--token-file" in out) == (True, command == "release")


@pytest.mark.parametrize(
    ("text", "seconds"), [("70", 70), ("70s", 70), ("2m", 120), ("1.5h", 5400), ("0.5m", 30)]
)
def test_one_way_to_say_how_long(text: str, seconds: float) -> None:
    assert Seconds(0).convert(text, None, None) == seconds


@pytest.mark.parametrize("gap", [0.0, 0.001, 0.003, 0.01])
def test_whoever_interrupts_twice_does_not_wait(gap: float) -> None:
    """While it tidies up after the first one: the end of the process, and no traceback."""
    process = subprocess.Popen(
        [sys.executable, "-m", "stanch", "watch", "--target", f"{U}=decode"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
    )
    assert process.stderr is not None
    assert b"watching 1 server" in process.stderr.readline()
    assert process.stdout is not None
    assert b"BLIND" in process.stdout.readline()
    for _ in range(3):
        process.send_signal(signal.SIGINT)
        time.sleep(gap)
    _, err = process.communicate(timeout=60)
    # To a shell an end by the signal itself, which the interpreter's own last moments bring, is 130 as well.
    assert process.returncode in (130, -signal.SIGINT)
    assert err.strip() == b""


@pytest.mark.parametrize("after", [0.0, 0.03, 0.06, 0.1, 0.15, 0.2, 0.3, 0.5])
def test_an_interrupt_at_any_time(after: float) -> None:
    """From the moment that our own first line runs."""
    process = subprocess.Popen(
        [sys.executable, "-X", "importtime", "-m", "stanch", "watch", "--target", f"{U}=decode"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
    )
    assert process.stderr is not None
    # The first import after that line.
    while (line := process.stderr.readline()) and not line.rstrip().endswith(b"| stanch.edge.cli"):
        pass
    time.sleep(after)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, b"Traceback" in err) == (130, False)


def test_the_printed_policy_is_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(["policy"], capsys)
    assert (code, err) == (0, "")
    (tmp_path / "policy.yaml").write_text(out)
    assert load_policy(tmp_path / "policy.yaml") == Policy()


@pytest.mark.parametrize("package", ["click", "aiohttp", "pydantic"])
def test_without_the_extra(tmp_path: Path, package: str) -> None:
    """As in an engine's image, which may have some of the packages and not others."""
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\n"
        "class Absent:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name == {package!r}:\n"
        "            raise ModuleNotFoundError(f'No module named {name!r}', name=name)\n"
        "sys.meta_path.insert(0, Absent())\n"
    )
    done = asyncio.run(stanch("check", U, environment={"PYTHONPATH": str(tmp_path)}))
    assert (done.code, done.out) == (69, "")
    assert len(done.err.splitlines()) == 1
    assert f"needs the package {package}: pip install 'stanch[operator]'" in done.err


PAIR = f"--prefill {U} --decode http://127.0.0.1:2 --timeout 1"


@pytest.mark.parametrize("output", ["table", "json"])
def test_a_reader_that_has_gone_does_not_make_it_well(output: str) -> None:
    """`stanch probe ... | head -1` in a script with pipefail."""
    done = asyncio.run(into_nothing("probe", *PAIR.split(), "--output", output))
    assert (done.code, done.err) == (1, "")


# Where each of the redirections leads, and the answer that must still be given.
@pytest.mark.parametrize(
    ("redirected", "code", "says"),
    [
        row(f"check {U} >&-", 3, "", id="no-output"),
        row(f"check {U} --output json >&-", 3, "", id="no-output-for-json"),
        row("policy >&-", 0, "", id="no-output-for-a-file"),
        row("replay - --role decode <&-", 65, "standard input: is empty\n", id="no-input"),
        row(f"check {U} 2>&-", 3, "", id="no-errors"),
        row("check 2>&-", 64, "", id="nowhere-to-complain"),
        row("check 2>/dev/full", 64, "", id="no-room-to-complain"),
        row("policy <&- >&- 2>&-", 0, "", id="none-at-all"),
        row(
            "policy >/dev/full",
            70,
            "stanch: the output cannot be written: No space left on device\n",
            id="full-disk",
        ),
        row("policy >/dev/full 2>/dev/full", 70, "", id="full-disk-for-all"),
    ],
)
def test_streams_that_lead_nowhere(redirected: str, code: int, says: str) -> None:
    process = subprocess.run(
        ["sh", "-c", f"{sys.executable} -m stanch {redirected}"],
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
    )
    assert (process.returncode, process.stderr) == (code, says)
