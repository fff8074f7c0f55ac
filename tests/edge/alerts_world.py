"""A receiver of alerts on loopback, a small API server behind it, and clients of every kind."""

from __future__ import annotations

import asyncio
import io
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from stanch.edge.alerts import receiving
from stanch.edge.alerts_listener import Bounds
from stanch.edge.alerts_server import ROUTE
from stanch.edge.cluster import Cluster
from stanch.edge.journal import Journal
from stanch.edge.telemetry import Telemetry
from stanch.settings import Settings
from tests.edge.fake_vllm import until
from tests.edge.small_cluster import NAMESPACE, SmallCluster
from tests.engine.processes import free_ports

TOKEN, OTHER = "0123456789abcdef-right", "0123456789abcdef-other"
START = "2026-11-30T04:42:21.123Z"
Raw = dict[str, Any]


def alert(pod: str = "d0", **differs: Any) -> Raw:
    """One that fires, as Alertmanager 0.25 sends it."""
    labels = {"alertname": "EngineHoldsCache", "namespace": NAMESPACE, "pod": pod, "engine": "0"}
    found = {
        "status": "firing",
        "labels": labels,
        "annotations": {"summary": f"{pod} holds its cache for nobody"},
        "startsAt": START,
        "endsAt": "0001-01-01T00:00:00Z",
        "generatorURL": "http://prometheus:9090/graph?g0.expr=x",
        "fingerprint": "6d5b3a4c0e1f2a3b",
    }
    return {**found, **differs}


def payload(*alerts: Raw, **differs: Any) -> Raw:
    found = {
        "version": "4",
        "groupKey": '{}:{alertname="EngineHoldsCache"}',
        "truncatedAlerts": 0,
        "status": "firing",
        "receiver": "stanch",
        "groupLabels": {"alertname": "EngineHoldsCache"},
        "commonLabels": {"alertname": "EngineHoldsCache"},
        "commonAnnotations": {},
        "externalURL": "http://alertmanager:9093",
        "alerts": list(alerts),
    }
    return {**found, **differs}


@dataclass(frozen=True)
class Answer:
    code: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def data(self) -> Any:
        return json.loads(self.body)


@dataclass
class World:
    """api: the server behind. log: what the receiver wrote. port: its own."""

    api: SmallCluster
    telemetry: Telemetry
    log: io.StringIO
    port: int = 0
    tls: ssl.SSLContext | None = None
    task: asyncio.Future[Any] | None = None
    token: str | None = TOKEN

    async def send(self, body: object, token: str | None = "", **headers: str) -> Answer:
        """POST it, as Alertmanager does. token: another than the right one; None for none."""
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        known = self.token if token == "" else token
        sent = {"Content_Type": "application/json", "Content_Length": str(len(raw))}
        if known is not None:
            sent["Authorization"] = f"Bearer {known}"
        return await self.ask("POST", ROUTE, raw, **{**sent, **headers})

    async def ask(self, method: str, path: str, body: bytes = b"", **headers: str) -> Answer:
        lines = [f"{name.replace('_', '-')}: {text}" for name, text in headers.items()]
        head = "\r\n".join([f"{method} {path} HTTP/1.1", "Host: stanch", *lines, "", ""])
        return answer(await self.raw(head.encode() + body))

    async def raw(self, data: bytes, end: bool = False) -> bytes:
        """Send these bytes on a connection of their own; all that comes back until the server ends it."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, ssl=self.tls)
        try:
            writer.write(data)
            await writer.drain()
            if end and writer.can_write_eof():
                writer.write_eof()
            return await asyncio.wait_for(reader.read(), 20)
        finally:
            writer.close()

    def lines(self, event: str = "") -> list[Raw]:
        found = [json.loads(line) for line in self.log.getvalue().splitlines()]
        return [line for line in found if not event or line["event"] == event]

    def counted(self, result: str) -> float:
        value = self.telemetry.families.registry.get_sample_value(
            "stanch_alerts_received_total", {"result": result}
        )
        assert value is not None
        return value

    async def worked(self, **results: int) -> None:
        """Until so many alerts came to this."""
        await until(lambda: all(self.counted(name) >= n for name, n in results.items()), 30)
        assert {name: self.counted(name) for name in results} == results

    def pod(self, name: str = "d0", uid: str = "", **status: Any) -> Raw:
        raw: Raw = {"metadata": {"uid": uid or f"uid-{name}"}, "spec": {}}
        raw["status"] = {"phase": "Running", "podIP": "10.0.0.7", **status}
        return self.api.put("pods", name, raw)


def answer(raw: bytes) -> Answer:
    head, _, body = raw.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = {name.lower(): text.strip() for name, _, text in (line.partition(":") for line in lines)}
    return Answer(int(first.split()[1]), headers, body)


SMALL = Bounds(connection_seconds=30.0)


@asynccontextmanager
async def world(
    path: Path, bounds: Bounds = SMALL, token_file: str | None = f"{TOKEN}\n", **settings: Any
) -> AsyncIterator[World]:
    """A receiver that takes alerts. token_file: what is in it; None for no such file."""
    given = Settings(host="127.0.0.1", alerts_port=1)
    if token_file is not None:
        (path / "token").write_text(token_file)
        given = replace(given, alerts_token_file=path / "token")
    log = io.StringIO()
    telemetry = Telemetry(Journal(log))
    async with SmallCluster(path) as api, Cluster(api.config) as cluster:
        found = World(api, telemetry, log, token=TOKEN if token_file is not None else None)
        given = replace(given, alerts_port=free_ports(1), **settings)
        async with receiving(given, cluster, telemetry, lambda: 1_800_000_000.0, bounds) as task:
            found.port, found.task = given.alerts_port, task
            yield found
        assert all(line["event"] != "alerts-not-answered" for line in found.lines()), found.lines()


def play(script: Callable[[World], Awaitable[None]], path: Path, **more: Any) -> None:
    async def whole() -> None:
        async with world(path, **more) as found:
            await asyncio.wait_for(script(found), 120)

    asyncio.run(whole())
