"""`stanch plan`: what the planner would do now about the engines of one watch, in order, with reasons."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import click

from stanch.edge.cli.kube import Kube, kube_options, prometheus_option, sentence
from stanch.edge.cli.options import Seconds, key_option, key_reader, output_option

if TYPE_CHECKING:
    from stanch.edge.foresight import Foresight

EXIT_DONE, EXIT_CANNOT_TELL = 0, 3


@click.command("plan")
@click.argument("watch")
@click.option(
    "--for", "seconds", type=Seconds(0, above=True), help="Watch for so long first: patterns must hold."
)
@click.option("--canary", is_flag=True, help="Where an engine has no kit, ask it by a request of one token.")
@key_option("File with the engines' --api-key, which their kits' lists need.")
@prometheus_option
@kube_options
@output_option
def plan(
    watch: str,
    seconds: float | None,
    canary: bool,
    api_key_file: Path | None,
    prometheus_table: Path | None,
    kube: Kube,
    output: str,
) -> int:
    """Say what would be done now about the engines of the LeakWatch WATCH, as if its mode were Enforce, and
    why the rest waits. Engines are read and asked; nothing is written and nothing is done to them.

    Without --for it rests on one look, by which only an engine kit's list can tell that anything is stuck.
    Exit codes: 0 said, 3 cannot tell (no cluster, no such watch, no permission).
    """
    from pydantic import ValidationError

    from stanch.edge import forecast
    from stanch.edge import output as out
    from stanch.edge.cluster import ClusterError, NotFound
    from stanch.edge.foresight import foresee
    from stanch.edge.text import printable

    key = key_reader(api_key_file)

    async def look() -> Foresight:
        async with kube.cluster() as cluster:
            return await foresee(
                cluster, kube.namespace, watch, seconds, canary=canary, key=key, table=prometheus_table
            )

    try:
        found = asyncio.run(look())
    except ClusterError as error:
        missing = isinstance(error, NotFound) and error.status
        why = f"there is no LeakWatch {watch} in namespace {kube.namespace}" if missing else sentence(error)
        click.echo(f"cannot tell: {why}", err=True)
        return EXIT_CANNOT_TELL
    except ValidationError as error:
        click.echo(f"cannot tell: LeakWatch {watch}: {error.errors()[0]['msg']}", err=True)
        return EXIT_CANNOT_TELL
    if output == "json":
        out.json_line(forecast.record(kube.namespace, watch, found.mode, found.engines, found.units))
    else:
        for line in (
            f"{kube.namespace}/{watch}: mode {found.mode}",
            *forecast.lines(found.units, found.engines),
        ):
            click.echo(printable(line))
    return EXIT_DONE
