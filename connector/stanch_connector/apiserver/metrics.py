"""The kit's families on the engine's own /metrics, set anew for every reading of that page.

So they do not freeze while the engine idles. prometheus_client comes with vLLM; with several API-server
processes (its multi-process mode) the newest reading of any of them counts, as with vLLM's own gauges. A rank
that does not answer in time shows NaN, never 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final, get_args

from stanch_connector.apiserver.ask import Ranks, ranks_of
from stanch_connector.contract import Fix, Refusal, Way

# A reading of /metrics waits this long for a hung engine.
DEADLINE_SECONDS: Final = 0.5

GAUGES: Final = {
    "parked_requests": "Requests that wait for remote KV.",
    "parked_blocks": "KV blocks that these hold.",
    "orphan_requests": "Requests that are finished or aborted, yet held, and for no remote reader.",
    "orphan_blocks": "KV blocks that these hold.",
    "oldest_seconds": "How long the oldest of the parked and the orphans has been so.",
    "errors": "Exceptions that the kit caught in its own hooks since the engine's start.",
    "fixHits": "Requests that the fix reported, and the stock connector would have lost.",
}
# Of a reply's map from label value to number. All values stand at 0 from the start.
MAPS: Final = {
    "releases": ("way", get_args(Way), "Requests that were released, since the engine's start."),
    "refusals": (
        "reason",
        get_args(Refusal),
        "Requests that a release was refused, since the engine's start.",
    ),
}
SERVER_ERRORS: Final = "Exceptions that the kit caught in an API-server process since its start."
FIX: Final = "1 for what the connector says of the known defect: active, not-needed, unpatched, off."


class Metrics:
    """One API-server process's gauges; made at the first reading, for nothing is done at import."""

    def __init__(self, errors: Callable[[], int]) -> None:
        self._errors = errors
        self._server_errors: Any = None
        self._gauges: dict[str, Any] = {}
        self._maps: dict[str, Any] = {}
        self._known: list[int] = []
        self._fix: Any = None

    async def refresh(self, ranks: Ranks, client: Any) -> None:
        """Ask all ranks and set the gauges. Raises NoEngineError, and what prometheus_client raises."""
        self._known = [rank for rank, _ in ranks_of(client)]
        said = await ranks.ask(client, "summary", DEADLINE_SECONDS)
        self._make()
        self._show(said.answers)

    def silence(self) -> None:
        """Nothing is known of any rank any more."""
        if self._gauges:
            self._show({})

    def _show(self, answers: Mapping[int, dict[str, Any]]) -> None:
        self._server_errors.set(self._errors())
        for rank in self._known:
            reply = answers.get(rank, {})
            for name, gauge in self._gauges.items():
                gauge.labels(engine=str(rank)).set(reply.get(name, math.nan))
            for name, gauge in self._maps.items():
                label, values, _ = MAPS[name]
                counts = reply.get(name)
                for value in values:
                    count = math.nan if counts is None else counts.get(value, 0)
                    gauge.labels(engine=str(rank), **{label: value}).set(count)
            fix = reply.get("fix")
            for one in get_args(Fix) if fix is not None else ():
                self._fix.labels(engine=str(rank), fix=one).set(one == fix)

    def _make(self) -> None:
        if self._gauges:
            return
        from prometheus_client import Gauge

        self._server_errors = Gauge("stanch_kit_server_errors", SERVER_ERRORS, multiprocess_mode="mostrecent")
        self._fix = Gauge("stanch_fix", FIX, ["engine", "fix"], multiprocess_mode="mostrecent")
        self._maps = {
            name: Gauge(full_name(name), text, ["engine", label], multiprocess_mode="mostrecent")
            for name, (label, _, text) in MAPS.items()
        }
        self._gauges = {
            name: Gauge(full_name(name), text, ["engine"], multiprocess_mode="mostrecent")
            for name, text in GAUGES.items()
        }


def full_name(name: str) -> str:
    return {
        "errors": "stanch_kit_errors",
        "fixHits": "stanch_fix_hits",
        "oldest_seconds": "stanch_oldest_stuck_seconds",
        "refusals": "stanch_release_refusals",
    }.get(name, f"stanch_{name}")
