"""vLLM's --api-key of the engines, by their namespace: files of a mounted directory, read anew at each use.

A key goes to the pods of the namespace that its file is named after, and to no others; `default` goes to
those of every namespace without a file of its own, so whoever may make pods in one of them can learn it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from stanch.edge.kit import Key, no_key
from stanch.edge.secret_file import read_secret

DEFAULT: Final = "default"


def key_of(directory: Path | None, namespace: str) -> Key:
    """What reads the key of that namespace: None where there is none. A call raises FileError where it
    cannot be read, or holds none."""
    if directory is None:
        return no_key

    def read() -> str | None:
        for name in (namespace, DEFAULT):
            path = directory / name
            if not _absent(path):
                return read_secret(path, "API key")
        return None

    return read


def _absent(path: Path) -> bool:
    """A file that may not be looked at is there: reading it says what is wrong."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False
    return False
