"""What the operator's environment tells it; nothing else of it reads the environment.

Each has a default that works in the namespace and with the manifests of charts/stanch.
"""

from __future__ import annotations

import os
import re
import socket
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from stanch.api.common import DNS_LABEL

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
    kit_image, kit_pull_policy: of the kit's image (STANCH_KIT_IMAGE, STANCH_KIT_PULL_POLICY); without an
    image no kit is put into any pod. kit_image_volume: pods mount it (STANCH_KIT_IMAGE_VOLUME).
    webhook_port: of the webhook that puts it in, 0 for none (STANCH_WEBHOOK_PORT). webhook_directory: with
    its tls.crt and tls.key; None: it makes its own (STANCH_WEBHOOK_CERT_DIR), of webhook_seconds each
    (STANCH_WEBHOOK_CERT_SECONDS). webhook_config, webhook_service: names of its
    MutatingWebhookConfiguration and its Service (STANCH_WEBHOOK_CONFIG, STANCH_WEBHOOK_SERVICE).
    prometheus_table: the file of Prometheus servers that LeakWatches may name (STANCH_PROMETHEUS_TABLE;
    docs/prometheus.md).
    host, port: of /metrics, /healthz and /readyz (STANCH_HTTP_HOST, STANCH_HTTP_PORT; port 0: a free one).
    alerts_port: on that host, for Alertmanager; 0: no alerts are taken (STANCH_ALERTS_PORT).
    alerts_token_file: with the bearer token (STANCH_ALERTS_TOKEN_FILE). alerts_tls_dir: with tls.crt and
    tls.key, and ca.crt for mutual TLS (STANCH_ALERTS_TLS_DIR). alerts_table: which labels name a pod
    (STANCH_ALERTS_TABLE); None: the table of docs/alerts.md.
    api_keys_dir: with the engines' --api-key by namespace (STANCH_API_KEYS_DIR).
    """

    namespace: str = _DEFAULT_NAMESPACE
    watch_namespaces: tuple[str, ...] = ()
    identity: str = field(default_factory=lambda: f"{socket.gethostname()}-{uuid.uuid4().hex[:8]}")
    host: str = "0.0.0.0"
    port: int = 8080
    alerts_port: int = 0
    alerts_token_file: Path | None = None
    alerts_tls_dir: Path | None = None
    alerts_table: Path | None = None
    kit_image: str = ""
    kit_pull_policy: str = "IfNotPresent"
    kit_image_volume: bool = False
    webhook_port: int = 0
    webhook_directory: Path | None = None
    webhook_seconds: int = 7 * 86400
    webhook_config: str = "stanch"
    webhook_service: str = "stanch-webhook"
    api_keys_dir: Path | None = None
    prometheus_table: Path | None = None

    @classmethod
    def read(cls, environment: Mapping[str, str] | None = None) -> Settings:
        """From the process's environment, or a given one. Raises SettingsError."""
        found = os.environ if environment is None else environment
        default = cls()
        return cls(
            namespace=found.get("STANCH_NAMESPACE") or default.namespace,
            watch_namespaces=_namespaces(found.get("STANCH_WATCH_NAMESPACES", "")),
            identity=found.get("STANCH_IDENTITY") or default.identity,
            host=found.get("STANCH_HTTP_HOST") or default.host,
            port=_port(found, "STANCH_HTTP_PORT", default.port, "a free one"),
            alerts_port=_port(found, "STANCH_ALERTS_PORT", default.alerts_port, "none"),
            alerts_token_file=_path(found, "STANCH_ALERTS_TOKEN_FILE"),
            alerts_tls_dir=_path(found, "STANCH_ALERTS_TLS_DIR"),
            alerts_table=_path(found, "STANCH_ALERTS_TABLE"),
            kit_image=found.get("STANCH_KIT_IMAGE") or default.kit_image,
            kit_pull_policy=_pull_policy(found.get("STANCH_KIT_PULL_POLICY") or default.kit_pull_policy),
            kit_image_volume=_yes(found, "STANCH_KIT_IMAGE_VOLUME", default.kit_image_volume),
            webhook_port=_port(found, "STANCH_WEBHOOK_PORT", default.webhook_port, "none"),
            webhook_directory=_path(found, "STANCH_WEBHOOK_CERT_DIR"),
            webhook_seconds=_lifetime(found.get("STANCH_WEBHOOK_CERT_SECONDS"), default.webhook_seconds),
            webhook_config=found.get("STANCH_WEBHOOK_CONFIG") or default.webhook_config,
            webhook_service=found.get("STANCH_WEBHOOK_SERVICE") or default.webhook_service,
            api_keys_dir=_path(found, "STANCH_API_KEYS_DIR"),
            prometheus_table=_path(found, "STANCH_PROMETHEUS_TABLE"),
        )


def _port(found: Mapping[str, str], name: str, default: int, zero: str) -> int:
    """zero: what 0 stands for."""
    text = found.get(name) or str(default)
    if not (text.isascii() and text.isdigit() and int(text) <= 65535):
        raise SettingsError(f"{name} is {text!r}: a port is a number from 0 ({zero}) to 65535")
    return int(text)


def _namespaces(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if bad := [name for name in names if len(name) > 63 or not re.fullmatch(DNS_LABEL, name)]:
        raise SettingsError(
            f"STANCH_WATCH_NAMESPACES has {bad[0]!r}: names of namespaces, with commas between"
        )
    return names


def _pull_policy(text: str) -> str:
    if text not in ("Always", "IfNotPresent", "Never"):
        raise SettingsError(f"STANCH_KIT_PULL_POLICY is {text!r}: it is Always, IfNotPresent or Never")
    return text


def _yes(found: Mapping[str, str], name: str, default: bool) -> bool:
    text = found.get(name) or str(default).lower()
    if text not in ("true", "false"):
        raise SettingsError(f"{name} is {text!r}: it is true or false")
    return text == "true"


def _lifetime(text: str | None, default: int) -> int:
    text = text or str(default)
    if not (text.isascii() and text.isdigit() and 60 <= int(text) <= 366 * 86400):
        raise SettingsError(f"STANCH_WEBHOOK_CERT_SECONDS is {text!r}: seconds, from 60 to 31622400")
    return int(text)


def _path(found: Mapping[str, str], name: str) -> Path | None:
    text = found.get(name)
    return Path(text) if text else None
