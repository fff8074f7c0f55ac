"""Recordings of /metrics pages, run through the very code that judges live engines.

A recording has one JSON object a line: t (seconds), scenario (text, optional), body (a whole /metrics page or
null) and error (why there is none). Gzip is told by its first two bytes, not by the name.
"""

from __future__ import annotations

import gzip
import io
import json
import sys
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import BinaryIO

from stanch.core.policy import Policy
from stanch.core.sample import Role, Sample
from stanch.core.turn import Memory, Reading, turn
from stanch.core.verdict import Verdict
from stanch.edge.errors import FileError
from stanch.edge.reading import Reader

# A page is refused from 10 MB on; JSON's escapes can make it a few times as long.
_LINE_LIMIT = 64 << 20
# Seconds; Unix time in nanoseconds would be beyond it.
_T_LIMIT = 1e15


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a recording, read: the samples of all engines at one time."""

    t: float
    scenario: str | None
    samples: tuple[Sample, ...]


def read_recording(path: str, stem: str | None = None) -> list[Line]:
    """All lines of a file, or of standard input ("-"); `stem` goes before the engines' names.

    Raises FileError.
    """
    name = "standard input" if path == "-" else path
    try:
        if path == "-":
            return list(_lines(sys.stdin.buffer, name, stem))
        with Path(path).open("rb") as file:
            return list(_lines(file, name, stem))
    except OSError as error:
        raise FileError(f"{name}: cannot be read: {error.strerror or error}") from None
    except (EOFError, zlib.error) as error:
        raise FileError(f"{name}: the gzip data is damaged or cut off: {error}") from None


def _lines(raw: BinaryIO, name: str, stem: str | None) -> Iterator[Line]:
    buffered = io.BufferedReader(raw) if isinstance(raw, io.RawIOBase) else raw
    start = buffered.peek(2)[:2] if isinstance(buffered, io.BufferedReader) else b""
    stream: BinaryIO = gzip.GzipFile(fileobj=buffered) if start == b"\x1f\x8b" else buffered  # type: ignore[assignment]
    reader = Reader.replay(stem)
    number, empty = 0, True
    while line := stream.readline(_LINE_LIMIT):
        number += 1
        if len(line) == _LINE_LIMIT:
            raise FileError(f"{name}:{number}: is longer than {_LINE_LIMIT >> 20} MB")
        if line.strip():
            empty = False
            yield _line(line, f"{name}:{number}", reader)
    if empty:
        raise FileError(f"{name}: is empty")


def _line(line: bytes, place: str, reader: Reader) -> Line:
    try:
        data = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise FileError(f"{place}: is not JSON: {error}") from None
    if not isinstance(data, dict):
        raise FileError(f"{place}: is not a JSON object with t, scenario, body and error")
    t = data.get("t")
    if isinstance(t, bool) or not isinstance(t, (int, float)) or not -_T_LIMIT < t < _T_LIMIT:
        raise FileError(f"{place}: t must be a number of seconds, not {json.dumps(t)[:80]}")
    body, why, scenario = data.get("body"), data.get("error"), data.get("scenario")
    if body is not None and not isinstance(body, str):
        raise FileError(f"{place}: body must be the text of a /metrics page or null")
    if body is None:
        return Line(t, _text(scenario), reader.read(t, None, f"no page was recorded ({why or 'no reason'})"))
    return Line(t, _text(scenario), reader.read(t, body.encode(errors="surrogatepass")))


def _text(value: object) -> str | None:
    # JSON can hold half of a surrogate pair, which can be printed nowhere.
    return value.encode(errors="replace").decode() if isinstance(value, str) else None


def median_step(lines: Sequence[Line]) -> float | None:
    """The median time between lines, seconds; None where there are no two of different times."""
    steps = [b.t - a.t for a, b in pairwise(lines) if b.t > a.t]
    return median(steps) if steps else None


def judge(lines: Sequence[Line], policy: Policy, role: Role) -> Iterator[tuple[Line, Verdict]]:
    """Every engine's verdict at every line, with the recording's own step as the interval."""
    step = median_step(lines)
    if step is not None:
        policy = replace(policy, interval_seconds=step)
    memory = Memory()
    for line in lines:
        memory, result = turn(memory, [Reading(s, role) for s in line.samples], policy, line.t)
        for verdict in result.verdicts:
            yield line, verdict
