"""The ASGI middleware for `vllm serve --middleware stanch_connector.apiserver.middleware.StanchMiddleware`.

It answers the kit's own routes, turns new requests away while the engine drains, and hands on all else
untouched: a failure of ours on the way means that the request is handed on.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any, Final

from stanch_connector import contract
from stanch_connector.apiserver import drain
from stanch_connector.apiserver.ask import NoEngineError
from stanch_connector.apiserver.boot import boot_id
from stanch_connector.apiserver.control import Control, load_control
from stanch_connector.apiserver.metrics import Metrics
from stanch_connector.apiserver.releasing import Releasing
from stanch_connector.apiserver.routes import Routes, engine_core_of
from stanch_connector.engine.guard import Guard

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

OWN_PREFIX: Final = "/stanch/"
MAX_BODY_BYTES: Final = 1 << 20


class StanchMiddleware:
    """Made once per API-server process, when its application starts. control: for tests; see control.py.

    Where its own parts cannot be made it hands on everything, as if it were not there.
    """

    def __init__(self, app: App, control: Control | None = None) -> None:
        self.app = app
        self._guard = Guard()
        self._made = False
        try:
            self._make(control)
        except Exception as error:
            self._guard.failed("middleware", error)
        else:
            self._made = True

    def _make(self, control: Control | None) -> None:
        identity = boot_id()
        self._control = control if control is not None else load_control(identity, self._guard)
        self._metrics = Metrics(self._errors)
        self._routes = Routes(identity, self._control, self._guard)
        self._releasing = Releasing(self._guard)
        self._control.releaser = self._releasing.begin

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = self._met(scope) if self._made else None
        if path is None:
            await self.app(scope, receive, send)
            return
        if path.startswith(OWN_PREFIX):
            await self._serve(path, scope, receive, send)
            return
        reason = self._turned_away(path, scope)
        if reason is not None:
            error = {"message": reason, "type": "ServiceUnavailableError", "param": None, "code": 503}
            extra = [(b"connection", b"close"), (b"retry-after", b"1")]
            await _respond(send, 503, {"error": error}, extra)
            return
        if not self._is_work(path):
            if path == "/metrics" or path.startswith("/metrics/"):
                await self._refresh_metrics(scope)
            await self.app(scope, receive, send)
            return
        counted = self._tell("opened")
        try:
            await self.app(scope, receive, send)
        finally:
            if counted:
                self._tell("closed")

    def _met(self, scope: Scope) -> str | None:
        """The path of a request; None for what is none, and where we failed."""
        try:
            self._releasing.meet(scope)
            path = path_of(scope) if scope["type"] == "http" else None
        except Exception as error:
            self._guard.failed("releasing.meet", error)
            return None
        self._guard.worked("releasing.meet")
        return path

    def _errors(self) -> int:
        """Exceptions caught in this process, the gate's among them."""
        gate = getattr(self._control, "guard", None)
        guards = [self._guard, gate] if isinstance(gate, Guard) else [self._guard]
        return sum(one.total for one in guards)

    async def _refresh_metrics(self, scope: Scope) -> None:
        try:
            if self._guard.disabled is not None:
                self._metrics.silence()
                return
            state = getattr(scope.get("app"), "state", None)
            await self._metrics.refresh(self._routes.ranks, engine_core_of(state))
        except NoEngineError:
            # A server without an engine has nothing to show.
            return
        except Exception as error:
            self._guard.failed("metrics", error)
        else:
            self._guard.worked("metrics")

    def _is_work(self, path: str) -> bool:
        """Whether a drain waits for it: no probe, no metrics page, nothing of the kit's."""
        try:
            work = not drain.passes(path, None, "")
        except Exception as error:
            self._guard.failed("drain.passes", error)
            return True
        self._guard.worked("drain.passes")
        return work

    def _turned_away(self, path: str, scope: Scope) -> str | None:
        if self._guard.disabled is not None:
            return None
        try:
            request_id = header(scope, b"x-request-id")
            reason = self._control.turns_away(path, request_id.decode("latin-1") if request_id else None)
        except Exception as error:
            self._guard.failed("control.turns_away", error)
            return None
        self._guard.worked("control.turns_away")
        return reason

    def _tell(self, what: str) -> bool:
        """Whether it was told."""
        try:
            getattr(self._control, what)()
        except Exception as error:
            self._guard.failed(f"control.{what}", error)
            return False
        self._guard.worked(f"control.{what}")
        return True

    async def _serve(self, path: str, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            status, body = await self._answer(path, scope, receive)
        except Exception as error:
            self._guard.failed("route", error)
            status, body = 500, {"error": f"the kit failed: {type(error).__name__}"}
        else:
            self._guard.worked("route")
        await _respond(send, status, body)

    async def _answer(self, path: str, scope: Scope, receive: Receive) -> tuple[int, Mapping[str, Any]]:
        method = scope.get("method", "GET")
        authorization = header(scope, b"authorization")
        if path == contract.ROUTE_COMMAND:
            if method != "POST":
                return 405, {"error": "only POST"}
            given = authorization.decode("latin-1") if authorization is not None else None
            refusal = self._control.access(given)
            if refusal is not None:
                return refusal
            try:
                body = await read_body(receive)
            except CutOffError:
                return 400, {"error": "the body was cut off; nothing was done"}
            if body is None:
                return 413, {"error": "too long"}
            return self._control.command(body, given)
        if path not in (contract.ROUTE_REQUESTS, contract.ROUTE_STATE, contract.ROUTE_READY):
            return 404, {"error": "not a route of the kit"}
        if method not in ("GET", "HEAD"):
            return 405, {"error": "only GET"}
        state = getattr(scope.get("app"), "state", None)
        if path == contract.ROUTE_REQUESTS:
            return await self._routes.requests(state, authorization)
        if path == contract.ROUTE_STATE:
            return await self._routes.state(state, authorization)
        return await self._routes.ready(state)


def path_of(scope: Scope) -> str:
    """The path below the server's root path, as vLLM's own guard takes it."""
    return str(scope["path"]).removeprefix(scope.get("root_path", ""))


def header(scope: Scope, name: bytes) -> bytes | None:
    """The first header of that (lower-case) name."""
    for key, value in scope.get("headers", ()):
        if key.lower() == name:
            return bytes(value)
    return None


class CutOffError(Exception):
    """The client went before its body had ended."""


async def read_body(receive: Receive) -> bytes | None:
    """The request's body; None where it is longer than MAX_BODY_BYTES. Raises CutOffError."""
    parts = bytearray()
    while True:
        message = await receive()
        if message["type"] != "http.request":
            raise CutOffError
        parts += message.get("body", b"")
        if len(parts) > MAX_BODY_BYTES:
            return None
        if not message.get("more_body", False):
            return bytes(parts)


async def _respond(
    send: Send, status: int, body: Mapping[str, Any], extra: list[tuple[bytes, bytes]] | None = None
) -> None:
    text = json.dumps(body).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(text)).encode()),
        (b"cache-control", b"no-store"),
        *(extra or ()),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": text})
