"""kopf: hears of changes of our kinds and wakes who acts on them. It decides nothing and writes nothing.

Only raw events are handled, so that kopf keeps no progress on objects, takes no finalizer, and patches
nothing (kopf 1.45 adds a finalizer for deletion handlers and daemons only, and stores progress only for
handlers of changes). Our own writes of a status are no news: they change neither the generation nor an
annotation.

It has a thread and an event loop of its own: when kopf ends it waits for all tasks of its loop and cancels
them, whosever they are (kopf 1.45, _core/reactor/running.py).

It ends by itself where a kind of ours is taken out of the cluster (404), or the API server has only errors
for a minute (its networking.error_backoffs), and it looks for kinds only when it begins. So it is begun anew,
of the kinds that there are. No repair waits for it: lists decide.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, cast

import kopf

from stanch.api.names import (
    API_VERSION,
    DISAGG_DEPLOYMENT,
    GROUP,
    LEAK_INCIDENT,
    LEAK_WATCH,
    VERSION,
    Kind,
)
from stanch.edge.cluster import Cluster, ClusterError
from stanch.edge.deployments import Deployments
from stanch.edge.news import News
from stanch.edge.supervisor import Supervisor
from stanch.edge.telemetry import Telemetry
from stanch.edge.waking import woken

_REQUEST_SECONDS = 30
# Server-side end of a watch, and how long one may be silent on our side.
_WATCH_SECONDS = 300
_LAST_SECONDS = 5.0
# Which kinds there are is looked at so often, and so soon after kopf has ended; kopf is begun again no sooner
# than so long after it was begun.
_LOOK_SECONDS, _SOON_SECONDS, _AGAIN_SECONDS = 10.0, 1.0, 10.0
KINDS = (LEAK_WATCH, LEAK_INCIDENT, DISAGG_DEPLOYMENT)


class Hearing:
    """While keep() runs it hears, and tells supervisor and deployments in keep's event loop."""

    def __init__(
        self,
        cluster: Cluster,
        telemetry: Telemetry,
        supervisor: Supervisor,
        news: News,
        deployments: Deployments,
        namespaces: tuple[str, ...],
    ) -> None:
        self._cluster = cluster
        self._telemetry = telemetry
        self._news = news
        self._deployments = deployments
        self._supervisor = supervisor
        self._namespaces = namespaces
        self._wake = asyncio.Event()
        # What kopf hears of now, and its stop flag. None: it is to be begun.
        self._heard: tuple[tuple[Kind, ...], tuple[str, ...]] | None = None
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._begun_at = -_AGAIN_SECONDS
        self._missing: tuple[Kind, ...] = ()

    async def keep(self) -> None:
        """Until cancelled."""
        # One of its warnings is that signals are ours, in this thread.
        logging.getLogger("kopf").setLevel(logging.ERROR)
        self._loop = asyncio.get_running_loop()
        self._supervisor.tell_readable = self._hear_only
        try:
            while True:
                self._wake.clear()
                # While the API server is away all stays as it is.
                with suppress(ClusterError):
                    self._hear_of(await self._cluster.kinds())
                if await woken(self._wake, _LOOK_SECONDS):
                    await asyncio.sleep(_SOON_SECONDS)
        finally:
            self._stop.set()
            if self._thread is not None:
                # Not here: whoever gives the Lease up meanwhile needs the event loop.
                await asyncio.to_thread(self._thread.join, _LAST_SECONDS)

    def _hear_of(self, found: frozenset[str]) -> None:
        """found: plurals of the kinds of our group that the cluster has."""
        there = tuple(kind for kind in KINDS if kind.plural in found)
        self._tell(tuple(kind for kind in KINDS if kind not in there))
        wanted = there, self._namespaces
        if wanted == self._heard:
            return
        if self._heard is None and time.monotonic() < self._begun_at + _AGAIN_SECONDS:
            return
        self._stop.set()
        self._heard, self._stop = wanted, threading.Event()
        if there:
            self._begun_at = time.monotonic()
            self._thread = threading.Thread(
                target=self._hear, args=(self._stop, *wanted), name="kopf", daemon=True
            )
            self._thread.start()

    def _tell(self, missing: tuple[Kind, ...]) -> None:
        before, self._missing = self._missing, missing
        if missing == before:
            return
        names = ", ".join(kind.kind for kind in missing)
        if missing:
            said = f"the cluster does not know {names}: nothing is done about any until its CRD is installed"
            self._telemetry.note("error", "kinds-missing", said)
        else:
            self._telemetry.note("info", "kinds-back", "the cluster knows all kinds of Stanch")

    def _hear_only(self, namespaces: tuple[str, ...]) -> None:
        """kopf (1.45) hears of none any more, once it may not watch one of them for a minute."""
        if namespaces != self._namespaces:
            self._namespaces = namespaces
            self._wake.set()

    def _hear(self, stop: threading.Event, kinds: Sequence[Kind], namespaces: tuple[str, ...]) -> None:
        error: Exception | None = None
        try:
            asyncio.run(self._whole(stop, kinds, namespaces))
        except Exception as caught:
            error = caught
        # The loop may have ended before it.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._over, stop, error)

    async def _whole(self, stop: threading.Event, kinds: Sequence[Kind], namespaces: tuple[str, ...]) -> None:
        try:
            await kopf.operator(
                registry=registry_for(kinds, self._supervisor, self._news, self._deployments, self._loop),
                settings=settings(),
                # Else it looks for the user's name, and the users of containers have none.
                identity=cast("Any", "stanch"),
                standalone=True,
                clusterwide=not namespaces,
                namespaces=namespaces,
                stop_flag=stop,
            )
        finally:
            # It waits for the flag in a thread of the loop's executor, for which the loop waits when it ends.
            stop.set()

    def _over(self, stop: threading.Event, error: Exception | None) -> None:
        # Where it was stopped another one hears, or nobody is to.
        if stop is not self._stop or self._heard is None:
            return
        self._heard = None
        self._telemetry.note(
            "warning", "hearing-ended", f"changes are seen later until kopf is begun again; it ended: {error}"
        )
        self._wake.set()


