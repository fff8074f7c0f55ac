"""The webhook as a part of the operator: its port and its certificate, in every replica, leader or not."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from stanch.edge.cluster import Cluster
from stanch.edge.render.kit import KitOptions
from stanch.edge.telemetry import Telemetry
from stanch.edge.webhook import Answer, answer
from stanch.edge.webhook_keeper import OfFiles, OwnAuthority
from stanch.edge.webhook_server import serving_webhook
from stanch.edge.webhook_tls import Tls
from stanch.settings import Settings

# All addresses of the pod, of either family.
_HOST = ""


@asynccontextmanager
async def webhook(
    settings: Settings, cluster: Cluster, telemetry: Telemetry, clock: Callable[[], float]
) -> AsyncIterator[Callable[[], Coroutine[Any, Any, None]]]:
    """While this lasts, the port answers; what is to be run beside it, to keep the certificate good. Raises
    ServeError."""
    tls = Tls()
    keeper: OfFiles | OwnAuthority
    if settings.webhook_directory is not None:
        keeper = OfFiles(tls, settings.webhook_directory, telemetry)
        keeper.look()
    else:
        host = f"{settings.webhook_service}.{settings.namespace}.svc"
        names = (host, f"{host}.cluster.local")
        configuration = cluster.webhook_configuration(settings.webhook_config)
        keeper = OwnAuthority(
            tls, configuration, names, settings.identity, telemetry, clock, settings.webhook_seconds
        )
        # Before the port is open: a review that comes earlier would find nobody whom the API server trusts.
        await keeper.look()
    kit = (
        KitOptions(settings.kit_image, settings.kit_pull_policy, image_volume=settings.kit_image_volume)
        if settings.kit_image
        else None
    )
    if kit is None:
        said = "STANCH_KIT_IMAGE is not set: pods that ask for the kit start without it"
        telemetry.note("warning", "webhook", said)
    told = partial(_told, telemetry)
    async with serving_webhook(tls, _HOST, settings.webhook_port, partial(answer, options=kit), told) as port:
        telemetry.note("info", "webhook", "pods that ask for the kit get it", port=port)
        yield keeper.run


def _told(telemetry: Telemetry, given: Answer | None) -> None:
    outcome = "malformed" if given is None else given.outcome
    telemetry.families.reviews.labels(outcome).inc()
    if given is not None and given.said:
        level = "info" if outcome == "injected" else "warning"
        telemetry.note(level, "webhook-review", given.said, pod=given.pod, outcome=outcome)
