"""The door for alerts: who comes in, and what becomes of those who send too much, too often, too slowly."""

from __future__ import annotations

import asyncio
import gzip
import json
import socket
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from stanch.edge.alerts_listener import Bounds
from stanch.edge.alerts_server import ROUTE, Bucket
from stanch.edge.errors import FileError
from stanch.edge.telemetry_server import ServeError
from tests.edge.alerts_world import OTHER, SMALL, TOKEN, World, alert, answer, payload, play, world
from tests.edge.cli import stanch
from tests.edge.fake_api import FakeApi
from tests.edge.fake_vllm import until

pytestmark = pytest.mark.unit
row = pytest.param


class TestTokens:
    @pytest.mark.parametrize(
        "header",
        [
            row(None, id="none"),
            row("", id="empty"),
            row("Bearer", id="only-the-scheme"),
            row("Bearer ", id="empty-token"),
            row(f"Bearer {TOKEN}x", id="longer"),
            row(f"Bearer {TOKEN[:-1]}", id="shorter"),
            row(f"Bearer {TOKEN.upper()}", id="another-case"),
            row(f"Bearer {TOKEN} {TOKEN}", id="twice"),
            row(f"Basic {TOKEN}", id="another-scheme"),
            row(TOKEN, id="no-scheme"),
            row(f"Bearer {OTHER}", id="of-before-the-rotation"),
            row("Bearer \xe4\xf6\xfc", id="no-ascii"),
        ],
    )
    def test_without_the_right_one_nothing_is_said_and_nothing_happens(
        self, tmp_path: Path, header: str | None
    ) -> None:
        async def script(w: World) -> None:
            w.pod()
            more = {} if header is None else {"Authorization": header}
            for path, method in ((ROUTE, "POST"), ("/", "GET"), ("/metrics", "GET"), (ROUTE, "GET")):
                body = json.dumps(payload(alert())).encode()
                got = await w.ask(method, path, body, Content_Length=str(len(body)), **more)
                assert (got.code, got.body) == (401, b"")
                assert got.headers["www-authenticate"] == "Bearer"
            assert w.api.seen == []
            assert len(w.lines("alerts-refused")) == 1
            assert w.telemetry.families.registry.get_sample_value(
                "stanch_alert_requests_total", {"code": "401"}
            ) == 4  # fmt: skip

        play(script, tmp_path)

    def test_the_scheme_in_any_case(self, tmp_path: Path) -> None:
        async def script(w: World) -> None:
            got = await w.send(payload(), token=None, Authorization=f"bEARER  {TOKEN}")
            assert got.code == 200

        play(script, tmp_path)

    def test_it_is_rotated_while_we_run(self, tmp_path: Path) -> None:
        async def script(w: World) -> None:
            file = tmp_path / "token"
            for known, codes in (
                (f"{TOKEN}\n", (200, 401)),
                (f"{TOKEN}\n{OTHER}", (200, 200)),
                (f"\n{OTHER}\n\n", (401, 200)),
            ):
                file.write_text(known)
                got = [(await w.send(payload(), token=token)).code for token in (TOKEN, OTHER)]
                assert tuple(got) == codes

        play(script, tmp_path)

    @pytest.mark.parametrize(
        "held", [None, "", "\n \n", "short\n", f"{TOKEN}\n{OTHER}\nthree-of-them-456", f"{TOKEN} {OTHER}"]
    )
    def test_a_file_without_a_token_lets_nobody_in(self, tmp_path: Path, held: str | None) -> None:
        async def script(w: World) -> None:
            file = tmp_path / "token"
            file.unlink() if held is None else file.write_text(held)
            for token in (TOKEN, "", " ", None, "short"):
                got = await w.send(payload(alert()), token=token)
                assert (got.code, got.body) == (503, b"")
            (line,) = w.lines("alerts-token")
            assert (line["level"], str(file) in line["message"]) == ("error", True)
            # Put right, it is used again.
            file.write_text(TOKEN)
            assert (await w.send(payload())).code == 200

        play(script, tmp_path)

    @pytest.mark.parametrize("held", ["", "short", "a" * 4097, f"{TOKEN}\n\x00binary-0123456789"])
    def test_it_does_not_start_with_such_a_file(self, tmp_path: Path, held: str) -> None:
        with pytest.raises(FileError, match=r"token: (must hold one token|token \d must have)"):
            play(_never, tmp_path, token_file=held)

    def test_it_never_starts_open(self, tmp_path: Path) -> None:
        with pytest.raises(FileError, match="nothing says who may send alerts: set STANCH_ALERTS_TOKEN_FILE"):
            play(_never, tmp_path, token_file=None)

    def test_the_operator_says_so_and_ends(self, tmp_path: Path) -> None:
        async def whole() -> None:
            async with FakeApi() as api:
                environment = {
                    "KUBECONFIG": api.kubeconfig(tmp_path / "kubeconfig"),
                    "STANCH_ALERTS_PORT": "9095",
                    "STANCH_HTTP_HOST": "127.0.0.1",
                    "STANCH_HTTP_PORT": "0",
                }
                done = await stanch("operator", environment=environment)
            assert (done.code, done.err.count("\n")) == (69, 1)
            assert done.err.startswith("stanch operator: STANCH_ALERTS_PORT is 9095, and nothing says who")

        asyncio.run(whole())

    def test_a_table_that_is_wrong(self, tmp_path: Path) -> None:
        table = tmp_path / "table.yaml"
        table.write_text("mappings:\n  - pod: pod\n")
        with pytest.raises(FileError, match=r"table.yaml:2: mappings.0: pod needs namespace beside it"):
            play(_never, tmp_path, alerts_table=table)


