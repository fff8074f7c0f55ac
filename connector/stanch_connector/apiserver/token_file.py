"""The file with the bearer token, read anew for every request because it may rotate."""

from __future__ import annotations

import os

from stanch_connector.apiserver.authorize import MAX_TOKEN_BYTES
from stanch_connector.apiserver.podinfo import AnnotationsError, read
from stanch_connector.contract import ENV_TOKEN_FILE


def content(path: str | None = None) -> bytes | None:
    """Its bytes; None where none is set (`path` or ENV_TOKEN_FILE), or it cannot be read or is too long."""
    path = path or os.environ.get(ENV_TOKEN_FILE)
    if not path:
        return None
    try:
        # A little more than a token, for the white space around it.
        return read(path, MAX_TOKEN_BYTES + 64)
    except (OSError, AnnotationsError):
        return None
