"""`stanch operator` as a process, before it acts: who has the Lease, and why it does not start."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.edge.cli import stanch, start
from tests.edge.fake_api import FakeApi, refusal

pytestmark = [
    pytest.mark.unit,
    pytest.mark.skipif(sys.version_info < (3, 11), reason="kopf needs Python 3.11"),
]

LEASES = "/apis/coordination.k8s.io/v1/namespaces/stanch-system/leases"
LEASE = f"{LEASES}/stanch"
_SECONDS = 60.0


def environment(config: str, **more: str) -> dict[str, str]:
    own = {"STANCH_HTTP_HOST": "127.0.0.1", "STANCH_HTTP_PORT": "0", "STANCH_IDENTITY": "me"}
    return {"KUBECONFIG": config, **own, **more}


def lease(holder: str, version: str) -> dict[str, Any]:
    meta = {"name": "stanch", "namespace": "stanch-system", "resourceVersion": version}
    return {"metadata": meta, "spec": {"holderIdentity": holder, "leaseDurationSeconds": 600}}


async def line_of(process: asyncio.subprocess.Process, wanted: Callable[[dict[str, Any]], bool]) -> Any:
    """The next line of the log that is wanted, with all before it."""
    assert process.stdout is not None
    before: list[Any] = []
    while raw := await asyncio.wait_for(process.stdout.readline(), _SECONDS):
        line = json.loads(raw)
        if wanted(line):
            return before, line
        before.append(line)
    raise AssertionError(f"its log ended: {before}")


def event(name: str) -> Callable[[dict[str, Any]], bool]:
    return lambda line: line["event"] == name


async def ended(process: asyncio.subprocess.Process) -> None:
    process.terminate()
    await asyncio.wait_for(process.communicate(), _SECONDS)
    assert process.returncode == 0


def test_who_has_the_lease_is_told_and_that_it_is_ours(tmp_path: Path) -> None:
    async def whole() -> None:
        async with FakeApi() as api:
            api.answers[f"GET {LEASE}"] = 200, lease("another-1", "1")
            process = await start("operator", environment=environment(api.kubeconfig(tmp_path / "k")))
            _, line = await line_of(process, event("standing-by"))
            assert (line["level"], line["schema"]) == ("info", "stanch.log/1")
            assert line["message"].startswith("another-1 has the Lease")
            api.answers[f"GET {LEASE}"] = 200, lease("another-2", "2")
            before, line = await line_of(process, event("standing-by"))
            assert line["message"].startswith("another-2 has the Lease")
            assert "elected" not in {one["event"] for one in before}
            api.answers[f"GET {LEASE}"] = 200, lease("", "3")
            api.answers[f"PUT {LEASE}"] = 200, lease("me", "4")
            await line_of(process, event("elected"))
            await ended(process)

    asyncio.run(whole())


def test_a_lease_that_cannot_be_had_is_told_once(tmp_path: Path) -> None:
    async def whole() -> None:
        async with FakeApi() as api:
            api.answers[f"GET {LEASE}"] = refusal(403, "Forbidden", "no right to leases")
            process = await start("operator", environment=environment(api.kubeconfig(tmp_path / "k")))
            _, line = await line_of(process, event("lease-not-had"))
            assert line["level"] == "warning"
            assert "no right to leases" in line["message"]
            api.answers[f"GET {LEASE}"] = 200, lease("", "3")
            api.answers[f"PUT {LEASE}"] = 200, lease("me", "4")
            before, _ = await line_of(process, event("elected"))
            assert "lease-not-had" not in {one["event"] for one in before}
            await ended(process)

    asyncio.run(whole())


@pytest.mark.parametrize(
    ("variable", "value", "code", "words"),
    [
        ("STANCH_HTTP_PORT", "many", 64, "STANCH_HTTP_PORT is 'many'"),
        ("KUBECONFIG", "/no/such/file", 69, "there is no such file"),
        ("STANCH_HTTP_HOST", "256.0.0.1", 69, "cannot be served"),
    ],
)
def test_why_it_does_not_start_is_in_the_log_too(
    tmp_path: Path, variable: str, value: str, code: int, words: str
) -> None:
    async def whole() -> None:
        async with FakeApi() as api:
            given = {**environment(api.kubeconfig(tmp_path / "k")), variable: value}
            done = await stanch("operator", environment=given)
        assert done.code == code
        assert words in done.err
        line = done.objects[-1]
        assert (line["schema"], line["level"], line["event"]) == ("stanch.log/1", "error", "failed")
        assert words in line["message"]

    asyncio.run(whole())
