"""kopf: hears of changes of our kinds and wakes the supervisor. It decides nothing and writes nothing.

Only raw events are handled, so that kopf keeps no progress on objects, takes no finalizer, and patches
nothing (kopf 1.45 adds a finalizer for deletion handlers and daemons only, and stores progress only for
handlers of changes). Our own writes of a status are no news: they change neither the generation nor an
annotation.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import kopf

from stanch.api.names import API_VERSION, GROUP, LEAK_INCIDENT, LEAK_WATCH, VERSION, Kind
from stanch.edge.supervisor import Supervisor

_REQUEST_SECONDS = 30
# Server-side end of a watch, and how long one may be silent on our side.
_WATCH_SECONDS = 300
__all__ = ["registry_for", "settings"]


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


class _News:
    """Which events are news: another generation or other annotations than at the last one."""

    def __init__(self) -> None:
        self._known: dict[str, object] = {}

    def is_news(self, event: Mapping[str, Any]) -> bool:
        meta = event["object"].get("metadata", {})
        uid = str(meta.get("uid"))
        if event.get("type") == "DELETED":
            self._known.pop(uid, None)
            return True
        now = meta.get("generation"), meta.get("annotations"), meta.get("deletionTimestamp")
        before = self._known.get(uid)
        self._known[uid] = now
        return now != before


def registry_for(supervisor: Supervisor) -> kopf.OperatorRegistry:
    """Handlers that tell this supervisor; one for each kind."""
    registry = kopf.OperatorRegistry()
    news = _News()

    def heard_watch(event: kopf.RawEvent, namespace: str | None, name: str | None, **_: Any) -> None:
        if news.is_news(event):
            supervisor.watch_changed(namespace or "", name or "")

    def heard_incident(event: kopf.RawEvent, namespace: str | None, **_: Any) -> None:
        if news.is_news(event):
            supervisor.incident_changed(namespace or "")

    def login(settings: kopf.OperatorSettings, **_: Any) -> kopf.ConnectionInfo | None:
        given = kopf.login_with_kubeconfig(settings=settings)
        return given or kopf.login_with_service_account(settings=settings)

    _on(LEAK_WATCH, registry)(heard_watch)
    _on(LEAK_INCIDENT, registry)(heard_incident)
    kopf.on.login(registry=registry)(login)
    return registry


def _on(kind: Kind, registry: kopf.OperatorRegistry) -> Any:
    assert f"{GROUP}/{VERSION}" == API_VERSION
    return kopf.on.event(group=GROUP, version=VERSION, plural=kind.plural, registry=registry)
