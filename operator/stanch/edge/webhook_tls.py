"""The server's certificate, which may change while it serves; and from where it comes."""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

CERTIFICATE: Final = "tls.crt"
KEY: Final = "tls.key"


class CertificateError(Exception):
    """A certificate or its key cannot be used; the text says which and why."""


class Tls:
    """One context for all connections. What is loaded counts for those that are made from then on."""

    def __init__(self) -> None:
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2

    def load(self, certificate: bytes, key: bytes) -> None:
        """In PEM. Raises CertificateError, and then serves with what it had."""
        # First in a context of its own: a pair that does not fit leaves half of itself behind.
        for context in (ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), self.context):
            with _as_file(certificate) as first, _as_file(key) as second:
                try:
                    context.load_cert_chain(first, second)
                except (ssl.SSLError, OSError, ValueError) as error:
                    raise CertificateError(f"certificate and key cannot be used: {error}") from None


@contextmanager
def _as_file(data: bytes) -> Iterator[str]:
    """A path at which the data can be read. The ssl module takes nothing but files, and the operator's
    root is read-only: so a file that is nowhere but in memory."""
    number = os.memfd_create("stanch")
    try:
        with os.fdopen(os.dup(number), "wb") as file:
            file.write(data)
        yield f"/proc/self/fd/{number}"
    finally:
        os.close(number)


def read(directory: Path) -> tuple[bytes, bytes]:
    """Certificate and key as they are in the directory now. Raises CertificateError."""
    found = []
    for name in (CERTIFICATE, KEY):
        try:
            found.append((directory / name).read_bytes())
        except OSError as error:
            raise CertificateError(f"{directory / name}: {error.strerror or error}") from None
    return found[0], found[1]
