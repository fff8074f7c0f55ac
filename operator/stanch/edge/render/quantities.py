"""Quantities of a template that are none. Pure.

The API server meets one when it reads the whole object, and then answers with 500 and without a path
(Kubernetes 1.35: "failed to convert new object"), as if it were itself in trouble.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from stanch.edge.render.place import Object, Problem

# Of k8s.io/apimachinery 0.35, pkg/api/resource (ParseQuantity, suffixer); spaces around it are taken. That an
# exponent is short is ours: over a long one the server thinks for a minute.
_QUANTITY: Final = re.compile(
    r"\s*[+-]?(\d+\.?\d*|\.\d+)([numkMGTPE]|[KMGTPE]i|[eE][+-]?\d{1,3})?\s*", re.ASCII
)
_SAID_CHARS: Final = 40


def unreadable(spec: Object, path: str) -> list[Problem]:
    """spec: of a pod template, its containers and volumes of a shape that could be merged. path: its own. Of
    what has another shape the API server says so, and where."""
    return [
        Problem(
            here,
            f"is {_said(value)}, which is no quantity: write a number, with a suffix where one is needed, as "
            "4, 500m or 16Gi",
        )
        for here, value in _quantities(spec, path)
        if value is not None and not _is_quantity(value)
    ]


def _quantities(spec: Object, path: str) -> Iterator[tuple[str, object]]:
    yield from _amounts(spec.get("overhead"), f"{path}.overhead")
    yield from _resources(spec, path)
    for kind in ("initContainers", "containers"):
        for index, one in enumerate(spec.get(kind) or ()):
            yield from _resources(one, f"{path}.{kind}[{index}]")
    for index, one in enumerate(spec.get("volumes") or ()):
        directory = one.get("emptyDir")
        if isinstance(directory, dict):
            yield f"{path}.volumes[{index}].emptyDir.sizeLimit", directory.get("sizeLimit")


def _resources(one: Mapping[str, Any], path: str) -> Iterator[tuple[str, object]]:
    resources = one.get("resources")
    for kind in ("requests", "limits"):
        given = resources.get(kind) if isinstance(resources, dict) else None
        yield from _amounts(given, f"{path}.resources.{kind}")


def _amounts(given: object, path: str) -> Iterator[tuple[str, object]]:
    for name, value in given.items() if isinstance(given, dict) else ():
        yield f"{path}[{name}]", value


def _is_quantity(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return False
    return _QUANTITY.fullmatch(str(value)) is not None


def _said(value: object) -> str:
    said = repr(value) if isinstance(value, (str, bool, int, float)) else "a list or an object"
    return said if len(said) <= _SAID_CHARS else f"{said[:_SAID_CHARS]}..."
