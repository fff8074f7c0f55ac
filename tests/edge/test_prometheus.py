"""The source over a server whose answers are the test's, stepped by hand: what is news, what is blind when,
and that no clock makes a hold jump. The engines themselves are there too.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from stanch.core.policy import Policy
from stanch.core.sample import Role
from stanch.core.verdict import Signature, State, Verdict
from stanch.edge import client
from stanch.edge.live import Judged, Live
from stanch.edge.prometheus import Prometheus
from stanch.edge.prometheus_query import WAYS, Wanted
from stanch.edge.scrape import Scraper
from stanch.edge.target import Target
from stanch.edge.targets import Watched
from stanch.edge.units import paced
from tests.edge.fake_vllm import FakeVllm
from tests.edge.prometheus_server import FakePrometheus, Reply, Series, allowing, scraped, vector

pytestmark = pytest.mark.unit
row = pytest.param

INTERVAL = 5.0
POLICY = Policy(interval_seconds=INTERVAL, canary_seconds=1.0).with_hold(20.0)


class Scene:
    """One engine, d0, and a Prometheus that scrapes it when the test says so. skew: its clock minus ours.
    more: what else an answer has. broken: an answer in the place of the true one."""

    def __init__(self, engine: FakeVllm, fake: FakePrometheus) -> None:
        self.now = 1_800_000_000.0
        self.skew = 0.0
        self.engine = engine
        self.fake = fake
        self.target = {"namespace": "shop", "pod": "d0"}
        self.pages: dict[str, tuple[str, float, float]] = {}
        self.more: dict[str, Any] = {}
        self.broken: Reply | None = None
        self.live: Live
        self.source: Prometheus

    def clock(self) -> float:
        return self.now

    def scrape(self, replica: str = "", ago: float = 0.0, up: float = 1) -> None:
        """As the replica's Prometheus does it: from now on that is its newest page."""
        lines = [line for rank in self.engine.ranks for line in rank.lines()]
        page = "".join(f"{x}\n" for x in (f"process_start_time_seconds {self.engine.started}", *lines))
        self.pages[replica] = (page if up else "", self.now + self.skew - ago, up)

    def answer(self, query: str) -> Reply:
        if self.broken is not None:
            return self.broken
        found: list[Series] = []
        for replica, (page, t, up) in self.pages.items():
            labels = {**self.target, **({"prometheus_replica": replica} if replica else {})}
            found += scraped(page, labels, t, self.now + self.skew, up)
        way = next(way for way in WAYS if f"{way.key}=~" in query)
        return Reply(vector([one for one in found if way.key in one["metric"]], **self.more))

    async def turn(self, seconds: float = INTERVAL) -> Verdict:
        """So many seconds later: ask Prometheus, and judge."""
        self.now += seconds
        return (await self.judged())[0].verdict

    async def judged(self) -> list[Judged]:
        self.live.retarget(paced(self.watched, self.live.judged_every))
        await self.live.look()
        return self.live.turn()

    async def turns(self, count: int, seconds: float = INTERVAL) -> list[Verdict]:
        """Scraped a second before each."""
        found = []
        for _ in range(count):
            self.now += seconds - 1
            self.scrape()
            found.append(await self.turn(1))
        return found

    watched: list[Watched]

    @property
    def trouble(self) -> str | None:
        found = self.live.readings
        assert found is not None
        return None if found.trouble is None else found.trouble.reason

    @property
    def notice(self) -> str | None:
        found = self.live.readings
        assert found is not None
        return None if found.notice is None else found.notice.reason


@asynccontextmanager
async def scene(interval: float = INTERVAL) -> AsyncIterator[Scene]:
    async with FakeVllm() as engine:
        made: list[Scene] = []
        with FakePrometheus(lambda query: made[0].answer(query)) as fake, TemporaryDirectory() as folder:
            s = Scene(engine, fake)
            made.append(s)
            policy = Policy(interval_seconds=interval, canary_seconds=1.0).with_hold(20.0)
            s.watched = [Watched(Target("d0", engine.url), Role.DECODE, policy, "shop")]
            async with client.session() as session, Scraper([], interval, clock=s.clock) as scraper:
                table = allowing(Path(folder), fake.url)
                wanted = Wanted(fake.url, "shop", timeout_seconds=2, table=table)
                s.source = Prometheus(wanted, scraper, interval, s.clock)
                s.live = Live([], s.source, session, policy, s.clock)
                try:
                    yield s
                finally:
                    await s.live.close()
                    await s.source.close()


def play(script: Callable[[Scene], Awaitable[None]], interval: float = INTERVAL) -> None:
    async def whole() -> None:
        async with scene(interval) as s:
            await asyncio.wait_for(script(s), 60)

    asyncio.run(whole())


