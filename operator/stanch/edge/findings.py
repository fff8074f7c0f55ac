"""What `stanch doctor` finds: one line for each check, and what to do next about each that fails."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from stanch.edge.text import printable

SCHEMA = "stanch.finding/1"


class Mark(str, Enum):
    OK = "ok"
    WARN = "warn"
    FAIL = "fail"
    UNKNOWN = "cannot tell"


@dataclass(frozen=True, slots=True)
class Finding:
    """about: the cluster, a watch or a pod. check: one or two words. todo: "" where nothing is to do."""

    about: str
    check: str
    mark: Mark
    says: str
    todo: str = ""


EXIT = {Mark.OK: 0, Mark.WARN: 1, Mark.FAIL: 2, Mark.UNKNOWN: 3}
_WORST_FIRST = (Mark.FAIL, Mark.UNKNOWN, Mark.WARN, Mark.OK)
_STYLE = {Mark.OK: "green", Mark.WARN: "yellow", Mark.FAIL: "bold red", Mark.UNKNOWN: "magenta"}


def exit_code(found: Iterable[Finding]) -> int:
    """As `stanch check` has it: the worst of fail (2), cannot tell (3), warn (1), ok (0)."""
    seen = {one.mark for one in found}
    return next((EXIT[mark] for mark in _WORST_FIRST if mark in seen), EXIT[Mark.UNKNOWN])


def record(one: Finding) -> dict[str, object]:
    """One object of schema stanch.finding/1."""
    return {
        "schema": SCHEMA,
        "about": one.about,
        "check": one.check,
        "state": one.mark.value,
        "says": one.says,
        "todo": one.todo or None,
    }


def show(found: Sequence[Finding]) -> None:
    """A line each on standard output, and how many of each there were."""
    from rich.table import Table
    from rich.text import Text

    from stanch.edge.output import print_table

    view = Table(box=None, pad_edge=False, show_edge=False, show_header=False)
    for _ in range(3):
        view.add_column(no_wrap=True)
    view.add_column(overflow="fold")
    for one in found:
        says = f"{one.says}; {one.todo}" if one.todo else one.says
        view.add_row(
            Text(one.mark.value, style=_STYLE[one.mark]), one.about, one.check, Text(printable(says))
        )
    counts = {mark: sum(one.mark is mark for one in found) for mark in _WORST_FIRST}
    print_table(view, ", ".join(f"{count} {mark.value}" for mark, count in counts.items() if count))
