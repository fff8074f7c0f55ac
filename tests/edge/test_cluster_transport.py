"""The door to the API server, against a server of the test's own on loopback."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from aiohttp import web

from stanch.edge.cluster import Call, Cluster, Forbidden, Unreachable
from stanch.edge.cluster import transport as door
from stanch.edge.cluster.refs import PODS, Request
from stanch.edge.cluster.transport import Transport

pytestmark = pytest.mark.unit

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
EMPTY = {"kind": "PodList", "metadata": {"resourceVersion": "1"}, "items": []}


def kubeconfig(path: Path, url: str, token: str = "t") -> str:
    cluster = {"name": "c", "cluster": {"server": url}}
    context = {"name": "c", "context": {"cluster": "c", "user": "u"}}
    found = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [cluster],
        "users": [{"name": "u", "user": {"token": token}}],
        "contexts": [context],
        "current-context": "c",
    }
    path.write_text(json.dumps(found))
    return str(path)


def with_token(path: Path, token: str) -> None:
    found = json.loads(path.read_text())
    kubeconfig(path, found["clusters"][0]["cluster"]["server"], token)


def play(handler: Handler, path: Path, scene: Callable[[str], Awaitable[None]]) -> None:
    async def whole() -> None:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", handler)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            await scene(kubeconfig(path, f"http://127.0.0.1:{runner.addresses[0][1]}"))
        finally:
            await runner.cleanup()

    asyncio.run(whole())


def test_says_who_we_are_and_tells_of_every_call(tmp_path: Path) -> None:
    calls: list[Call] = []
    headers: list[dict[str, str]] = []

    async def handler(request: web.Request) -> web.Response:
        headers.append(dict(request.headers))
        return web.json_response(EMPTY)

    async def scene(path: str) -> None:
        async with Cluster(path, on_call=calls.append) as cluster:
            await cluster.pods("shop", "role in (decode,prefill)")

    play(handler, tmp_path / "config", scene)
    assert headers[0]["User-Agent"] == "stanch"
    assert headers[0]["Authorization"] == "Bearer t"
    assert [(call.verb, call.resource, call.code) for call in calls] == [("list", "pods", 200)]


def test_so_many_at_once_and_no_more_but_what_is_urgent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(door, "_AT_ONCE", 3)
    at_once = [0]
    most = [0]
    full, go = asyncio.Event(), asyncio.Event()

    async def handler(request: web.Request) -> web.Response:
        if "urgent" in request.query:
            return web.json_response({})
        at_once[0] += 1
        most[0] = max(most[0], at_once[0])
        if at_once[0] == 3:
            full.set()
        await go.wait()
        at_once[0] -= 1
        return web.json_response({})

    async def scene(path: str) -> None:
        async with Transport(path, None, lambda call: None) as transport:
            asked = [asyncio.create_task(transport.send(Request("list", PODS))) for _ in range(10)]
            await full.wait()
            await transport.send(Request("list", PODS, query={"urgent": "1"}), urgent=True)
            assert not any(task.done() for task in asked)
            go.set()
            await asyncio.gather(*asked)

    play(handler, tmp_path / "config", scene)
    assert most[0] == 3


def test_an_unknown_token_is_read_anew_once(tmp_path: Path) -> None:
    asked: list[str] = []

    async def handler(request: web.Request) -> web.Response:
        asked.append(request.headers["Authorization"])
        if asked[-1] != "Bearer new":
            return web.json_response({"kind": "Status", "message": "Unauthorized"}, status=401)
        return web.json_response(EMPTY)

    async def scene(path: str) -> None:
        async with Cluster(path) as cluster:
            with pytest.raises(Forbidden, match="Unauthorized"):
                await cluster.pods(None)
            with_token(Path(path), "new")
            await cluster.pods(None)

    play(handler, tmp_path / "config", scene)
    assert asked == ["Bearer t", "Bearer t", "Bearer t", "Bearer new"]


@pytest.mark.parametrize(
    ("body", "words"),
    [(b"<html>hello</html>", "is not JSON"), (b"[]", "is no object"), (b'{"items"', "is not JSON")],
    ids=["html", "list", "cut"],
)
def test_what_is_no_answer_of_an_api_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: bytes, words: str
) -> None:
    monkeypatch.setattr(door, "_PAUSES", ())

    async def handler(request: web.Request) -> web.Response:
        return web.Response(body=body)

    async def scene(path: str) -> None:
        async with Cluster(path) as cluster:
            with pytest.raises(Unreachable, match=f"list pods: .*{words}"):
                await cluster.pods(None)

    play(handler, tmp_path / "config", scene)


def test_a_connection_that_breaks_off_in_the_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "_PAUSES", ())

    async def handler(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse(headers={"Content-Length": "1000"})
        await answer.prepare(request)
        await answer.write(b'{"items": [')
        assert request.transport is not None
        request.transport.abort()
        return answer

    async def scene(path: str) -> None:
        async with Cluster(path) as cluster:
            with pytest.raises(Unreachable, match="list pods: no answer"):
                await cluster.pods(None)

    play(handler, tmp_path / "config", scene)


def test_who_asked_may_leave(tmp_path: Path) -> None:
    """A request that is cancelled gives its place back."""
    began = asyncio.Event()

    async def handler(request: web.Request) -> web.Response:
        if "slow" in request.query:
            began.set()
            await asyncio.sleep(3600)
        return web.json_response({})

    async def scene(path: str) -> None:
        async with Transport(path, None, lambda call: None) as transport:
            for _ in range(40):
                began.clear()
                task = asyncio.create_task(transport.send(Request("list", PODS, query={"slow": "1"})))
                await began.wait()
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            await transport.send(Request("list", PODS))

    play(handler, tmp_path / "config", scene)
