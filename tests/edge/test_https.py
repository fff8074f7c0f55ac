"""Engines that speak https: the command line wants a certificate that it can check, the operator does not,
because it asks pods by their address."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import pytest

from stanch.edge import client, engine
from stanch.edge.scrape import Scraper
from stanch.edge.target import Target
from tests.edge.servers import always, answer, serving
from tests.edge.test_alerts_tls import made

pytestmark = pytest.mark.unit


def read(directory: Path, verify: bool) -> tuple[str | None, bool]:
    """What was wrong with its page, and whether it was found healthy."""
    made("engine").write(directory)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(directory / "tls.crt", directory / "tls.key")

    async def whole() -> tuple[str | None, bool]:
        page = answer(b'vllm:kv_cache_usage_perc{engine="0"} 0.1\n')
        async with (
            serving(always(page), tls) as url,
            Scraper([Target("d", url)], 1, verify=verify) as scraper,
            client.session(verify=verify) as session,
        ):
            scrape = await scraper.once(scraper.targets[0])
            return scrape.problem, await engine.healthy(session, url)

    return asyncio.run(whole())


def test_a_certificate_of_its_own_making(tmp_path: Path) -> None:
    problem, healthy = read(tmp_path, verify=True)
    assert problem is not None
    assert "certificate" in problem
    assert not healthy
    assert read(tmp_path, verify=False) == (None, True)
