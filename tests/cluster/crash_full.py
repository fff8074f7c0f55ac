"""All of the crash matrix, and a kill at every await of the operator's loops: `make crash-full`.

    python -m tests.cluster.crash_full [FILE]

Tables are printed, and written into docs/reliability.md. FILE gets a line of JSON for each run as it ends; of
those that it has already only the failed ones are run again.
"""

from __future__ import annotations

import json
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

from tests.bed import image, node
from tests.bed.cluster import Access, Cluster
from tests.cluster.crash import AWAIT, IDLE, Ladder, Outcome
from tests.cluster.crash_awaits import every_place
from tests.cluster.crash_matrix import AT_ONCE, Run, cell, everything, tables
from tests.cluster.installed import TOP, installed

DOCS = TOP / "docs/reliability.md"
_BEGIN, _END = "<!-- tables: make crash-full -->", "<!-- end of tables -->"
_LADDERS: tuple[Ladder, ...] = ("restart", "release", "evict")
# Before and after a remediation: only where a place is passed at no other time.
_AROUND = (IDLE.removeprefix(" at "), "the end")


def passes() -> list[Run]:
    """Undisturbed runs that note the awaits."""
    return [Run("awaits", f"{ladder}, undisturbed", "outcome", ladder, awaits=True) for ladder in _LADDERS]


def awaits(met: Mapping[Ladder, Iterable[str]]) -> list[Run]:
    """A run for each await that was passed, killed when it is over: the process then knows what nobody else
    does. The stages take turns. met: the points of `passes`."""
    during: dict[str, list[tuple[Ladder, str]]] = {}
    around: dict[str, list[tuple[Ladder, str]]] = {}
    for ladder, points in met.items():
        for point in points:
            if point.startswith("await "):
                place, _, stage = point.removeprefix("await ").rpartition(" at ")
                (around if stage in _AROUND else during).setdefault(place, []).append((ladder, stage))
    runs = []
    for number, place in enumerate(sorted({**around, **during})):
        stages = during.get(place) or around[place]
        ladder, stage = stages[number % len(stages)]
        row = f"`{place}` ({ladder}, {stage})"
        runs.append(Run("awaits", row, "outcome", ladder, f"{AWAIT}{place} at {stage}"))
    return runs


def never_passed(met: Iterable[str]) -> list[str]:
    """Places of no undisturbed remediation: those of errors, and of an orderly end."""
    seen = {point.removeprefix("await ").rpartition(" at ")[0] for point in met}
    return [place for place in every_place(TOP / "operator") if place not in seen]


def main() -> int:
    access = Access.given()
    assert access is not None, "no cluster: make cluster-up, and run this by make crash-full"
    file = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    done = {} if file is None or not file.exists() else recorded(file)
    began = time.monotonic()
    lock = threading.Lock()
    with tempfile.TemporaryDirectory() as name, Cluster(access) as cluster:
        directory = Path(name)
        if access.bed is not None and image.engine_name() not in node.images(access.bed):
            node.load(access.bed, image.engine(directory / "engine.tar").archive)
        with installed(cluster, directory) as found, ThreadPoolExecutor(AT_ONCE) as stage:

            def one(run: Run) -> None:
                error = ""
                try:
                    outcome = run.play(cluster, found, directory)
                    line = {"run": run.name, **asdict(outcome)}
                except Exception as failed:
                    error = str(failed)
                    line = {"run": run.name, "error": error}
                with lock:
                    if not error:
                        done[run.name] = outcome
                    said = f"FAILED: {error.splitlines()[0]}" if error else cell(outcome)
                    print(f"{time.monotonic() - began:5.0f} s  {run.name}: {said}", flush=True)
                    if file is not None:
                        with file.open("a") as log:
                            log.write(json.dumps(line) + "\n")

            def play(runs: Iterable[Run]) -> None:
                list(stage.map(one, [run for run in runs if run.name not in done]))

            play([*passes(), *everything()])
            last: list[Run] = []
            if all(run.name in done for run in passes()):
                met = {run.ladder: done[run.name].met for run in passes()}
                last = awaits(met)
                play(last)
                left = never_passed(point for points in met.values() for point in points)
                print(f"{len(last)} awaits; not passed by any of these: {'; '.join(left)}")
    runs = [*everything(), *last]
    cells = {run.name: cell(done[run.name]) if run.name in done else "FAILED" for run in runs}
    print(text := tables(runs, cells))
    write(text)
    return 1 if "FAILED" in cells.values() else 0


def recorded(file: Path) -> dict[str, Outcome]:
    """Of runs that held, by name."""
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    made: Callable[..., Outcome] = Outcome
    return {line.pop("run"): made(**line) for line in lines if "error" not in line}


def write(text: str) -> None:
    """Between the two marks of docs/reliability.md."""
    before, _, rest = DOCS.read_text().partition(_BEGIN)
    _, _, after = rest.partition(_END)
    DOCS.write_text(f"{before}{_BEGIN}\n{text}\n\n{_END}{after}")


if __name__ == "__main__":
    sys.exit(main())