def test_a_leak_is_found_and_its_hold_counts_by_the_times_of_the_scrapes() -> None:
    async def script(s: Scene) -> None:
        assert [v.state for v in await s.turns(3)] == [State.HEALTHY] * 3
        assert s.engine.paths.count("/metrics") == 0, "the engine itself is not read"
        s.engine.rank.usage = 0.4
        found = await s.turns(6)
        assert [v.state for v in found] == [State.SUSPECT] * 4 + [State.FAULT] * 2
        assert found[-1].signature is Signature.HELD_IDLE
        assert [v.held_seconds for v in found] == pytest.approx([0, 5, 10, 15, 20, 25])
        assert found[-1].t == pytest.approx(s.now - 1, abs=0.1)
        assert found[-1].usage == 0.4
        assert (s.trouble, s.notice) == (None, None)

    play(script)


def test_one_question_an_interval_once_it_is_known_which_labels_count() -> None:
    async def script(s: Scene) -> None:
        s.target = {"kubernetes_namespace": "shop", "kubernetes_pod_name": "d0"}
        s.scrape()
        await s.turn(1)
        assert len(s.fake.asked) == 2
        await s.turns(5)
        assert len(s.fake.asked) == 7

    play(script)


def test_between_two_scrapes_there_is_no_news() -> None:
    async def script(s: Scene) -> None:
        s.engine.rank.usage = 0.4
        s.scrape()
        first = await s.turn(1)
        assert await s.turn(1) is first
        assert await s.turn(1) is first
        s.scrape()
        assert (await s.turn(1)).held_seconds == pytest.approx(3)

    play(script)


def test_what_is_not_scraped_any_more_is_blind_after_three_intervals() -> None:
    async def script(s: Scene) -> None:
        await s.turns(2)
        await s.turn(13)
        assert (await s.turn(0)).state is State.HEALTHY, "14 s old"
        blind = await s.turn(2)
        assert blind.state is State.BLIND
        assert blind.cause == "its newest reading in Prometheus is 16 s old"
        assert s.trouble is None
        await s.turn(5)
        assert s.trouble == "Stale"
        # It comes back: at once, and the hold does not count what nobody saw.
        s.engine.rank.usage = 0.4
        back = await s.turns(2)
        assert [v.state for v in back] == [State.SUSPECT] * 2
        assert back[-1].held_seconds == pytest.approx(5)
        assert s.trouble is None

    play(script)


def test_a_reading_that_was_old_when_it_came_is_not_believed() -> None:
    async def script(s: Scene) -> None:
        s.scrape(ago=60)
        blind = await s.turn(1)
        assert (blind.state, blind.cause) == (State.BLIND, "its newest reading in Prometheus is 61 s old")
        assert s.trouble == "Stale"

    play(script)


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        row(Reply(b"<html>log in</html>", headers={"Content-Type": "text/html"}), "NotPrometheus", id="html"),
        row(Reply(b"", 401), "Unauthorized", id="401"),
        row(Reply(b"", 422), "QueryRefused", id="422"),
        row(Reply(b"", 503), "PrometheusUnavailable", id="503"),
        row(Reply(vector([]), wait=2.5), "PrometheusUnreachable", id="time-out"),
        row(Reply(vector([{"metric": {}, "value": 1}])), "NotPrometheus", id="garbage"),
    ],
)
def test_no_answer_is_said_when_it_lasts_and_blinds_after_three_intervals(broken: Reply, reason: str) -> None:
    async def script(s: Scene) -> None:
        await s.turns(2)
        s.broken = broken
        assert (await s.turn()).state is State.HEALTHY
        assert s.trouble is None, "one question without an answer is no news"
        assert (await s.turn()).state is State.HEALTHY
        assert s.trouble == reason
        blind = await s.turn()
        assert blind.state is State.BLIND
        assert s.live.readings is not None
        assert s.live.readings.trouble is not None
        assert blind.cause == s.live.readings.trouble.message
        s.broken = None
        assert (await s.turns(1))[0].state is State.HEALTHY
        assert s.trouble is None

    play(script)


def test_no_answer_from_the_beginning_is_said_at_once() -> None:
    async def script(s: Scene) -> None:
        s.broken = Reply(b"", 401)
        assert (await s.turn()).state is State.BLIND
        assert s.trouble == "Unauthorized"

    play(script)


def test_a_partial_answer_is_not_believed() -> None:
    async def script(s: Scene) -> None:
        s.more = {"warnings": ["No StoreAPIs matched for this query"]}
        assert (await s.turns(1))[0].state is State.BLIND
        assert s.trouble == "PartialAnswer"
        s.more = {}
        s.engine.rank.usage = 0.4
        await s.turns(2)
        s.more = {"warnings": ["No StoreAPIs matched for this query"]}
        found = await s.turns(4)
        assert [v.state for v in found] == [State.SUSPECT] * 2 + [State.BLIND] * 2
        assert "partial: No StoreAPIs matched" in (found[-1].cause or "")

    play(script)


