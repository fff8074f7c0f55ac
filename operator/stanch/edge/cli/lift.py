"""`stanch lift`: take off the pods what Stanch has put on them."""

from __future__ import annotations

import asyncio
import socket
import uuid
from typing import TYPE_CHECKING

import click

from stanch.edge.cli.kube import kube_of, sentence
from stanch.edge.cli.options import output_option

if TYPE_CHECKING:
    from stanch.edge.lifting import Lifted

EXIT_DONE, EXIT_LEFT, EXIT_CANNOT_TELL = 0, 1, 3
_SCHEMA = "stanch.lifted/1"


@click.command()
@click.option("--kubeconfig", envvar="KUBECONFIG", help="As kubectl's; else $KUBECONFIG, ~/.kube/config.")
@click.option("--context", help="Context of the kubeconfig, if not its current one.")
@click.option("-n", "--namespace", "names", multiple=True, help="May be repeated; else the context's.")
@click.option("-A", "--all-namespaces", "everywhere", is_flag=True, help="All namespaces.")
@click.option(
    "--operator-namespace", default="stanch-system", show_default=True, help="Where the operator runs."
)
@click.option(
    "--best-effort",
    is_flag=True,
    help="Exit with 0 whatever happens: a cordon that nobody renews ends after 30 s by itself.",
)
@output_option
def lift(
    kubeconfig: str | None,
    context: str | None,
    names: tuple[str, ...],
    everywhere: bool,
    operator_namespace: str,
    best_effort: bool,
    output: str,
) -> int:
    """Give every engine back that Stanch has taken out of service: end cordons and drains, remove its
    annotations. Helm runs it before an uninstallation.

    For a minute no operator acts: this takes its Lease. One that still runs then goes on with its incidents,
    so end it first, or stop it by the ConfigMap stanch-stop. Exit codes: 0 done, or nothing to do; 1 an
    engine is not ready or an annotation is left; 3 cannot tell.
    """
    from stanch.edge import lifting
    from stanch.edge import output as out
    from stanch.edge.cluster import ClusterError
    from stanch.edge.permissions import LIFT

    kube = kube_of(kubeconfig, context, None)
    identity = f"{LIFT}{socket.gethostname()}-{uuid.uuid4().hex[:8]}"

    async def do() -> list[Lifted]:
        async with kube.cluster(operator_namespace) as cluster:
            await lifting.hold(cluster, identity)
            return await lifting.lifted(cluster, () if everywhere else names or (kube.namespace,), identity)

    try:
        found = asyncio.run(do())
    except ClusterError as error:
        click.echo(f"cannot tell: {sentence(error)}", err=True)
        return EXIT_DONE if best_effort else EXIT_CANNOT_TELL
    with out.to_whoever_reads():
        _say(found, output)
    return EXIT_LEFT if any(one.problem for one in found) and not best_effort else EXIT_DONE


def _say(found: list[Lifted], output: str) -> None:
    from stanch.edge import output as out

    if output == "json":
        for one in found:
            out.json_line(
                {
                    "schema": _SCHEMA,
                    "namespace": one.namespace,
                    "pod": one.pod,
                    "incident": one.incident,
                    "did": list(one.did),
                    "ready": one.ready,
                    "problem": one.problem or None,
                }
            )
        return
    for one in found:
        did = " and ".join(one.did) or "no longer marked"
        state = "gone meanwhile" if one.ready is None else "ready" if one.ready else "not ready"
        end = f": {one.problem}" if one.problem else ""
        click.echo(f"{one.namespace}/{one.pod}: {did} (incident {one.incident}), {state}{end}")
    if not found:
        click.echo("no pod has a cordon of Stanch's")
