"""How the demo looks: in a terminal a live table with the story below, elsewhere plain lines with times."""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from stanch.api.convert import status_of
from stanch.api.incident import LeakIncident, LeakIncidentStatus
from stanch.core.history import Ending, Incident, Step, StepOutcome
from stanch.core.report import age_text, percent
from stanch.core.verdict import State
from stanch.edge.demo.deployment import Traffic
from stanch.edge.demo.pods import NAMESPACE
from stanch.edge.demo.telling import Account, Output, Row, Told
from stanch.edge.output import console
from stanch.edge.recording import body_of
from stanch.edge.text import printable

_STYLES = {State.HEALTHY: "green", State.SUSPECT: "yellow", State.FAULT: "bold red", State.BLIND: "magenta"}
_BAR = 12
# Above and below the story: the table with its head, the traffic, and a line of air each.
_ROOM_FOR_TABLE = 11


class PlainView:
    """One line per event."""

    def __init__(self, screen: Console) -> None:
        self._screen = screen
        self._began = time.monotonic()

    def elapsed(self) -> float:
        return time.monotonic() - self._began

    def say(self, text: str, tone: State | None = None) -> None:
        self._screen.print(folded(_line(self.elapsed(), text, tone), self._screen))
        # Whoever reads a pipe or a log wants to see it when it happens.
        self._screen.file.flush()

    def board(self, rows: Sequence[Row], traffic: Traffic | None) -> None:
        """The lines say what changed."""

    def account(self, account: Account) -> None:
        for line in story_of(account):
            self._screen.print(folded(line, self._screen))


class LiveView(PlainView):
    """The fleet and the newest lines, drawn anew in place."""

    def __init__(self, screen: Console, live: Live) -> None:
        super().__init__(screen)
        self._live = live
        self._lines: deque[Text] = deque(maxlen=100)
        self._table: Table | None = None

    def say(self, text: str, tone: State | None = None) -> None:
        self._lines.append(_line(self.elapsed(), text, tone))
        self._draw()

    def board(self, rows: Sequence[Row], traffic: Traffic | None) -> None:
        self._table = table(rows, traffic)
        self._draw()

    def _draw(self) -> None:
        room, shown = max(3, self._screen.height - _ROOM_FOR_TABLE), deque[Text]()
        for line in (folded(line, self._screen) for line in reversed(self._lines)):
            room -= 1 + line.plain.count("\n")
            if room < 0:
                break
            shown.appendleft(line)
        self._live.update(Group(*([self._table] if self._table else []), *shown), refresh=True)


@contextmanager
def view(live: bool) -> Iterator[Output]:
    """The output for a terminal (live) or for anything else; usable after its end for the account only."""
    screen = console()
    if not live:
        yield PlainView(screen)
        return
    with Live(console=screen, auto_refresh=False, vertical_overflow="crop") as drawing:
        yield LiveView(screen, drawing)


def table(rows: Sequence[Row], traffic: Traffic | None) -> Table:
    """The fleet in one turn."""
    shown = Table(expand=True, box=None, pad_edge=False)
    for column in ("engine", "role", "state", "KV cache"):
        shown.add_column(column, no_wrap=True)
    for column in ("run", "wait"):
        shown.add_column(column, justify="right", no_wrap=True)
    shown.add_column("what the watchdog says", ratio=1, no_wrap=True, overflow="ellipsis")
    for row in rows:
        state = Text(row.state.value, style=_STYLES[row.state])
        if row.out:
            state.append(" out", style="cyan")
        shown.add_row(
            row.name, row.role, state, _bar(row), _count(row.running), _count(row.waiting), row.sentence
        )
    if traffic is not None:
        shown.caption = (
            f"traffic: {traffic.sent} sent, {traffic.answered} answered, {len(traffic.gave_up)} given up by "
            f"their clients, {traffic.failed} failed"
        )
        shown.caption_justify = "left"
    return shown


