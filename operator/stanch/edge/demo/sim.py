"""What no real engine has: the paths under /sim of a simulated one, by which it is given its faults and is
looked into. The KV side channel, a port of NIXL's own in vLLM, is one of them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from math import inf

from aiohttp import web

from stanch.edge.demo.enginecore import EngineCore
from stanch.edge.demo.scheduler import Phase


class Sim:
    """Of the ranks of one server."""

    def __init__(self, cores: Sequence[EngineCore]) -> None:
        self._cores = cores
        self._refuses = False

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/sim/requests", self.stuck),
            web.post("/sim/plant", self.plant),
            web.post("/sim/gauge", self.freeze),
            web.post("/sim/read", self.read),
            web.post("/sim/refuse", self.refuse),
        ]

    async def read(self, request: web.Request) -> web.Response:
        """POST /sim/read {"request_id"}: the side channel; 410 where nothing is held (any more)."""
        name = (await request.json())["request_id"]
        read = not self._refuses and any(core.read(name) for core in self._cores)
        return web.Response(status=200 if read else 410)

    async def refuse(self, request: web.Request) -> web.Response:
        """POST /sim/refuse {"reads": true}: from now on nothing that it holds can be read by a peer."""
        self._refuses = bool((await request.json())["reads"])
        return web.json_response({"refuses": self._refuses})

    async def plant(self, request: web.Request) -> web.Response:
        """POST /sim/plant {"requests": K, "seconds": S, "rank": 0}: the rank's next K P/D requests meet the
        defect, within S (by default any time) of the first of them."""
        body = await request.json()
        scheduler = self._cores[body.get("rank", 0)].scheduler
        scheduler.plant(int(body["requests"]), float(body.get("seconds", inf)))
        return web.json_response({"planted": scheduler.planted})

    async def freeze(self, request: web.Request) -> web.Response:
        """POST /sim/gauge {"usage": 0.3}: what the gauge shows from now until the next step sets it."""
        usage = float((await request.json())["usage"])
        self._cores[0].page.set("vllm:kv_cache_usage_perc", usage)
        return web.json_response({"usage": usage})

    async def stuck(self, _: web.Request) -> web.Response:
        """GET /sim/requests: requests that wait for remote KV, and orphans; of each rank the oldest first."""
        now = time.monotonic()
        listed = [
            {
                "id": held.ask.id,
                "status": held.phase.value,
                "age_seconds": round(now - held.admitted, 3),
                "blocks": held.blocks,
                "cache_share": held.blocks / core.scheduler.blocks,
                "remote_engine": held.ask.remote.engine_id if held.ask.remote else None,
            }
            for core in self._cores
            for held in core.scheduler.of(Phase.PARKED, Phase.ORPHAN)
        ]
        return web.json_response(listed)
