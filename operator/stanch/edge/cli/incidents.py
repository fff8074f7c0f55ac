"""`stanch incidents`: the LeakIncidents of a cluster."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import click

from stanch.edge.cli.kube import Kube, all_namespaces_option, kube_options, sentence
from stanch.edge.cli.options import output_option

if TYPE_CHECKING:
    from stanch.edge.cluster import Listing

EXIT_DONE, EXIT_CANNOT_TELL = 0, 3


@click.command()
@click.option("--all", "ended", is_flag=True, help="Those that have ended, too.")
@all_namespaces_option
@kube_options
@output_option
def incidents(ended: bool, everywhere: bool, kube: Kube, output: str) -> int:
    """List the leaks that are being looked at or repaired, the oldest first.

    Exit codes: 0 listed, 3 cannot tell (no cluster, no permission, the kinds are not installed).
    """
    from pydantic import ValidationError

    from stanch.api.incident import LeakIncident
    from stanch.edge import incident_list
    from stanch.edge import output as out
    from stanch.edge.cluster import ClusterError

    async def ask() -> Listing:
        async with kube.cluster() as cluster:
            return await cluster.incidents(None if everywhere else kube.namespace)

    try:
        listing = asyncio.run(ask())
    except ClusterError as error:
        click.echo(f"cannot tell: {sentence(error)}", err=True)
        return EXIT_CANNOT_TELL
    read, strange = list[LeakIncident](), list[str]()
    for raw in listing.items:
        try:
            read.append(LeakIncident.model_validate(raw))
        except ValidationError as error:
            strange.append(f"{_name(raw)}: {error.errors()[0]['msg']}")
    rows = incident_list.ordered(read, ended=ended)
    if output == "json":
        for one in rows:
            out.json_line(incident_list.record(one))
    else:
        incident_list.show(rows, time.time(), ended=ended, everywhere=everywhere)
    if strange:
        out.flush()
        for line in strange:
            click.echo(f"cannot tell about {line}; maybe a newer Stanch wrote it", err=True)
        return EXIT_CANNOT_TELL
    return EXIT_DONE


def _name(raw: dict[str, Any]) -> str:
    meta = raw.get("metadata", {})
    return f"{meta.get('namespace', '?')}/{meta.get('name', '?')}"