def _bar(row: Row) -> Text:
    if row.usage is None:
        return Text("?")
    full = round(min(1.0, row.usage) * _BAR)
    style = _STYLES[row.state]
    return Text.assemble(("█" * full, style), ("░" * (_BAR - full), "dim"), f" {percent(row.usage):>5}")


def _count(value: float | None) -> str:
    return "?" if value is None else f"{value:g}"


def folded(line: Text, screen: Console) -> Text:
    """The line in the width of a terminal: what does not fit hangs below the start of its last column."""
    if screen.soft_wrap:
        return line
    starts = [found.end() for found in re.finditer(r"(?:^|(?<=\S)) {2,}", line.plain)]
    hang = max((start for start in starts if start <= screen.width // 2), default=0)
    pieces = line[hang:].wrap(screen, screen.width - hang)
    for piece in pieces:
        piece.rstrip()
    return line[:hang] + Text("\n" + " " * hang).join(pieces)


def _line(at: float, text: str, tone: State | None) -> Text:
    return Text.assemble((f"{at:5.1f} s  ", "dim"), (text, _STYLES[tone] if tone else ""))


def objects_of(account: Account) -> list[LeakIncident]:
    """The incidents as the objects that the operator would have written."""
    return [
        LeakIncident.model_validate(body_of(NAMESPACE, told.incident, "stanch demo")).model_copy(
            update={"status": status_of(told.incident, LeakIncidentStatus())}
        )
        for told in account.told
    ]


def story_of(account: Account) -> Iterator[Text]:
    """How it went, as it is told at the end."""
    if not account.told:
        yield Text()
        yield Text("No incident.", style="bold red")
    for told in account.told:
        yield Text()
        yield from _incident(told, account.began)
    yield Text()
    traffic = account.traffic
    yield Text(
        f"Traffic: {traffic.sent} requests sent, {traffic.answered} answered, "
        f"{sum(traffic.in_flight.values())} on their way; lost besides the stuck ones: {account.lost}."
    )
    yield from (Text(printable(f"  {failure}")) for failure in traffic.failures[:5])
    yield Text(f"What would help: {account.advice}.")
    if account.failure is not None:
        yield Text(f"Not healed: {printable(account.failure)}", style="bold red")


def _incident(told: Told, began: float) -> Iterator[Text]:
    incident, probes = told.incident, told.probes
    signature = "" if incident.evidence.signature is None else f"{incident.evidence.signature.value}, "
    end = ("open", "bold red")
    if incident.ending is not None:
        end = (f"{incident.ending.value} ({incident.code})", "bold green" if _well(incident) else "bold red")
    yield Text.assemble((f"LeakIncident {incident.name}: {signature}", "bold"), end)
    yield Text(f"  {printable(told.cause)}")
    for step in incident.steps:
        yield _step(step, began)
    yield from _stuck(incident)
    yield Text(
        f"  A liveness probe of {incident.pod_name} meanwhile: 200 {probes.ok} times of {probes.sent}."
        + (" It would have seen nothing." if probes.sent and probes.ok == probes.sent else "")
    )


def _well(incident: Incident) -> bool:
    return incident.ending in (Ending.RESOLVED, Ending.RECOVERED)


def _step(step: Step, began: float) -> Text:
    end = "" if step.end is None else f"{step.end - began:5.1f} s"
    bad = step.outcome not in (None, StepOutcome.DONE)
    return Text.assemble(
        (f"  {step.start - began:5.1f} - {end:>7}  ", "dim"),
        (f"{step.name.value:<8}  ", "bold"),
        (printable(step.detail), "bold red" if bad else ""),
    )


def _stuck(incident: Incident) -> Iterator[Text]:
    if not incident.stuck:
        return
    blocks = sum(one.blocks for one in incident.stuck)
    yield Text(f"  Stuck requests, holding {blocks} blocks:")
    for one in incident.stuck:
        client = "its client has gone" if one.client_gone else "its client waits"
        yield Text(
            printable(
                f"    {one.id}  {one.blocks} blocks, {age_text(one.age_seconds)}, {client}, "
                f"from engine {one.remote_engine or '?'}"
            )
        )
