"""Record what /metrics said: one JSON line a second {t, scenario, body, error}, gzipped; the form that
`stanch replay` reads.

`python -m tests.engine.record FILE ...` prints recordings as a table, to see that they show what they claim.
"""

from __future__ import annotations

import gzip
import json
import re
import sys
import threading
import time
from collections.abc import Iterator
from io import TextIOWrapper
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.engine.client import NoAnswerError, get

INTERVAL_S = 1.0
_SERIES = re.compile(r"^(?P<name>[a-zA-Z_:][\w:]*)(?:\{(?P<labels>[^}]*)\})? (?P<value>\S+)$")
_LABEL = re.compile(r'(\w+)="([^"]*)"')
# Column of the table -> (family, reason label where it has one)
_COLUMNS: dict[str, tuple[str, str | None]] = {
    "usage": ("vllm:kv_cache_usage_perc", None),
    "run": ("vllm:num_requests_running", None),
    "wait": ("vllm:num_requests_waiting", None),
    "capacity": ("vllm:num_requests_waiting_by_reason", "capacity"),
    "deferred": ("vllm:num_requests_waiting_by_reason", "deferred"),
    "prompt": ("vllm:prompt_tokens_total", None),
    "generated": ("vllm:generation_tokens_total", None),
    "steps": ("vllm:iteration_tokens_total_count", None),
}


class Recorder:
    """Records one engine while its block runs; `scenario` may be set at any time."""

    def __init__(self, url: str, path: Path, scenario: str) -> None:
        self.scenario = scenario
        self.lines = 0
        self._url, self._path = url, path
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Recorder:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join(timeout=30)
        if kind is not None:
            self._path.unlink(missing_ok=True)

    def stay(self, seconds: float) -> None:
        """Let that much be recorded (a recording is about time that passes; nothing is waited for)."""
        time.sleep(seconds)

    def _run(self) -> None:
        start = time.monotonic()
        with (
            self._path.open("wb") as raw,
            # Without name and time in its header the same content makes the same file.
            gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0) as packed,
            TextIOWrapper(packed, encoding="utf-8") as out,
        ):
            turn = 0
            while not self._stop.wait(max(0.0, start + turn * INTERVAL_S - time.monotonic())):
                scenario, began = self.scenario, time.monotonic()
                body, trouble = self._look()
                line = {"t": round(began - start, 3), "scenario": scenario, "body": body, "error": trouble}
                out.write(json.dumps(line) + "\n")
                self.lines += 1
                # A turn that took longer than the interval costs the turns it ran over, not the rhythm.
                turn = max(turn + 1, int((time.monotonic() - start) / INTERVAL_S) + 1)

    def _look(self) -> tuple[str | None, str | None]:
        try:
            answer = get(self._url, "/metrics", timeout_s=5)
        except NoAnswerError as error:
            return None, type(error.__cause__ or error).__name__
        return (answer.body, None) if answer.status == 200 else (None, f"HTTP {answer.status}")


def read(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of a recording."""
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)


def numbers(body: str) -> dict[str, dict[str, float]]:
    """engine label -> column -> value; a deliberately simple reader, sharing nothing with the product's."""
    found: dict[str, dict[str, float]] = {}
    for line in body.splitlines():
        match = _SERIES.match(line)
        if match is None:
            continue
        labels = dict(_LABEL.findall(match["labels"] or ""))
        for column, (family, reason) in _COLUMNS.items():
            if match["name"] == family and labels.get("reason") == reason:
                found.setdefault(labels.get("engine", "?"), {})[column] = float(match["value"])
    return found


def print_table(path: Path) -> None:
    """One line per change of anything, so that a long stand-still is two lines with their times."""
    print(path.name)
    print(f"{'t':>7} {'scenario':26} eng " + " ".join(f"{column:>9}" for column in _COLUMNS))
    last: dict[str, tuple[object, ...]] = {}
    for line in read(path):
        for engine, row in (numbers(line["body"]) if line["body"] else {"?": {}}).items():
            shown = tuple(row.get(column) for column in _COLUMNS)
            if last.get(engine) != (line["scenario"], *shown):
                last[engine] = (line["scenario"], *shown)
                cells = " ".join(f"{'-' if value is None else format(value, '.6g'):>9}" for value in shown)
                print(f"{line['t']:7.1f} {line['scenario']:26} {engine:3} {cells} {line['error'] or ''}")
    print(f"{line['t']:7.1f} end")


if __name__ == "__main__":
    for name in sys.argv[1:]:
        print_table(Path(name))
