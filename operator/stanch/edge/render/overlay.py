"""What a role's template may not say: what fields of its own have, and what makes its pods those of the role.
Pure.

That it is a template at all, the API server says, when what was made of it is tried there; but for
quantities, of which it says too little (quantities.py).
"""

from __future__ import annotations

from collections.abc import Sequence

from stanch.api.names import GROUP
from stanch.edge.render.place import HTTP, LABEL_MANAGED, Object, Problem
from stanch.edge.render.quantities import unreadable

_METADATA = ("annotations", "labels")
_NEEDED = (("metadata",), ("metadata", "labels"), ("spec",), ("spec", "containers"))


def checked(template: Object, laid: Object, path: str, container: str, port: int) -> tuple[Problem, ...]:
    """template: of a shape that could be merged. laid: over what is made. container, port: the part's own."""
    found = [
        Problem(f"{path}.{key}", "is unknown: a template has metadata and spec")
        for key in sorted(set(template) - {"metadata", "spec"})
    ]
    gone = next((keys for keys in _NEEDED if _dig(laid, keys) is None), None)
    if gone is not None:
        words = "is null, and nothing would be left of the role: leave it out"
        return (*found, Problem(".".join((path, *gone)), words))
    found += _metadata(template.get("metadata") or {}, f"{path}.metadata")
    spec = template.get("spec") or {}
    for kind in ("initContainers", "containers"):
        for index, one in enumerate(spec.get(kind) or []):
            here = f"{path}.spec.{kind}[{index}]"
            if kind == "containers" and one["name"] == container:
                found += _own(one, here, port)
            elif not one.get("image"):
                found.append(Problem(f"{here}.image", f"is missing: only container {container} gets one"))
    return (*found, *unreadable(spec, f"{path}.spec"))


def _dig(value: Object, keys: Sequence[str]) -> object:
    found: object = value
    for key in keys:
        found = found.get(key) if isinstance(found, dict) else None
    return found


def _metadata(metadata: Object, path: str) -> list[Problem]:
    found = [
        Problem(f"{path}.{key}", "cannot be set: a pod template takes labels and annotations")
        for key in sorted(set(metadata) - set(_METADATA))
    ]
    for kind in _METADATA:
        given = metadata.get(kind)
        for key, value in given.items() if isinstance(given, dict) else ():
            if key == LABEL_MANAGED or key.partition("/")[0] == GROUP:
                found.append(Problem(f"{path}.{kind}[{key}]", "is Stanch's own: leave it out"))
            elif not isinstance(value, str):
                found.append(Problem(f"{path}.{kind}[{key}]", "must be a text: put it in quotes"))
    return found


def _own(one: Object, path: str, port: int) -> list[Problem]:
    """Services find the port by its name."""
    words = f"is where the Services send requests, port {port} of the part's own field: change it there"
    if "ports" in one and one["ports"] is None:
        return [Problem(f"{path}.ports", words)]
    return [
        Problem(f"{path}.ports[{index}].containerPort", words)
        for index, entry in enumerate(one.get("ports") or [])
        if entry.get("name") == HTTP and entry.get("containerPort") != port
    ]
