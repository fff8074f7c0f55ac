"""The bearer token of POST commands, outside Kubernetes. Pure.

Tokens never appear in an answer or a log: only the reasons below do.
"""

from __future__ import annotations

import hmac
from enum import Enum

MAX_TOKEN_BYTES = 4096
MIN_TOKEN_BYTES = 16


class Access(Enum):
    """What a POST gets: the status, and a sentence for its body."""

    ALLOWED = (200, "")
    OFF = (404, "commands by POST are off: no token file, or it holds no token of 16 to 4096 bytes")
    MISSING = (401, "a bearer token is needed")
    WRONG = (401, "the bearer token is not the right one")

    @property
    def status(self) -> int:
        return self.value[0]

    @property
    def reason(self) -> str:
        return self.value[1]


def authorize(header: bytes | None, file_bytes: bytes | None) -> Access:
    """header: the value of Authorization, None where it was not sent. file_bytes: the token file as it is now
    (it may rotate, so read it for every request), None where there is none or it cannot be read.

    White space around the file's token is not part of it. The comparison takes the same time wherever the two
    differ; only the lengths may be told apart.
    """
    token = (file_bytes or b"").strip()
    if not MIN_TOKEN_BYTES <= len(token) <= MAX_TOKEN_BYTES:
        return Access.OFF
    if header is None:
        return Access.MISSING
    scheme, _, given = header.strip().partition(b" ")
    if scheme.lower() != b"bearer" or not given.strip():
        return Access.MISSING
    return Access.ALLOWED if hmac.compare_digest(given.strip(), token) else Access.WRONG
