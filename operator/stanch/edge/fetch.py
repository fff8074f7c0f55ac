"""One page over HTTP: its bytes, or one sentence that says why there are none. No server makes this raise.

Whatever comes must be a plain, whole page of bounded size: no redirect is followed, nothing is decompressed.
"""

from __future__ import annotations

import asyncio
import errno
import os
import ssl
from dataclasses import dataclass

import aiohttp
from yarl import URL

from stanch.edge.text import one_line

# A page of vLLM is 55 kB, of a large data-parallel server a few hundred. Beyond this it is something else.
MOST_BYTES = 10_000_000

HEADERS = {
    "Accept": "text/plain;version=0.0.4,*/*;q=0.1",
    "Accept-Encoding": "identity",
    "User-Agent": "stanch",
}
_TYPES = ("text/plain", "application/openmetrics-text")


@dataclass(frozen=True, slots=True)
class Fetched:
    """What one request brought: a body or a problem, never both.

    answered: the server did speak HTTP, so another request may get a better answer. bytes_read: of the body.
    """

    body: bytes | None = None
    problem: str | None = None
    bytes_read: int = 0
    answered: bool = True


async def fetch(session: aiohttp.ClientSession, url: URL, seconds: float) -> Fetched:
    """GET url; `seconds` is for all of it: name, connection, TLS, headers and body."""
    got: list[bytes] = []
    try:
        response = await session.get(
            url, allow_redirects=False, timeout=aiohttp.ClientTimeout(total=seconds, ceil_threshold=1e9)
        )
    except asyncio.TimeoutError:
        return Fetched(problem=f"no answer within {seconds:.3g} s", answered=False)
    except (aiohttp.ClientError, OSError, ValueError) as error:
        return Fetched(problem=_trouble(error), answered=isinstance(error, aiohttp.ClientResponseError))
    try:
        refusal = _refusal(response)
        if refusal is not None:
            return Fetched(problem=refusal)
        size = 0
        while chunk := await response.content.readany():
            got.append(chunk)
            size += len(chunk)
            if size > MOST_BYTES:
                return Fetched(problem=f"the page is longer than {_megabytes(MOST_BYTES)}", bytes_read=size)
    except asyncio.TimeoutError:
        read = sum(map(len, got))
        return Fetched(
            problem=f"the page did not end within {seconds:.3g} s ({read} bytes came)", bytes_read=read
        )
    except (aiohttp.ClientError, OSError, ValueError) as error:
        return Fetched(problem=_trouble(error), bytes_read=sum(map(len, got)))
    finally:
        # After a whole body the connection has already gone back for the next turn; else this ends it.
        response.close()
    return Fetched(got[0] if len(got) == 1 else b"".join(got), bytes_read=size)


def _refusal(response: aiohttp.ClientResponse) -> str | None:
    """Why the body is not wanted, by what the headers say."""
    headers = response.headers
    if 300 <= response.status < 400:
        location = one_line(headers.get("Location", "nowhere"), 200)
        return f"it redirects to {location} (HTTP {response.status}), which is not followed"
    if response.status != 200:
        return f"it answers HTTP {response.status} {one_line(response.reason or '', 200)}".rstrip()
    encoding = headers.get("Content-Encoding", "").strip().lower()
    if encoding not in ("", "identity"):
        return f"the page is compressed ({one_line(encoding, 200)}), although we asked for it as it is"
    kind = headers.get("Content-Type", "").partition(";")[0].strip().lower()
    if kind and kind not in _TYPES:
        return f"the page is {one_line(kind, 200)}, not text/plain: this may not be the /metrics of vLLM"
    if response.content_length is not None and response.content_length > MOST_BYTES:
        return f"the page is longer than {_megabytes(MOST_BYTES)}"
    return None


def _trouble(error: Exception) -> str:
    """What went wrong between us and the server, as a sentence without our names for it."""
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return f"the host name {error.host} cannot be resolved"
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        cause = error.certificate_error
        why = cause.verify_message if isinstance(cause, ssl.SSLCertVerificationError) else str(cause)
        return f"the TLS certificate is not accepted: {one_line(why, 200)}"
    if isinstance(error, aiohttp.ClientConnectorSSLError):
        return f"TLS failed: {error.os_error.strerror or error.os_error}"
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return "the connection was closed before an answer"
    if isinstance(error, aiohttp.ClientPayloadError):
        return "the page is cut off: the connection ended before the page did"
    if isinstance(error, aiohttp.ClientResponseError):
        return f"the answer is not HTTP: {one_line(error.message, 200)}"
    if isinstance(error, OSError):
        if error.errno == errno.ECONNREFUSED:
            return "the connection was refused"
        if error.errno in (errno.ECONNRESET, errno.EPIPE) or isinstance(error, ConnectionResetError):
            return "the connection was reset"
        return f"no connection: {os.strerror(error.errno) if error.errno and error.errno > 0 else error}"
    return f"no answer: {type(error).__name__}: {error}"


def _megabytes(size: int) -> str:
    return f"{size / 1_000_000:g} MB"
