"""The policy as a file of people: what it may say, and what is said of what it may not."""

from __future__ import annotations

import dataclasses
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from stanch.core.policy import Policy
from stanch.edge.errors import FileError
from stanch.edge.policy_file import as_yaml, camel, load_policy, settings

pytestmark = pytest.mark.unit
row = pytest.param


def written(folder: Path, text: str | bytes) -> Path:
    path = folder / "policy.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def refused(path: Path) -> list[str]:
    """The lines of the error, without the path."""
    with pytest.raises(FileError) as caught:
        load_policy(path)
    lines = str(caught.value).splitlines()
    assert all(line.startswith(str(path)) for line in lines)
    return [line.removeprefix(str(path)) for line in lines]


@pytest.mark.parametrize(
    ("text", "changed"),
    [
        row("", {}, id="empty"),
        row("# nothing but a comment\n", {}, id="comment"),
        row("null\n", {}, id="null"),
        row("heldIdleSeconds: 90\n", {"held_idle_seconds": 90.0}, id="whole-number"),
        row("heldIdleSeconds: 90.5\n", {"held_idle_seconds": 90.5}, id="fraction"),
        row("leaseSeconds: 30\n", {"lease_seconds": 30.0}, id="lease"),
        row("leaseSeconds: null\n", {}, id="no-lease"),
        row(
            "floorRatio: 1\nheldFloorReadings: 7\n", {"floor_ratio": 1.0, "held_floor_readings": 7}, id="two"
        ),
        row("\ufefffloorRatio: 0.5\n", {"floor_ratio": 0.5}, id="byte-order-mark"),
        row(
            "{floorRatio: &x 0.5, collapseRatio: *x}\n",
            {"floor_ratio": 0.5, "collapse_ratio": 0.5},
            id="alias",
        ),
    ],
)
def test_what_a_file_may_say(tmp_path: Path, text: str, changed: dict[str, Any]) -> None:
    assert load_policy(written(tmp_path, text)) == dataclasses.replace(Policy(), **changed)


KNOWN = "known are canarySeconds, collapseRatio, "


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        row("x: 1\n", f":1: x is not a known key; {KNOWN}", id="unknown"),
        row(
            "# one\n\nheldIdleSecond: 1\n",
            ":3: heldIdleSecond is not a known key; did you mean heldIdleSeconds?",
            id="nearly-known",
        ),
        row("held_idle_seconds: 1\n", ":1: held_idle_seconds is not a known key; did you mean", id="snake"),
        row("armed: true\n", f":1: armed is not a known key; {KNOWN}", id="not-for-people"),
        row("1: 1\n", f":1: 1 is not a known key; {KNOWN}", id="a-number-as-a-key"),
        row(
            "[1]: 1\n",
            ":1: is not YAML: while constructing a mapping found unhashable key",
            id="a-list-as-a-key",
        ),
        row(
            "floorRatio: 0.1\nheldIdleSeconds: 60s\n",
            ":2: heldIdleSeconds must be a number without a unit, not '60s' (allowed: 1 to 86400)",
            id="unit",
        ),
        row(
            "heldIdleSeconds: '60'\n",
            ":1: heldIdleSeconds must be a number without a unit, not '60' (allowed: 1 to 86400)",
            id="text",
        ),
        row(
            "heldIdleSeconds: -5\n",
            ":1: heldIdleSeconds must be at least 1, not -5 (allowed: 1 to",
            id="negative",
        ),
        row(
            "heldIdleSeconds: 86401\n",
            ":1: heldIdleSeconds must be at most 86400, not 86401 (",
            id="too-long",
        ),
        row("floorRatio: 0\n", ":1: floorRatio must be above 0, not 0 (allowed: above 0 to 1)", id="zero"),
        row("heldIdleSeconds: .nan\n", ":1: heldIdleSeconds must be a finite number, not nan", id="nan"),
        row(
            "heldIdleSeconds: -.inf\n", ":1: heldIdleSeconds must be a finite number, not -inf", id="infinite"
        ),
        row("heldIdleSeconds: yes\n", ":1: heldIdleSeconds must be a number, not true", id="boolean"),
        row("heldIdleSeconds: null\n", ":1: heldIdleSeconds must be a number, not null", id="null"),
        row(
            "heldIdleSeconds: 2024-01-01\n", ":1: heldIdleSeconds must be a number, not 2024-01-01", id="date"
        ),
        row("heldIdleSeconds: [60]\n", ":1: heldIdleSeconds must be a number, not a list", id="list"),
        row(
            "heldIdleSeconds: {s: 60}\n", ":1: heldIdleSeconds must be a number, not a mapping", id="mapping"
        ),
        row(
            "heldFloorReadings: 2.5\n", ":1: heldFloorReadings must be a whole number, not 2.5", id="fraction"
        ),
        row(
            f"heldIdleSeconds: {'9' * 100}s\n",
            f":1: heldIdleSeconds must be a number without a unit, not '{'9' * 56}...",
            id="long",
        ),
        row(
            "- heldIdleSeconds: 60\n",
            ":1: must be a mapping of names to values, not a list",
            id="list-at-the-top",
        ),
        row("60\n", ":1: must be a mapping of names to values, not 60", id="number-at-the-top"),
        row("floorRatio: 0.1\n\nfloorRatio: 0.1\n", ":3: floorRatio is given twice", id="duplicate"),
        row("a: {b: 1, c: [{d: 1,\nd: 2}]}\n", ":2: d is given twice", id="duplicate-deep-down"),
        row("a: 1\nb: [\n", ":3: is not YAML: while parsing a flow node", id="no-yaml"),
        row("a:\n\t- b\n", ":2: is not YAML: while scanning for the next token", id="tab"),
        row("{}\n---\n{}\n", ":2: is not YAML: expected a single document", id="two-documents"),
        row(
            "a: !!python/name:os.system\n", ":1: is not YAML: could not determine a constructor", id="object"
        ),
        row("a: 2024-99-99\n", ": is not YAML: month must be in 1..12", id="no-date"),
        row("a: !!bool x\n", ": is not YAML: a value is not what its tag says", id="no-bool"),
        row("a: !!timestamp x\n", ": is not YAML: a value is not what its tag says", id="no-time"),
        row('a: !!int ""\n', ": is not YAML: a value is not what its tag says", id="no-int"),
        row("a: b\n\x1b[2J: 1\n", ":2: has a control character in it (U+001B)", id="control-character"),
        row(b"a: 1\nb: \xff\n", ":2: is not UTF-8 text", id="latin-1"),
        row("[" * 100_000, ": is nested too deeply, or contains itself", id="deep"),
        row("a: &a [*a]\n", ": is nested too deeply, or contains itself", id="contains-itself"),
        row("a: *nobody\n", ":1: is not YAML: found undefined alias 'nobody'", id="alias-of-nothing"),
    ],
)
def test_what_it_may_not_say(tmp_path: Path, text: str | bytes, expected: str) -> None:
    (line,) = refused(written(tmp_path, text))
    assert line.startswith(expected)


