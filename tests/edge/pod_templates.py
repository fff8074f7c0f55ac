"""Pod templates of engines, as people write them."""

from __future__ import annotations

import json
from typing import Any

Object = dict[str, Any]
TRANSFER = {"kv_connector": "NixlConnector", "kv_role": "kv_both", "kv_buffer_device": "cpu"}
CONFIG = json.dumps(TRANSFER)


def engine(**more: Any) -> Object:
    """One container that starts vLLM by command and args, as llm-d's charts write it."""
    container: Object = {
        "name": "vllm",
        "image": "example.test/vllm:0.29.0",
        "command": ["vllm", "serve", "org/model"],
        "args": ["--port", "8000", "--kv-transfer-config", CONFIG],
        "ports": [{"containerPort": 8000, "name": "http"}],
        "readinessProbe": {"httpGet": {"path": "/health", "port": "http"}, "periodSeconds": 5},
        "livenessProbe": {"httpGet": {"path": "/health", "port": 8000}},
    }
    container.update(more)
    return {key: value for key, value in container.items() if value is not ...}


def template(*containers: Object, **spec: Any) -> Object:
    return {
        "metadata": {"labels": {"app": "engines"}},
        "spec": {"containers": [*containers] or [engine()], **spec},
    }
