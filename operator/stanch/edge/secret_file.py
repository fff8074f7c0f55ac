"""One secret in one file."""

from __future__ import annotations

from pathlib import Path

from stanch.edge.errors import FileError


def read_secret(path: Path, what: str) -> str:
    """Without the white space around it; never part of a message. Raises FileError."""
    try:
        secret = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise FileError(
            f"{path}: the {what} cannot be read: {getattr(error, 'strerror', None) or error}"
        ) from None
    if not secret or not secret.isprintable() or not secret.isascii():
        raise FileError(f"{path}: holds no {what} of printable characters")
    return secret
