"""The simulated fleet: two prefill and three decode engines and a router, each a process on loopback."""

from __future__ import annotations

import asyncio
import secrets
import time
from dataclasses import dataclass
from types import TracebackType
from typing import Any, TypeVar

import aiohttp

from stanch.edge.demo.child import Child, StartError

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
# For as long as somebody's outgoing connection may sit on the port between two lives.
_SAME_PORT_SECONDS = 15.0


@dataclass(frozen=True, slots=True)
class Member:
    """One engine of the fleet. role: prefill or decode; url has no path; blocks: of its KV cache, usable."""

    name: str
    role: str
    url: str
    pid: int
    blocks: int


@dataclass(frozen=True, slots=True)
class Stuck:
    """A request that holds blocks and runs no more, as the engine itself lists it. cache_share: 0..1."""

    id: str
    status: str
    age_seconds: float
    blocks: int
    cache_share: float
    remote_engine: str | None


@dataclass(frozen=True, slots=True)
class Traffic:
    """The router's counts. gave_up: ids of requests whose clients left; failures: which failed and why.

    planted: ids of requests that were marked to meet the defect, where it takes a mark.
    """

    sent: int
    answered: int
    failed: int
    gave_up: tuple[str, ...]
    failures: tuple[str, ...]
    in_flight: dict[str, int]
    out: tuple[str, ...]
    planted: tuple[str, ...] = ()


class Fleet:
    """An async context manager: everything runs inside, nothing is left outside. kit: whether the engines
    have the engine kit."""

    def __init__(self, seed: int = 0, *, kit: bool = True) -> None:
        self._seed = seed
        self._token = secrets.token_hex(16) if kit else None
        self._children: dict[str, Child] = {}
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self: _Self) -> _Self:
        self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5))
        try:
            starts = (self._start_engine(name, 0) for name in _ROLES)
            # All of them, also when one fails: what is still starting would escape us.
            for outcome in await asyncio.gather(*starts, return_exceptions=True):
                if outcome is not None:
                    raise outcome
            self._children["router"] = await Child.start(_ROUTER, self._router_flags())
        except BaseException:
            await self._end()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._end()

    @property
    def kind(self) -> str:
        return "simulated"

    @property
    def token(self) -> str | None:
        """What the engines' kits take commands by; None where they have none."""
        return self._token

    @property
    def engines(self) -> tuple[Member, ...]:
        """The engines as they are now; a restart changes a pid."""
        return tuple(
            Member(name, role, _url(self._children[name]), self._children[name].pid, _BLOCKS)
            for name, role in _ROLES.items()
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

    async def plant(self, name: str, requests: int = 3) -> None:
        """The next so many P/D requests to this engine meet the defect."""
        await self._post(f"{_url(self._children[name])}/sim/plant", {"requests": requests})

    async def take_out(self, name: str) -> None:
        """Out of the router's rotation: it gets no new request."""
        await self._post(f"{self.router}/out/{name}", {})

    async def put_back(self, name: str) -> None:
        await self._post(f"{self.router}/in/{name}", {})

    async def restart(self, name: str) -> None:
        """End the engine's process, by force if it must be, and start it again on the same port."""
        child = self._children[name]
        port = child.port
        await child.end(_TERM_SECONDS)
        deadline = time.monotonic() + _SAME_PORT_SECONDS
        while True:
            try:
                return await self._start_engine(name, port)
            except StartError:
                if time.monotonic() > deadline:
                    raise

    async def health(self, name: str) -> bool:
        """What a liveness probe sees: whether /health answers 200 within a second."""
        assert self._session is not None
        try:
            url, patience = f"{_url(self._children[name])}/health", aiohttp.ClientTimeout(total=1)
            async with self._session.get(url, timeout=patience) as answer:
                return answer.status == 200
        except (aiohttp.ClientError, asyncio.TimeoutError):
            return False

    async def stuck(self, name: str) -> tuple[Stuck, ...]:
        """The engine's own list of stuck requests, oldest first: only a simulated engine has one."""
        return tuple(
            Stuck(**entry) for entry in await self._get(f"{_url(self._children[name])}/sim/requests")
        )

    async def _start_engine(self, name: str, port: int) -> None:
        flags = ["--name", name, "--role", _ROLES[name], "--port", str(port), "--seed", str(self._seed)]
        flags += ["--blocks", str(_BLOCKS)]
        flags += ["--no-kit"] if self._token is None else ["--token", self._token]
        self._children[name] = await Child.start(_ENGINE, flags)

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
            for child in self._children.values():
                child.terminate()
            if self._session is not None:
                await self._session.close()
            await asyncio.gather(*(child.end(_TERM_SECONDS) for child in self._children.values()))
        finally:
            for child in self._children.values():
                child.kill()


def _url(child: Child) -> str:
    return f"http://127.0.0.1:{child.port}"
