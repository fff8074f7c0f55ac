"""What can go wrong between Stanch and the API server, and which error an answer is. Pure.

Each message is one sentence: what was asked, and what the server said.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from stanch.edge.text import one_line

Object = dict[str, Any]
_MOST_TEXT = 500
# Beyond this nobody waits for a server that says when to come back.
_MOST_RETRY_SECONDS = 60.0


class ClusterError(Exception):
    """The base of all of these. code: HTTP's, None where no answer came. status: the Status that the server
    sent, empty where it sent none."""

    def __init__(self, message: str, code: int | None = None, status: Object | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.status: Object = status or {}

    @property
    def causes(self) -> list[Object]:
        """details.causes[] of the Status: {reason, message, field}."""
        details = self.status.get("details")
        causes = details.get("causes") if isinstance(details, dict) else None
        return [one for one in causes or () if isinstance(one, dict)]

    @property
    def namespace_ends(self) -> bool:
        """Whether nothing was made because the namespace is being deleted, or has gone meanwhile
        (Kubernetes 1.35: admission plugin NamespaceLifecycle)."""
        details = self.status.get("details")
        gone = self.code == 404 and isinstance(details, dict) and details.get("kind") == "namespaces"
        return gone or any(cause.get("reason") == "NamespaceTerminating" for cause in self.causes)


class Conflict(ClusterError):
    """The object is not as the caller read it: another version, or another object under the same name.
    Nothing was written."""


class NotFound(ClusterError):
    """There is no such object, or no longer; or the cluster does not know the kind."""


class AlreadyExists(ClusterError):
    """An object of this name exists."""


class Forbidden(ClusterError):
    """Our account may not do this (RBAC, an admission policy), or is not known at all (401)."""


class Refused(ClusterError):
    """An eviction that a PodDisruptionBudget does not allow now; the message names it."""


class Invalid(ClusterError):
    """The server understood, and will never take it: asking again does not help."""

    @property
    def of_another_uid(self) -> bool:
        """Whether the object has another UID than was said in a patch. That is no precondition that fails,
        but a field that cannot be changed (Kubernetes 1.35)."""
        return any(cause.get("field") == "metadata.uid" for cause in self.causes)


class Expired(ClusterError):
    """410: the version to go on from is too old. Only a list meets it, and begins anew."""


class Unreachable(ClusterError):
    """No answer, or one that says nothing of the request (429, 5xx): a write may or may not have happened.
    retry_after: seconds for which the server asks to be left alone, None where it does not say."""

    def __init__(
        self,
        message: str,
        code: int | None = None,
        status: Object | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message, code, status)
        self.retry_after = retry_after


def error_of(what: str, code: int, body: bytes, headers: Mapping[str, str]) -> ClusterError:
    """The error that an answer with this code is. what: the request, as "patch pods/a in shop"."""
    status = _status(body)
    said = str(status.get("message") or "") or body.decode(errors="replace")
    message = f"{what}: {one_line(said, _MOST_TEXT) or 'no reason given'} (HTTP {code})"
    if code == 429 or code >= 500:
        return Unreachable(message, code, status, _retry_after(status, headers))
    kind: type[ClusterError] = Invalid
    if code in (401, 403):
        kind = Forbidden
    elif code == 404:
        kind = NotFound
    elif code == 409:
        kind = AlreadyExists if status.get("reason") == "AlreadyExists" else Conflict
    elif code == 410:
        kind = Expired
    return kind(message, code, status)


def _status(body: bytes) -> Object:
    """The Status in a refusal; empty where the body is none, as that of a proxy in between."""
    try:
        found = json.loads(body)
    except ValueError:
        return {}
    return found if isinstance(found, dict) and found.get("kind") == "Status" else {}


def _retry_after(status: Object, headers: Mapping[str, str]) -> float | None:
    """Seconds, by the header or the Status (the server sends both); None where neither says a number."""
    said: object = headers.get("Retry-After")
    if said is None:
        details = status.get("details")
        said = details.get("retryAfterSeconds") if isinstance(details, dict) else None
    try:
        seconds = float(str(said))
    except ValueError:
        return None
    return min(max(0.0, seconds), _MOST_RETRY_SECONDS) if math.isfinite(seconds) else None