def settings() -> kopf.OperatorSettings:
    made = kopf.OperatorSettings()
    made.peering.standalone = True
    made.posting.enabled = False
    # The kinds are installed with us; nobody adds others that we would handle.
    made.scanning.disabled = True
    made.networking.request_timeout = _REQUEST_SECONDS
    made.watching.server_timeout = _WATCH_SECONDS
    made.persistence.finalizer = f"{GROUP}/none"
    made.persistence.progress_storage = kopf.AnnotationsProgressStorage(prefix=GROUP)
    return made


def registry_for(
    kinds: Sequence[Kind],
    supervisor: Supervisor,
    news: News,
    deployments: Deployments,
    loop: asyncio.AbstractEventLoop,
) -> kopf.OperatorRegistry:
    """Handlers that tell these, in their own loop; one for each of these kinds."""
    registry = kopf.OperatorRegistry()

    # Of kopf's own loop, not of its pool of threads: one after another, as the events come.
    async def heard_watch(event: kopf.RawEvent, namespace: str | None, name: str | None, **_: Any) -> None:
        if news.take(event):
            loop.call_soon_threadsafe(supervisor.watch_changed, namespace or "", name or "")

    async def heard_incident(event: kopf.RawEvent, namespace: str | None, **_: Any) -> None:
        if news.take(event):
            loop.call_soon_threadsafe(supervisor.incident_changed, namespace or "")

    async def heard_deployment(event: kopf.RawEvent, **_: Any) -> None:
        if deployments.news.take(event):
            loop.call_soon_threadsafe(deployments.changed)

    async def login(settings: kopf.OperatorSettings, **_: Any) -> kopf.ConnectionInfo | None:
        given = kopf.login_with_kubeconfig(settings=settings)
        return given or in_pod(kopf.login_with_service_account(settings=settings))

    handlers = {
        LEAK_WATCH: heard_watch,
        LEAK_INCIDENT: heard_incident,
        DISAGG_DEPLOYMENT: heard_deployment,
    }
    for kind in kinds:
        _on(kind, registry)(handlers[kind])
    kopf.on.login(registry=registry)(login)
    return registry


def in_pod(given: kopf.ConnectionInfo | None) -> kopf.ConnectionInfo | None:
    """At the address that Kubernetes tells every pod, as its own clients do: kopf (1.45) would ask the
    cluster's DNS for it."""
    host, port = (os.environ.get(f"KUBERNETES_SERVICE_{one}") for one in ("HOST", "PORT"))
    if given is None or not host:
        return given
    return replace(given, server=f"https://{f'[{host}]' if ':' in host else host}:{port or 443}")


def _on(kind: Kind, registry: kopf.OperatorRegistry) -> Any:
    assert f"{GROUP}/{VERSION}" == API_VERSION
    return kopf.on.event(group=GROUP, version=VERSION, plural=kind.plural, registry=registry)
