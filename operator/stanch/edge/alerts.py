"""The receiver of alerts: what Alertmanager sends becomes LeakIncidents.

    async with receiving(settings, cluster, telemetry, clock) as task:
        ...                      # task: ends only by an error; None where no port is set

It runs in every replica: making an incident needs no Lease, and what becomes of it is the leader's.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from stanch.edge.alerts_access import Certificates, Tokens
from stanch.edge.alerts_intake import Intake
from stanch.edge.alerts_listener import Bounds
from stanch.edge.alerts_server import Door
from stanch.edge.alerts_table import load_table
from stanch.edge.cluster import Cluster
from stanch.edge.errors import FileError
from stanch.edge.telemetry import Telemetry
from stanch.edge.waking import ended
from stanch.settings import Settings

# At the end: for what was taken and is not worked off yet.
_LAST_SECONDS = 3.0


@asynccontextmanager
async def receiving(
    settings: Settings,
    cluster: Cluster,
    telemetry: Telemetry,
    clock: Callable[[], float],
    bounds: Bounds | None = None,
) -> AsyncIterator[asyncio.Future[Any] | None]:
    """While this lasts, alerts are taken, where a port is set. Raises FileError for files that cannot be used
    and where nothing says who may send alerts, ServeError."""
    if not settings.alerts_port:
        yield None
        return
    tokens, certificates = _access(settings)
    intake = Intake(
        cluster,
        telemetry.families,
        telemetry.note,
        load_table(settings.alerts_table),
        settings.watch_namespaces,
        clock,
    )
    door = Door(intake, telemetry.families, telemetry.note, tokens, certificates, bounds)
    async with door.listener.open(settings.host, settings.alerts_port) as (port, accepting):
        telemetry.note("info", "alerts-taken", "alerts are taken", port=port, tls=certificates is not None)
        working = asyncio.create_task(intake.work())
        both = asyncio.gather(accepting, working)
        try:
            yield both
        finally:
            await ended(accepting)
            left = await intake.emptied(_LAST_SECONDS)
            await ended(working, both)
            if left:
                why = f"{left} alerts are not written yet; Alertmanager sends them again"
                telemetry.note("warning", "alerts-left", why)


def _access(settings: Settings) -> tuple[Tokens | None, Certificates | None]:
    """Who may send alerts. Raises FileError."""
    tokens = certificates = None
    if settings.alerts_token_file is not None:
        tokens = Tokens(settings.alerts_token_file)
        tokens.read()
    if settings.alerts_tls_dir is not None:
        certificates = Certificates(settings.alerts_tls_dir)
    if tokens is None and (certificates is None or not certificates.mutual):
        raise FileError(
            f"STANCH_ALERTS_PORT is {settings.alerts_port}, and nothing says who may send alerts: set "
            "STANCH_ALERTS_TOKEN_FILE to a file with a bearer token, or STANCH_ALERTS_TLS_DIR to a directory "
            "with tls.crt, tls.key and ca.crt"
        )
    return tokens, certificates
