"""The webhook's port, and how its certificate is kept good: over real TLS, with a real clock of our own."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import ssl
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from stanch.edge.certificates import Issued, issue
from stanch.edge.cluster import Cluster
from stanch.edge.journal import Journal
from stanch.edge.render.kit import KitOptions
from stanch.edge.telemetry import Telemetry
from stanch.edge.telemetry_server import ServeError
from stanch.edge.webhook import Answer, answer
from stanch.edge.webhook_keeper import OfFiles, OwnAuthority
from stanch.edge.webhook_server import PATH, serving_webhook
from stanch.edge.webhook_tls import CertificateError, Tls
from tests.edge.fake_api import ApiServer, refusal
from tests.edge.pod_templates import engine
from tests.edge.test_webhook import pod, review

pytestmark = pytest.mark.unit

HOST = "stanch-webhook.stanch-system.svc"
NOW = 1_900_000_000.0
ANSWERING = partial(answer, options=KitOptions("example.test/stanch:1"))


def told() -> tuple[Telemetry, Callable[[], list[dict[str, Any]]]]:
    out = io.StringIO()
    return Telemetry(Journal(out)), lambda: [json.loads(line) for line in out.getvalue().splitlines()]


@dataclass
class Port:
    """A webhook that is served, and who asks it."""

    tls: Tls
    number: int = 0
    answers: list[Answer | None] = field(default_factory=list)

    async def ask(
        self, authority: bytes, body: bytes | None = None, method: str = "POST", path: str = PATH
    ) -> tuple[int, bytes]:
        """As the API server does. Raises aiohttp.ClientError."""
        trust = ssl.create_default_context(cadata=authority.decode())
        url = f"https://127.0.0.1:{self.number}{path}"
        body = json.dumps(review(pod(engine()))).encode() if body is None else body
        async with (
            aiohttp.ClientSession() as session,
            session.request(method, url, data=io.BytesIO(body), ssl=trust, server_hostname=HOST) as response,
        ):
            return response.status, await response.read()


def fresh(identity: str = "a") -> Issued:
    """One that a client takes by its own clock."""
    return issue([HOST], identity, time.time())


@asynccontextmanager
async def served(answering: Callable[[bytes], Answer] = ANSWERING) -> AsyncIterator[tuple[Port, Issued]]:
    port, issued = Port(Tls()), fresh()
    port.tls.load(issued.certificate, issued.key)
    async with serving_webhook(port.tls, "127.0.0.1", 0, answering, port.answers.append) as port.number:
        yield port, issued


def run(scene: Callable[[], Awaitable[None]]) -> None:
    async def whole() -> None:
        await asyncio.wait_for(scene(), 60)

    asyncio.run(whole())


def test_a_review_is_answered_over_tls() -> None:
    async def scene() -> None:
        async with served() as (port, issued):
            status, body = await port.ask(issued.authority)
            assert (status, json.loads(body)["response"]["patchType"]) == (200, "JSONPatch")
            assert [one.outcome for one in port.answers if one] == ["injected"]

    run(scene)


def test_who_trusts_another_authority_does_not_talk_to_it() -> None:
    async def scene() -> None:
        async with served() as (port, _):
            with pytest.raises(aiohttp.ClientConnectorCertificateError):
                await port.ask(fresh().authority)

    run(scene)


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", PATH, b"{}", 400),
        ("POST", PATH, b"", 400),
        ("POST", PATH, b"x" * (2 * 1024 * 1024 + 1), 413),
        ("GET", PATH, b"", 405),
        ("POST", "/", b"", 404),
    ],
)
def test_what_is_no_review(method: str, path: str, body: bytes, status: int) -> None:
    async def scene() -> None:
        async with served() as (port, issued):
            assert (await port.ask(issued.authority, body, method, path))[0] == status
            assert (await port.ask(issued.authority))[0] == 200

    run(scene)


def test_a_body_that_does_not_come_is_not_waited_for() -> None:
    async def scene() -> None:
        async with served() as (port, issued):
            trust = ssl.create_default_context(cadata=issued.authority.decode())
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", port.number, ssl=trust, server_hostname=HOST
            )
            writer.write(f"POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nx".encode())
            assert b" 408 " in await reader.readline()
            writer.close()

    run(scene)


def test_one_that_says_nothing_and_plain_http_hold_up_nobody() -> None:
    async def scene() -> None:
        async with served() as (port, issued):
            silent = [await asyncio.open_connection("127.0.0.1", port.number) for _ in range(20)]
            silent[0][1].write(b"GET / HTTP/1.1\r\n\r\n")
            assert (await port.ask(issued.authority))[0] == 200
            for _, writer in silent:
                writer.close()

    run(scene)


def once(go: threading.Event) -> Callable[[bytes], Answer]:
    """Answers as ever, but not before it may."""

    def slow(body: bytes) -> Answer:
        assert go.wait(30)
        return ANSWERING(body)

    return slow


def test_a_review_that_takes_long_leaves_the_loop_free() -> None:
    go = threading.Event()

    async def scene() -> None:
        async with served(once(go)) as (port, issued):
            asking = [asyncio.create_task(port.ask(issued.authority)) for _ in range(5)]
            await asyncio.sleep(0)
            go.set()
            assert [status for status, _ in await asyncio.gather(*asking)] == [200] * 5

    run(scene)


def test_of_too_many_at_once_some_are_sent_away() -> None:
    go = threading.Event()

    async def scene() -> None:
        async with served(once(go)) as (port, issued):
            asking = [asyncio.create_task(port.ask(issued.authority)) for _ in range(70)]
            done, _ = await asyncio.wait(asking, return_when=asyncio.FIRST_COMPLETED)
            assert {one.result()[0] for one in done} == {503}
            go.set()
            statuses = [status for status, _ in await asyncio.gather(*asking)]
            assert 64 <= statuses.count(200) < 70
            assert (await port.ask(issued.authority))[0] == 200

    run(scene)


def test_a_port_that_is_taken() -> None:
    async def scene() -> None:
        async with served() as (port, _):
            with pytest.raises(ServeError, match=f"port {port.number}"):
                async with serving_webhook(Tls(), "127.0.0.1", port.number, ANSWERING, print):
                    pass

    run(scene)


def test_another_certificate_counts_from_the_next_connection_on() -> None:
    async def scene() -> None:
        async with served() as (port, first):
            second = fresh("b")
            port.tls.load(second.certificate, second.key)
            assert (await port.ask(second.authority))[0] == 200
            with pytest.raises(aiohttp.ClientConnectorCertificateError):
                await port.ask(first.authority)

    run(scene)


@pytest.mark.parametrize("broken", ["certificate", "key", "pair"])
def test_a_certificate_that_cannot_be_used_leaves_what_was_there(broken: str) -> None:
    async def scene() -> None:
        async with served() as (port, first):
            other = issue([HOST], "b", NOW)
            certificate = b"x" if broken == "certificate" else other.certificate
            key = b"x" if broken == "key" else issue([HOST], "c", NOW).key
            with pytest.raises(CertificateError, match="cannot be used"):
                port.tls.load(certificate, key)
            assert (await port.ask(first.authority))[0] == 200

    run(scene)


def test_files_are_loaded_anew_when_they_change(tmp_path: Path) -> None:
    telemetry, lines = told()

    def write(issued: Issued) -> None:
        (tmp_path / "tls.crt").write_bytes(issued.certificate)
        (tmp_path / "tls.key").write_bytes(issued.key)

    async def scene() -> None:
        async with served() as (port, _):
            files = OfFiles(port.tls, tmp_path, telemetry)
            files.look()
            files.look()
            for name in ("a", "b"):
                issued = fresh(name)
                write(issued)
                files.look()
                assert (await port.ask(issued.authority))[0] == 200
            (tmp_path / "tls.key").write_bytes(b"half of")
            files.look()
            assert (await port.ask(issued.authority))[0] == 200

    run(scene)
    said = [line["message"] for line in lines()]
    assert len(said) == 4
    assert "tls.crt: No such file" in said[0]
    assert said[1].startswith("loaded from")
    assert "cannot be used" in said[3]


class Configuration(ApiServer):
    """An API server with one MutatingWebhookConfiguration, which keeps its resourceVersion."""

    def __init__(self, *bundles: bytes) -> None:
        super().__init__()
        self.version = 1
        self.webhooks: list[dict[str, Any]] = [
            {"name": f"w{number}.stanch.dev", "clientConfig": {"service": {"name": "stanch-webhook"}}}
            for number in range(len(bundles))
        ]
        for webhook, bundle in zip(self.webhooks, bundles, strict=True):
            if bundle:
                webhook["clientConfig"]["caBundle"] = base64.b64encode(bundle).decode()
        self.writes = 0
        # Somebody else writes between our reading and our writing, so often.
        self.meddling = 0
        self.refuses: tuple[int, Any] | None = None

    def bundle(self, number: int = 0) -> bytes:
        return base64.b64decode(self.webhooks[number]["clientConfig"].get("caBundle", ""))

    async def answer(self, request: web.Request) -> web.Response:
        assert request.path == "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/stanch"
        if self.refuses is not None:
            return web.json_response(self.refuses[1], status=self.refuses[0])
        if request.method == "GET":
            found = {
                "metadata": {"name": "stanch", "resourceVersion": str(self.version)},
                "webhooks": self.webhooks,
            }
            if self.meddling:
                self.meddling -= 1
                self.version += 1
            return web.json_response(found)
        assert request.method == "PATCH"
        assert request.content_type == "application/strategic-merge-patch+json"
        patch = await request.json()
        if patch["metadata"]["resourceVersion"] != str(self.version):
            status, body = refusal(409, "Conflict", "the object has been modified")
            return web.json_response(body, status=status)
        for one in patch["webhooks"]:
            mine = next(webhook for webhook in self.webhooks if webhook["name"] == one["name"])
            mine["clientConfig"] |= one["clientConfig"]
        self.version += 1
        self.writes += 1
        return web.json_response({})


@dataclass
class Scene:
    api: Configuration
    cluster: Cluster
    telemetry: Telemetry
    lines: Callable[[], list[dict[str, Any]]]
    now: float = NOW

    def keeper(self, identity: str = "stanch-0") -> OwnAuthority:
        configuration = self.cluster.webhook_configuration("stanch")
        return OwnAuthority(
            Tls(), configuration, [HOST], identity, self.telemetry, lambda: self.now, seconds=7 * 86400
        )

    def said(self) -> list[str]:
        return [f"{line['level']}: {line['message']}" for line in self.lines()]


def keep(tmp_path: Path, *bundles: bytes) -> Callable[[Callable[[Scene], Awaitable[None]]], None]:
    def play(scene: Callable[[Scene], Awaitable[None]]) -> None:
        async def whole() -> None:
            async with Configuration(*bundles) as api, Cluster(api.kubeconfig(tmp_path / "conf")) as cluster:
                await scene(Scene(api, cluster, *told()))

        run(whole)

    return play


def served_by(keeper: OwnAuthority) -> bytes:
    """The authority of what it serves."""
    return keeper.serving.authority


def test_its_authority_comes_into_every_bundle_beside_what_is_there(tmp_path: Path) -> None:
    other = issue([HOST], "stanch-1", NOW)

    async def scene(at: Scene) -> None:
        keeper = at.keeper()
        await keeper.look()
        assert at.api.bundle(0) == served_by(keeper)
        assert at.api.bundle(1) == other.authority + served_by(keeper)
        assert at.api.webhooks[0]["clientConfig"]["service"] == {"name": "stanch-webhook"}
        await keeper.look()
        assert at.api.writes == 1
        assert at.said() == ["info: MutatingWebhookConfiguration stanch has our authority"]

    keep(tmp_path, b"", other.authority)(scene)


def test_two_that_write_at_once_both_stand_in_it(tmp_path: Path) -> None:
    async def scene(at: Scene) -> None:
        first, second = at.keeper(), at.keeper("stanch-1")
        at.api.meddling = 2
        await asyncio.gather(first.look(), second.look())
        assert {served_by(first), served_by(second)} == {
            part + b"-----END CERTIFICATE-----\n"
            for part in at.api.bundle().split(b"-----END CERTIFICATE-----\n")
            if part
        }

    keep(tmp_path, b"")(scene)


def test_what_somebody_took_out_comes_back(tmp_path: Path) -> None:
    async def scene(at: Scene) -> None:
        keeper = at.keeper()
        await keeper.look()
        del at.api.webhooks[0]["clientConfig"]["caBundle"]
        await keeper.look()
        assert at.api.bundle() == served_by(keeper)

    keep(tmp_path, b"")(scene)


def test_a_new_one_is_known_before_it_is_served(tmp_path: Path) -> None:
    async def scene(at: Scene) -> None:
        keeper = at.keeper()
        await keeper.look()
        old = served_by(keeper)
        at.now = NOW + 7 * 86400 * 2 / 3
        await keeper.look()
        # Both are trusted, and the old one is still served: the API server may not know of the new one yet.
        assert served_by(keeper) == old
        assert at.api.bundle().startswith(old)
        assert at.api.bundle().count(b"BEGIN") == 2
        at.now += 59
        await keeper.look()
        assert served_by(keeper) == old
        at.now += 1
        await keeper.look()
        assert served_by(keeper) != old
        assert at.api.bundle().endswith(served_by(keeper))
        at.now = NOW + 7 * 86400 + 1
        await keeper.look()
        assert at.api.bundle() == served_by(keeper)

    keep(tmp_path, b"")(scene)


def test_a_new_one_that_cannot_be_published_is_not_served(tmp_path: Path) -> None:
    async def scene(at: Scene) -> None:
        keeper = at.keeper()
        await keeper.look()
        old = served_by(keeper)
        at.api.refuses = refusal(403, "Forbidden", "may not")
        at.now = NOW + 5 * 86400
        for _ in range(3):
            await keeper.look()
            at.now += 3600
        assert served_by(keeper) == old
        at.api.refuses = None
        await keeper.look()
        at.now += 60
        await keeper.look()
        assert served_by(keeper) != old
        assert sum("may not" in line for line in at.said()) == 1

    keep(tmp_path, b"")(scene)


def test_without_a_configuration_that_is_said_once(tmp_path: Path) -> None:
    async def scene(at: Scene) -> None:
        keeper = at.keeper()
        at.api.refuses = refusal(404, "NotFound", "no such thing")
        await keeper.look()
        await keeper.look()
        assert len(at.said()) == 1
        assert "warning: there is no MutatingWebhookConfiguration stanch" in at.said()[0]
        at.api.refuses = None
        await keeper.look()
        assert "has our authority" in at.said()[1]

    keep(tmp_path, b"")(scene)