def test_an_engine_without_series_is_blind_at_once() -> None:
    async def script(s: Scene) -> None:
        blind = await s.turn()
        assert (blind.state, s.trouble) == (State.BLIND, "NoSeries")
        assert 'namespace="shop" and pod, then' in (blind.cause or "")
        await s.turns(2)
        s.pages = {}
        assert (await s.turn(1)).state is State.BLIND
        await s.turns(1)
        s.scrape(up=0)
        assert (await s.turn(1)).cause == "Prometheus cannot scrape it (up is 0): see its page /targets"
        assert s.trouble == "NotScraped"

    play(script)


@pytest.mark.parametrize(("skew", "notice"), [(42.0, "ClockSkew"), (-3600.0, "ClockSkew"), (2.0, None)])
def test_a_clock_that_differs_changes_nothing_and_is_said(skew: float, notice: str | None) -> None:
    async def script(s: Scene) -> None:
        s.skew = skew
        s.engine.rank.usage = 0.4
        found = await s.turns(5)
        assert [v.held_seconds for v in found] == pytest.approx([0, 5, 10, 15, 20], abs=0.02)
        assert (found[-1].state, s.notice) == (State.FAULT, notice)
        assert found[-1].t == pytest.approx(s.now - 1, abs=0.2)

    play(script)


@pytest.mark.parametrize("step", [60.0, -60.0, 7.0, -7.0])
def test_a_clock_that_is_put_right_makes_no_hold_jump(step: float) -> None:
    """Put back, a Prometheus refuses what it scrapes until it has caught up, and shows what is old."""

    async def script(s: Scene) -> None:
        s.engine.rank.usage = 0.4
        before = (await s.turns(3))[-1]
        s.skew += step
        held = before.held_seconds
        for _ in range(3):
            if step > 0:
                (now,) = await s.turns(1)
                assert now.held_seconds == pytest.approx(held + 5, abs=0.2)
                held = now.held_seconds
            else:
                # What it shows is what it had then.
                page, t, up = s.pages[""]
                s.pages[""] = (page, t + (step if step < -INTERVAL else 0.0), up)
                assert (await s.turn()).held_seconds <= held
        assert s.trouble in (None, "Stale")

    play(script)


def test_of_two_replicas_one_is_read_as_long_as_it_goes_on() -> None:
    """Their counters are of two moments, and would stand now lower, now higher."""

    async def script(s: Scene) -> None:
        s.engine.rank.usage = 0.4
        held = []
        for number in range(8):
            s.now += 2
            s.scrape("a")
            s.engine.rank.prompt_tokens += 0
            s.now += 2
            if number < 5:
                s.scrape("b")
            held.append((await s.turn(1)).held_seconds)
        assert held == pytest.approx([5.0 * n for n in range(8)])
        assert ("prometheus_replica", "a") in s.source._known["d0"].group
        # The one that was read ends; the other one takes over.
        for _ in range(4):
            s.now += 4
            s.scrape("b")
            verdict = await s.turn(1)
        assert ("prometheus_replica", "b") in s.source._known["d0"].group
        assert verdict.state is State.FAULT

    play(script)


def test_prometheus_that_scrapes_more_rarely_than_we_ask_is_judged_by_its_own_interval() -> None:
    """By ours every reading would come after a gap, and no hold would ever end."""

    async def script(s: Scene) -> None:
        s.engine.rank.usage = 0.4
        verdicts = []
        for second in range(0, 240, 5):
            if second % 30 == 0:
                s.scrape()
            verdicts.append(await s.turn())
        assert verdicts[-1].state is State.FAULT
        assert all(v.state is not State.BLIND for v in verdicts[12:])
        assert s.source.judged_every("d0") == 30
        assert s.notice == "ScrapeIntervalLonger"
        assert s.live.readings is not None
        assert s.live.readings.notice is not None
        assert "set spec.intervalSeconds to 30" in s.live.readings.notice.message

    play(script)


def test_what_the_engine_itself_said_later_counts() -> None:
    async def script(s: Scene) -> None:
        s.engine.rank.usage = 0.4
        await s.turns(2)
        s.scrape()
        s.now += 1
        s.engine.rank.usage = 0.0
        s.engine.rank.generation_tokens += 50
        await s.live.look_again(["d0"])
        assert s.live.turn()[0].verdict.state is State.HEALTHY
        # What Prometheus scraped before that comes now.
        verdict = await s.turn(1)
        assert (verdict.state, verdict.usage) == (State.HEALTHY, 0.0)
        assert (await s.turns(1))[0].t > verdict.t

    play(script)


