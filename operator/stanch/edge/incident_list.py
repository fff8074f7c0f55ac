"""LeakIncidents as rows for people and as data. Pure, but for `show`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

from stanch.api.incident import LeakIncident
from stanch.core.history import Ending, StepOutcome
from stanch.core.report import age_text
from stanch.edge.text import printable

SCHEMA = "stanch.incident/1"
_STYLE = {
    Ending.RESOLVED: "green",
    Ending.RECOVERED: "green",
    Ending.ESCALATED: "bold red",
    Ending.FAILED: "bold red",
    Ending.GAVE_UP: "yellow",
    Ending.NOT_WATCHED: "yellow",
}


def ordered(incidents: Iterable[LeakIncident], *, ended: bool) -> list[LeakIncident]:
    """The open ones, the oldest first; then, where asked for, those that ended, the latest first."""
    read = list(incidents)
    open_ = sorted((one for one in read if one.status.ending is None), key=_since)
    if not ended:
        return open_
    return [*open_, *sorted((one for one in read if one.status.ending is not None), key=_until, reverse=True)]


def _since(one: LeakIncident) -> float:
    created = one.status.created or one.metadata.creation_timestamp
    return 0.0 if created is None else created.timestamp()


def _until(one: LeakIncident) -> float:
    return _since(one) if one.status.ended is None else one.status.ended.timestamp()


def record(one: LeakIncident) -> dict[str, object]:
    """One object of schema stanch.incident/1: spec and status as the kind has them (docs/kinds.md)."""
    created: datetime | None = one.metadata.creation_timestamp
    return {
        "schema": SCHEMA,
        "namespace": one.metadata.namespace,
        "name": one.metadata.name,
        "created": None if created is None else created.isoformat(),
        "spec": one.spec.model_dump(mode="json", by_alias=True),
        "status": one.status.model_dump(mode="json", by_alias=True),
    }


def show(incidents: Sequence[LeakIncident], now: float, *, ended: bool, everywhere: bool) -> None:
    """A table on standard output, as wide as it needs to be where that is no terminal."""
    from rich.table import Table
    from rich.text import Text

    from stanch.edge.output import print_table

    if not incidents:
        print_table(
            None, "no incident is there" if ended else "no incident is open (--all shows those that ended)"
        )
        return
    view = Table(box=None, pad_edge=False, show_edge=False)
    if everywhere:
        view.add_column("namespace", overflow="fold")
    for column in ("name", "pod", "signature", "phase"):
        view.add_column(column, overflow="fold")
    for column in ("age", "stuck"):
        view.add_column(column, justify="right", no_wrap=True)
    view.add_column("what", overflow="fold")
    for one in incidents:
        status = one.status
        view.add_row(
            *((one.metadata.namespace,) if everywhere else ()),
            one.metadata.name,
            one.spec.pod_ref.name,
            "" if status.evidence.signature is None else status.evidence.signature.value,
            Text(
                printable(status.phase or "Pending"),
                style="" if status.ending is None else _STYLE.get(status.ending, ""),
            ),
            age_text(max(0.0, now - _since(one))),
            str(status.stuck_count),
            Text(printable(what(one))),
        )
    still = sum(one.status.ending is None for one in incidents)
    print_table(view, f"{still} open" + (f", {len(incidents) - still} ended" if ended else ""))


def what(one: LeakIncident) -> str:
    """Why it waits or ended, else what the step under way or the last one says."""
    status = one.status
    if status.ending is not None:
        return status.detail or status.code
    if status.wait:
        return f"waits: {status.wait}"
    if not status.steps:
        return "not looked at yet"
    step = status.steps[-1]
    if step.outcome is None:
        return f"since {step.start.astimezone():%H:%M:%S}"
    return step.detail or ("" if step.outcome is StepOutcome.DONE else step.outcome.value)
