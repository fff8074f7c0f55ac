"""The door for alerts: who may come in, and what is answered.

Before anything is read of a body: who it is, whether the address is right, and whether there were too many.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

from aiohttp import web

from stanch.edge.alerts_access import Certificates, Tokens
from stanch.edge.alerts_intake import Intake
from stanch.edge.alerts_listener import Bounds, Listener
from stanch.edge.alerts_payload import PayloadError, parse
from stanch.edge.errors import FileError
from stanch.edge.executor import Note
from stanch.edge.metrics import Families

ROUTE: Final = "/alerts/v4"


@dataclass(slots=True)
class Bucket:
    """So many at once, and then so many a second. left, at: what was there at that moment."""

    rate: float
    burst: float
    left: float
    at: float

    def take(self, now: float) -> float:
        """0 where there was one; else after how many seconds there will be."""
        self.left = min(self.burst, self.left + (now - self.at) * self.rate)
        self.at = now
        if self.left < 1.0:
            return (1.0 - self.left) / self.rate
        self.left -= 1.0
        return 0.0


class _RefusedError(Exception):
    """The answer, where it is not the good one."""

    def __init__(self, status: HTTPStatus, *errors: str, **headers: str) -> None:
        self.status, self.errors, self.headers = status, errors, headers


class Door:
    """Answers one request at a time from each of its connections. tokens, certificates: at least one."""

    def __init__(
        self,
        intake: Intake,
        families: Families,
        note: Note,
        tokens: Tokens | None,
        certificates: Certificates | None,
        bounds: Bounds | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        if tokens is None and (certificates is None or not certificates.mutual):
            raise ValueError("alerts are taken from those who are known only")
        self._bounds = bounds = bounds or Bounds()
        self._intake = intake
        self._families = families
        self._note = note
        self._tokens = tokens
        self._monotonic = monotonic
        self._bucket = Bucket(bounds.rate, bounds.burst, bounds.burst, monotonic())
        self._said: dict[str, float] = {}
        self.listener = Listener(self.answer, self._nonsense, note, certificates, bounds)

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        """Whatever is asked, in whatever shape: an answer, never an error."""
        headers: dict[str, str] = {}
        try:
            status, data = await self._good(request)
        except _RefusedError as refused:
            status, headers = refused.status, refused.headers
            data = {"schema": "stanch.alerts/1", "errors": list(refused.errors)} if refused.errors else {}
        except (asyncio.CancelledError, ConnectionError):
            raise
        except Exception as error:
            self._note("error", "alerts-not-answered", f"{type(error).__name__}: {error}")
            status, data = HTTPStatus.INTERNAL_SERVER_ERROR, {}
        self._families.alert_requests.labels(str(status.value)).inc()
        body = json.dumps(data).encode() + b"\n" if data else b""
        response = web.Response(
            body=body,
            status=status,
            headers={"Server": "stanch", **{name.replace("_", "-"): text for name, text in headers.items()}},
            content_type="application/json" if data else "text/plain",
        )
        response.force_close()
        return response

    async def _good(self, request: web.BaseRequest) -> tuple[HTTPStatus, dict[str, object]]:
        """Raises _RefusedError."""
        self._known(request)
        self.listener.known(request)
        if request.path != ROUTE:
            raise _RefusedError(HTTPStatus.NOT_FOUND, f"there is only {ROUTE}")
        if request.method != "POST":
            raise _RefusedError(HTTPStatus.METHOD_NOT_ALLOWED, f"{ROUTE} takes POST only", Allow="POST")
        wait = self._bucket.take(self._monotonic())
        if wait > 0:
            raise _RefusedError(
                HTTPStatus.TOO_MANY_REQUESTS, "too many requests", Retry_After=f"{int(wait) + 1}"
            )
        try:
            payload = parse(await self._body(request))
        except PayloadError as error:
            self._seldom("alerts-not-understood", str(error)[:500])
            raise _RefusedError(HTTPStatus.BAD_REQUEST, *error.errors) from None
        taken = self._intake.take(payload)
        if taken is None:
            self._seldom("alerts-full", "more alerts wait than there is room for")
            raise _RefusedError(HTTPStatus.SERVICE_UNAVAILABLE, "too many alerts wait", Retry_After="10")
        # Whoever hears of success does not send it again for hours: a crash must not lose what is only here.
        if left := await taken.left(self._bounds.answer_seconds):
            self._seldom("alerts-not-written", left)
            raise _RefusedError(HTTPStatus.SERVICE_UNAVAILABLE, left, Retry_After="5")
        return HTTPStatus.OK, taken.as_data()

    def _known(self, request: web.BaseRequest) -> None:
        """Raises _RefusedError for whoever has no token. Who has no certificate never comes so far."""
        if self._tokens is None:
            return
        try:
            if self._tokens.allow(request.headers.get("Authorization")):
                return
        except FileError as error:
            self._seldom("alerts-token", f"no alert can be taken: {error}", level="error")
            raise _RefusedError(HTTPStatus.SERVICE_UNAVAILABLE, Retry_After="10") from None
        self._seldom(
            "alerts-refused", f"a request without the right token, from {request.remote or 'nobody'}"
        )
        raise _RefusedError(HTTPStatus.UNAUTHORIZED, WWW_Authenticate="Bearer")

    async def _body(self, request: web.BaseRequest) -> bytes:
        """Raises _RefusedError for one that is too long, too slow, or packed."""
        most = self._bounds.body_bytes
        if request.headers.get("Content-Encoding", "identity").lower() != "identity":
            raise _RefusedError(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "Content-Encoding must be identity")
        if request.content_length is not None and request.content_length > most:
            raise _RefusedError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"more than {most} bytes")
        found = bytearray()

        async def read() -> None:
            async for chunk in request.content.iter_any():
                found.extend(chunk)
                if len(found) > most:
                    raise _RefusedError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"more than {most} bytes")

        try:
            await asyncio.wait_for(read(), self._bounds.body_seconds)
        except asyncio.TimeoutError:
            raise _RefusedError(HTTPStatus.REQUEST_TIMEOUT, "the body did not come in time") from None
        except web.RequestPayloadError:
            raise _RefusedError(HTTPStatus.BAD_REQUEST, "the body is not whole") from None
        return bytes(found)

    def _nonsense(self) -> web.Response:
        """To bytes that are no HTTP."""
        status = HTTPStatus.BAD_REQUEST
        self._families.alert_requests.labels(str(status.value)).inc()
        response = web.Response(status=status, headers={"Server": "stanch"})
        response.force_close()
        return response

    def _seldom(self, event: str, message: str, level: str = "warning") -> None:
        """At most one such line a minute: whoever sends us nonsense does not fill the log."""
        now = self._monotonic()
        if now - self._said.get(event, -60.0) >= 60.0:
            self._said[event] = now
            self._note(level, event, message)
