"""One turn of the scraper against real servers on loopback: every answer that is refused, and why."""

from __future__ import annotations

import asyncio
import gzip
import socket

import pytest

from stanch.edge.fetch import MOST_BYTES
from stanch.edge.scrape import Scraper
from stanch.edge.target import Target
from tests.edge.pages import page
from tests.edge.servers import Handler, always, answer, turns

pytestmark = pytest.mark.unit

GOOD = page()


def blind(handler: Handler, deadline: float = 5.0) -> str:
    """The reason for which the only turn is blind; it must say the same of target and engine."""
    (scrape,) = asyncio.run(turns(handler, deadline=deadline))
    (sample,) = scrape.samples
    assert sample.blind == scrape.problem
    assert (sample.t, sample.engine, sample.usage, scrape.filtered) == (7.0, "d", None, False)
    assert scrape.problem is not None
    return scrape.problem


def test_a_good_page() -> None:
    (scrape,) = asyncio.run(turns(always(answer(GOOD))))
    assert (scrape.problem, scrape.t, scrape.filtered, scrape.bytes_read) == (None, 7.0, True, len(GOOD))
    (sample,) = scrape.samples
    assert (sample.t, sample.engine, sample.usage, sample.running, sample.blind) == (7.0, "d", 0.25, 3, None)


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param("text/plain", id="plain"),
        pytest.param("TEXT/Plain;charset=utf-8", id="with parameters"),
        pytest.param("application/openmetrics-text; version=1.0.0", id="OpenMetrics"),
        pytest.param(None, id="absent"),
    ],
)
def test_content_types_that_are_taken(kind: str | None) -> None:
    (scrape,) = asyncio.run(turns(always(answer(GOOD, kind=kind))))
    assert scrape.problem is None


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        pytest.param(answer(b"no", status="404 Not Found"), "it answers HTTP 404 Not Found", id="404"),
        pytest.param(answer(GOOD, status="500 Broken"), "it answers HTTP 500 Broken", id="500 with a page"),
        pytest.param(answer(b"", status="204 No Content"), "it answers HTTP 204 No Content", id="204"),
        pytest.param(
            answer(GOOD, status="307 Elsewhere", Location="http://127.0.0.1:1/metrics"),
            "it redirects to http://127.0.0.1:1/metrics (HTTP 307), which is not followed",
            id="redirect",
        ),
        pytest.param(
            answer(GOOD, kind="text/\x1b[31m\x07red"),
            "the page is text/?[31m?red, not text/plain: this may not be the /metrics of vLLM",
            id="a terminal's colours",
        ),
        pytest.param(
            answer(b"", status="302 Found"),
            "it redirects to nowhere (HTTP 302), which is not followed",
            id="no place",
        ),
        pytest.param(
            answer(GOOD, kind="text/html"),
            "the page is text/html, not text/plain: this may not be the /metrics of vLLM",
            id="content type",
        ),
        pytest.param(
            answer(gzip.compress(GOOD), Content_Encoding="gzip"),
            "the page is compressed (gzip), although we asked for it as it is",
            id="compressed",
        ),
        pytest.param(
            answer(GOOD, Content_Encoding="br"),
            "the page is compressed (br), although we asked for it as it is",
            id="says that it is compressed",
        ),
        pytest.param(
            answer(gzip.compress(GOOD)), "the page is cut off inside a line", id="compressed, unsaid"
        ),
        pytest.param(answer(b""), "the page is empty", id="empty"),
        pytest.param(answer(GOOD[:-3]), "the page is cut off inside a line", id="cut inside a line"),
        pytest.param(answer(GOOD + b"\xfe\n"), "the page has bytes that are not UTF-8", id="invalid bytes"),
        pytest.param(
            answer(b"x" * 9, length=MOST_BYTES + 1), "the page is longer than 10 MB", id="said too long"
        ),
        pytest.param(
            answer(b"up 1\n"),
            "the page has no metric of an engine: this may not be the /metrics of vLLM, or its statistics "
            "are off",
            id="another exporter",
        ),
        pytest.param(
            answer(page(without="vllm:num_requests_running")),
            None,
            id="a family is missing",
        ),
    ],
)
def test_a_refused_answer_says_why(data: bytes, reason: str | None) -> None:
    if reason is not None:
        assert blind(always(data)) == reason
    else:
        (scrape,) = asyncio.run(turns(always(data)))
        assert scrape.problem is None
        (sample,) = scrape.samples
        assert (sample.blind or "").startswith("vllm:num_requests_running is missing from the page")


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        pytest.param(
            answer(GOOD, length=len(GOOD) + 9),
            "the page is cut off: the connection ended before the page did",
            id="cut",
        ),
        pytest.param(
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabcde\r\n",
            "the page is cut off: the connection ended before the page did",
            id="cut between chunks",
        ),
        pytest.param(b"", "the connection was closed before an answer", id="nothing"),
        pytest.param(
            b"HTTP/1.1 200 OK\r\nConte", "the connection was closed before an answer", id="cut headers"
        ),
    ],
)
def test_a_connection_that_ends_too_early(data: bytes, reason: str) -> None:
    assert blind(always(data, close=True)) == reason


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"SSH-2.0-OpenSSH_9.2\r\n\r\n", id="another protocol"),
        pytest.param(b"HTTP/1.1 abc\r\n\r\n", id="status"),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n", id="length"),
        pytest.param(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", id="chunk size"),
        pytest.param(b"HTTP/1.1 200 OK\r\nA: " + b"b" * 100_000 + b"\r\n\r\n", id="long header"),
        pytest.param(b"\0\1\2\3" * 100, id="bytes"),
    ],
)
def test_an_answer_that_is_not_http(data: bytes) -> None:
    assert blind(always(data, close=True)).startswith(("the answer is not HTTP: ", "the page is cut off: "))


