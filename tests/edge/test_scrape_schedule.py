"""The scraper's schedule: spread evenly, nobody delays anybody, a clean end."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from stanch.edge.scrape import Scrape, Scraper
from stanch.edge.scrape_schedule import following_turn, phase_seconds
from stanch.edge.target import Target
from tests.edge.pages import page
from tests.edge.servers import always, answer, serving, turns

pytestmark = pytest.mark.unit

GOOD = page()


async def _run(scraper: Scraper, deliver: Callable[[Scrape], None], done: Callable[[], bool]) -> None:
    """Run until done after a delivery, then cancel; the run must end as cancelled and leave no turn."""
    enough = asyncio.Event()

    def deliver_and_look(scrape: Scrape) -> None:
        deliver(scrape)
        if done():
            enough.set()

    running = asyncio.create_task(scraper.run(deliver_and_look))
    waiting = asyncio.create_task(enough.wait())
    await asyncio.wait({running, waiting}, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    running.cancel()
    await asyncio.gather(running, waiting, return_exceptions=True)
    assert running.cancelled()
    left = {task.get_name() for task in asyncio.all_tasks()}
    assert not left & {target.name for target in scraper.targets}


@pytest.mark.parametrize(
    ("index", "count", "interval", "offset"),
    [
        pytest.param(0, 1, 5.0, 0.0, id="alone"),
        pytest.param(0, 4, 5.0, 0.0, id="first"),
        pytest.param(3, 4, 5.0, 3.75, id="last"),
        pytest.param(49, 50, 5.0, 4.9, id="last of as many as there are slots"),
        pytest.param(0, 1000, 5.0, 0.0, id="first of many"),
        pytest.param(19, 1000, 5.0, 0.0, id="last of the first slot"),
        pytest.param(20, 1000, 5.0, 0.1, id="first of the second slot"),
        pytest.param(999, 1000, 5.0, 4.9, id="last of many"),
    ],
)
def test_phases(index: int, count: int, interval: float, offset: float) -> None:
    assert phase_seconds(index, count, interval) == offset


@pytest.mark.parametrize(
    ("turn", "now", "following"),
    [
        pytest.param(0, 100.0, 1, id="at once"),
        pytest.param(0, 104.9, 1, id="just in time"),
        pytest.param(0, 105.0, 2, id="as the next is due"),
        pytest.param(0, 109.0, 2, id="one skipped"),
        pytest.param(3, 131.0, 7, id="three skipped"),
        pytest.param(3, 99.0, 4, id="a clock before the start"),
    ],
)
def test_a_turn_that_took_too_long_skips_what_it_missed(turn: int, now: float, following: int) -> None:
    assert following_turn(turn, first=100.0, interval=5.0, now=now) == following


def test_every_target_has_its_turns_and_connections_are_kept() -> None:
    connections = 0
    order: list[str] = []

    async def main() -> None:
        nonlocal connections
        seen: set[asyncio.StreamWriter] = set()

        async def handle(path: str, writer: asyncio.StreamWriter) -> None:
            seen.add(writer)
            writer.write(answer(GOOD))

        async with serving(handle) as url:
            # One server per target would be truer; another port of it is enough for a connection of its own.
            targets = [Target(f"d{n}", f"{url}/{n}/metrics") for n in range(4)]
            async with Scraper(targets, 0.4, 5) as scraper:
                await _run(
                    scraper,
                    lambda scrape: order.append(scrape.target.name),
                    lambda: len(set(order)) == 4 and len(order) > 11,
                )
        connections = len(seen)

    asyncio.run(main())
    assert connections <= 4
    assert set(order) == {"d0", "d1", "d2", "d3"}


def test_a_slow_target_delays_nobody_and_its_turns_are_skipped() -> None:
    delivered: list[Scrape] = []
    skipped = 0

    async def main() -> None:
        nonlocal skipped
        free = asyncio.Event()

        async def handle(path: str, writer: asyncio.StreamWriter) -> None:
            if path.startswith("/slow"):
                await free.wait()
            writer.write(answer(GOOD))

        def deliver(scrape: Scrape) -> None:
            delivered.append(scrape)
            if len(delivered) == 10:
                assert {one.target.name for one in delivered} == {"fast"}
                free.set()

        async with serving(handle) as url:
            targets = [Target("slow", f"{url}/slow/metrics"), Target("fast", f"{url}/fast/metrics")]
            async with Scraper(targets, 0.05, 60) as scraper:
                await _run(scraper, deliver, lambda: sum(s.target.name == "slow" for s in delivered) >= 4)
                skipped = scraper.skipped

    asyncio.run(main())
    assert skipped >= 8
    # Skipped, not queued: what follows the slow turn comes an interval after another, not all at once.
    assert [scrape.target.name for scrape in delivered[10:]].count("fast") >= 2


def _twice(turns: Counter[tuple[str, str | None]]) -> bool:
    return len(turns) == 40 and min(turns.values()) >= 2


def test_a_dead_name_holds_one_thread_and_delays_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """The operating system's look-up hangs for some names, as it does for 10 s and more without an answer."""
    free, looked_up = threading.Event(), Counter[str]()
    real = socket.getaddrinfo

    def getaddrinfo(host: str, *args: Any, **more: Any) -> Any:
        looked_up[host] += 1
        if host.startswith("dead"):
            free.wait()
            raise socket.gaierror(socket.EAI_AGAIN, "no answer")
        return real(host, *args, **more)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    good: list[str | None] = []
    dead: Counter[tuple[str, str | None]] = Counter()

    async def main() -> None:
        async with serving(always(answer(GOOD))) as url:
            targets = [Target(f"dead{n}", f"http://dead{n}.invalid:1") for n in range(40)]
            targets.append(Target("good", url.replace("127.0.0.1", "localhost")))

            def deliver(scrape: Scrape) -> None:
                if scrape.target.name == "good":
                    good.append(scrape.problem)
                else:
                    dead[scrape.target.name, scrape.problem] += 1

            async with Scraper(targets, 0.1, 0.05) as scraper:
                await _run(scraper, deliver, lambda: good.count(None) > 1 and _twice(dead))
            free.set()

    asyncio.run(main())
    assert set(dead) == {(f"dead{n}", "no answer within 0.05 s") for n in range(40)}
    assert {looked_up[f"dead{n}.invalid"] for n in range(40)} == {1}


