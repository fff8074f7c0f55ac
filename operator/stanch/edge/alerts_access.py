"""Who may send alerts: who knows the token, or has a certificate of our authority. Files may change at any
time: Secrets are rotated.
"""

from __future__ import annotations

import hmac
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Final

from stanch.edge.errors import FileError
from stanch.edge.secret_file import is_printable, read_bytes

_MOST_TOKENS: Final = 2
# A longer one would not fit into a header (8190 bytes with its name, aiohttp 3).
_LEAST_LENGTH, _MOST_LENGTH = 16, 4096
_SCHEME: Final = "bearer"


class Tokens:
    """A file with one token, or two on a line each while one takes the place of the other; read anew at each
    use."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> list[bytes]:
        """Raises FileError where the file holds no token that could be used."""
        raw = read_bytes(self._path, "token")
        found = [line.strip() for line in raw.splitlines() if line.strip()]
        if not found or len(found) > _MOST_TOKENS:
            raise FileError(
                f"{self._path}: must hold one token, or two on a line each while one replaces the other"
            )
        for number, token in enumerate(found, 1):
            if not _LEAST_LENGTH <= len(token) <= _MOST_LENGTH or not is_printable(token) or b" " in token:
                raise FileError(
                    f"{self._path}: token {number} must have {_LEAST_LENGTH} to {_MOST_LENGTH} characters of "
                    "printable ASCII and no space: `openssl rand -hex 32` makes one"
                )
        return found

    def allow(self, header: str | None) -> bool:
        """Whether an Authorization header has one of them. Raises FileError."""
        known = self.read()
        scheme, _, given = (header or "").strip().partition(" ")
        said = given.strip().encode(errors="surrogateescape")
        # All are compared, so that the time tells neither which one it was nor how much of it was right.
        fits = [hmac.compare_digest(said, token) for token in known]
        return scheme.lower() == _SCHEME and any(fits)


class Certificates:
    """tls.crt and tls.key of a directory, and with ca.crt in it only clients with a certificate of that
    authority; read anew when one of them has changed. Entering what cannot be used raises FileError; later
    the last that could be is kept."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._authority = directory / "ca.crt"
        self.mutual = self._authority.exists()
        self._seen = self._stamp()
        self._context = self._load()

    def context(self) -> ssl.SSLContext:
        """The one to use for the next connection."""
        return self._context

    def refresh(self) -> None:
        """Read the files anew where they have changed. Raises FileError, once for each change, where they
        cannot be used; then the last that could be stays."""
        stamp = self._stamp()
        if stamp == self._seen:
            return
        self._seen = stamp
        self._context = self._load()

    def _stamp(self) -> tuple[tuple[int, int, int] | None, ...]:
        found: list[tuple[int, int, int] | None] = []
        for name in ("tls.crt", "tls.key", "ca.crt"):
            try:
                stat = (self._directory / name).stat()
                found.append((stat.st_mtime_ns, stat.st_ino, stat.st_size))
            except OSError:
                found.append(None)
        return tuple(found)

    def _load(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        certificate, key = self._directory / "tls.crt", self._directory / "tls.key"
        _load(f"{certificate} and {key.name}", lambda: context.load_cert_chain(certificate, key, ""))
        if self.mutual:
            context.verify_mode = ssl.CERT_REQUIRED
            _load(str(self._authority), lambda: context.load_verify_locations(self._authority))
        return context


def _load(what: str, load: Callable[[], None]) -> None:
    try:
        load()
    except ssl.SSLError as error:
        raise FileError(f"{what}: cannot be used: {error.reason or error}") from None
    except OSError as error:
        raise FileError(f"{what}: cannot be read: {error.strerror or error}") from None
