"""The simulated fleet: two prefill and three decode engines and a router, each a process on loopback."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import aiohttp

from stanch.edge.demo.child import Child, StartError
from stanch.edge.demo.deployment import Member, Traffic, write_annotations
from stanch.edge.waking import ended

_Self = TypeVar("_Self", bound="Fleet")

_ENGINE = "stanch.edge.demo.engine"
_ROUTER = "stanch.edge.demo.router"
_ROLES = {
    "prefill-0": "prefill",
    "prefill-1": "prefill",
    "decode-0": "decode",
    "decode-1": "decode",
    "decode-2": "decode",
}
_BLOCKS = 100
# A real engine ends within 2.4 s of SIGTERM (vLLM 0.29.0, --shutdown-timeout 0).
_TERM_SECONDS = 5.0
# How soon a process that has ended is seen, and started again; also where its port is not free yet.
_LOOK_SECONDS = 0.2


class Fleet:
    """A Deployment, and an async context manager: everything runs inside, nothing is left outside."""

    def __init__(self, seed: int = 0) -> None:
        self._seed = seed
        self._children: dict[str, Child] = {}
        self._session: aiohttp.ClientSession | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._keeping: asyncio.Task[None] | None = None

    async def __aenter__(self: _Self) -> _Self:
        self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5))
        self._folder = tempfile.TemporaryDirectory(prefix="stanch-demo-")
        try:
            for name in _ROLES:
                self.annotate(name, {})
            starts = (self._start_engine(name, 0) for name in _ROLES)
            # All of them, also when one fails: what is still starting would escape us.
            for outcome in await asyncio.gather(*starts, return_exceptions=True):
                if outcome is not None:
                    raise outcome
            self._children["router"] = await Child.start(_ROUTER, self._router_flags())
        except BaseException:
            await self._end()
            raise
        self._keeping = asyncio.create_task(self._keep())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._end()

    @property
    def kind(self) -> str:
        return "simulated"

    @property
    def engines(self) -> tuple[Member, ...]:
        """The engines as they are now."""
        found = ((name, role, self._children[name]) for name, role in _ROLES.items())
        return tuple(
            Member(name, role, _url(child), child.pid if child.alive else None) for name, role, child in found
        )

    @property
    def router(self) -> str:
        """The router's URL."""
        return _url(self._children["router"])

    async def traffic(self) -> Traffic:
        stats: dict[str, Any] = await self._get(f"{self.router}/stats")
        # JSON has no tuples.
        fields: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in stats.items()}
        return Traffic(**fields)

    async def plant(self, name: str, requests: int, seconds: float) -> None:
        """The next so many P/D requests to this engine meet the defect, within that time of the first."""
        body = {"requests": requests, "seconds": seconds}
        await self._post(f"{_url(self._children[name])}/sim/plant", body)

    def annotate(self, name: str, annotations: Mapping[str, str]) -> None:
        """Show these annotations to the engine."""
        write_annotations(self._annotations(name), annotations)

    def log(self, name: str, lines: int) -> str:
        return self._children[name].log(lines)

    async def health(self, name: str) -> bool:
        """What a liveness probe sees: whether /health answers 200 within a second."""
        assert self._session is not None
        try:
            url, patience = f"{_url(self._children[name])}/health", aiohttp.ClientTimeout(total=1)
            async with self._session.get(url, timeout=patience) as answer:
                return answer.status == 200
        except (aiohttp.ClientError, asyncio.TimeoutError):
            return False

    async def _keep(self) -> None:
        """Start whatever has ended again, at its own address."""
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            for name in _ROLES:
                child = self._children[name]
                if child.alive:
                    continue
                try:
                    await self._start_engine(name, child.port)
                except StartError:
                    continue
                child.kill()

    async def _start_engine(self, name: str, port: int) -> None:
        flags = ["--name", name, "--role", _ROLES[name], "--port", str(port), "--seed", str(self._seed)]
        flags += ["--blocks", str(_BLOCKS), "--annotations", str(self._annotations(name))]
        self._children[name] = await Child.start(_ENGINE, flags)

    def _annotations(self, name: str) -> Path:
        assert self._folder is not None
        return Path(self._folder.name) / name

    def _router_flags(self) -> list[str]:
        flags = ["--seed", str(self._seed)]
        for engine in self.engines:
            flags += [f"--{engine.role}", f"{engine.name}={engine.url}"]
        return flags

    async def _get(self, url: str) -> Any:
        assert self._session is not None
        async with self._session.get(url) as answer:
            answer.raise_for_status()
            return await answer.json()

    async def _post(self, url: str, body: dict[str, Any]) -> None:
        assert self._session is not None
        async with self._session.post(url, json=body) as answer:
            answer.raise_for_status()

    async def _end(self) -> None:
        # All are told first, so that they end side by side; whatever interrupts the waiting, none is left.
        try:
            if self._keeping is not None:
                await ended(self._keeping)
            for child in self._children.values():
                child.terminate()
            if self._session is not None:
                await self._session.close()
            await asyncio.gather(*(child.end(_TERM_SECONDS) for child in self._children.values()))
        finally:
            for child in self._children.values():
                child.kill()
            if self._folder is not None:
                self._folder.cleanup()


def _url(child: Child) -> str:
    return f"http://127.0.0.1:{child.port}"