def test_a_scraper_whose_clock_is_ahead_makes_no_restart_of_an_older_page() -> None:
    """As behind a Thanos, whose clock tells nothing of the one of who scraped."""

    async def script(s: Scene) -> None:
        await s.turns(2)
        s.engine.rank.generation_tokens += 50
        s.scrape(ago=-2)  # said to be of two seconds later
        s.engine.rank.generation_tokens += 50
        s.now += 1
        await s.live.look_again(["d0"])
        s.live.turn()
        await s.turn(2)
        state = s.live.state_of("d0")
        assert state is not None
        assert (state.restarted_t, state.recent_restarts) == (None, 0)

    play(script)


def test_an_engine_that_was_read_itself_is_not_blind_because_prometheus_is() -> None:
    async def script(s: Scene) -> None:
        await s.turns(2)
        s.broken = Reply(b"", 503)
        for _ in range(5):
            s.now += 5
            await s.live.look_again(["d0"])
            verdict = (await s.judged())[0].verdict
        assert verdict.state is State.HEALTHY
        assert s.trouble == "PrometheusUnavailable"

    play(script)


def test_a_restart_is_seen() -> None:
    async def script(s: Scene) -> None:
        s.engine.rank.usage = 0.4
        await s.turns(3)
        s.engine.restart()
        s.engine.rank.usage = 0.4
        verdict = (await s.turns(1))[0]
        assert (verdict.state, verdict.held_seconds) == (State.SUSPECT, 0)

    play(script)


def test_what_a_prometheus_that_was_put_back_shows_of_the_past_is_not_believed() -> None:
    """Its scrapes are refused until its clock has caught up; meanwhile it shows what it had a minute ago, and
    that looks new."""

    async def script(s: Scene) -> None:
        await s.turns(2)
        healthy = s.pages[""]
        s.engine.rank.usage = 0.4
        await s.turns(10)
        newest = s.pages[""][1]
        s.skew = -40.0
        seen = []
        for number in range(6):
            s.pages[""] = (healthy[0], newest - 38 + number * INTERVAL, 1)
            seen.append(await s.turn())
        assert State.HEALTHY not in [v.state for v in seen]
        assert (seen[-1].state, "went back" in (seen[-1].cause or "")) == (State.BLIND, True)

    play(script)


def test_an_engine_that_was_just_read_itself_is_not_blind_because_it_has_no_series() -> None:
    """As after a restart, which Prometheus notices at its next scrape."""

    async def script(s: Scene) -> None:
        await s.turns(2)
        await s.live.look_again(["d0"])
        s.pages = {}
        assert (await s.turn(1)).state is State.HEALTHY
        assert s.trouble == "NoSeries"
        assert (await s.turn(16)).state is State.BLIND

    play(script)


def test_what_was_scraped_before_it_was_missed_is_still_news() -> None:
    """What comes late, as through remote write."""

    async def script(s: Scene) -> None:
        await s.turns(2)
        s.pages = {}
        assert (await s.turn(5)).state is State.BLIND
        s.scrape(ago=3)
        assert (await s.turn(1)).state is State.HEALTHY

    play(script)


def test_one_target_that_is_scraped_rarely_makes_no_others_old() -> None:
    async def script(s: Scene) -> None:
        s.watched = [
            *s.watched,
            Watched(Target("d1", f"{s.engine.url}/x"), Role.DECODE, s.watched[0].policy, "shop"),
        ]
        target = s.target

        def answer(query: str) -> Reply:
            both = []
            for pod, (page, t, up) in s.pages.items():
                both += scraped(page, {**target, "pod": pod}, t, s.now, up)
            return Reply(vector([one for one in both if "pod=~" in query]))

        s.answer = answer  # type: ignore[method-assign]
        for number in range(24):
            s.now += 4
            s.scrape("d0")
            if number % 12 == 0:
                s.scrape("d1")
            await s.turn(1)
        assert (s.source.judged_every("d0"), s.source.judged_every("d1")) == (5.0, 60.0)
        for _ in range(3):
            s.now += 5
            judged = await s.judged()
        assert [one.verdict.state for one in judged] == [State.BLIND, State.HEALTHY]

    play(script)


def test_one_partial_answer_among_whole_ones_is_no_news() -> None:
    async def script(s: Scene) -> None:
        await s.turns(2)
        s.more = {"warnings": ["No StoreAPIs matched for this query"]}
        await s.turns(1)
        assert (s.trouble, s.notice) == (None, None)
        await s.turns(1)
        assert s.trouble == "PartialAnswer"

    play(script)
