"""Stand-ins for an API server over real HTTP; FakeApi has canned answers by path, and what it was asked."""

from __future__ import annotations

import json
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from aiohttp import web
from aiohttp.test_utils import TestServer

_Self = TypeVar("_Self", bound="ApiServer")


def refusal(code: int, reason: str, message: str, **details: Any) -> tuple[int, dict[str, Any]]:
    """A Status, as the API server sends it."""
    body = {"kind": "Status", "status": "Failure", "reason": reason, "message": message, "code": code}
    return code, {**body, "details": details}


class ApiServer:
    """Whatever is asked of it goes to `answer`. An asynchronous context manager."""

    def __init__(self) -> None:
        self._server: TestServer | None = None

    async def answer(self, request: web.Request) -> web.Response:
        raise NotImplementedError

    async def __aenter__(self: _Self) -> _Self:
        application = web.Application()
        application.router.add_route("*", "/{path:.*}", self.answer)
        self._server = TestServer(application)
        await self._server.start_server()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        await self._server.close()

    def kubeconfig(self, path: Path, namespace: str = "shop") -> str:
        """Writes one for this server, whose context has that namespace; its name."""
        assert self._server is not None
        context = {"cluster": "c", "user": "u", "namespace": namespace}
        found = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "here",
            "clusters": [{"name": "c", "cluster": {"server": str(self._server.make_url(""))}}],
            "contexts": [{"name": "here", "context": context}],
            "users": [{"name": "u", "user": {"token": "t"}}],
        }
        path.write_text(json.dumps(found))
        return str(path)


class FakeApi(ApiServer):
    """answers: by "VERB path"; what is not there is unknown, as a path that no API serves."""

    def __init__(self) -> None:
        super().__init__()
        self.answers: dict[str, tuple[int, Any]] = {}
        self.asked: list[tuple[str, Any]] = []

    async def answer(self, request: web.Request) -> web.Response:
        key = f"{request.method} {request.path}"
        body = await request.text()
        self.asked.append((key, json.loads(body) if body else None))
        if key not in self.answers:
            return web.Response(status=404, text="404 page not found\n")
        status, data = self.answers[key]
        return web.json_response(data, status=status)

    def listing(self, path: str, *items: Any) -> None:
        self.answers[f"GET {path}"] = (200, {"metadata": {"resourceVersion": "7"}, "items": list(items)})
