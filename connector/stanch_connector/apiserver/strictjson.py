"""JSON from outside: an object or nothing, bounded, without the numbers that JSON does not have. Pure."""

from __future__ import annotations

import json
import math

# 10,000 ids of a release fit in.
MAX_TEXT_CHARS = 1 << 20


class BadJSON(Exception):  # noqa: N818  (a finding about a text, not a failure of ours)
    """str() is the reason; it never quotes the text."""


def parse_object(text: str) -> dict[str, object]:
    """The object that `text` is. Raises BadJSON."""
    if len(text) > MAX_TEXT_CHARS:
        raise BadJSON(f"longer than {MAX_TEXT_CHARS} characters")
    try:
        value: object = json.loads(text, parse_constant=_no_constant)
    except BadJSON:
        raise
    except (ValueError, RecursionError):
        raise BadJSON("not JSON") from None
    if not isinstance(value, dict):
        raise BadJSON("not a JSON object")
    return value


def is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def seconds(value: object) -> float | None:
    """A finite number of seconds, zero or more; None where it is none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) and number >= 0 else None


def _no_constant(name: str) -> object:
    raise BadJSON(f"{name} is not a JSON number")
