"""The one MutatingWebhookConfiguration that is ours, of which only the caBundle is written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from stanch.edge.cluster.errors import Object
from stanch.edge.cluster.refs import Request, Resource
from stanch.edge.cluster.transport import Transport

CONFIGURATIONS: Final = Resource(
    "admissionregistration.k8s.io", "v1", "mutatingwebhookconfigurations", namespaced=False
)
# Of its list of webhooks only those that are named are changed, and of them only what is said.
_STRATEGIC_MERGE_PATCH: Final = "application/strategic-merge-patch+json"


class WebhookConfiguration:
    """By its name; made by `Cluster.webhook_configuration`."""

    def __init__(self, transport: Transport, name: str) -> None:
        self._transport = transport
        self.name = name

    async def read(self) -> Object:
        """Now. Raises NotFound, Forbidden."""
        return await self._transport.read(Request("get", CONFIGURATIONS, name=self.name))

    async def write_bundles(self, version: str, bundles: Mapping[str, str]) -> None:
        """Set the caBundle (base64) of webhooks by their names, where the object still has this
        resourceVersion. Raises Conflict where it has not, NotFound, Forbidden."""
        webhooks = [{"name": name, "clientConfig": {"caBundle": one}} for name, one in bundles.items()]
        body = {"metadata": {"resourceVersion": version}, "webhooks": webhooks}
        media = _STRATEGIC_MERGE_PATCH
        await self._transport.send(Request("patch", CONFIGURATIONS, name=self.name, body=body, media=media))
