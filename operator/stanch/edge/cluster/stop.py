"""The stop for the whole cluster. Pure."""

from __future__ import annotations

from stanch.api.names import STOP_CONFIG_MAP, STOP_KEY
from stanch.edge.cluster.errors import Object


def reason(found: Object, namespace: str) -> str | None:
    """Why the ConfigMap stops all action; None where it does not."""
    said = (found.get("data") or {}).get(STOP_KEY)
    word = "" if said is None else said.strip().lower()
    where = f"ConfigMap {namespace}/{STOP_CONFIG_MAP}"
    if word == "true":
        return f"{where} says {STOP_KEY}"
    if word in ("", "false"):
        return None
    return f'{where} has {STOP_KEY}: {said!r}, which is neither "true" nor "false" and counts as stop'


def unreadable(why: object, namespace: str) -> str:
    return f"ConfigMap {namespace}/{STOP_CONFIG_MAP} cannot be read, which counts as stop: {why}"
