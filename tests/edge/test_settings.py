"""The operator's environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from stanch.settings import Settings, SettingsError

pytestmark = pytest.mark.unit


def test_defaults() -> None:
    found = Settings.read({})
    assert (found.namespace, found.watch_namespaces, found.host, found.port) == (
        "stanch-system", (), "0.0.0.0", 8080,
    )  # fmt: skip


def test_the_webhook_and_the_kit() -> None:
    found = Settings.read({})
    assert (found.kit_image, found.kit_pull_policy, found.webhook_port) == ("", "IfNotPresent", 0)
    assert (found.webhook_config, found.webhook_service) == ("stanch", "stanch-webhook")
    assert (found.webhook_directory, found.webhook_seconds) == (None, 7 * 86400)
    found = Settings.read(
        {
            "STANCH_KIT_IMAGE": "example.test/stanch:1",
            "STANCH_KIT_PULL_POLICY": "Always",
            "STANCH_KIT_IMAGE_VOLUME": "true",
            "STANCH_WEBHOOK_PORT": "9443",
            "STANCH_WEBHOOK_CERT_DIR": "/certs",
            "STANCH_WEBHOOK_CERT_SECONDS": "60",
            "STANCH_WEBHOOK_CONFIG": "other",
            "STANCH_WEBHOOK_SERVICE": "svc",
        }
    )
    kit = (found.kit_image, found.kit_pull_policy, found.kit_image_volume)
    assert kit == ("example.test/stanch:1", "Always", True)
    assert (found.webhook_port, found.webhook_directory, found.webhook_seconds) == (9443, Path("/certs"), 60)
    assert (found.webhook_config, found.webhook_service) == ("other", "svc")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("STANCH_WEBHOOK_PORT", "https"),
        ("STANCH_KIT_PULL_POLICY", "always"),
        ("STANCH_KIT_IMAGE_VOLUME", "yes"),
        ("STANCH_WEBHOOK_CERT_SECONDS", "59"),
        ("STANCH_WEBHOOK_CERT_SECONDS", "7d"),
        ("STANCH_WATCH_NAMESPACES", "shop,b c"),
        ("STANCH_WATCH_NAMESPACES", "*"),
        ("STANCH_WATCH_NAMESPACES", "a" * 64),
    ],
)
def test_what_makes_no_sense_is_named(name: str, value: str) -> None:
    with pytest.raises(SettingsError, match=name):
        Settings.read({name: value})


def test_two_processes_of_one_host_are_told_apart() -> None:
    assert Settings.read({}).identity != Settings.read({}).identity


def test_what_is_said_counts() -> None:
    found = Settings.read(
        {
            "STANCH_NAMESPACE": "ops",
            "STANCH_WATCH_NAMESPACES": " shop, lab ,,shop",
            "STANCH_IDENTITY": "stanch-0",
            "STANCH_HTTP_HOST": "127.0.0.1",
            "STANCH_HTTP_PORT": "0",
        }
    )
    assert found == Settings("ops", ("shop", "lab"), "stanch-0", "127.0.0.1", 0)


def test_alerts() -> None:
    found = Settings.read({})
    assert (found.alerts_port, found.alerts_token_file, found.alerts_tls_dir, found.alerts_table) == (
        0, None, None, None,
    )  # fmt: skip
    found = Settings.read(
        {
            "STANCH_ALERTS_PORT": "9095",
            "STANCH_ALERTS_TOKEN_FILE": "/etc/stanch/alerts/token",
            "STANCH_ALERTS_TLS_DIR": "",
            "STANCH_ALERTS_TABLE": "/etc/stanch/alerts.yaml",
        }
    )
    assert (found.alerts_port, found.alerts_token_file, found.alerts_tls_dir, found.alerts_table) == (
        9095, Path("/etc/stanch/alerts/token"), None, Path("/etc/stanch/alerts.yaml"),
    )  # fmt: skip


@pytest.mark.parametrize("name", ["STANCH_HTTP_PORT", "STANCH_ALERTS_PORT"])
@pytest.mark.parametrize("text", ["http", "-1", "65536", "8_0", "１"])
def test_a_port_that_is_none(name: str, text: str) -> None:
    with pytest.raises(SettingsError, match=name):
        Settings.read({name: text})
