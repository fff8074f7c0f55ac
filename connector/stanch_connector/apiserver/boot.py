"""The boot id: random, made when the engine's first process starts, the same in all processes of that
start."""

from __future__ import annotations

import multiprocessing
import os
import secrets
from typing import Final

VARIABLE: Final = "STANCH_BOOT_ID"

_made: str | None = None


def boot_id() -> str:
    """The boot id of this start. The first process makes it anew, whatever its environment says, and
    hands it down by its environment: API servers, engine cores and workers are its children."""
    global _made
    if _made is None:
        inherited = os.environ.get(VARIABLE) if multiprocessing.parent_process() is not None else None
        _made = inherited or secrets.token_hex(8)
        os.environ[VARIABLE] = _made
    return _made
