"""vLLM's own --api-key for the kit's paths, which vLLM's guard does not cover (it guards by prefixes
such as /v1).

The rule is vLLM's (entrypoints/serve/middleware/authenticate.py, 0.29.0): `Authorization: Bearer KEY`,
any of the keys; the command line goes before VLLM_API_KEY; compared by digest in constant time.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Iterable
from typing import Any


class UnknownKeysError(Exception):
    """Whether a key is needed cannot be told; nothing that needs one may be served."""


def keys_of(app_state: Any) -> list[str]:
    """The keys that this server was started with. Raises UnknownKeysError."""
    args = getattr(app_state, "args", None)
    if args is None or not hasattr(args, "api_key"):
        raise UnknownKeysError("the server's arguments are not where the kit knows them")
    given = args.api_key
    if isinstance(given, str):
        given = [given]
    return [key for key in (given or [os.environ.get("VLLM_API_KEY")]) if key]


def allowed(authorization: bytes | None, keys: Iterable[str]) -> bool:
    """Whether the value of Authorization opens; always, where there is no key."""
    digests = [hashlib.sha256(key.encode()).digest() for key in keys]
    if not digests:
        return True
    scheme, _, given = (authorization or b"").partition(b" ")
    if scheme.lower() != b"bearer":
        return False
    digest = hashlib.sha256(given).digest()
    match = False
    for one in digests:
        match |= secrets.compare_digest(digest, one)
    return match
