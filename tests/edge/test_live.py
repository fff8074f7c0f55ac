"""Live engines turn by turn: roles, versions, those that come and go. Real servers, the test's own clock."""

from __future__ import annotations

import asyncio

import pytest

from stanch.core.policy import Policy
from stanch.core.sample import Role
from stanch.core.verdict import Signature, State
from stanch.edge.target import Target
from stanch.edge.targets import Watched, from_url
from stanch.edge.watching import watching
from tests.edge.fake_vllm import FakeVllm, Rank, decode_evidence, prefill_evidence, until
from tests.edge.live_scene import play, scene, shown

pytestmark = pytest.mark.unit
row = pytest.param

HELD = (State.FAULT, Signature.HELD_IDLE)


def test_a_role_is_learnt_from_the_metrics_and_kept() -> None:
    async def script() -> None:
        fake = FakeVllm()
        async with scene(fake, role=None) as s:
            seen = [(await s.step())[0].verdict.role]
            fake.extra = decode_evidence()
            seen.append((await s.step())[0].verdict.role)
            for fake.extra in ([], prefill_evidence()):
                seen.append((await s.step())[0].verdict.role)
        assert seen == [Role.UNKNOWN, Role.DECODE, Role.DECODE, Role.DECODE]
        async with scene(fake, role=None) as s:
            assert (await s.step())[0].verdict.role is Role.PREFILL

    play(script)


def test_a_young_decode_that_was_only_probed_is_no_prefill_for_ever() -> None:
    async def script() -> None:
        fake = FakeVllm(extra=prefill_evidence())
        async with scene(fake, role=None) as s:
            seen = [(await s.step())[0].verdict.role]
            for fake.extra in (decode_evidence(), prefill_evidence()):
                seen.append((await s.step())[0].verdict.role)
        assert seen == [Role.PREFILL, Role.DECODE, Role.DECODE]

    play(script)


def test_a_role_that_was_said_is_not_guessed() -> None:
    async def script() -> None:
        fake = FakeVllm(extra=decode_evidence())
        async with scene(fake, role=Role.PREFILL) as s:
            assert (await s.step())[0].verdict.role is Role.PREFILL

    play(script)


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        row(5.0, (State.FAULT, Signature.HELD_IDLE, 10.0), id="its-time-away-does-not-count"),
        row(20.0, (State.SUSPECT, Signature.HELD_IDLE, 0.0), id="a-gap-restarts-the-hold"),
    ],
)
def test_an_engine_that_goes_away_and_comes_back(
    seconds: float, expected: tuple[State, Signature, float]
) -> None:
    async def script() -> None:
        fake = FakeVllm(Rank(usage=0.82))
        async with scene(fake) as s:
            assert shown(await s.steps(3)) == [(*HELD, None)]
            await fake.down()
            away = (await s.step())[0].verdict
            assert (away.state, away.cause) == (State.BLIND, "the connection was refused")
            await fake.up()
            back = (await s.step(seconds))[0].verdict
            assert (back.state, back.signature, back.held_seconds) == expected

    play(script)


@pytest.mark.parametrize(
    ("seconds", "state"), [row(15.0, State.FAULT, id="three-intervals"), row(15.5, State.BLIND, id="more")]
)
def test_a_reading_that_ages(seconds: float, state: State) -> None:
    async def script() -> None:
        async with scene(FakeVllm(Rank(usage=0.82))) as s:
            await s.steps(3)
            s.now += seconds
            verdict = s.live.turn()[0].verdict
        assert verdict.state is state
        assert state is State.FAULT or verdict.cause == "the newest reading is 15.5 s old"

    play(script)


def test_a_restart_forgets_the_version_until_it_is_said_again() -> None:
    """An old version has a long lease, so what is not known must not be taken for the new one."""

    async def script() -> None:
        fake = FakeVllm(Rank(usage=0.3))
        policy = Policy(interval_seconds=5.0)
        async with scene(fake, role=Role.PREFILL, policy=policy) as s:
            name = fake.url.removeprefix("http://")
            await s.live.learn()
            limits = [(await s.steps(8))[0].verdict.limit_seconds]
            fake.restart()
            fake.rank.usage, fake.version = 0.3, "0.21.0"
            await s.step()
            assert name not in s.live.versions
            await until(lambda: s.live.versions.get(name) == "0.21.0")
            # Nothing is said of a prefill before its lease has passed.
            limits.append((await s.steps(98))[0].verdict.limit_seconds)
        assert limits == [60.0, 960.0]

    play(script)


def test_the_version_of_one_that_was_down_is_asked_again_after_a_minute() -> None:
    async def script() -> None:
        fake = FakeVllm()
        async with scene(fake) as s:
            name = fake.url.removeprefix("http://")
            await fake.down()
            await s.live.learn()
            await fake.up()
            await s.step(59.0)
            assert fake.paths.count("/version") == 0
            await s.step(1.0)
            await until(lambda: s.live.versions.get(name) == "0.29.0")

    play(script)


def test_turns_over_many_engines_end_on_time_with_all_of_them() -> None:
    """The last turn waits for those whose place in the interval has not come yet."""

    async def script() -> None:
        async with FakeVllm() as first, FakeVllm(Rank(usage=0.4)) as second:
            policy = Policy(interval_seconds=600.0)
            watched: list[Watched] = [from_url(f.url, Role.DECODE, policy) for f in (first, second)]
            async with watching(watched, policy) as live:
                turns = [[j.verdict.state for j in turn] async for turn in live.turns(0.1)]
        assert turns == [[State.HEALTHY, State.SUSPECT]]

    play(script)


def test_one_that_hangs_delays_nobody_and_is_blind_in_the_end() -> None:
    async def script() -> None:
        async def never(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(-1)
            writer.close()

        server = await asyncio.start_server(never, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        policy = Policy(interval_seconds=0.1)
        async with server, FakeVllm() as fake:
            watched = [from_url(url, Role.DECODE, policy) for url in (fake.url, f"http://127.0.0.1:{port}")]
            async with watching(watched, policy) as live:
                turns = [{j.verdict.engine: j.verdict.state for j in turn} async for turn in live.turns(0.5)]
        names = [one.target.name for one in watched]
        assert turns[0] == {names[0]: State.HEALTHY}
        assert turns[-1] == {names[0]: State.HEALTHY, names[1]: State.BLIND}

    play(script)


def test_an_engine_whose_name_is_taken_is_blind() -> None:
    """Rank 0 of a target "a" and a target "a/0"."""

    async def script() -> None:
        async with FakeVllm(Rank("0"), Rank("1")) as ranks, FakeVllm() as alone:
            targets = [
                Watched(Target("a", ranks.url), Role.DECODE, Policy()),
                Watched(Target("a/0", alone.url), Role.DECODE, Policy()),
            ]
            async with watching(targets, Policy()) as live:
                await live.look()
                verdicts = [one.verdict for one in live.turn()]
                assert [v.state for v in verdicts] == [State.HEALTHY, State.HEALTHY, State.BLIND]
                assert "another engine is called a/0 too" in (verdicts[2].cause or "")

    play(script)
