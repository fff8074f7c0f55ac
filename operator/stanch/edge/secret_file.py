"""Secrets in files: all are read here, so that each has a bound and none is ever part of a message.

A file is opened by its path at each call, so one that rotates is seen: the kubelet renames a link over the
one by which a volume's files are found (AtomicWriter, pkg/volume/util/atomic_writer.go, Kubernetes 1.20 on).
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from stanch.edge.errors import FileError

# Far more than any header with a token in it may be long.
_MOST_BYTES: Final = 64 << 10


def read_secret(path: Path, what: str, *, word: bool = False) -> str:
    """The one line of printable ASCII that is in it (word: without a space), without the white space around
    it. what: "API key", say. Raises FileError."""
    secret = read_bytes(path, what).strip()
    if not secret or not is_printable(secret) or (word and b" " in secret):
        one = "word" if word else "line"
        raise FileError(f"{path}: holds no {what}: it must be one {one} of printable ASCII, and nothing else")
    return secret.decode("ascii")


def read_password(path: Path, what: str) -> bytes:
    """Any UTF-8, without the end of its last line. Raises FileError."""
    raw = read_bytes(path, what).rstrip(b"\r\n")
    try:
        raw.decode("utf-8")
    except UnicodeDecodeError:
        raise FileError(f"{path}: holds no {what}: it must be UTF-8 text") from None
    return raw


def read_bytes(path: Path, what: str) -> bytes:
    """All of it. Raises FileError where it cannot be read, or is too large to be a secret."""
    try:
        with path.open("rb") as file:
            raw = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise FileError(f"{path}: the {what} cannot be read: {error.strerror or error}") from None
    if len(raw) > _MOST_BYTES:
        raise FileError(
            f"{path}: holds no {what}: it is larger than {_MOST_BYTES >> 10} kB; is it another file?"
        )
    return raw


def is_printable(secret: bytes) -> bool:
    """Whether all of it is printable ASCII; a space is."""
    return all(0x20 <= byte <= 0x7E for byte in secret)