async def _never(_: World) -> None:
    raise AssertionError("it started")


def test_a_port_that_is_taken(tmp_path: Path) -> None:
    async def script(w: World) -> None:
        from stanch.edge.alerts import receiving
        from stanch.edge.cluster import Cluster
        from stanch.settings import Settings

        given = Settings(host="127.0.0.1", alerts_port=w.port, alerts_token_file=tmp_path / "token")
        cluster = Cluster(w.api.config)
        with pytest.raises(ServeError, match=f"alerts cannot be taken on 127.0.0.1 port {w.port}: Address"):
            async with receiving(given, cluster, w.telemetry, lambda: 0.0):
                pass

    play(script, tmp_path)


@pytest.mark.parametrize(
    ("method", "path", "code"),
    [("GET", ROUTE, 405), ("PUT", ROUTE, 405), ("POST", "/", 404), ("POST", f"{ROUTE}/", 404),
     ("POST", "/alerts/v3", 404), ("POST", f"{ROUTE}/../v4", 404), ("OPTIONS", "*", 404)],
)  # fmt: skip
def test_another_address(tmp_path: Path, method: str, path: str, code: int) -> None:
    async def script(w: World) -> None:
        got = await w.ask(method, path, Authorization=f"Bearer {TOKEN}")
        assert (got.code, len(got.data["errors"])) == (code, 1)

    play(script, tmp_path)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        row(b"", "the body is not JSON", id="nothing"),
        row(b"{", "the body is not JSON", id="half"),
        row(b"\xff\xfe", "the body is not JSON", id="bytes"),
        row(b"[]", "the body must be a JSON object", id="a-list"),
        row(b"[" * 500_000, "the body is not JSON: recursion limit", id="a-deep-hole"),
        row(payload(version="3"), "version must be '4', not '3'", id="version"),
        row(payload(version=4), "version must be '4', not 4", id="version-as-a-number"),
        row({k: v for k, v in payload().items() if k != "alerts"}, "alerts is missing", id="no-alerts"),
        row(payload(alerts={}), "alerts must be", id="alerts"),
        row(payload({**alert(), "fingerprint": "a b"}), "alerts.0.fingerprint must match", id="fingerprint"),
        row(payload(alert(startsAt="soon")), "alerts.0.startsAt must be", id="start"),
        row(
            payload(alert(startsAt="2026-11-30T04:42:21")), "alerts.0.startsAt must have timezone", id="zone"
        ),
        row(payload(alert(startsAt=1)), "alerts.0.startsAt must be", id="start-as-a-number"),
        row(payload(alert(startsAt="0001-01-01T00:00:00+14:00")), "between 1970 and 2200", id="year-1"),
        row(payload(alert(startsAt="9999-12-31T23:59:59-12:00")), "between 1970 and 2200", id="year-9999"),
        row(payload(alert(), alert(labels={"pod": 1})), "alerts.1.labels.pod must be a string", id="label"),
        row(payload(alert(labels=None)), "alerts.0.labels must be", id="no-labels"),
        row(payload(*[alert()] * 1001), "alerts", id="too-many"),
        row(payload(truncatedAlerts=-1), "truncatedAlerts must be at least 0", id="truncated"),
    ],
)
def test_which_field_is_wrong(tmp_path: Path, body: object, says: str) -> None:
    async def script(w: World) -> None:
        w.pod()
        got = await w.send(body)
        assert got.code == 400
        assert says in got.data["errors"][0]
        assert w.api.seen == []

    play(script, tmp_path)


