"""Ten thousand reviews that no API server sends: each is answered, and no pod is refused; and a port that is
full of strangers."""

from __future__ import annotations

import asyncio
import base64
import json
import random
import ssl
from collections import Counter
from contextlib import suppress
from copy import deepcopy
from typing import Any

import pytest

from stanch.edge.render.kit import KitOptions
from stanch.edge.webhook import NoReviewError, answer
from stanch.edge.webhook_server import PATH
from tests.edge.fake_vllm import until
from tests.edge.json_patches import applied
from tests.edge.pod_templates import engine
from tests.edge.test_alerts_fuzz import spoil
from tests.edge.test_webhook import pod, review
from tests.edge.test_webhook_server import HOST, Port, run, served

pytestmark = pytest.mark.unit

MANY = 10_000
OPTIONS = KitOptions("example.test/stanch:1")
WHOLE = review(pod(engine(env=[{"name": "PYTHONPATH", "value": "/a"}])))


def mutant(dice: random.Random) -> bytes:
    """A review with a few things wrong, as an object or in its bytes."""
    found: Any = deepcopy(WHOLE)
    of = found["request"]["object"]
    for _ in range(dice.choice((0, 1, 1, 2, 5))):
        spoil(found if dice.random() < 0.1 else of, dice)
    raw = bytearray(json.dumps(found, ensure_ascii=dice.random() < 0.5).encode(errors="surrogatepass"))
    for _ in range(dice.choice((0,) * 9 + (1, 20))):
        raw[dice.randrange(len(raw))] = dice.randrange(256)
    return bytes(raw)


def test_of_ten_thousand_none_refuses_a_pod() -> None:
    dice = random.Random(20261130)
    counts: Counter[str] = Counter()
    for _ in range(MANY):
        raw = mutant(dice)
        try:
            given = answer(raw, OPTIONS)
        except NoReviewError as error:
            said = str(error)
        else:
            said = ""
        if said:
            assert said.isprintable()
            counts["no review"] += 1
            continue
        counts[given.outcome] += 1
        assert given.outcome != "failed", (raw, given.said)
        request, response = json.loads(raw)["request"], json.loads(given.body)["response"]
        assert (response["allowed"], response["uid"]) == (True, request["uid"])
        if "patch" in response:
            assert applied(request["object"], json.loads(base64.b64decode(response["patch"]))) is not None
    assert min(counts[one] for one in ("injected", "refused", "not-asked", "no review")) > MANY / 100, counts


async def _raw(port: Port, authority: bytes, data: bytes) -> bytes:
    trust = ssl.create_default_context(cadata=authority.decode())
    reader, writer = await asyncio.open_connection("127.0.0.1", port.number, ssl=trust, server_hostname=HOST)
    try:
        with suppress(ConnectionError):
            writer.write(data)
            await writer.drain()
            return await asyncio.wait_for(reader.read(), 30)
        return b""
    finally:
        writer.close()


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"nonsense\r\n\r\n", id="no-http"),
        pytest.param(b"\x00" * 10_000 + b"\r\n\r\n", id="bytes"),
        pytest.param(f"POST /{'a' * 100_000} HTTP/1.1\r\n\r\n".encode(), id="long-path"),
        pytest.param(f"POST {PATH} HTTP/1.1\r\nX: {'a' * 100_000}\r\n\r\n".encode(), id="long-header"),
        pytest.param(f"POST {PATH} HTTP/1.1\r\n{'X: a' * 99999}".encode(), id="many-headers"),
        pytest.param(f"POST {PATH} HTTP/1.1\r\nContent-Length: -1\r\n\r\n".encode(), id="length"),
    ],
)
def test_bytes_that_are_no_request_are_answered_or_ended_and_not_logged(
    data: bytes, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    async def scene() -> None:
        async with served() as (port, issued):
            got = await _raw(port, issued.authority, data)
            assert got == b"" or got.startswith((b"HTTP/1.0 4", b"HTTP/1.1 4"))
            assert b"Traceback" not in got
            assert (await port.ask(issued.authority))[0] == 200

    run(scene)
    assert caplog.records == []
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("shakes", [False, True], ids=["no-handshake", "half-a-head"])
def test_hundreds_of_connections_hold_up_no_review(shakes: bool) -> None:
    async def scene() -> None:
        async with served() as (port, issued):
            trust = ssl.create_default_context(cadata=issued.authority.decode())
            more: dict[str, Any] = {"ssl": trust, "server_hostname": HOST} if shakes else {}
            crowd = [await asyncio.open_connection("127.0.0.1", port.number, **more) for _ in range(300)]
            for _, writer in crowd:
                writer.write(f"POST {PATH} HTTP/1.1\r\n".encode() if shakes else b"\x16")
            assert (await port.ask(issued.authority))[0] == 200
            if shakes:
                # Of each time only so many stay: the oldest were ended to make room.
                await until(lambda: sum(reader.at_eof() for reader, _ in crowd) >= 300 - 256, 30)
            for _, writer in crowd:
                writer.close()

    run(scene)
