"""The simulated engine over HTTP: the form of its pages, its answers, and the leak as the lab measured it."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from stanch.edge.demo.child import Child
from stanch.edge.demo.pd import GaveUpError, PdRequest, RequestFailedError, pd_request

pytestmark = pytest.mark.unit

MODULE = "stanch.edge.demo.engine"
USAGE, GENERATED = "vllm:kv_cache_usage_perc", "vllm:generation_tokens_total"


@asynccontextmanager
async def process(*flags: str) -> AsyncIterator[Child]:
    """An engine's process."""
    child = await Child.start(MODULE, ["--name", "e", *flags])
    try:
        yield child
    finally:
        child.kill()


@asynccontextmanager
async def engine(*flags: str) -> AsyncIterator[str]:
    """The URL of an engine."""
    async with process(*flags) as child:
        yield f"http://127.0.0.1:{child.port}"


@asynccontextmanager
async def pair() -> AsyncIterator[tuple[aiohttp.ClientSession, str, str]]:
    """A client, a prefill engine and a decode engine."""
    async with (
        aiohttp.ClientSession() as session,
        engine("--role", "prefill") as prefill,
        engine("--role", "decode") as decode,
    ):
        yield session, prefill, decode


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def within() -> None:
        await asyncio.wait_for(scenario(), 20)

    asyncio.run(within())


async def values(session: aiohttp.ClientSession, url: str) -> dict[str, float]:
    """Every sample of the page: by name, with ones that differ in labels added up."""
    async with session.get(f"{url}/metrics") as answer:
        text = await answer.text()
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name.endswith("by_reason"):
                found[sample.labels["reason"]] = sample.value
            else:
                found[sample.name] = found.get(sample.name, 0.0) + sample.value
    return found


async def until(read: Callable[[], Awaitable[Any]], want: Any) -> None:
    """Poll until it reads so, at most five seconds; then the comparison fails with what it read last."""
    deadline = asyncio.get_running_loop().time() + 5
    while True:
        seen = await read()
        if seen == want or asyncio.get_running_loop().time() > deadline:
            break
        await asyncio.sleep(0.02)
    assert seen == want


def ask(name: str, *, words: int = 310, tokens: int = 4, patience: float = 5.0) -> PdRequest:
    return PdRequest(name, "word " * words, tokens, patience)


async def gauges(session: aiohttp.ClientSession, url: str) -> tuple[float, float, float, float]:
    """running, waiting, deferred, usage."""
    page = await values(session, url)
    running, waiting = page["vllm:num_requests_running"], page["vllm:num_requests_waiting"]
    return running, waiting, page["deferred"], round(page[USAGE], 6)


async def stuck(session: aiohttp.ClientSession, url: str) -> list[dict[str, Any]]:
    async with session.get(f"{url}/sim/requests") as answer:
        found: list[dict[str, Any]] = await answer.json()
        return found


async def plant(session: aiohttp.ClientSession, url: str, requests: int) -> None:
    async with session.post(f"{url}/sim/plant", json={"requests": requests}) as answer:
        assert answer.status == 200


def test_the_filter_is_honoured_after_the_slash_only() -> None:
    async def scenario() -> None:
        async with aiohttp.ClientSession() as session, engine() as url:
            query = f"?name[]={USAGE}&name[]=vllm:iteration_tokens_total_count&name[]=absent"
            async with session.get(f"{url}/metrics/{query}") as answer:
                assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
                families = list(text_string_to_metric_families(await answer.text()))
            samples = [sample.name for family in families for sample in family.samples]
            assert samples == [USAGE, "vllm:iteration_tokens_total_count"]
            async with session.get(f"{url}/metrics{query}") as answer:
                assert len(await answer.text()) > 40_000

    run(scenario)


def test_a_canary_is_answered_and_counted() -> None:
    async def scenario() -> None:
        async with aiohttp.ClientSession() as session, engine() as url:
            body = {"prompt": [1], "max_tokens": 1}
            headers = {"X-Request-Id": "mine", "X-data-parallel-rank": "0"}
            async with session.post(f"{url}/v1/completions", json=body, headers=headers) as answer:
                said = await answer.json()
            assert (answer.status, said["id"], said["usage"]["completion_tokens"]) == (200, "cmpl-mine", 1)
            page = await values(session, url)
            counters = (GENERATED, "vllm:prompt_tokens_total", "vllm:iteration_tokens_total_count")
            assert [page[name] for name in counters] == [1, 1, 1]
            assert page["vllm:request_success_total"] == 1
            async with session.get(f"{url}/version") as answer:
                assert await answer.json() == {"version": "0.29.0"}
            async with session.get(f"{url}/v1/models") as answer:
                assert [model["id"] for model in (await answer.json())["data"]] == ["tiny"]
            async with session.get(f"{url}/is_paused") as answer:
                assert answer.status == 404

    run(scenario)


def test_a_pd_request_frees_both_sides() -> None:
    async def scenario() -> None:
        async with pair() as (session, prefill, decode):
            await pd_request(session, prefill, decode, ask("one", tokens=4))
            assert await gauges(session, decode) == (0, 0, 0, 0)
            await until(lambda: gauges(session, prefill), (0, 0, 0, 0))
            read = await values(session, decode)
            assert read["vllm:external_prefix_cache_hits_total"] == 310
            assert read["vllm:nixl_xfer_time_seconds_count"] == 1
            assert read[GENERATED] == 4
            assert (await values(session, prefill))[GENERATED] == 1

    run(scenario)


