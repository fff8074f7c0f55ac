"""What a release did, as rows for people and as data."""

from __future__ import annotations

from stanch.edge.release import Released

SCHEMA = "stanch.release/1"
_DONE = {
    "freed": "freed: nobody waited for it",
    "completed": "completed: all its KV is here, it goes on",
    "failed": "failed: its client got an error, its blocks are free",
}
_WOULD = {
    "freed": "would be freed: nobody waits for it",
    "completed": "would be completed: all its KV is here",
    "failed": "would fail: its client would get an error",
}


def refused(released: Released) -> bool:
    """Whether something that was meant was not released."""
    kept = [fate for fate in released.fates if fate.way is None]
    return any(not fate.young for fate in kept) or (released.state == "refused" and not kept)


def record(target: str, released: Released) -> dict[str, object]:
    """One object (schema stanch.release/1)."""
    return {
        "schema": SCHEMA,
        "target": target,
        "bootId": released.boot_id,
        "commandId": released.command_id,
        "dryRun": released.dry_run,
        "state": released.state,
        "reason": released.reason,
        "requests": [
            {
                "id": fate.id,
                "schedulerId": fate.scheduler_id,
                "blocks": fate.blocks,
                "way": fate.way,
                "refusal": fate.refusal,
                "young": fate.young,
            }
            for fate in released.fates
        ],
        "releases": dict(released.releases),
        "refusals": dict(released.refusals),
        "missingRanks": list(released.missing),
    }


def show(released: Released) -> None:
    """A table on standard output: each request, and what was done with it or why nothing was. Nothing, where
    nothing is known of any."""
    from rich.table import Table
    from rich.text import Text

    from stanch.edge.output import print_table

    done = [fate for fate in released.fates if fate.way is not None]
    known = [fate.blocks for fate in done if fate.blocks is not None]
    left = len(released.fates) - len(done)
    # The kit names the first hundreds, and counts all.
    count, kept = sum(released.releases.values()) or len(done), max(left, sum(released.refusals.values()))
    blocks = f", {sum(known)} blocks" if done and len(known) == count else ""
    end = f"{count} {'would be ' if released.dry_run else ''}released{blocks}"
    end += f"; {kept} not" if kept else ""
    unnamed = count + kept - len(released.fates)
    end += f"; {unnamed} of them are not named above" if unnamed > 0 else ""
    if not released.fates:
        if not released.certain:
            return
        print_table(None, released.reason or "nothing is stuck that this means: nothing was released")
        return
    view = Table(box=None, pad_edge=False, show_edge=False)
    for column in ("id", "blocks", "release"):
        view.add_column(column, overflow="fold", justify="right" if column == "blocks" else "left")
    words = _WOULD if released.dry_run else _DONE
    for fate in released.fates:
        if fate.way is not None:
            what = Text(words.get(fate.way, fate.way))
        else:
            what = Text(f"{'not meant' if fate.young else 'refused'}: {fate.refusal}", "yellow")
        view.add_row(
            Text(fate.id or fate.scheduler_id), "?" if fate.blocks is None else str(fate.blocks), what
        )
    print_table(view, end)
