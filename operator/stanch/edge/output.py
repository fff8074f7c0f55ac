"""What people and programs see: sentences, a live table, JSON lines. Data goes to standard output only."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from typing import TYPE_CHECKING

from stanch.core.report import percent, record, sentence
from stanch.core.verdict import State, Verdict
from stanch.edge.advice import Advice
from stanch.edge.text import printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from stanch.edge.live import Judged

EXIT = {State.HEALTHY: 0, State.SUSPECT: 1, State.FAULT: 2, State.BLIND: 3}
_WORST_FIRST = (State.FAULT, State.BLIND, State.SUSPECT, State.HEALTHY)
_STYLE = {State.HEALTHY: "green", State.SUSPECT: "yellow", State.FAULT: "bold red", State.BLIND: "magenta"}


def exit_code(states: Iterable[State]) -> int:
    """As monitoring plug-ins have it: the worst of fault (2), blind (3), suspect (1), healthy (0)."""
    seen = set(states)
    return next((EXIT[state] for state in _WORST_FIRST if state in seen), EXIT[State.BLIND])


def console(width: int | None = None) -> Console:
    """Standard output; without colour and without folding where it is no terminal."""
    from rich.console import Console

    plain = not sys.stdout.isatty()
    return Console(soft_wrap=plain, highlight=False, no_color=plain or None, markup=False, width=width)


def print_table(view: Table | None, end: str) -> None:
    """A table and a line below it; as wide as it needs to be where standard output is no terminal."""
    from rich.measure import Measurement
    from rich.text import Text

    screen = console()
    if view is not None:
        if not sys.stdout.isatty():
            # Folded lines are for eyes: a pipe gets one line a row.
            screen = console(Measurement.get(screen, screen.options.update(max_width=10_000), view).maximum)
        screen.print(view, crop=False, soft_wrap=False)
    screen.print(Text(end))


def json_line(data: dict[str, object]) -> None:
    # ASCII: an object stays one whatever the encoding of standard output.
    sys.stdout.write(json.dumps(data, allow_nan=False) + "\n")


def flush() -> None:
    sys.stdout.flush()


@contextmanager
def to_whoever_reads() -> Iterator[None]:
    """What is printed inside: a reader that has gone (`| head`) does not change the command's exit code.
    click raises the pipe's error; rich makes a SystemExit of it, and leads the rest to nowhere."""
    with suppress(BrokenPipeError, SystemExit):
        yield


def headline(verdict: Verdict, text: str) -> str:
    signature = (
        f" {verdict.signature.value}" if verdict.signature and verdict.state is not State.BLIND else ""
    )
    warnings = f"; warns: {', '.join(w.value for w in verdict.warnings)}" if verdict.warnings else ""
    return printable(f"{verdict.state.value.upper()}{signature}: {text}{warnings}")


def print_check(out: Console, judged: Sequence[Judged], advice: dict[str, Advice], *, one_look: bool) -> None:
    """One line per engine, worst first, then what each server's version means."""
    from rich.text import Text

    order = {state: place for place, state in enumerate(_WORST_FIRST)}
    for one in sorted(judged, key=lambda j: order[j.verdict.state]):
        text = headline(one.verdict, sentence(one.verdict, one_look=one_look))
        out.print(Text(text, style=_STYLE[one.verdict.state]))
    read = {one.watched.target.name for one in judged if one.verdict.state is not State.BLIND}
    told = {name: a for name, a in advice.items() if a.version is not None or name in read}
    for text_of_version, names in _grouped(told).items():
        where = names[0] if len(names) == 1 else f"{len(names)} servers ({_some(names)})"
        out.print(f"  {where}: {text_of_version}")


def _some(names: Sequence[str]) -> str:
    return ", ".join(names if len(names) <= 3 else [*names[:3], "..."])


def _grouped(advice: dict[str, Advice]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, one in advice.items():
        found.setdefault(one.text, []).append(name)
    return found


def live_record(judged: Judged, advice: Advice | None, *, one_look: bool = False) -> dict[str, object]:
    """The JSON object of a live engine: that of the verdict, its target and its vLLM."""
    data = record(judged.verdict, one_look=one_look)
    data["target"] = judged.watched.target.shown
    if advice is not None:
        data["vllm"] = {"version": advice.version, "status": advice.status, "advice": advice.text}
    return data


def table(judged: Sequence[Judged], *, blind_fleet: bool, most: int) -> Table:
    """The live view: one row per engine, the worst first, at most so many rows."""
    from rich.table import Table
    from rich.text import Text

    view = Table(expand=True, box=None, pad_edge=False, show_edge=False, title_justify="left")
    for column, justify in (("engine", "left"), ("role", "left"), ("state", "left"), ("KV", "right")):
        view.add_column(column, no_wrap=True, justify=justify)  # type: ignore[arg-type]
    view.add_column("run", justify="right", no_wrap=True)
    view.add_column("wait", justify="right", no_wrap=True)
    view.add_column("what", ratio=1)
    order = {state: place for place, state in enumerate(_WORST_FIRST)}
    rows = sorted(judged, key=lambda j: (order[j.verdict.state], j.verdict.engine))
    for one in rows[:most]:
        v = one.verdict
        view.add_row(
            Text(printable(v.engine)),
            v.role.value,
            Text(v.state.value, style=_STYLE[v.state]),
            "?" if v.usage is None else percent(v.usage),
            "?" if v.running is None else f"{v.running:g}",
            "?" if v.waiting is None else f"{v.waiting:g}",
            Text(_what(v)),
        )
    # Above, where a short terminal does not cut it off.
    counts = {state: sum(j.verdict.state is state for j in judged) for state in _WORST_FIRST}
    view.title = ", ".join(f"{count} {state.value}" for state, count in counts.items() if count)
    if len(rows) > most:
        view.title += f"; {len(rows) - most} more rows not shown"
    if blind_fleet:
        view.title += "; more than half are blind, so nothing may be done"
    return view


def _what(verdict: Verdict) -> str:
    """What the other columns do not say."""
    words = []
    if verdict.state is State.BLIND:
        words.append(verdict.cause or "")
    elif verdict.signature is not None:
        words.append(f"{verdict.signature.value}: {sentence(verdict).removeprefix(f'{verdict.engine} ')}")
    elif verdict.lifecycle is not None:
        words.append(verdict.lifecycle.value)
    if verdict.warnings:
        words.append(f"warns: {', '.join(w.value for w in verdict.warnings)}")
    return printable("; ".join(words))


def plain_line(verdict: Verdict, at: str) -> str:
    return f"{at} {headline(verdict, sentence(verdict))}"


def clock_time(t: float) -> str:
    return datetime.fromtimestamp(t).astimezone().strftime("%H:%M:%S")