def test_what_a_newer_alertmanager_adds_is_ignored(tmp_path: Path) -> None:
    async def script(w: World) -> None:
        w.pod()
        one = {**alert(), "silenceURL": "x", "values": {"A": 1}}
        assert (await w.send({**payload(one), "orgId": 1, "title": None})).code == 200

    play(script, tmp_path)


class TestTooMuch:
    LARGE = json.dumps(payload(alert(annotations={"description": "x" * (1 << 20)}))).encode()

    def test_a_body_that_says_so(self, tmp_path: Path) -> None:
        async def script(w: World) -> None:
            # The answer comes before the body: nothing of it is read.
            got = await w.send(b"", Content_Length=str(len(self.LARGE)))
            assert (got.code, got.data["errors"]) == (413, ["more than 1048576 bytes"])

        play(script, tmp_path)

    def test_a_body_that_does_not(self, tmp_path: Path) -> None:
        async def script(w: World) -> None:
            head = f"POST {ROUTE} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n"
            head += "Transfer-Encoding: chunked\r\n\r\n"
            parts = [b"%x\r\n" % len(self.LARGE), self.LARGE, b"\r\n0\r\n\r\n"]
            assert answer(await w.raw(head.encode() + b"".join(parts))).code == 413

        play(script, tmp_path)

    def test_as_much_as_may_be(self, tmp_path: Path) -> None:
        async def script(w: World) -> None:
            w.pod()
            room = (1 << 20) - len(json.dumps(payload(alert(annotations={"description": ""}))))
            body = json.dumps(payload(alert(annotations={"description": "x" * room}))).encode()
            assert len(body) == 1 << 20
            assert (await w.send(body)).code == 200
            await w.worked(created=1)
            assert w.api.incidents[0]["spec"]["trigger"]["reason"] == "x" * 1024

        play(script, tmp_path)

    def test_a_packed_body_is_not_unpacked(self, tmp_path: Path) -> None:
        async def script(w: World) -> None:
            for kind in ("gzip", "deflate", "br"):
                got = await w.send(gzip.compress(b"0" * (8 << 20)), Content_Encoding=kind)
                assert got.code == 415

        play(script, tmp_path)

    @pytest.mark.parametrize(
        "head",
        [
            row(f"POST /{'a' * 9000} HTTP/1.1\r\n\r\n", id="address"),
            row(f"POST {ROUTE} HTTP/1.1\r\nX-Long: {'a' * 9000}\r\n\r\n", id="header"),
            row(f"POST {ROUTE} HTTP/1.1\r\n" + "X-A: b\r\n" * 100 + "\r\n", id="many-headers"),
            row("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\r\n\r\n", id="tls-on-a-plain-port"),
            row("nonsense\r\n\r\n", id="no-http"),
            row(f"POST {ROUTE} HTTP/9.9\r\n\r\n", id="no-version"),
            row(f"POST {ROUTE} HTTP/1.1\r\nContent-Length: -1\r\n\r\n", id="length"),
            row(f"POST {ROUTE} HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
                id="two-lengths"),
            row("\r\n" * 5000, id="empty-lines"),
        ],
    )  # fmt: skip
    def test_a_head_that_is_none(
        self, tmp_path: Path, head: str, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
    ) -> None:
        async def script(w: World) -> None:
            got = await w.raw(head.encode("latin-1"), end=True)
            assert got == b"" or answer(got).code in (400, 401), got
            assert (await w.send(payload())).code == 200

        play(script, tmp_path)
        assert caplog.records == []
        assert capfd.readouterr().err == ""


