"""The one door to the API server: a request, its time-out, its errors. The client is kubernetes.aio 37.0,
of which only what authenticates and sends is used; it is imported at the first connection."""

from __future__ import annotations

import asyncio
import json
import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from stanch.edge.cluster.errors import ClusterError, Forbidden, Object, Unreachable, error_of
from stanch.edge.cluster.refs import Request
from stanch.edge.text import one_line

REQUEST_SECONDS = 10.0
_AT_ONCE = 16
# A read is tried again after these pauses, as long as its time is not over.
_PAUSES = (0.1, 0.3, 1.0, 2.0)


@dataclass(frozen=True, slots=True)
class Call:
    """One request that ended, for metrics. verb, resource: as RBAC has them ("create", "pods/eviction").
    code: HTTP's; 0 where no answer came."""

    verb: str
    resource: str
    code: int
    seconds: float


class Transport:
    """A context with the connections. kubeconfig: None for the service account of the pod that we are in.
    Entering raises ClusterError where the configuration cannot be used."""

    def __init__(self, kubeconfig: str | None, context: str | None, on_call: Callable[[Call], None]) -> None:
        self._kubeconfig = kubeconfig
        self._context = context
        self._on_call = on_call
        self._room = asyncio.Semaphore(_AT_ONCE)
        self._client: Any = None

    async def __aenter__(self) -> Transport:
        from kubernetes.aio.client import Configuration
        from kubernetes.aio.client.api_client import ApiClient

        configuration = Configuration()
        await self._load(configuration)
        try:
            self._client = ApiClient(configuration)
        except (OSError, ValueError) as error:  # ssl.SSLError is one
            said = f"its certificates or its key cannot be used: {error}"
            raise ClusterError(f"{self._named}: {said}") from error
        self._client.user_agent = "stanch"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.close()

    async def send(self, request: Request, seconds: float | None = None, urgent: bool = False) -> bytes:
        """Send it once; the body of the answer. seconds: for all of it (else REQUEST_SECONDS), but the wait
        for a place among the requests in flight, which an urgent one need not have. Raises ClusterError."""
        seconds = REQUEST_SECONDS if seconds is None else seconds
        async with AsyncExitStack() as stack:
            if not urgent:
                await stack.enter_async_context(self._room)
            try:
                return await self._once(request, seconds)
            except Forbidden as error:
                if error.code != 401:
                    raise
            # Not known: nothing was done, so it may be sent again, with what the files say by now.
            await self._load(self._client.configuration)
            return await self._once(request, seconds)

    async def write(self, request: Request) -> Object:
        """Send it once; the object in the answer. Raises ClusterError."""
        return decoded(request, await self.send(request))

    async def read(self, request: Request) -> Object:
        """Send what may be sent twice, again while the server is in trouble, as often and as late as it asks;
        the object in the answer, within REQUEST_SECONDS. Raises ClusterError."""
        end = time.monotonic() + REQUEST_SECONDS
        for pause in (*_PAUSES, None):
            try:
                return decoded(request, await self.send(request, end - time.monotonic()))
            except Unreachable as error:
                if pause is None:
                    raise
                wait = max(error.retry_after or 0.0, pause * random.uniform(0.5, 1.5))
                if time.monotonic() + wait >= end:
                    raise
            await asyncio.sleep(wait)
        raise AssertionError("the last try returns or raises")

    async def _once(self, request: Request, seconds: float) -> bytes:
        with _told(request, seconds):
            response = await self._ask(request, seconds)
            async with response:
                return await response.read()

    async def _ask(self, request: Request, seconds: float) -> aiohttp.ClientResponse:
        """The answer, its body not read yet. Raises ClusterError where it is not a success."""
        start, code = time.monotonic(), 0
        try:
            sent = await self._signed(request)
            limit = aiohttp.ClientTimeout(total=seconds, ceil_threshold=1e9)
            answer = await self._client.call_api(*sent[:4], _request_timeout=limit)
            response: aiohttp.ClientResponse = answer.response
            code = response.status
            if not 200 <= code < 300:
                async with response:
                    raise error_of(request.what, code, await response.read(), response.headers)
            return response
        finally:
            self._on_call(Call(request.verb, request.kind, code, time.monotonic() - start))

    async def _signed(self, request: Request) -> Any:
        """Method, URL, headers and body."""
        try:
            return await self._client.param_serialize(
                request.method,
                request.path,
                query_params=list(request.query.items()),
                header_params={"Accept": "application/json", "Content-Type": request.media},
                body=request.body,
                auth_settings=["BearerToken"],
            )
        except Exception as error:  # what its hooks meet when they read the token's file anew
            raise Forbidden(f"{request.what}: our credentials cannot be read: {error}") from error

    async def _load(self, configuration: Any) -> None:
        """Read the address and the credentials anew. Raises ClusterError."""
        from kubernetes.aio import config

        if self._kubeconfig is None:
            try:
                config.load_incluster_config(configuration)
            except (config.ConfigException, OSError) as error:
                raise ClusterError(f"not in a pod of Kubernetes: {error} Name a kubeconfig.") from error
            return
        # Of files that do not exist the client makes an empty configuration, not an error.
        if not _is_there(self._kubeconfig):
            raise ClusterError(f"{self._named}: there is no such file, or no right to see it")
        try:
            await config.load_kube_config(
                self._kubeconfig, self._context, configuration, persist_config=False
            )
        except Exception as error:  # ConfigException, and whatever a file of another shape leads to
            raise ClusterError(f"{self._named}: {type(error).__name__}: {error}") from error
        if not _is_address(configuration.host):
            said = f"the server's address {str(configuration.host)[:100]!r} is none of http or https"
            raise ClusterError(f"{self._named}: {said}")
        if not isinstance(configuration.tls_server_name, (str, type(None))):
            raise ClusterError(f"{self._named}: its tls-server-name is no text: quote it")

    @property
    def _named(self) -> str:
        return "the pod's own account" if self._kubeconfig is None else f"kubeconfig {self._kubeconfig}"


def _is_address(host: object) -> bool:
    """Whether something could be asked there: the client itself asks again and again."""
    try:
        found = urlsplit(str(host))
        return found.scheme in ("http", "https") and bool(found.hostname) and found.port != 0
    except ValueError:  # a port above 65535, half an IPv6 address
        return False


def _is_there(kubeconfig: str) -> bool:
    """Whether any of its files is; there may be several, as in the variable KUBECONFIG."""
    # Of os.path: Path's own raise for a name that is too long, or a user that there is not.
    return any(os.path.isfile(os.path.expanduser(part)) for part in kubeconfig.split(os.pathsep))  # noqa: PTH111, PTH113


@contextmanager
def _told(request: Request, seconds: float) -> Iterator[None]:
    """What goes wrong with the connection, as an error of ours."""
    try:
        yield
    except asyncio.TimeoutError as error:
        raise Unreachable(f"{request.what}: no answer within {seconds:.3g} s") from error
    except (aiohttp.ClientError, OSError, ValueError) as error:
        said = str(error) or type(error).__name__
        raise Unreachable(f"{request.what}: no answer: {one_line(said, 300)}") from error


def decoded(request: Request, body: bytes) -> Object:
    """The object that the answer is. Raises Unreachable where it is none, as from a proxy in between."""
    try:
        found = json.loads(body)
    except ValueError as error:
        raise Unreachable(f"{request.what}: the answer is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise Unreachable(f"{request.what}: the answer is no object")
    return found
