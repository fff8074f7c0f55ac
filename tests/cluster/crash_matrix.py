"""The crash matrix: its points and faults, those that CI runs, and tables of outcomes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.bed.cluster import Cluster
from tests.bed.faults import CutWatch, Fault, Hang, Refuse, Rule, SilentWatch, Slow
from tests.cluster.crash import Ladder, Outcome, crashed, troubled
from tests.cluster.installed import Installed

AT_ONCE = 7

# In the order in which a remediation meets them.
POINTS: tuple[tuple[Ladder, str], ...] = (
    ("restart", "watch: suspect"),
    ("restart", "engine: list at no step"),
    ("restart", "watch: claimed"),
    ("restart", "leakincidents: create"),
    ("restart", "incident: Cordon"),
    ("restart", "event"),
    ("restart", "pod: cordon"),
    ("restart", "incident: Drain"),
    ("restart", "pod: drain"),
    ("restart", "pod: cordon renewed"),
    ("restart", "incident: Capture"),
    ("restart", "engine: list at Capture"),
    ("restart", "incident: Restart"),
    ("restart", "pod: restart"),
    ("restart", "incident: Verify"),
    ("restart", "engine: canary at Verify"),
    ("restart", "engine: prefill of a probe at Verify"),
    ("restart", "engine: decode of a probe at Verify"),
    ("restart", "incident: Uncordon"),
    ("restart", "pod: lift"),
    ("restart", "watch: claim given back"),
    ("restart", "incident: ended"),
    ("release", "incident: Release"),
    ("release", "pod: release"),
    ("release", "incident: ended"),
    ("release", "pod: lift"),
    ("evict", "pod: eviction tried"),
    ("evict", "incident: Evict"),
    ("evict", "pod: eviction"),
)
assert len(POINTS) <= 30
# Not killed at. The first is of a cordon that ran out, as on a machine that is very busy; the second of an
# answer that comes later than what it is waited for with.
_ALSO_MET = ("watch: claim let go", "incident: Confirm")
_ON_THE_POD = (
    "pod: cordon",
    "pod: drain",
    "pod: restart",
    "pod: release",
    "pod: eviction",
    "incident: Verify",
)

ANY: Mapping[str, Fault] = {
    "409": Refuse(409),
    "410": Refuse(410),
    "429, Retry-After 2": Refuse(429, retry_after_seconds=2),
    "500": Refuse(500),
    "503": Refuse(503),
    "hang": Hang(),
    "slow (3 s)": Slow(3.0),
}
# It took effect, and the answer says that it did not.
LIE = {"500, but done": Refuse(500, applied=True)}
WATCHES: Mapping[str, Fault] = {
    "cut watch": CutWatch(after_events=1, in_order=False),
    "silent watch": SilentWatch(1),
}
CALLS: Mapping[str, tuple[Ladder, Callable[[Fault], Rule]]] = {
    "list": ("restart", lambda fault: Rule(fault, "list", "pods")),
    "watch": ("restart", lambda fault: Rule(fault, "watch", "leakwatches")),
    "create": ("restart", lambda fault: Rule(fault, "create", "leakincidents")),
    "update": ("restart", lambda fault: Rule(fault, "update", "leakincidents/status")),
    "patch (cordon)": ("restart", lambda fault: Rule(fault, "patch", "pods")),
    "evict, dry run": ("evict", lambda fault: Rule(fault, "create", "pods/eviction")),
    "evict": ("evict", lambda fault: Rule(fault, "create", "pods/eviction", nth=2)),
}


@dataclass(frozen=True, slots=True)
class Run:
    """One cell of a table. rules: empty for a crash. at: None for a run that nothing disturbs. awaits: note
    those that are passed."""

    table: str
    row: str
    column: str
    ladder: Ladder
    at: str | None = None
    back: bool = True
    rules: tuple[Rule, ...] = ()
    awaits: bool = False

    @property
    def name(self) -> str:
        return f"{self.row} | {self.column}"

    def play(self, cluster: Cluster, found: Installed, directory: Path) -> Outcome:
        if self.rules:
            return troubled(cluster, found, directory, self.ladder, self.rules)
        more = {"back": self.back, "awaits": self.awaits}
        return crashed(cluster, found, directory, self.ladder, self.at, **more)


def kind_of(point: str) -> str:
    """Whatever step an engine was asked at, and however often a step was begun."""
    return re.sub(r" at .*$| \d+$", "", point)


def unknown(met: Iterable[str]) -> set[str]:
    """Effects that have no place in the matrix."""
    return {kind_of(point) for point in met} - {kind_of(point) for _, point in POINTS} - {*_ALSO_MET}


def undisturbed() -> list[Run]:
    ladders: tuple[Ladder, ...] = ("restart", "release", "evict")
    return [Run("undisturbed", ladder, "outcome", ladder) for ladder in ladders]


def crashes() -> list[Run]:
    """The more telling ones first: an effect that is done and not remembered."""
    return [
        Run(
            "crashes",
            f"{ladder}, {point}",
            f"{moment}, {'started again' if back else 'not started again'}",
            ladder,
            f"{moment} {point}",
            back,
        )
        for moment, back in (("after", True), ("after", False), ("before", True), ("before", False))
        for ladder, point in POINTS
    ]


def faults() -> list[Run]:
    """Each fault at each kind of call by itself."""
    found = []
    for call, (ladder, rule) in CALLS.items():
        kinds = {**ANY, **(WATCHES if call == "watch" else {} if call == "list" else LIE)}
        for name, fault in kinds.items():
            found.append(Run("faults", name, call, ladder, rules=(rule(fault),)))
    return found


def for_ci() -> list[Run]:
    """After each effect with a new operator; without one where something is left on the pod; each fault at
    all kinds of calls of one remediation."""
    left = [
        run
        for run in crashes()
        if run.at is not None
        and run.at.startswith("after ")
        and (run.back or run.at.removeprefix("after ") in _ON_THE_POD)
    ]
    together = [
        Run("faults", name, "once at each call", "restart", rules=_each(fault, name))
        for name, fault in {**ANY, **LIE}.items()
    ]
    alone = [run for run in faults() if run.row in WATCHES or run.column == "evict"]
    return [*undisturbed(), *left, *together, *alone]


def everything() -> list[Run]:
    """Those of CI first."""
    return list({run.name: run for run in [*for_ci(), *crashes(), *faults()]}.values())


def _each(fault: Fault, name: str) -> tuple[Rule, ...]:
    calls = [call for call, (ladder, _) in CALLS.items() if ladder == "restart"]
    return tuple(CALLS[call][1](fault) for call in calls if name not in LIE or call not in ("list", "watch"))


class Playing:
    """The runs under way. result(): waits for one, and raises what it raised."""

    def __init__(self, futures: dict[str, Future[Outcome]]) -> None:
        self.futures = futures

    def result(self, run: Run) -> Outcome:
        return self.futures[run.name].result()


@contextmanager
def playing(cluster: Cluster, found: Installed, directory: Path, runs: Sequence[Run]) -> Iterator[Playing]:
    with ThreadPoolExecutor(AT_ONCE) as stage:
        futures = {run.name: stage.submit(run.play, cluster, found, directory) for run in runs}
        try:
            yield Playing(futures)
        finally:
            for future in futures.values():
                future.cancel()


def cell(outcome: Outcome) -> str:
    done = f"{outcome.restarts} restart{'' if outcome.restarts == 1 else 's'}"
    away = f", away {outcome.seconds:.0f} s" if outcome.seconds else ", never away"
    return f"{outcome.ended or 'serves'}, {done}{away}".replace("Resolved ", "")


def tables(runs: Iterable[Run], cells: Mapping[str, str]) -> str:
    """In Markdown. cells: by the run's name; those without one are left empty."""
    lines: list[str] = []
    runs = list(runs)
    for title in dict.fromkeys(run.table for run in runs):
        mine = [run for run in runs if run.table == title]
        columns = list(dict.fromkeys(run.column for run in mine))
        lines += ["", f"| {title} | {' | '.join(columns)} |", "| --- |" + " --- |" * len(columns)]
        for row in dict.fromkeys(run.row for run in mine):
            found = {run.column: cells.get(run.name, "not run") for run in mine if run.row == row}
            lines.append(f"| {row} | {' | '.join(found.get(column, '') for column in columns)} |")
    return "\n".join(lines)
