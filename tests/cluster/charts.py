"""The chart as the real helm renders it, and where to find what in it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from typing import Any

from tests.bed.helm import Object, template

DEPLOYMENT = "Deployment/stanch"
POD = f"{DEPLOYMENT} spec.template"
OPERATOR = f"{POD}.spec.containers.operator"
HOOK = "Job/stanch-lift"
HOOK_POD = f"{HOOK} spec.template"
WEBHOOK = "MutatingWebhookConfiguration/stanch"
POLICY = "NetworkPolicy/stanch"
# With everything that is off by default.
ALL: dict[str, Any] = {
    "replicas": 2,
    "alerts": {"enabled": True, "tokenSecret": {"name": "t"}, "tlsSecret": "c", "table": {"pod": ["pod"]}},
    "prometheus": {"table": [{"url": "http://p"}], "secret": "p"},
    "apiKeys": {"secret": "k"},
    "webhook": {"tlsSecret": "w", "certificate": "w"},
    "metrics": {"serviceMonitor": {"enabled": True}},
    "networkPolicy": {"enabled": True},
}


def nested(path: str, value: Any) -> dict[str, Any]:
    """{"a": {"b": value}} of "a.b"."""
    for key in reversed(path.split(".")):
        value = {key: value}
    return value  # type: ignore[no-any-return]


def merged(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    found = dict(one)
    for key, value in other.items():
        old = found.get(key)
        found[key] = merged(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return found


@cache
def _rendered(values: str) -> list[Object]:
    return template(json.loads(values), hooks=True)


def rendered(values: Mapping[str, Any]) -> list[Object]:
    return _rendered(json.dumps(values, sort_keys=True))


def at(objects: list[Object], where: str) -> Any:
    """The value at "Kind/name path"; of a list the entry of that number or name. None where there is none."""
    which, _, path = where.partition(" ")
    kind, _, name = which.partition("/")
    found: Any = next(
        (one for one in objects if one["kind"] == kind and one["metadata"]["name"] == name), None
    )
    for key in filter(None, path.split(".")):
        key = key.replace("~", ".")
        if isinstance(found, list):
            by_name = next((one for one in found if isinstance(one, dict) and one.get("name") == key), None)
            found = found[int(key)] if key.isdigit() and int(key) < len(found) else by_name
        else:
            found = (found or {}).get(key)
    return found
