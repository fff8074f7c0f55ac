"""A router as small as one can be: every completion goes through a prefill and then a decode engine.

Told by what a DisaggDeployment tells its router (docs/deployments.md). The bed has no DNS, so the Services
are found by the addresses that Kubernetes puts into every container's environment.
"""

from __future__ import annotations

import os
import uuid
from typing import Any

import aiohttp
from aiohttp import web

_ASK = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}
_PATH = "/v1/completions"
_SESSION = web.AppKey("session", aiohttp.ClientSession)


def url(role: str) -> str:
    """The Service of a role."""
    service = os.environ[f"STANCH_{role}_SERVICE"].upper().replace("-", "_")
    return f"http://{os.environ[f'{service}_SERVICE_HOST']}:{os.environ[f'STANCH_{role}_PORT']}"


async def complete(request: web.Request) -> web.Response:
    body: dict[str, Any] = await request.json()
    headers = {"X-Request-Id": request.headers.get("X-Request-Id", uuid.uuid4().hex)}
    first = {**body, "max_tokens": 1, "kv_transfer_params": _ASK}
    session = request.app[_SESSION]
    async with session.post(url("PREFILL") + _PATH, json=first, headers=headers) as answer:
        if answer.status != 200:
            return web.Response(status=answer.status, body=await answer.read())
        params = (await answer.json())["kv_transfer_params"]
    body["kv_transfer_params"] = params
    async with session.post(url("DECODE") + _PATH, json=body, headers=headers) as answer:
        return web.Response(status=answer.status, body=await answer.read(), content_type="application/json")


def app() -> web.Application:
    made = web.Application()
    made.router.add_post(_PATH, complete)
    made.cleanup_ctx.append(_with_session)
    return made


async def _with_session(made: web.Application) -> Any:
    # A connection for each request, so that a Service chooses anew.
    connector = aiohttp.TCPConnector(force_close=True)
    async with aiohttp.ClientSession(connector=connector) as session:
        made[_SESSION] = session
        yield


if __name__ == "__main__":
    web.run_app(app(), port=int(os.environ["STANCH_ROUTER_PORT"]), print=None)
