"""`stanch release`: give back what stuck requests hold, without a restart."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from stanch.edge import interrupt
from stanch.edge.cli.options import Seconds, key_reader, output_option, server

if TYPE_CHECKING:
    from stanch.edge.release import Released

EXIT_DONE, EXIT_REFUSED, EXIT_CANNOT_TELL = 0, 1, 3


@click.command()
@click.argument("url")
@click.argument("ids", metavar="[ID...]", nargs=-1)
@click.option(
    "--older-than",
    type=Seconds(0),
    help="Only what has been stuck for so long, such as 120s; without IDs: all of that.",
)
@click.option("--all", "everything", is_flag=True, help="Whatever is stuck, of any age.")
@click.option("--dry-run", is_flag=True, help="Say what would be done, per request, and do nothing.")
@click.option("--timeout", type=Seconds(1, 600), default=30.0, show_default=True, help="For all of it.")
@click.option(
    "--token-file",
    type=click.Path(path_type=Path),
    help="File with the token that the kit takes commands by (its STANCH_TOKEN_FILE).",
)
@click.option(
    "--api-key-file",
    type=click.Path(path_type=Path),
    help="File with the engine's --api-key: then the ids are shown as clients know them.",
)
@output_option
def release(
    url: str,
    ids: Sequence[str],
    older_than: float | None,
    everything: bool,
    dry_run: bool,
    timeout: float,
    token_file: Path | None,
    api_key_file: Path | None,
    output: str,
) -> int:
    """Release the stuck requests IDS of the engine at URL: exactly those, and only where nothing can still
    write into their blocks.

    Exit codes: 0 done, 1 some were refused, 3 cannot tell (no kit, commands are off, no answer).
    """
    from stanch.edge import output as out
    from stanch.edge import releasing
    from stanch.edge.client import session
    from stanch.edge.kit_answers import KitError
    from stanch.edge.release import Order
    from stanch.edge.release import release as carry_out

    if everything and (ids or older_than is not None):
        raise click.UsageError("say either --all, which is of any age, or which IDS or --older-than")
    if "" in ids:
        raise click.UsageError("an ID is empty: `stanch requests` lists them")
    if not ids and older_than is None and not everything:
        raise click.UsageError(
            "say what to release: IDS (`stanch requests` lists them), --older-than 120s, or --all for "
            "whatever is stuck"
        )
    base, shown = server(url)
    token, key = key_reader(token_file, "token")(), key_reader(api_key_file)
    order = Order(tuple(dict.fromkeys(ids)) or None, older_than, dry_run, timeout)

    async def run() -> Released:
        async with session(connections=1) as connection:
            return await carry_out(connection, base, order, token, key)

    try:
        released = interrupt.run(run())
    except KitError as error:
        click.echo(f"cannot tell about {shown}: {error}", err=True)
        return EXIT_CANNOT_TELL
    with out.to_whoever_reads():
        if output == "json":
            out.json_line(releasing.record(shown, released))
        else:
            releasing.show(released)  # nothing, where nothing is known
        out.flush()
    if not released.certain:
        why = released.reason or f"ranks {', '.join(released.missing)} did not answer"
        click.echo(f"cannot tell about all of {shown}: {why}", err=True)
        return EXIT_CANNOT_TELL
    return EXIT_REFUSED if releasing.refused(released) else EXIT_DONE
