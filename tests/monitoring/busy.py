"""Pages with everything in them: the operator's own telemetry and the engine kit's, both in use."""

from __future__ import annotations

import asyncio
import io
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from unittest.mock import patch

import prometheus_client
from prometheus_client import CollectorRegistry

from stanch.core.history import Ending, StepName
from stanch.core.plan_types import Deferral, Reason
from stanch.core.sample import Role
from stanch.core.verdict import Signature, State, Verdict
from stanch.edge.cluster import Call
from stanch.edge.journal import Journal
from stanch.edge.telemetry import Telemetry, Turned, Watch
from stanch.edge.telemetry_server import serving
from stanch_connector.apiserver.control import NoControl
from stanch_connector.apiserver.middleware import StanchMiddleware
from tests.connector.asgi import FakeApp, FakeCores, call
from tests.edge.incidents import T, done, made, stuck

WATCH = Watch("serving", "llama", "uid-w")
SUMMARY = {
    "parked_requests": 1,
    "parked_blocks": 10,
    "orphan_requests": 2,
    "orphan_blocks": 24,
    "oldest_seconds": 50,
    "errors": 0,
    "fix": "unpatched",
    "fixHits": 3,
    "releases": {"freed": 2},
    "refusals": {"reading": 1},
}


@contextmanager
def operator_page() -> Iterator[str]:
    """The address of an operator's page on which something happens all the time."""
    telemetry = Telemetry(Journal(io.StringIO()), time.time)
    telemetry.active(True)
    end = threading.Event()

    def live() -> None:
        while not end.wait(0.2):
            _once(telemetry)

    with serving(telemetry, "127.0.0.1", 0) as port:
        thread = threading.Thread(target=live)
        thread.start()
        try:
            yield f"127.0.0.1:{port}"
        finally:
            end.set()
            thread.join()


def _once(telemetry: Telemetry) -> None:
    """One turn with a repair in it, from the fault to the end, and all else that is counted."""
    now = time.monotonic()
    fault = Verdict(T, "decode-0", Role.DECODE, State.FAULT, Signature.HELD_IDLE, 62.0, 60.0)
    blind = Verdict(T, "decode-1", Role.DECODE, State.BLIND, Signature.BLIND)
    deferred = [Deferral("serving/decode-1", Reason.BLIND, "cannot tell")]
    found = done(made(stuck=(stuck("a"),)))
    cordoning = found.begin(StepName.CORDON, T + 2)
    cordoned = done(cordoning, seconds=1)
    telemetry.turn(
        WATCH, Turned(now - 0.4, now - 0.3, now, 5.0, [fault, blind], deferred, [found, cordoning])
    )
    telemetry.incident(WATCH, None, found)
    telemetry.incident(WATCH, found, cordoning)
    telemetry.incident(WATCH, cordoning, cordoned)
    telemetry.incident(WATCH, cordoned, cordoned.close(Ending.RESOLVED, "well again", T + 60))
    telemetry.turn_failed(WATCH, 5.0, "Unreachable", "no answer")
    telemetry.call(Call("patch", "pods", 200, 0.01))
    telemetry.families.loop_lag.observe(0.001)
    telemetry.families.alerts.labels("created").inc()
    telemetry.families.reviews.labels("injected").inc()


@contextmanager
def kit_page() -> Iterator[str]:
    """The address of a page with the kit's families, as its own code sets them."""
    registry = CollectorRegistry()
    app = FakeApp(FakeCores(lambda rank, _: json.dumps(SUMMARY)))
    with patch.object(prometheus_client, "Gauge", partial(prometheus_client.Gauge, registry=registry)):
        asyncio.run(call(StanchMiddleware(app, NoControl()), app, "/metrics"))
    server, thread = prometheus_client.start_http_server(0, "127.0.0.1", registry)
    try:
        yield f"127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
