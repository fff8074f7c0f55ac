"""What the operator's environment tells it; nothing else of it reads the environment.

Each has a default that works in the namespace and with the manifests of charts/stanch.
"""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

# Where a pod finds the namespace that it runs in.
_DEFAULT_NAMESPACE: Final = "stanch-system"


class SettingsError(ValueError):
    """A variable makes no sense; the text names it and says what is allowed."""


@dataclass(frozen=True, slots=True)
class Settings:
    """namespace: the operator's own, with its Lease and the ConfigMap stanch-stop (STANCH_NAMESPACE).

    watch_namespaces: those whose LeakWatches count; empty for all (STANCH_WATCH_NAMESPACES, with commas).
    identity: this process among those that stand for election (STANCH_IDENTITY, else the host's name and a
    random part: two processes of one name would both believe that they lead).
    host, port: of /metrics, /healthz and /readyz (STANCH_HTTP_HOST, STANCH_HTTP_PORT; port 0: a free one).
    """

    namespace: str = _DEFAULT_NAMESPACE
    watch_namespaces: tuple[str, ...] = ()
    identity: str = field(default_factory=lambda: f"{socket.gethostname()}-{uuid.uuid4().hex[:8]}")
    host: str = "0.0.0.0"
    port: int = 8080

    @classmethod
    def read(cls, environment: Mapping[str, str] | None = None) -> Settings:
        """From the process's environment, or a given one. Raises SettingsError."""
        found = os.environ if environment is None else environment
        default = cls()
        names = found.get("STANCH_WATCH_NAMESPACES", "").split(",")
        return cls(
            namespace=found.get("STANCH_NAMESPACE") or default.namespace,
            watch_namespaces=tuple(dict.fromkeys(name.strip() for name in names if name.strip())),
            identity=found.get("STANCH_IDENTITY") or default.identity,
            host=found.get("STANCH_HTTP_HOST") or default.host,
            port=_port(found.get("STANCH_HTTP_PORT") or str(default.port)),
        )


def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) <= 65535):
        raise SettingsError(f"STANCH_HTTP_PORT is {text!r}: a port is a number from 0 (a free one) to 65535")
    return int(text)
