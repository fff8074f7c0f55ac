"""Opens a Live with the connections that it needs, and closes them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from stanch.core.policy import Policy
from stanch.edge import client
from stanch.edge.clock import Clock
from stanch.edge.kit import Key, no_key
from stanch.edge.live import Live, Source
from stanch.edge.prometheus import Prometheus
from stanch.edge.prometheus_query import Wanted
from stanch.edge.scrape import Scraper
from stanch.edge.targets import Watched


@asynccontextmanager
async def watching(
    watched: Sequence[Watched],
    policy: Policy,
    key: Key = no_key,
    clock: Callable[[], float] | None = None,
    wanted: Wanted | None = None,
    verify: bool = True,
) -> AsyncIterator[Live]:
    """A Live over these targets, with the connections that it needs. clock: the process's, if it has one.
    wanted: of the Prometheus that its readings come from, where that is not the engines themselves. verify:
    the engines' certificates, where they speak https."""
    clock = clock or Clock()
    async with AsyncExitStack() as stack:
        targets = [one.target for one in watched]
        scraper = await stack.enter_async_context(
            Scraper(targets, policy.interval_seconds, clock=clock, verify=verify)
        )
        session = await stack.enter_async_context(client.session(verify=verify))
        source: Source = scraper
        if wanted is not None:
            source = prometheus = Prometheus(wanted, scraper, policy.interval_seconds, clock)
            stack.push_async_callback(prometheus.close)
        live = Live(watched, source, session, policy, clock, key)
        stack.push_async_callback(live.close)
        yield live
