"""A load balancer in front of two engines with a kit, as far as a client sees it: each new connection leads
to the next of them and stays with it."""

from __future__ import annotations

from aiohttp import web

from tests.edge.fake_kit import FakeKit


class Balancer(FakeKit):
    """kits: None in the place of an engine that has none."""

    def __init__(self, *kits: FakeKit | None) -> None:
        super().__init__()
        self.kits = kits
        self._of: dict[object, FakeKit | None] = {}
        self._next = 0

    async def serve(self, request: web.Request) -> web.StreamResponse:
        protocol = request.protocol
        if protocol not in self._of:
            self._of[protocol] = self.kits[self._next % len(self.kits)]
            self._next += 1
        chosen = self._of[protocol]
        if chosen is None:
            return web.json_response({"detail": "Not Found"}, status=404)
        return await chosen.serve(request)


def second(*entries: dict[str, object]) -> FakeKit:
    """Another engine's kit."""
    one = FakeKit(*entries)
    one.boot_id = "boot-2"
    return one
