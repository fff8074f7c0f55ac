"""One scalar of a YAML document with another value, written as nearly as it was. Pure."""

from __future__ import annotations

import json
import re
from typing import Any

import yaml

from stanch.edge.json_patch import same
from stanch.edge.yaml_values import Loader


def by_piece(raw: str, old: Any, new: Any) -> str | None:
    """The scalar with only what differs put in or taken out, so that its lines and its quotes stay; None
    where that is not so simple."""
    if not (isinstance(old, str) and isinstance(new, str)):
        return None
    longer, shorter = (new, old) if len(new) > len(old) else (old, new)
    size = len(longer) - len(shorter)
    head = next((i for i, (a, b) in enumerate(zip(longer, shorter, strict=False)) if a != b), len(shorter))
    if not size or longer[:head] + longer[head + size :] != shorter:
        return None
    # ` --a x` in ` --b` may as well be seen as `a x --` in it: take it as the words that it is.
    while head and not longer[head].isspace() and longer[head - 1] == longer[head + size - 1]:
        head -= 1
    piece = longer[head : head + size]
    if longer is old:
        made = [raw.replace(piece, "")]
    else:
        word = re.split(r"\s", longer[:head])[-1]
        # As it is written within quotes of either kind.
        forms = (word, word.replace("'", "''"), json.dumps(word, ensure_ascii=False)[1:-1])
        made = [raw.replace(one, one + piece) for one in forms if one and raw.count(one) == 1]
    return next((one for one in made if _is(one, new)), None)


def _is(raw: str, value: str) -> bool:
    try:
        return same(yaml.load(raw, Loader=Loader), value)
    except yaml.YAMLError:
        return False


def inline(value: Any, style: str | None) -> str:
    """In one line, in whatever context; quoted as it was."""
    if isinstance(value, str) and style == "'" and value.isprintable():
        return "'" + value.replace("'", "''") + "'"
    if isinstance(value, str) and style is None and re.fullmatch(r"/[\w./:-]*[\w/]", value):
        return value
    return json.dumps(value, ensure_ascii=False)
