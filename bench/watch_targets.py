"""Stanch as bench.scrape measures it: its scraper and its detector on so many simulated targets.

Ends when its input does; then prints what it did as one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections import Counter
from pathlib import Path
from tempfile import mkdtemp

from bench.page_server import address
from stanch.core.policy import Policy
from stanch.core.sample import Role
from stanch.edge.live import Live
from stanch.edge.prometheus_query import Wanted
from stanch.edge.scrape import Scrape, Scraper
from stanch.edge.target import Target
from stanch.edge.targets import Watched
from stanch.edge.watching import watching


async def _judge(live: Live, counts: Counter[str]) -> None:
    async for judged in live.turns(None):
        counts["turns"] += 1
        counts["verdicts"] += len(judged)
        for one in judged:
            counts[one.verdict.state.value] += 1


async def _scrape(targets: list[Target], interval: float, counts: Counter[str]) -> None:
    def deliver(scrape: Scrape) -> None:
        counts["scrapes"] += 1
        counts["blind"] += scrape.problem is not None

    async with Scraper(targets, interval) as scraper:
        try:
            await scraper.run(deliver)
        finally:
            counts["skipped"] = scraper.skipped


async def _main(targets: int, port: int, interval: float, detect: bool, prometheus: str) -> None:
    counts: Counter[str] = Counter()
    wanted = None
    if prometheus:
        table = Path(mkdtemp(prefix="stanch-bench-")) / "table.yaml"
        table.write_text(f"- url: {prometheus}\n")
        wanted = Wanted(prometheus, "bench", table=table)
    addresses = [Target(f"decode-{i}", f"http://{address(i)}:{port}") for i in range(targets)]
    if detect:
        policy = Policy(interval_seconds=interval)
        watched = [
            Watched(target, Role.DECODE, policy, f"deployment-{i // 10}")
            for i, target in enumerate(addresses)
        ]
        async with watching(watched, policy, wanted=wanted) as live:
            await _until_input_ends(asyncio.create_task(_judge(live, counts)))
    else:
        await _until_input_ends(asyncio.create_task(_scrape(addresses, interval, counts)))
    print(json.dumps(counts), flush=True)


async def _until_input_ends(running: asyncio.Task[None]) -> None:
    print("ready", flush=True)
    ended = asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await asyncio.wait({running, ended}, return_when=asyncio.FIRST_COMPLETED)
    running.cancel()
    (result,) = await asyncio.gather(running, return_exceptions=True)
    if isinstance(result, Exception):
        raise result


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--targets", type=int, default=1000)
    parser.add_argument("--port", type=int, default=18000)
    parser.add_argument("--interval", type=float, default=5.0)
    parser.add_argument("--scrape-only", action="store_true")
    parser.add_argument("--prometheus", default="", help="its URL, in the place of the targets themselves")
    arguments = parser.parse_args()
    detect = not arguments.scrape_only
    asyncio.run(_main(arguments.targets, arguments.port, arguments.interval, detect, arguments.prometheus))
