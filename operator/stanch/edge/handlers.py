"""kopf: hears of changes of our kinds and wakes who acts on them. It decides nothing and writes nothing.

Only raw events are handled, so that kopf keeps no progress on objects, takes no finalizer, and patches
nothing (kopf 1.45 adds a finalizer for deletion handlers and daemons only, and stores progress only for
handlers of changes). Our own writes of a status are no news: they change neither the generation nor an
annotation.

It has a thread and an event loop of its own: when kopf ends it waits for all tasks of its loop and cancels
them, whosever they are (kopf 1.45, _core/reactor/running.py).
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
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
from stanch.edge.deployments import Deployments
from stanch.edge.news import News
from stanch.edge.supervisor import Supervisor

_REQUEST_SECONDS = 30
# Server-side end of a watch, and how long one may be silent on our side.
_WATCH_SECONDS = 300
_LAST_SECONDS = 5.0


class Hearing:
    """Entered, it hears, and tells supervisor and deployments in the event loop in which it was entered.

    ended: done when it hears no more, by an error or not.
    """

    def __init__(
        self, supervisor: Supervisor, news: News, deployments: Deployments, namespaces: tuple[str, ...]
    ) -> None:
        self._news = news
        self._deployments = deployments
        self._supervisor = supervisor
        self._namespaces = namespaces

    def __enter__(self) -> Hearing:
        # One of its warnings is that signals are ours, in this thread.
        logging.getLogger("kopf").setLevel(logging.ERROR)
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[None] = self._loop.create_future()
        self._begin()
        self._supervisor.tell_readable = self._hear_only
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(_LAST_SECONDS)

    def _begin(self) -> None:
        self._stop = threading.Event()
        what = (self._stop, self._namespaces)
        self._thread = threading.Thread(target=self._hear, args=what, name="kopf", daemon=True)
        self._thread.start()

    def _hear_only(self, namespaces: tuple[str, ...]) -> None:
        """kopf (1.45) hears of none any more, once it may not watch one of them for a minute."""
        if namespaces != self._namespaces:
            self._stop.set()
            self._namespaces = namespaces
            self._begin()

    def _hear(self, stop: threading.Event, namespaces: tuple[str, ...]) -> None:
        error: Exception | None = None
        try:
            asyncio.run(
                kopf.operator(
                    registry=registry_for(self._supervisor, self._news, self._deployments, self._loop),
                    settings=settings(),
                    # Else it looks for the user's name, and the users of containers have none.
                    identity=cast("Any", "stanch"),
                    standalone=True,
                    clusterwide=not namespaces,
                    namespaces=namespaces,
                    stop_flag=stop,
                )
            )
        except Exception as caught:
            error = caught
        # Where it was stopped another one hears, or nobody is to. The loop may have ended before it.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._over, stop, error)

    def _over(self, stop: threading.Event, error: Exception | None) -> None:
        if self.ended.done() or stop.is_set():
            return
        if error is None:
            self.ended.set_result(None)
        else:
            self.ended.set_exception(error)


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
    supervisor: Supervisor, news: News, deployments: Deployments, loop: asyncio.AbstractEventLoop
) -> kopf.OperatorRegistry:
    """Handlers that tell these, in their own loop; one for each kind."""
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

    _on(LEAK_WATCH, registry)(heard_watch)
    _on(LEAK_INCIDENT, registry)(heard_incident)
    _on(DISAGG_DEPLOYMENT, registry)(heard_deployment)
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