def test_a_prefill_that_refuses_fails_the_transfer_and_not_the_engines() -> None:
    async def scenario() -> None:
        async with pair() as (session, prefill, decode):
            for reads in (True, False):
                async with session.post(f"{prefill}/sim/refuse", json={"reads": reads}) as answer:
                    assert answer.status == 200
                if reads:
                    with pytest.raises(RequestFailedError, match="answered 500"):
                        await pd_request(session, prefill, decode, ask("refused"))
                else:
                    await pd_request(session, prefill, decode, ask("read"))
            read = await values(session, decode)
            assert read["vllm:nixl_num_failed_transfers_total"] == 1
            assert await gauges(session, decode) == (0, 0, 0, 0)

    run(scenario)


def test_a_prefill_nobody_reads_is_held_until_its_lease_ends() -> None:
    async def scenario() -> None:
        async with aiohttp.ClientSession() as session, engine("--lease-seconds", "0.6") as url:
            body = {
                "prompt": "word " * 310,
                "max_tokens": 1,
                "kv_transfer_params": {"do_remote_decode": True},
            }
            async with session.post(f"{url}/v1/completions", json=body) as answer:
                params = (await answer.json())["kv_transfer_params"]
            assert params["remote_port"] == int(url.rsplit(":", 1)[1])
            assert await gauges(session, url) == (0, 0, 0, 0.1)
            await until(lambda: gauges(session, url), (0, 0, 0, 0))
            assert (await values(session, url))["vllm:nixl_num_kv_expired_reqs_total"] == 1

    run(scenario)


def test_the_leak_is_the_lab_s() -> None:
    """Parked while the clients wait; in no gauge but the usage after they left; and still serving."""

    async def scenario() -> None:
        async with pair() as (session, prefill, decode):
            await plant(session, decode, 3)
            clients = [
                asyncio.create_task(pd_request(session, prefill, decode, ask(f"leak-{number}", patience=1.0)))
                for number in range(3)
            ]
            await until(lambda: gauges(session, decode), (0, 3, 3, 0.3))
            assert {entry["status"] for entry in await stuck(session, decode)} == {"WAITING_FOR_REMOTE_KVS"}
            outcomes = await asyncio.gather(*clients, return_exceptions=True)
            assert [type(outcome) for outcome in outcomes] == [GaveUpError] * 3
            await until(lambda: gauges(session, decode), (0, 0, 0, 0.3))
            assert (await gauges(session, prefill))[3] == 0, "the producer was notified"

            held = await stuck(session, decode)
            assert sorted(entry["id"][:12] for entry in held) == [
                f"cmpl-leak-{number}-"[:12] for number in range(3)
            ]
            assert {(entry["status"], entry["blocks"], entry["cache_share"]) for entry in held} == {
                ("FINISHED_ABORTED", 10, 0.1)
            }
            assert all(entry["age_seconds"] > 0.9 and entry["remote_engine"] for entry in held)

            async with session.post(
                f"{decode}/v1/completions", json={"prompt": [1], "max_tokens": 1}
            ) as answer:
                assert answer.status == 200, "a canary is served although orphans hold blocks"
            await pd_request(session, prefill, decode, ask("healthy"))
            assert await gauges(session, decode) == (0, 0, 0, 0.3)
            async with session.get(f"{decode}/health") as answer:
                assert answer.status == 200

    run(scenario)


def test_a_frozen_peer_looks_like_the_leak_until_it_thaws() -> None:
    async def scenario() -> None:
        async with aiohttp.ClientSession() as session, process() as peer, engine() as decode:
            prefill = f"http://127.0.0.1:{peer.port}"
            body = {
                "prompt": "word " * 310,
                "max_tokens": 1,
                "kv_transfer_params": {"do_remote_decode": True},
            }
            async with session.post(f"{prefill}/v1/completions", json=body) as answer:
                body["kv_transfer_params"] = (await answer.json())["kv_transfer_params"]
            os.kill(peer.pid, signal.SIGSTOP)
            client = asyncio.create_task(session.post(f"{decode}/v1/completions", json=body))
            await until(lambda: gauges(session, decode), (0, 1, 1, 0.1))
            client.cancel()
            await until(lambda: gauges(session, decode), (0, 0, 0, 0.1))
            os.kill(peer.pid, signal.SIGCONT)
            await until(lambda: gauges(session, decode), (0, 0, 0, 0))

    run(scenario)


def test_a_client_that_leaves_a_running_request_frees_it() -> None:
    async def scenario() -> None:
        async with aiohttp.ClientSession() as session, engine() as url:
            body = {"prompt": "word " * 100, "max_tokens": 900}
            client = asyncio.create_task(session.post(f"{url}/v1/completions", json=body))
            await until(lambda: _running(session, url), 1)
            client.cancel()
            await until(lambda: gauges(session, url), (0, 0, 0, 0))

    run(scenario)


async def _running(session: aiohttp.ClientSession, url: str) -> float:
    return (await gauges(session, url))[0]
