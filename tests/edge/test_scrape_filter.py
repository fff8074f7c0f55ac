"""Asking for the needed families only, and every way in which a server may dislike that."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

import pytest
from prometheus_client import CollectorRegistry, Gauge, generate_latest, make_asgi_app
from prometheus_client import Counter as PrometheusCounter
from prometheus_client import Histogram as PrometheusHistogram

from stanch.core.sample import Role
from stanch.edge import scrape as module
from stanch.edge.families import names_to_ask
from stanch.edge.reading import role_evidence
from stanch.edge.scrape import Scrape, Scraper
from stanch.edge.target import Target
from tests.edge.pages import page, recorded
from tests.edge.servers import answer, by_filter, serving, turns, vllm_metrics

pytestmark = pytest.mark.unit

GOOD = page()
WHOLE = recorded("decode")[0]
LOST = page(without="vllm:num_requests_waiting")


@pytest.mark.parametrize(
    ("short", "reads", "filtered"),
    [
        pytest.param(answer(GOOD), [len(GOOD)] * 3, [True] * 3, id="honoured"),
        pytest.param(answer(WHOLE), [len(WHOLE)] * 3, [False] * 3, id="ignored"),
        pytest.param(answer(b""), [len(WHOLE)] * 3, [False] * 3, id="empty, as in multi-process mode"),
        pytest.param(answer(b"no", status="404 Not Found"), [len(WHOLE)] * 3, [False] * 3, id="404"),
        pytest.param(answer(b"no", status="500 Broken"), [len(WHOLE)] * 3, [False] * 3, id="500"),
        pytest.param(
            answer(b"", status="307 Elsewhere", Location="/metrics"),
            [len(WHOLE)] * 3,
            [False] * 3,
            id="redirect",
        ),
        pytest.param(answer(b"<p>\n", kind="text/html"), [len(WHOLE)] * 3, [False] * 3, id="content type"),
        pytest.param(
            answer(LOST),
            [len(LOST) + len(WHOLE), len(WHOLE), len(WHOLE)],
            [False] * 3,
            id="a family is lost",
        ),
    ],
)
def test_no_turn_is_blind_where_only_the_filter_fails(
    short: bytes, reads: list[int], filtered: list[bool]
) -> None:
    scrapes = asyncio.run(turns(by_filter(short, answer(WHOLE)), count=3))
    assert [scrape.problem for scrape in scrapes] == [None] * 3
    assert [sample.blind for scrape in scrapes for sample in scrape.samples] == [None] * 3
    assert [scrape.bytes_read for scrape in scrapes] == reads
    assert [scrape.filtered for scrape in scrapes] == filtered


async def _asked(
    answers: Callable[[int, bool], bytes], count: int, between: Callable[[int], None] = lambda _: None
) -> list[str]:
    """What a server was asked for in so many turns ("short" or "whole"); it answers by turn and form."""
    asked: list[str] = []
    turn = 0

    async def handle(path: str, writer: asyncio.StreamWriter) -> None:
        short = "name%5B%5D=" in path
        asked.append(f"{turn} {'short' if short else 'whole'}")
        writer.write(answers(turn, short))

    async with serving(handle) as url, Scraper([Target("d", url)], 1, 5) as scraper:
        for turn in range(count):
            between(turn)
            await scraper.once(scraper.targets[0])
    return asked


BROKEN = answer(b"", status="500 Broken")


def test_a_server_that_is_down_is_asked_once_a_turn_and_by_filter_when_it_is_back() -> None:
    asked = asyncio.run(_asked(lambda turn, short: BROKEN if turn < 3 else answer(GOOD), 6))
    assert asked == ["0 short", "0 whole", "1 whole", "2 whole", "3 whole", "4 short", "5 short"]


def test_the_filter_is_tried_again_later(monkeypatch: pytest.MonkeyPatch) -> None:
    def between(turn: int) -> None:
        if turn == 2:
            monkeypatch.setattr(module, "RECHECK_SECONDS", 600.0)

    monkeypatch.setattr(module, "RECHECK_SECONDS", 0.0)
    asked = asyncio.run(_asked(lambda _, short: BROKEN if short else answer(GOOD), 4, between))
    assert asked == ["0 short", "0 whole", "1 short", "1 whole", "2 short", "2 whole", "3 whole"]


def test_a_refused_connection_says_nothing_about_the_filter() -> None:
    async def ask() -> list[tuple[str | None, bool]]:
        scrapes = []
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
        async with Scraper([Target("d", f"http://127.0.0.1:{port}")], 1, 5) as scraper:
            scrapes.append(await scraper.once(scraper.targets[0]))
            handler = by_filter(answer(GOOD), answer(WHOLE))

            async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                head = await reader.readuntil(b"\r\n\r\n")
                await handler(head.split(b" ", 2)[1].decode(), writer)
                writer.close()

            server = await asyncio.start_server(connected, "127.0.0.1", port)
            scrapes.append(await scraper.once(scraper.targets[0]))
            server.close()
        return [(scrape.problem, scrape.filtered) for scrape in scrapes]

    assert asyncio.run(ask()) == [("the connection was refused", False), (None, True)]


def test_a_url_with_its_own_query_is_asked_as_it_is() -> None:
    asked: list[str] = []

    async def handle(path: str, writer: asyncio.StreamWriter) -> None:
        asked.append(path)
        writer.write(answer(GOOD))

    asyncio.run(turns(handle, count=2, path="/proxy/metrics?pod=a%26b"))
    assert asked == ["/proxy/metrics?pod=a%26b"] * 2


def test_the_filter_goes_below_the_given_path() -> None:
    asked: list[str] = []

    async def handle(path: str, writer: asyncio.StreamWriter) -> None:
        asked.append(path)
        writer.write(answer(GOOD))

    asyncio.run(turns(handle, path="/engine/7/metrics"))
    assert asked[0].startswith("/engine/7/metrics/?name%5B%5D=vllm:kv_cache_usage_perc&name%5B%5D=vllm:")


def _registry() -> CollectorRegistry:
    """The families of vLLM that matter here, and one that is not asked for, as vLLM declares them."""
    registry = CollectorRegistry()
    names = ["model_name", "engine"]
    for name, value in (
        ("kv_cache_usage_perc", 0.5),
        ("num_requests_running", 1),
        ("num_requests_waiting", 0),
    ):
        Gauge(f"vllm:{name}", "help", names, registry=registry).labels("tiny", "0").set(value)
    for name in (
        "generation_tokens",
        "prompt_tokens",
        "nixl_num_failed_transfers",
        "external_prefix_cache_hits",
    ):
        PrometheusCounter(f"vllm:{name}", "help", names, registry=registry).labels("tiny", "0").inc(8)
    reasons = PrometheusCounter(
        "vllm:request_success", "help", [*names, "finished_reason"], registry=registry
    )
    for reason in ("stop", "length"):
        reasons.labels("tiny", "0", reason).inc(2)
    for name in ("iteration_tokens_total", "time_to_first_token_seconds", "request_params_max_tokens"):
        histogram = PrometheusHistogram(f"vllm:{name}", "help", names, registry=registry, buckets=(1, 9))
        for _ in range(7):
            histogram.labels("tiny", "0").observe(5)
    return registry


@pytest.mark.parametrize(
    "evidence", [pytest.param(False, id="plain"), pytest.param(True, id="with evidence")]
)
def test_the_names_asked_for_are_those_that_prometheus_client_knows(evidence: bool) -> None:
    registry = _registry()

    async def ask() -> Scrape:
        app = make_asgi_app(registry)
        async with (
            vllm_metrics(app, lambda: generate_latest(registry)) as url,
            Scraper([Target("d", url, evidence)], 1, 5) as scraper,
        ):
            return await scraper.once(scraper.targets[0])

    scrape = asyncio.run(ask())
    assert (scrape.problem, scrape.filtered) == (None, True)
    (sample,) = scrape.samples
    assert (sample.usage, sample.running, sample.waiting, sample.iterations) == (0.5, 1, 0, 7)
    assert (sample.generation_tokens, sample.prompt_tokens, sample.finished) == (8, 8, 4)
    assert sample.failed_transfers == 8
    assert role_evidence(scrape.page) is (Role.DECODE if evidence else None)
    assert scrape.bytes_read < len(generate_latest(registry))


def test_what_is_asked_for_fits_into_any_server_s_request_line() -> None:
    target = Target("d", "http://127.0.0.1:8000", evidence=True)
    assert target.filtered_page is not None
    assert len(str(target.filtered_page)) < 2000
    assert target.filtered_page.query.getall("name[]") == list(names_to_ask(evidence=True))
