"""What a simulated engine refuses, and how what fails is told."""

from __future__ import annotations

import aiohttp
import pytest

from stanch.edge.demo.child import Child, StartError
from stanch.edge.demo.engine import Engine
from stanch.edge.demo.pd import RequestFailedError, pd_request
from stanch.edge.demo.settings import settings_from
from tests.edge.test_demo_engine import MODULE, ask, engine, gauges, run, until, values

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("body", "status"),
    [
        pytest.param(b"{", 400, id="no JSON"),
        pytest.param(b"[]", 400, id="no object"),
        pytest.param(b'{"prompt": {}}', 400, id="no prompt"),
        pytest.param(b'{"prompt": ""}', 400, id="an empty prompt"),
        pytest.param(b'{"prompt": "a", "max_tokens": 0}', 400, id="no tokens"),
        pytest.param(b'{"prompt": "a", "max_tokens": 9999}', 400, id="too long"),
        pytest.param(b'{"prompt": "a", "model": "other"}', 404, id="another model"),
        pytest.param(
            b'{"prompt": "a", "kv_transfer_params": {"do_remote_prefill": true}}',
            400,
            id="a read from nowhere",
        ),
    ],
)
def test_what_cannot_be_served_is_refused_in_vllms_form(body: bytes, status: int) -> None:
    async def scenario() -> None:
        async with aiohttp.ClientSession() as session, engine() as url:
            async with session.post(f"{url}/v1/completions", data=body) as answer:
                assert answer.status == status
                assert (await answer.json())["error"]["code"] == status
            assert (await values(session, url))["vllm:num_requests_waiting"] == 0

    run(scenario)


def test_a_dead_peer_fails_at_once_and_leaks_nothing() -> None:
    async def scenario() -> None:
        async with aiohttp.ClientSession() as session, engine() as decode:
            params = {
                "do_remote_prefill": True,
                "remote_engine_id": "gone",
                "remote_request_id": "r",
                "remote_host": "127.0.0.1",
                "remote_port": 1,
            }
            body = {"prompt": "word " * 100, "max_tokens": 4, "kv_transfer_params": params}
            async with session.post(f"{decode}/v1/completions", json=body) as answer:
                assert answer.status == 500
            page = await values(session, decode)
            assert page["vllm:nixl_num_failed_transfers_total"] == 1
            assert page["vllm:nixl_num_failed_notifications_total"] == 1
            await until(lambda: gauges(session, decode), (0, 0, 0, 0))

    run(scenario)


def test_a_prefill_without_nixl_is_named_by_the_client() -> None:
    async def scenario() -> None:
        async with aiohttp.ClientSession() as session:
            with pytest.raises(RequestFailedError, match=r"http://127\.0\.0\.1:1"):
                await pd_request(session, "http://127.0.0.1:1", "http://127.0.0.1:1", ask("x"))

    run(scenario)


def test_a_wrong_flag_is_told_and_leaves_nothing() -> None:
    async def scenario() -> None:
        with pytest.raises(StartError, match="--role"):
            await Child.start(MODULE, ["--role", "banana"])

    run(scenario)


def test_the_seed_decides_what_the_engine_says() -> None:
    def words(seed: str) -> list[str]:
        made = Engine(settings_from(["--seed", seed, "--name", "e"]))
        return made._random.choices("abcdefgh", k=12)

    assert words("1") == words("1") != words("2")