def test_a_page_without_length_that_ends_with_the_connection() -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n"
    (scrape,) = asyncio.run(turns(always(head + GOOD, close=True)))
    assert scrape.problem is None


def test_reading_stops_at_the_size_limit() -> None:
    sent = 0

    async def endless(_: str, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n")
        while True:
            writer.write(b"# " + b"x" * 65_533 + b"\n")
            await writer.drain()
            sent += 65_536

    assert blind(endless) == "the page is longer than 10 MB"
    # Both requests of the turn (short, then whole) were stopped, give or take the sockets' buffers.
    assert 2 * MOST_BYTES <= sent < 2 * MOST_BYTES + 40_000_000


def test_a_trickle_ends_at_the_deadline() -> None:
    async def trickle(_: str, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 9999\r\n\r\n")
        while True:
            writer.write(b"#")
            await writer.drain()
            await asyncio.sleep(0.01)

    reason = blind(trickle, deadline=0.2)
    assert reason.startswith("the page did not end within 0.2 s (")
    assert reason.endswith(" bytes came)")


def test_silence_ends_at_the_deadline() -> None:
    async def silent(_: str, writer: asyncio.StreamWriter) -> None:
        await asyncio.Event().wait()

    assert blind(silent, deadline=0.1) == "no answer within 0.1 s"


def test_a_port_that_accepts_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = listener.getsockname()
    assert asyncio.run(_problem(f"http://127.0.0.1:{address[1]}")) == "the connection was refused"


async def _problem(url: str) -> str | None:
    async with Scraper([Target("d", url)], 1, 5) as scraper:
        return (await scraper.once(scraper.targets[0])).problem


def test_a_name_that_nobody_knows() -> None:
    assert asyncio.run(_problem("http://stanch-test.invalid")) == (
        "the host name stanch-test.invalid cannot be resolved"
    )


def test_tls_to_a_server_that_speaks_http() -> None:
    def connected(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(answer(b"", status="400 Bad Request"))
        writer.close()

    async def ask() -> str | None:
        async with await asyncio.start_server(connected, "127.0.0.1", 0) as server:
            return await _problem(f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}")

    assert (asyncio.run(ask()) or "").startswith("TLS failed: ")
