"""Requests to the API server under a token, with nothing of ours between."""

from __future__ import annotations

import http.client
import json
import ssl
from typing import Any
from urllib.parse import urlsplit

from tests.cluster.installed import Installed

Object = dict[str, Any]
MERGE = "application/merge-patch+json"

CLUSTER_WIDE = {
    "nodes",
    "namespaces",
    "persistentvolumes",
    "clusterroles",
    "clusterrolebindings",
    "validatingadmissionpolicies",
    "validatingadmissionpolicybindings",
    "validatingwebhookconfigurations",
    "mutatingwebhookconfigurations",
    "customresourcedefinitions",
    "apiservices",
    "certificatesigningrequests",
    "tokenreviews",
    "subjectaccessreviews",
    "priorityclasses",
    "storageclasses",
}
METHODS = {
    "get": "GET",
    "list": "GET",
    "watch": "GET",
    "create": "POST",
    "update": "PUT",
    "patch": "PATCH",
    "delete": "DELETE",
    "deletecollection": "DELETE",
}


class Caller:
    """One connection with a bearer token."""

    def __init__(self, stanch: Installed, token: str) -> None:
        parts = urlsplit(stanch.address)
        assert parts.hostname is not None
        if parts.scheme == "https":
            trust = ssl.create_default_context(cafile=stanch.authority)
            self._connection: http.client.HTTPConnection = http.client.HTTPSConnection(
                parts.hostname, parts.port, timeout=30, context=trust
            )
        else:
            self._connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=30)
        self._headers = {"Authorization": f"Bearer {token}", "Accept": "application/json"}

    def ask(
        self, method: str, path: str, body: object = None, headers: dict[str, str] | None = None
    ) -> tuple[int, str]:
        """The code and the text of the answer."""
        media = MERGE if method == "PATCH" else "application/json"
        data = None if body is None else json.dumps(body)
        sent = {**self._headers, "Content-Type": media, **(headers or {})}
        self._connection.request(method, path, data, sent)
        answer = self._connection.getresponse()
        return answer.status, answer.read().decode(errors="replace")

    def may(self, verb: str, resource: str, namespace: str, name: str = "none-such") -> bool:
        """Whether the verb is let through; nothing comes of it, because it is a dry run of nothing."""
        version, _, plural = resource.partition(" ")
        plural, _, sub = plural.partition("/")
        path = f"/apis/{version}" if "/" in version else f"/api/{version}"
        if plural not in CLUSTER_WIDE:
            path += f"/namespaces/{namespace}"
        path += f"/{plural}"
        if sub:
            path += f"/{name}/{sub}"
        elif verb in ("get", "update", "patch", "delete"):
            path += f"/{name}"
        query = {"list": "?limit=1", "watch": "?watch=1&timeoutSeconds=1", "get": ""}.get(verb, "?dryRun=All")
        body: Object | None = {} if verb in ("create", "update", "patch") else None
        code, text = self.ask(METHODS[verb], path + query, body)
        assert code != 401, text
        if code == 403:
            assert f"cannot {verb} resource" in text, text
        return code != 403

    def close(self) -> None:
        self._connection.close()
