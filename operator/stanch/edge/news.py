"""What the API server's watches have told of our kinds: what is news, and whether they have gone silent.

kopf's watches can go silent without an error (its issues 1267, 1276). Lists show it: an object whose version
has moved on, of which nothing has been heard.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

# Our own status is written every half a minute, so a watch that works says something as often.
SILENT_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class _Behind:
    """heard: the version last told of, while lists showed others. since: when that was first seen."""

    heard: str | None
    since: float


class News:
    """take() is for the thread that hears, behind() for the one that lists."""

    def __init__(self) -> None:
        self._known: dict[str, object] = {}
        self._versions: dict[str, str] = {}
        self._behind: dict[str, _Behind] = {}

    def take(self, event: Mapping[str, Any]) -> bool:
        """Whether an event is news: an object that is new or gone, or has another generation or other
        annotations. What we write to a status is none."""
        meta = event["object"].get("metadata", {})
        uid = str(meta.get("uid"))
        self._versions[uid] = str(meta.get("resourceVersion"))
        if event.get("type") == "DELETED":
            self._known.pop(uid, None)
            self._versions.pop(uid, None)
            return True
        now = meta.get("generation"), meta.get("annotations"), meta.get("deletionTimestamp")
        before = self._known.get(uid)
        self._known[uid] = now
        return now != before

    def behind(self, listed: Iterable[Mapping[str, Any]], now: float) -> str | None:
        """The first of these objects of which nothing new was heard for a minute, though it has changed."""
        found = None
        before, self._behind = self._behind, {}
        for one in listed:
            meta = one.get("metadata", {})
            uid, version = str(meta.get("uid")), str(meta.get("resourceVersion"))
            heard = self._versions.get(uid)
            if heard == version:
                continue
            old = before.get(uid)
            known = old if old is not None and old.heard == heard else _Behind(heard, now)
            self._behind[uid] = known
            if now - known.since > SILENT_SECONDS:
                found = found or f"{meta.get('namespace')}/{meta.get('name')}"
        return found
