"""Keeps the webhook's certificate good: of files, loaded anew when they change; else its own, renewed in
time.

A new authority is in the API server's bundle for a while before the first certificate of it is served: the
API server learns of a change by its own watch, and until then knows the old one only.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from stanch.edge.certificates import LIFETIME_SECONDS, Issued, issue, merged
from stanch.edge.cluster import ClusterError, Conflict, NotFound, WebhookConfiguration
from stanch.edge.telemetry import Telemetry
from stanch.edge.units_raw import rows, text
from stanch.edge.webhook_tls import CertificateError, Tls, read

PART = "webhook's certificate"
_LOOK_SECONDS = 30.0
_LIMIT_SECONDS = 120.0
# For so long a new authority stands in the bundle before it is used.
_KNOWN_SECONDS = 60.0
_TRIES = 5


class OfFiles:
    """As cert-manager keeps them in a mounted Secret; it also writes the bundle."""

    def __init__(self, tls: Tls, directory: Path, telemetry: Telemetry) -> None:
        self._tls = tls
        self._directory = directory
        self._telemetry = telemetry
        self._loaded: tuple[bytes, bytes] | None = None
        self._said = ""

    async def run(self) -> None:
        """Until cancelled. Files that cannot be used are told, and what was loaded before goes on serving."""
        while True:
            self.look()
            await asyncio.sleep(_LOOK_SECONDS)

    def look(self) -> None:
        self._telemetry.sign(PART, _LIMIT_SECONDS)
        try:
            found = read(self._directory)
            if found != self._loaded:
                self._tls.load(*found)
                self._loaded = found
                self._telemetry.note("info", "webhook-certificate", f"loaded from {self._directory}")
            self._said = ""
        except CertificateError as error:
            if str(error) != self._said:
                self._said = str(error)
                self._telemetry.note("warning", "webhook-certificate", self._said)


class OwnAuthority:
    """Made here, and put into the bundle of the webhook's configuration.

    names: of the server. identity: of this process. clock: Unix seconds. seconds: how long each one lasts.
    """

    def __init__(
        self,
        tls: Tls,
        configuration: WebhookConfiguration,
        names: Sequence[str],
        identity: str,
        telemetry: Telemetry,
        clock: Callable[[], float],
        seconds: float = LIFETIME_SECONDS,
    ) -> None:
        self._tls = tls
        self._configuration = configuration
        self._telemetry = telemetry
        self._clock = clock
        self._seconds = seconds
        self._names = names
        self._identity = identity
        self.serving = self._made(clock())
        self._next: Issued | None = None
        self._known_since: float | None = None
        self._said: str | None = None
        tls.load(self.serving.certificate, self.serving.key)

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(min(_LOOK_SECONDS, self._seconds / 24))

    async def look(self) -> None:
        """Renew what is due, and see that the bundle has what is served now and next."""
        now = self._clock()
        if self._next is None and self.serving.due(now):
            self._next, self._known_since = self._made(now), None
        said = await self._publish(now)
        self._telemetry.sign(PART, _LIMIT_SECONDS, needs_api=True)
        if said != self._said:
            self._said = said
            level = "warning" if said else "info"
            known = f"MutatingWebhookConfiguration {self._configuration.name} has our authority"
            self._telemetry.note(level, "webhook-authority", said or known)
        if said:
            return
        if self._next is not None:
            self._known_since = now if self._known_since is None else self._known_since
            if now - self._known_since >= min(_KNOWN_SECONDS, self._seconds / 12):
                self.serving, self._next = self._next, None
                self._tls.load(self.serving.certificate, self.serving.key)
                self._telemetry.note("info", "webhook-certificate", "a new one is served")

    def _made(self, now: float) -> Issued:
        return issue(self._names, self._identity, now, self._seconds)

    async def _publish(self, now: float) -> str:
        """Why the bundle has not got ours; "" where it has."""
        ours = [one.authority for one in (self.serving, self._next) if one is not None]
        said = ""
        for _ in range(_TRIES):
            try:
                found = await self._configuration.read()
                bundles = _bundles(found, ours, now)
                if bundles:
                    version = text(found, "metadata", "resourceVersion")
                    await self._configuration.write_bundles(version, bundles)
                return ""
            except Conflict as error:
                # Another replica was first: what it wrote stays in.
                said = str(error)
            except NotFound:
                name = self._configuration.name
                return f"there is no MutatingWebhookConfiguration {name}: no pod gets the kit by the webhook"
            except ClusterError as error:
                return str(error)
        return said


def _bundles(configuration: Any, ours: Sequence[bytes], now: float) -> dict[str, str]:
    """The bundles that are to be written, in base64, by name of the webhook."""
    found = {}
    for webhook in rows(configuration, "webhooks"):
        raw = text(webhook, "clientConfig", "caBundle")
        try:
            before = base64.b64decode(raw)
        except ValueError:
            before = b""
        after = merged(before, ours, now)
        if after != before:
            found[text(webhook, "name")] = base64.b64encode(after).decode()
    return found