def test_every_error_is_told_at_once_with_its_own_line(tmp_path: Path) -> None:
    text = "floorRatio: 7\n# a comment\nheldIdleSeconds: a\nfoo: 1\ncreepBuckets: 3\ncreepBucketSeconds: 1\n"
    assert [line.split(" ")[:2] for line in refused(written(tmp_path, text))] == [
        [":1:", "floorRatio"],
        [":3:", "heldIdleSeconds"],
        [":6:", "creepBucketSeconds"],
        [":4:", "foo"],
    ]


def test_of_very_many_errors_the_first_are_told(tmp_path: Path) -> None:
    lines = refused(written(tmp_path, "".join(f"x{n}: 1\n" for n in range(500))))
    assert (len(lines), lines[-1]) == (21, ": and 480 more")


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        row(lambda path: None, ": cannot be read: No such file or directory", id="missing"),
        row(lambda path: path.mkdir(), ": cannot be read: Is a directory", id="directory"),
        row(lambda path: path.symlink_to(os.devnull), None, id="device-that-is-empty"),
        row(lambda path: path.symlink_to("/dev/zero"), ": is larger than 16 MB", id="device-without-an-end"),
    ],
)
def test_what_is_no_file(tmp_path: Path, make: object, expected: str | None) -> None:
    path = tmp_path / "policy.yaml"
    assert callable(make)
    make(path)
    if expected is None:
        assert load_policy(path) == Policy()
    else:
        assert refused(path) == [expected]


LAUGHS = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 12)
)


def test_aliases_of_aliases_eat_neither_time_nor_memory(tmp_path: Path) -> None:
    """In a process of its own, which may have half a gigabyte and ten seconds."""
    path = written(tmp_path, LAUGHS)
    code = (
        "import sys; from pathlib import Path; from stanch.edge.errors import FileError\n"
        "from stanch.edge.policy_file import load_policy\n"
        "try: load_policy(Path(sys.argv[1]))\n"
        "except FileError as error: print(error)"
    )

    def bounded() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (512 << 20, 512 << 20))
        resource.setrlimit(resource.RLIMIT_CPU, (10, 10))

    done = subprocess.run(
        [sys.executable, "-c", code, str(path)],
        capture_output=True,
        text=True,
        preexec_fn=bounded,
        check=False,
    )
    assert done.stdout == f"{path}: its aliases stand for more than 1000000 values\n", done.stderr


def test_the_printed_policy_loads_back(tmp_path: Path) -> None:
    assert load_policy(written(tmp_path, as_yaml(Policy()))) == Policy()


def test_every_setting_is_printed_with_its_reason_and_range() -> None:
    lines = as_yaml(Policy()).splitlines()
    for setting in settings():
        place = next(n for n, line in enumerate(lines) if line.startswith(f"{camel(setting.name)}: "))
        assert lines[place - 1].startswith("# allowed: ")
        assert lines[place - 2] == f"# {setting.metadata['why']}"


@pytest.mark.parametrize("setting", settings(), ids=lambda s: s.name)
def test_the_ends_of_every_range(tmp_path: Path, setting: dataclasses.Field[float]) -> None:
    meta, key = setting.metadata, camel(setting.name)
    least, most = meta["least"], meta["most"]
    inside = [most] if meta["above"] else [least, most]
    for value in inside:
        assert getattr(load_policy(written(tmp_path, f"{key}: {value}\n")), setting.name) == value
    for value in ([least] if meta["above"] else [least - 1]) + [most + 1]:
        (line,) = refused(written(tmp_path, f"{key}: {value}\n"))
        assert line.startswith(f":1: {key} must be ")
