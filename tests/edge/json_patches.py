"""Applies a JSON Patch as RFC 6902 says; what does not fit is an error, as in the API server."""

from __future__ import annotations

from copy import deepcopy
from typing import Any


def applied(document: Any, patch: list[dict[str, Any]]) -> Any:
    whole = {"": deepcopy(document)}
    for operation in patch:
        *way, last = ["", *(_plain(part) for part in operation["path"].split("/")[1:])]
        holder: Any = whole
        for part in way:
            holder = holder[int(part)] if isinstance(holder, list) else holder[part]
        op = operation["op"]
        if isinstance(holder, list):
            at = int(last)
            assert 0 <= at <= len(holder) - (op != "add"), operation
            if op == "add":
                holder.insert(at, operation["value"])
            elif op == "remove":
                del holder[at]
            else:
                holder[at] = operation["value"]
        else:
            assert op == "add" or last in holder, operation
            if op == "remove":
                del holder[last]
            else:
                holder[last] = operation["value"]
    return whole[""]


def _plain(part: str) -> str:
    return part.replace("~1", "/").replace("~0", "~")