def test_dead_names_and_silent_hosts_do_not_delay_a_good_target() -> None:
    names: Counter[str] = Counter()

    async def main() -> None:
        async def silent(_: str, writer: asyncio.StreamWriter) -> None:
            await asyncio.Event().wait()

        async with serving(silent) as dead, serving(always(answer(GOOD))) as url:
            targets = [Target(f"dead{n}", f"http://dead{n}.invalid") for n in range(20)]
            targets += [Target(f"silent{n}", f"{dead}/{n}/metrics") for n in range(20)]
            targets.append(Target("good", url))

            def deliver(scrape: Scrape) -> None:
                names[scrape.target.name] += scrape.problem is None

            async with Scraper(targets, 0.2, 60) as scraper:
                await _run(scraper, deliver, lambda: names["good"] >= 3)

    asyncio.run(main())
    assert +names == Counter(good=names["good"])


def test_what_deliver_raises_ends_the_run() -> None:
    def deliver(_: Scrape) -> None:
        raise KeyError("ours")

    async def main() -> None:
        async with (
            serving(always(answer(GOOD))) as url,
            Scraper([Target("a", url), Target("b", url)], 0.05, 5) as scraper,
        ):
            await scraper.run(deliver)

    with pytest.raises(KeyError, match="ours"):
        asyncio.run(main())


def test_a_connection_that_the_server_closed_while_it_was_idle_is_no_blind_turn() -> None:
    async def close_after(_: str, writer: asyncio.StreamWriter) -> None:
        # Without Connection: close, as a server whose keep-alive time is over.
        writer.write(answer(GOOD))
        await writer.drain()
        writer.close()

    scrapes = asyncio.run(turns(close_after, count=5))
    assert [scrape.problem for scrape in scrapes] == [None] * 5
