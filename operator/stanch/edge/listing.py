"""The kit's list as rows for people and as data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stanch.core.kit import Entry
from stanch.core.report import age_text, percent
from stanch.edge.kit_answers import Lists

SCHEMA = "stanch.listing/1"
_ENDS = {
    "freed": "yes: its blocks come back",
    "completed": "yes: it goes on, all its KV is here",
    "failed": "yes: its client gets an error",
}


@dataclass(frozen=True, slots=True)
class Row:
    rank: str
    entry: Entry


def rows(lists: Lists, rank: str | None, *, stuck_only: bool) -> list[Row]:
    """The stuck ones first, each kind the longest first."""
    found = [
        Row(label, entry)
        for label, entries in lists.ranks.items()
        for entry in entries
        if rank in (None, label) and (entry.stuck or not stuck_only)
    ]
    return sorted(found, key=lambda row: (not row.entry.stuck, -row.entry.age_seconds))


def missing(lists: Lists, rank: str | None) -> str | None:
    """Which asked-for rank told nothing; None where all did."""
    if rank is not None:
        if rank in lists.ranks:
            return None
        if rank not in lists.missing:
            known = ", ".join(sorted({*lists.ranks, *lists.missing}, key=lambda r: (len(r), r)))
            return f"it has no rank {rank}; its ranks are {known or 'not known'}"
        return f"rank {rank} did not answer its kit"
    if not lists.missing:
        return None
    word = "rank" if len(lists.missing) == 1 else "ranks"
    return f"{word} {', '.join(lists.missing)} did not answer its kit"


def record(target: str, lists: Lists, rows: Sequence[Row]) -> dict[str, object]:
    """One object (schema stanch.listing/1); the requests have the contract's keys, and their rank."""
    return {
        "schema": SCHEMA,
        "target": target,
        "bootId": lists.boot_id,
        "missingRanks": list(lists.missing),
        "requests": [_request(row) for row in rows],
    }


def _request(row: Row) -> dict[str, object]:
    entry = row.entry
    return {
        "rank": row.rank,
        "id": entry.id,
        "schedulerId": entry.scheduler_id,
        "status": entry.status,
        "ageSeconds": entry.age_seconds,
        "blocks": entry.blocks,
        "cacheShare": entry.share,
        "remoteEngine": entry.remote_engine,
        "clientGone": entry.client_gone,
        "waitsFor": entry.waits_for,
        "leased": entry.leased,
        "pinned": entry.pinned,
        "stuck": entry.stuck,
        "way": entry.way,
        "refusal": entry.refusal,
        "refusalKind": entry.refusal_kind,
    }


def show(rows: Sequence[Row], *, stuck_only: bool, whole: bool = True) -> None:
    """A table on standard output, as wide as it needs to be where that is no terminal.

    whole: every rank that was asked for told its requests; else an empty list says nothing, and nothing is.
    """
    from rich.table import Table
    from rich.text import Text

    from stanch.edge.output import print_table

    if not rows:
        if not whole:
            return
        print_table(None, "no request is stuck" if stuck_only else "no request is there")
        return
    view = Table(box=None, pad_edge=False, show_edge=False)
    for column in ("id", "rank", "status"):
        view.add_column(column, overflow="fold")
    for column in ("age", "blocks", "share"):
        view.add_column(column, justify="right", no_wrap=True)
    for column in ("waits for", "client", "from engine", "release"):
        view.add_column(column, overflow="fold")
    for row in rows:
        entry = row.entry
        view.add_row(
            Text(entry.id, style="bold" if entry.stuck else ""),
            row.rank,
            entry.status,
            age_text(entry.age_seconds),
            str(entry.blocks),
            "?" if entry.share is None else percent(entry.share),
            _waits(entry),
            "gone" if entry.client_gone else "there",
            entry.remote_engine or "",
            _release(entry) if entry.stuck else "",
        )
    stuck = [row.entry for row in rows if row.entry.stuck]
    blocks = sum(entry.blocks for entry in stuck)
    where = "" if whole else ", on the ranks that answered"
    print_table(view, f"{len(stuck)} of {len(rows)} stuck, holding {blocks} blocks{where}")


def _waits(entry: Entry) -> str:
    if entry.leased:
        return "its reader (leased)"
    if entry.pinned:
        return "its next turn (pinned)"
    return {"remote_kv": "remote KV", None: ""}.get(entry.waits_for, entry.waits_for or "")


def _release(entry: Entry) -> str:
    if entry.way is not None:
        return _ENDS.get(entry.way, f"yes: {entry.way}")
    return "not said" if entry.refusal is None else f"no: {entry.refusal}"
