"""The API server of bench.operator, alone with its data store, and a small client of it.

Both are of the test bed's build, and run in the network namespace of the bench; no node, no controllers.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp

from tests.bed import build, config, pki
from tests.engine import leash
from tests.engine.processes import tail

Object = dict[str, Any]
_PORT, _ETCD = 6443, 2379
_START_SECONDS = 120.0
ADDRESS = f"https://127.0.0.1:{_PORT}"
MERGE = "application/merge-patch+json"


@contextmanager
def api_server(directory: Path) -> Iterator[Path]:
    """Started in an empty directory; the kubeconfig of its administrator. Ends with whoever started it."""
    keys, kubeconfig = directory / "pki", directory / "admin.conf"
    pki.write(keys)
    keys.joinpath("tokens.csv").write_text('admin,admin,admin,"system:masters"\n')
    kubeconfig.write_text(config.kubeconfig("stanch-bed-bench", ADDRESS, keys / "ca.crt", "admin"))
    kube = build.kube()
    commands = {
        "etcd": config.etcd(kube.program("etcd"), directory / "etcd", _ETCD),
        "kube-apiserver": [
            *config.api_server(kube.program("kube-apiserver"), keys, f"http://127.0.0.1:{_ETCD}", _PORT),
            "--bind-address=127.0.0.1",
        ],
    }
    running: list[subprocess.Popen[bytes]] = []
    try:
        for name, command in commands.items():
            running.append(leash.start(command, directory / f"{name}.log", cwd=directory))
        asyncio.run(_until_ready(kubeconfig, directory))
        yield kubeconfig
    finally:
        for process in running:
            leash.end(process)


async def _until_ready(kubeconfig: Path, directory: Path) -> None:
    end = time.monotonic() + _START_SECONDS
    async with Api(kubeconfig) as api:
        while True:
            try:
                async with api.session.get(f"{ADDRESS}/readyz") as answer:
                    if answer.status == 200:
                        return
            except aiohttp.ClientError:
                pass
            if time.monotonic() > end:
                raise SystemExit(f"no API server:\n{tail(directory / 'kube-apiserver.log', 15)}")
            await asyncio.sleep(0.2)


class Api:
    """A context: requests as the administrator. Every method raises aiohttp's errors."""

    def __init__(self, kubeconfig: Path) -> None:
        found = json.loads(kubeconfig.read_text())
        self.authority = found["clusters"][0]["cluster"]["certificate-authority"]
        self._token = found["users"][0]["user"]["token"]
        self._room = asyncio.Semaphore(20)

    async def __aenter__(self) -> Api:
        self.session = aiohttp.ClientSession(
            headers={"Authorization": f"Bearer {self._token}"},
            connector=aiohttp.TCPConnector(limit=0, ssl=ssl.create_default_context(cafile=self.authority)),
            timeout=aiohttp.ClientTimeout(total=60),
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.session.close()

    async def send(
        self, method: str, path: str, body: object = None, kind: str = "application/json"
    ) -> Object:
        data = None if body is None else json.dumps(body)
        async with self._room, await self._sent(method, path, data, kind) as answer:
            text = await answer.text()
            if answer.status >= 300:
                raise RuntimeError(f"{method} {path}: HTTP {answer.status}: {text[:500]}")
            found: Object = json.loads(text)
            return found

    async def _sent(
        self, method: str, path: str, data: str | None, kind: str, tries: int = 20
    ) -> aiohttp.ClientResponse:
        for _ in range(tries):
            # A server that has just started, on a machine that is full, resets some connections.
            with suppress(aiohttp.ClientConnectorError, aiohttp.ServerDisconnectedError):
                return await self.session.request(
                    method, ADDRESS + path, data=data, headers={"Content-Type": kind}
                )
            await asyncio.sleep(0.5)
        raise SystemExit(f"{method} {path}: no connection in {tries} tries")

    async def watch(self, path: str) -> AsyncIterator[tuple[str, Object]]:
        """Every object now, as ADDED, and then what happens to it, for as long as the server tells."""
        listed = await self.send("GET", path)
        for one in listed["items"]:
            yield "ADDED", one
        version = listed["metadata"]["resourceVersion"]
        async with self.session.get(
            ADDRESS + path,
            params={"watch": "true", "resourceVersion": version},
            timeout=aiohttp.ClientTimeout(total=None),
        ) as answer:
            rest = b""
            async for piece in answer.content.iter_any():
                *lines, rest = (rest + piece).split(b"\n")
                for line in lines:
                    event = json.loads(line)
                    yield event["type"], event["object"]
