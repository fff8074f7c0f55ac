"""`stanch doctor`: whether everything is there that a repair needs."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from stanch.edge.cli.kube import Kube, all_namespaces_option, kube_options, prometheus_option
from stanch.edge.cli.options import key_option, key_reader, output_option

if TYPE_CHECKING:
    from stanch.edge.findings import Finding

EXIT_CANNOT_TELL = 3


@click.command()
@click.option(
    "--operator-namespace", default="stanch-system", show_default=True, help="Where the operator runs."
)
@click.option(
    "--service-account", default="stanch", show_default=True, help="The operator's, in that namespace."
)
@key_option("File with the engines' --api-key, as the operator has it.")
@all_namespaces_option
@prometheus_option
@kube_options
@output_option
def doctor(
    operator_namespace: str,
    service_account: str,
    api_key_file: Path | None,
    everywhere: bool,
    prometheus_table: Path | None,
    kube: Kube,
    output: str,
) -> int:
    """Check what a repair needs: the API server, permissions, the operator, and of each watched pod its
    metrics, its engine kit and how it can be cordoned. One line for each check; nothing is changed.

    Exit codes: 0 all well, 1 something could be better, 2 something fails, 3 cannot tell; the worst of
    fails, cannot tell, could be better, well.
    """
    from stanch.edge import examination, findings
    from stanch.edge import output as out
    from stanch.edge.cluster import ClusterError

    key = key_reader(api_key_file)
    # Without a kubeconfig it runs in the operator's own pod.
    account = None if kube.kubeconfig is None else (operator_namespace, service_account)

    async def examine() -> list[Finding]:
        namespace = None if everywhere else kube.namespace
        async with kube.cluster(operator_namespace) as cluster:
            found = await examination.of_cluster(cluster, operator_namespace, account, namespace, time.time)
            watches, more = await examination.watches_of(cluster, namespace)
            found += [*more, *await examination.deployments_of(cluster, namespace)]
            for watch in watches:
                found += await examination.of_watch(cluster, watch, key, prometheus_table)
        return found

    try:
        found = asyncio.run(examine())
    except ClusterError as error:
        click.echo(f"cannot tell: {error}", err=True)
        return EXIT_CANNOT_TELL
    with out.to_whoever_reads():
        if output == "json":
            for one in found:
                out.json_line(findings.record(one))
        else:
            findings.show(found)
    return findings.exit_code(found)
