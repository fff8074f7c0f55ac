"""`stanch operator`: the process that repairs. Here its parts are put together."""

from __future__ import annotations

import asyncio
import logging
import sys
from typing import TYPE_CHECKING

import click

from stanch.edge.errors import EXIT_UNAVAILABLE

if TYPE_CHECKING:
    from stanch.settings import Settings


@click.command()
@click.option("--kubeconfig", envvar="KUBECONFIG", help="As kubectl's; without one, the pod's own account.")
def operator(kubeconfig: str | None) -> int:
    """Watch the engines that LeakWatches name, and repair them as far as these allow.

    Of several such processes the one that holds the Lease acts. Logs are JSON, one object a line, on standard
    output. Settings are environment variables: STANCH_NAMESPACE, STANCH_WATCH_NAMESPACES, STANCH_IDENTITY,
    STANCH_HTTP_HOST, STANCH_HTTP_PORT (see docs/operator.md).
    """
    if sys.version_info < (3, 11):
        click.echo("stanch operator: kopf needs Python 3.11 or later", err=True)
        return EXIT_UNAVAILABLE
    from stanch.edge.cluster import ClusterError
    from stanch.edge.telemetry_server import ServeError
    from stanch.settings import Settings, SettingsError

    try:
        settings = Settings.read()
    except SettingsError as error:
        raise click.UsageError(str(error)) from None
    # kopf logs what it does; only what went wrong there is for people.
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    try:
        asyncio.run(_run(kubeconfig, settings))
    except (ClusterError, ServeError) as error:
        click.echo(f"stanch operator: {error}", err=True)
        return EXIT_UNAVAILABLE
    return 0


async def _run(kubeconfig: str | None, settings: Settings) -> None:
    import kopf

    from stanch.edge import handlers
    from stanch.edge.cluster import Cluster
    from stanch.edge.journal import Journal
    from stanch.edge.live import Clock
    from stanch.edge.supervisor import Supervisor
    from stanch.edge.telemetry import Telemetry
    from stanch.edge.telemetry_server import serving

    clock = Clock()
    telemetry = Telemetry(Journal(sys.stdout), clock)
    cluster = Cluster(
        kubeconfig,
        own_namespace=settings.namespace,
        instance=settings.identity,
        clock=clock,
        on_call=telemetry.call,
    )
    with serving(telemetry, settings.host, settings.port) as port:
        async with cluster, cluster.election("stanch", settings.identity) as election:
            supervisor = Supervisor(
                cluster, telemetry, clock, lambda: election.leads, settings.watch_namespaces
            )
            telemetry.note("info", "started", f"stanch operator {settings.identity}", port=port)

            async def work() -> None:
                while True:
                    await election.elected()
                    telemetry.active(True)
                    telemetry.note("info", "elected", "this process acts")
                    acting = asyncio.create_task(supervisor.run())
                    lost = asyncio.create_task(election.lost())
                    try:
                        await asyncio.wait((acting, lost), return_when=asyncio.FIRST_COMPLETED)
                        if acting.done():
                            acting.result()
                    finally:
                        for task in (acting, lost):
                            task.cancel()
                        await asyncio.gather(acting, lost, return_exceptions=True)
                        telemetry.active(False)
                        telemetry.note("info", "not-elected", "this process does not act any more")

            hearing = kopf.operator(
                registry=handlers.registry_for(supervisor),
                settings=handlers.settings(),
                standalone=True,
                clusterwide=not settings.watch_namespaces,
                namespaces=settings.watch_namespaces,
            )
            tasks = [
                asyncio.create_task(telemetry.pulse()),
                asyncio.create_task(work()),
                asyncio.create_task(hearing),
            ]
            try:
                # kopf ends by the signals that end the process; the others never do.
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
