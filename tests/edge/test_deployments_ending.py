"""A DisaggDeployment in a namespace that is being deleted."""

from __future__ import annotations

import asyncio
import io
import json
import time
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from stanch.edge.cluster import Cluster
from stanch.edge.deployments import Deployments, Kit
from stanch.edge.journal import Journal
from stanch.edge.telemetry import Telemetry
from tests.edge.fake_api import ApiServer, refusal

pytestmark = pytest.mark.unit

# As Kubernetes 1.35.4 says them.
ENDS = refusal(
    403,
    "Forbidden",
    'services "shop-decode" is forbidden: unable to create new content in namespace web because it is being '
    "terminated",
    name="shop-decode",
    kind="services",
    causes=[{"reason": "NamespaceTerminating", "message": "namespace web is being terminated"}],
)
GONE = refusal(404, "NotFound", 'namespaces "web" not found', name="web", kind="namespaces")
OTHER = refusal(403, "Forbidden", 'services "shop-decode" is forbidden: a policy', kind="services")


def deployment(name: str) -> dict[str, Any]:
    roles = [{"name": role, "engine": {"image": "vllm:0.29"}} for role in ("prefill", "decode")]
    meta = {"name": name, "namespace": "web", "uid": f"u-{name}", "generation": 1, "resourceVersion": "1"}
    return {"metadata": meta, "spec": {"model": {"uri": "some/model"}, "roles": roles}}


class Server(ApiServer):
    """Two DisaggDeployments, and nothing that was made of them; every write has the same answer."""

    def __init__(self, answer: tuple[int, Any]) -> None:
        super().__init__()
        self._refusal = answer
        self.status_writes = 0

    async def answer(self, request: web.Request) -> web.Response:
        code: int = 404
        data: dict[str, Any] = {"kind": "Status", "message": "not found"}
        if request.method == "PUT" and request.path.endswith("/status"):
            self.status_writes += 1
            code, data = 200, deployment("shop")
        elif request.method != "GET":
            code, data = self._refusal
        elif request.path.endswith("/disaggdeployments"):
            code, data = 200, {"metadata": {}, "items": [deployment("shop"), deployment("other")]}
        elif "namespaces" not in request.path:
            code, data = 200, {"metadata": {}, "items": []}
        return web.json_response(data, status=code)


def play(path: Path, answer: tuple[int, Any]) -> tuple[list[dict[str, Any]], int]:
    """The log of two rounds, and how often a status was written."""

    async def whole() -> tuple[list[dict[str, Any]], int]:
        log = io.StringIO()
        async with Server(answer) as server, Cluster(server.kubeconfig(path / "k")) as cluster:
            telemetry = Telemetry(Journal(log), time.time)
            one = Deployments(cluster, telemetry, time.time, lambda: True, Kit("stanch.test/kit:1", "Never"))
            for _ in range(2):
                await one.round()
            return [json.loads(line) for line in log.getvalue().splitlines()], server.status_writes

    return asyncio.run(asyncio.wait_for(whole(), 60))


@pytest.mark.parametrize("answer", [ENDS, GONE], ids=["terminating", "gone"])
def test_is_one_line_for_information(tmp_path: Path, answer: tuple[int, Any]) -> None:
    (line,), writes = play(tmp_path, answer)
    assert (line["level"], line["event"]) == ("info", "namespace-ends")
    assert "namespace web is being deleted" in line["message"]
    assert writes == 0


def test_what_else_is_forbidden_is_told(tmp_path: Path) -> None:
    lines, writes = play(tmp_path, OTHER)
    assert {"deployment-condition"} <= {line["event"] for line in lines}
    assert any(line["level"] == "warning" for line in lines)
    assert writes > 0