class TestTooSlow:
    QUICK = replace(SMALL, connections=2, head_seconds=0.5, body_seconds=0.3)

    def test_nobody_is_held_up_by_those_who_say_nothing(self, tmp_path: Path) -> None:
        """Forty connections for two places: without a word, with half a head, with a head word by word."""

        async def script(w: World) -> None:
            over = asyncio.Event()

            async def slow(first: bytes, drop: bytes) -> None:
                while not over.is_set():
                    with suppress(OSError):
                        reader, writer = await asyncio.open_connection("127.0.0.1", w.port)
                        writer.write(first)
                        reading = asyncio.ensure_future(reader.read())
                        while not reading.done() and not over.is_set():
                            writer.write(drop)
                            await asyncio.sleep(0.05)
                        writer.close()
                        await asyncio.gather(reading, return_exceptions=True)

            head = f"POST {ROUTE} HTTP/1.1\r\n".encode()
            kinds = [(b"", b""), (head, b""), (head, b"X-A: b\r\n"), (b"", b"P")]
            clients = [asyncio.ensure_future(slow(*kind)) for kind in kinds for _ in range(3)]
            try:
                await asyncio.sleep(0.3)
                assert (await w.send(payload())).code == 200
            finally:
                over.set()
                await asyncio.gather(*clients)

        play(script, tmp_path, bounds=self.QUICK)

    @pytest.mark.parametrize("first", [b"", f"POST {ROUTE} HTTP/1.1\r\n".encode()], ids=["silent", "half"])
    def test_those_who_hold_connections_take_nobodys_place(self, tmp_path: Path, first: bytes) -> None:
        """Three hundred of them, held for longer than the test lasts."""

        async def script(w: World) -> None:
            crowd = []
            for number in range(300):
                crowd.append(await asyncio.open_connection("127.0.0.1", w.port))
                crowd[-1][1].write(first)
                if number % 50 == 49:
                    assert (await w.send(payload())).code == 200
            await until(lambda: sum(reader.at_eof() for reader, _ in crowd) >= 300 - SMALL.connections, 30)
            for _, writer in crowd:
                writer.close()

        play(script, tmp_path, bounds=replace(SMALL, head_seconds=300.0, connection_seconds=300.0))

    def test_a_body_that_does_not_come(self, tmp_path: Path) -> None:
        async def script(w: World) -> None:
            got = await w.send(b"{", Content_Length="100")
            assert got.code == 408

        play(script, tmp_path, bounds=self.QUICK)

    @pytest.mark.parametrize(("head", "whole"), [(0.5, 60.0), (60.0, 0.5)], ids=["head", "connection"])
    def test_a_connection_without_a_word_is_ended(self, tmp_path: Path, head: float, whole: float) -> None:
        async def script(w: World) -> None:
            assert await w.raw(b"") == b""
            assert await w.raw(b"POST ") == b""
            assert await w.raw(f"POST {ROUTE} HTTP/1.1\r\n".encode()) == b""

        play(script, tmp_path, bounds=replace(SMALL, head_seconds=head, connection_seconds=whole))

    def test_a_client_that_does_not_read(self, tmp_path: Path) -> None:
        """Many requests on one connection, none of whose answers is read: the first one ends it."""

        async def script(w: World) -> None:
            one = socket.create_connection(("127.0.0.1", w.port))
            with one, suppress(OSError):
                one.sendall(f"POST {ROUTE} HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n".encode() * 500)
                await until(lambda: w.telemetry.families.registry.get_sample_value(
                    "stanch_alert_requests_total", {"code": "401"}) == 1, 10)  # fmt: skip
            assert (await w.send(payload())).code == 200
            found = w.telemetry.families.registry.get_sample_value(
                "stanch_alert_requests_total", {"code": "401"}
            )
            assert found == 1

        play(script, tmp_path, bounds=self.QUICK)


def test_too_often(tmp_path: Path) -> None:
    async def script(w: World) -> None:
        codes = [await w.send(payload()) for _ in range(4)]
        assert [one.code for one in codes] == [200, 200, 200, 429]
        assert codes[-1].headers["retry-after"] == "1000"
        # Who has no token takes nothing from those who have one.
        assert (await w.send(payload(), token=OTHER)).code == 401

    play(script, tmp_path, bounds=replace(SMALL, rate=0.001, burst=3))


def test_a_bucket_fills_again() -> None:
    bucket = Bucket(2.0, 3.0, 3.0, 100.0)
    assert [bucket.take(100.0) for _ in range(4)] == [0.0, 0.0, 0.0, 0.5]
    assert [bucket.take(100.5), bucket.take(100.5)] == [0.0, 0.5]
    assert [bucket.take(900.0) for _ in range(4)] == [0.0, 0.0, 0.0, 0.5]


def test_nobody_is_known_by_a_door_without_a_lock(tmp_path: Path) -> None:
    async def script(w: World) -> None:
        from stanch.edge.alerts_server import Door

        with pytest.raises(ValueError, match="those who are known only"):
            Door(None, w.telemetry.families, w.telemetry.note, None, None, Bounds())  # type: ignore[arg-type]

    play(script, tmp_path)


def test_it_ends_while_clients_hang(tmp_path: Path) -> None:
    async def whole() -> None:
        async with world(tmp_path, SMALL) as w:
            held = [await asyncio.open_connection("127.0.0.1", w.port) for _ in range(5)]
            assert (await w.send(payload())).code == 200
        for reader, writer in held:
            assert await reader.read() == b""
            writer.close()

    asyncio.run(asyncio.wait_for(whole(), 20))
