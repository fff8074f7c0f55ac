"""`stanch requests`: which requests an engine holds KV cache for, since when, and which of them are stuck."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from stanch.edge import interrupt
from stanch.edge.cli.options import key_option, key_reader, output_option, server

if TYPE_CHECKING:
    from stanch.edge.kit_answers import Lists

EXIT_DONE, EXIT_CANNOT_TELL = 0, 3


@click.command("requests")
@click.argument("url")
@click.option("--rank", type=click.IntRange(0), help="Only this data-parallel rank (the label `engine`).")
@click.option("--stuck", is_flag=True, help="Only those that are parked, or hold blocks after their end.")
@key_option("File with the engine's --api-key, which its kit's list needs.")
@output_option
def requests(url: str, rank: int | None, stuck: bool, api_key_file: Path | None, output: str) -> int:
    """List the requests of the engine at URL, as its engine kit has them; the longest stuck first.

    Exit codes: 0 listed, 3 cannot tell (no kit, no key, a rank that does not answer).
    """
    from stanch.edge import listing
    from stanch.edge import output as out
    from stanch.edge.kit_answers import KitError
    from stanch.edge.one_engine import look

    (base, shown), key = server(url), key_reader(api_key_file)

    async def ask() -> Lists:
        found = (await look(base, key)).lists
        if isinstance(found, KitError):
            raise found
        return found

    try:
        lists = interrupt.run(ask())
    except KitError as error:
        click.echo(f"cannot tell about {shown}: {error}", err=True)
        return EXIT_CANNOT_TELL
    label = None if rank is None else str(rank)
    rows, missing = listing.rows(lists, label, stuck_only=stuck), listing.missing(lists, label)
    with out.to_whoever_reads():
        if output == "json":
            out.json_line(listing.record(shown, lists, rows))
        else:
            listing.show(rows, stuck_only=stuck, whole=missing is None)
        out.flush()
    if missing is not None:
        click.echo(f"cannot tell about {shown}: {missing}", err=True)
        return EXIT_CANNOT_TELL
    return EXIT_DONE
