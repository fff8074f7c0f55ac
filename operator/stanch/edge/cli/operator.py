"""`stanch operator`: the process that repairs. Here its parts are put together."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
import time
import traceback
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import click

from stanch.edge.errors import EXIT_UNAVAILABLE, FileError
from stanch.edge.journal import Journal, note
from stanch.edge.waking import ended

if TYPE_CHECKING:
    from stanch.edge.cluster import Election
    from stanch.edge.deployments import Deployments
    from stanch.edge.supervisor import Supervisor
    from stanch.edge.telemetry import Telemetry
    from stanch.settings import Settings

# What the watchdogs have to tidy up takes less.
_ENDS_SECONDS = 30.0


@click.command()
@click.option("--kubeconfig", envvar="KUBECONFIG", help="As kubectl's; without one, the pod's own account.")
def operator(kubeconfig: str | None) -> int:
    """Watch the engines that LeakWatches name, and repair them as far as these allow.

    Of several such processes the one that holds the Lease acts. Logs are JSON, one object a line, on standard
    output. Settings are environment variables, all of them in docs/operator.md: STANCH_NAMESPACE,
    STANCH_WATCH_NAMESPACES, STANCH_IDENTITY, STANCH_HTTP_HOST, STANCH_HTTP_PORT, STANCH_ALERTS_PORT and more.
    """
    if sys.version_info < (3, 11):
        return _ended("kopf needs Python 3.11 or later")
    from stanch.edge.cluster import ClusterError
    from stanch.edge.telemetry_server import ServeError
    from stanch.settings import Settings, SettingsError

    try:
        settings = Settings.read()
    except SettingsError as error:
        _log_failure(str(error))
        raise click.UsageError(str(error)) from None
    try:
        asyncio.run(_run(kubeconfig, settings))
    except (ClusterError, ServeError, FileError) as error:
        return _ended(str(error))
    except Exception as error:
        _log_failure(f"an error of its own: {type(error).__name__}: {error}", trace=traceback.format_exc())
        raise
    return 0


def _ended(why: str) -> int:
    """Told where it was started, and, for who reads only that, in the log."""
    _log_failure(why)
    click.echo(f"stanch operator: {why}", err=True)
    return EXIT_UNAVAILABLE


def _log_failure(message: str, trace: str | None = None) -> None:
    Journal(sys.stdout).write(note("error", "failed", time.time(), message, trace=trace))


async def _run(kubeconfig: str | None, settings: Settings) -> None:
    from stanch.edge.alerts import receiving
    from stanch.edge.clock import Clock
    from stanch.edge.cluster import Cluster
    from stanch.edge.deployments import Deployments, Kit
    from stanch.edge.handlers import Hearing
    from stanch.edge.journal import LibraryLog
    from stanch.edge.news import News
    from stanch.edge.supervisor import Supervisor
    from stanch.edge.telemetry import Telemetry
    from stanch.edge.telemetry_server import serving
    from stanch.edge.webhook_part import webhook

    over = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, over.set)
    clock = Clock()
    journal = Journal(sys.stdout)
    # kopf and others log what they do; only what went wrong there is for people.
    logging.basicConfig(level=logging.WARNING, handlers=[LibraryLog(journal)])
    telemetry = Telemetry(journal, clock)
    cluster = Cluster(
        kubeconfig,
        own_namespace=settings.namespace,
        instance=settings.identity,
        clock=clock,
        on_call=telemetry.call,
    )
    with serving(telemetry, settings.host, settings.port) as port:
        async with cluster, AsyncExitStack() as stack:
            beside: list[Callable[[], Coroutine[Any, Any, None]]] = [telemetry.pulse]
            if settings.webhook_port:
                # Before the election, and whether it is won or not: every replica puts the kit in.
                part = webhook(settings, cluster, telemetry, clock)
                beside.append(await stack.enter_async_context(part))
            election = await stack.enter_async_context(cluster.election("stanch", settings.identity))
            news = News()
            supervisor = Supervisor(
                cluster,
                telemetry,
                clock,
                lambda: election.leads,
                news,
                settings.watch_namespaces,
                settings.api_keys_dir,
                settings.prometheus_table,
            )
            deployments = Deployments(
                cluster,
                telemetry,
                clock,
                lambda: election.leads,
                Kit(settings.kit_image, settings.kit_pull_policy, settings.kit_image_volume),
                settings.watch_namespaces,
            )
            hearing = Hearing(cluster, telemetry, supervisor, news, deployments, settings.watch_namespaces)
            beside.append(hearing.keep)
            telemetry.note("info", "started", f"stanch operator {settings.identity}", port=port)
            async with receiving(settings, cluster, telemetry, clock) as alerts:
                tasks: list[asyncio.Future[Any]] = [
                    asyncio.create_task(over.wait()),
                    *(asyncio.create_task(one()) for one in beside),
                    asyncio.create_task(_act(supervisor, deployments, election, telemetry)),
                ]
                others = () if alerts is None else (alerts,)
                try:
                    # Until a signal, or an error of one of them.
                    done, _ = await asyncio.wait((*tasks, *others), return_when=asyncio.FIRST_COMPLETED)
                    for one in done:
                        one.result()
                finally:
                    await ended(*tasks, again=_ENDS_SECONDS)
            telemetry.note("info", "ended", f"stanch operator {settings.identity}")


async def _act(
    supervisor: Supervisor, deployments: Deployments, election: Election, telemetry: Telemetry
) -> None:
    """Work whenever the Lease is ours, and at no other time."""
    while True:
        await _stand_by(election, telemetry)
        await election.elected()
        telemetry.active(True)
        telemetry.note("info", "elected", "this process acts")
        tasks = [asyncio.create_task(one) for one in (supervisor.run(), deployments.run(), election.lost())]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for one in done:
                one.result()
        finally:
            await ended(*tasks, again=_ENDS_SECONDS)
            telemetry.active(False)
            telemetry.note("info", "not-elected", "this process does not act any more")


async def _stand_by(election: Election, telemetry: Telemetry) -> None:
    """Until we lead. It is told who has the Lease, again where another one takes it, and why it cannot be
    had. Once is bad luck: of two that want it at the same moment one comes too late."""
    holder, in_vain = "", 0
    while not election.leads:
        await election.looked()
        if election.leads:
            return
        in_vain = in_vain + 1 if election.problem else 0
        if in_vain == 2:
            telemetry.note("warning", "lease-not-had", f"the Lease cannot be had: {election.problem}")
        if election.problem is None and election.holder != holder:
            holder = election.holder
            telemetry.note("info", "standing-by", f"{holder} has the Lease and acts; this process waits")
