"""Which Events are written, and when: what is told again is counted in the Event that there is. Pure.

As events.k8s.io/v1 has it, the text of an Event cannot be changed, and what is counted is its series.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from datetime import datetime, timezone

from stanch.edge.cluster.errors import Object
from stanch.edge.cluster.refs import EVENTS, Request

# One and the same is written at most so often; and it is over when it was not told for so long.
EVERY_SECONDS = 60.0
OVER_SECONDS = 360.0
REPORTER = "stanch.dev/operator"
_MOST_NOTE_BYTES = 1024
_MOST_NAME = 200

Key = tuple[str, str, str, str, str, bool]


@dataclass(frozen=True, slots=True)
class Told:
    """What is told. regarding: apiVersion, kind, name, namespace (absent for a kind without), uid."""

    regarding: Object
    reason: str
    action: str
    note: str
    warning: bool

    @property
    def key(self) -> Key:
        about = self.regarding
        owner = (about["kind"], about.get("namespace", ""), about["name"])
        return (*owner, about.get("uid", ""), f"{self.reason}/{self.action}", self.warning)


@dataclass(slots=True)
class _Series:
    """One Event. count: how often it was told; written: how much of that its series says; began: when it was
    made; at: when it was last written; last: when it was last told. Unix seconds."""

    name: str
    namespace: str
    note: str
    began: float
    at: float
    last: float
    count: int = 1
    written: int = 1


@dataclass
class Events:
    """instance: which process of ours tells."""

    instance: str
    _series: dict[Key, _Series] = field(default_factory=dict)

    def tell(self, told: Told, now: float) -> list[tuple[Key, Request]]:
        """What to write for it, and for others that have waited. Each is to be answered by `failed` where it
        could not be written."""
        requests = self.due(now, over_only=True)
        found = self._series.get(told.key)
        # Another text of the same waits for its minute, and is counted until then.
        if found is not None and (found.note == told.note or now - found.began < EVERY_SECONDS):
            found.count += 1
            found.last = now
            return requests + self.due(now)
        requests += self.due(now)
        if found is not None and found.count > found.written:
            requests.append((told.key, _counted(found)))
        new = _Series(_name(told), _namespace(told), told.note, now, now, now)
        self._series[told.key] = new
        return [*requests, (told.key, self._created(told, new))]

    def due(self, now: float, over_only: bool = False, every: bool = False) -> list[tuple[Key, Request]]:
        """Counts to write now. over_only: of those that are over. every: also those that could wait, because
        we end. Forgets what is over."""
        requests = []
        for key, series in list(self._series.items()):
            over = now - series.last >= OVER_SECONDS
            waited = now - series.at >= EVERY_SECONDS and not over_only
            if series.count > series.written and (over or every or waited):
                series.written, series.at = series.count, now
                requests.append((key, _counted(series)))
            if over:
                del self._series[key]
        return requests

    def failed(self, key: Key) -> None:
        """Begin anew the next time it is told: the Event was not written, or has gone in the meantime."""
        self._series.pop(key, None)

    def _created(self, told: Told, series: _Series) -> Request:
        body = {
            "apiVersion": EVENTS.api_version,
            "kind": "Event",
            "metadata": {"name": series.name, "namespace": series.namespace},
            "eventTime": _moment(series.at),
            "reportingController": REPORTER,
            "reportingInstance": self.instance[:128],
            "reason": told.reason,
            "action": told.action,
            "note": _cut(told.note),
            "type": "Warning" if told.warning else "Normal",
            "regarding": told.regarding,
        }
        return Request("create", EVENTS, series.namespace, body=body)


def _counted(series: _Series) -> Request:
    said = {"count": series.count, "lastObservedTime": _moment(series.last)}
    return Request(
        "patch",
        EVENTS,
        series.namespace,
        series.name,
        body={"series": said},
        media="application/merge-patch+json",
    )


def _name(told: Told) -> str:
    return f"{told.regarding['name'][:_MOST_NAME].rstrip('-.')}.{secrets.token_hex(8)}"


def _namespace(told: Told) -> str:
    """That of the object; an Event of a kind without one belongs into "default" (pkg/apis/core/validation,
    1.35)."""
    return told.regarding.get("namespace") or "default"


def _moment(unix: float) -> str:
    return datetime.fromtimestamp(unix, timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _cut(text: str) -> str:
    return text.encode()[:_MOST_NOTE_BYTES].decode(errors="ignore")
