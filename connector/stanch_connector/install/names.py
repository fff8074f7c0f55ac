"""What vLLM is told, and what lies where in the volume. Constants; a test holds them to pyproject.toml and
the code."""

from __future__ import annotations

from typing import Final

DISTRIBUTION: Final = "stanch"
PACKAGE: Final = "stanch_connector"
PLUGIN_GROUP: Final = "vllm.general_plugins"
PLUGIN_NAME: Final = "stanch"
PLUGIN_OBJECT: Final = "stanch_connector.plugin:register"
MIDDLEWARE: Final = "stanch_connector.apiserver.middleware.StanchMiddleware"
CONNECTOR: Final = "StanchNixlConnector"
CONNECTOR_MODULE: Final = "stanch_connector.connector"

# Everything of ours that is not one of the two names Python looks for.
STORE: Final = ".stanch"
MANIFEST: Final = "manifest.json"
SCHEMA_MANIFEST: Final = "stanch.manifest/1"
