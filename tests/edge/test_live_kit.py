"""Live engines with a kit: when it is asked, what its answers change, and that without them nothing does."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace

import pytest

from stanch.core.policy import Policy
from stanch.core.sample import Lifecycle, Role
from stanch.core.verdict import Answer, Signature, State
from stanch.edge import kit
from stanch.edge.targets import from_url
from stanch.edge.watching import watching
from tests.edge.fake_kit import FakeKit, entry, hangs, says
from tests.edge.fake_vllm import FakeVllm, Rank, until
from tests.edge.live_scene import Scene, play, scene, shown

pytestmark = pytest.mark.unit
row = pytest.param

# Times as in production; only the clock is the test's.
POLICY = Policy(canary_seconds=1.0)
STUCK = (State.FAULT, Signature.PARKED_REMOTE_KV, Answer.CONFIRMED)
LIST, STATE = "/stanch/v1/requests", "/stanch/v1/state"


def with_kit(server: FakeKit | None, *ranks: Rank) -> FakeVllm:
    fake = FakeVllm(*ranks)
    fake.kit = server
    return fake


def looks(fake: FakeVllm) -> int:
    return Counter(fake.paths)[LIST]


async def settle(s: Scene) -> None:
    """Until nobody's kit or version is being asked in the background."""
    asking = ("Kits._look", "Learned.learn")
    await until(lambda: not any(a in repr(t.get_coro()) for t in asyncio.all_tasks() for a in asking))


async def turns(s: Scene, count: int) -> list[tuple[State, Signature | None, Answer | None]]:
    for _ in range(count):
        judged = await s.step()
        await settle(s)
    return shown(judged)


def test_a_suspect_is_looked_at_at_once_and_then_at_every_turn() -> None:
    async def script() -> None:
        fake = with_kit(FakeKit(entry()), Rank(usage=0.3))
        async with scene(fake, policy=POLICY) as s:
            assert await turns(s, 1) == [(State.SUSPECT, Signature.HELD_IDLE, None)]
            assert looks(fake) == 1
            for _ in range(3):
                assert await turns(s, 1) == [STUCK]
            assert looks(fake) == 4
            # The next page shows it freed, and the next list as well.
            fake.kit, fake.rank.usage = FakeKit(), 0.0
            await turns(s, 1)
            assert await turns(s, 1) == [(State.HEALTHY, None, None)]
        assert fake.asked == []

    play(script)


@pytest.mark.parametrize(
    ("rank", "most"),
    [
        row(Rank(), 0, id="empty"),
        row(Rank(usage=0.4, running=3), 1, id="at-work"),
        row(Rank(usage=0.4, running=3, waiting=2, deferred=1), 10, id="with-parked-ones"),
    ],
)
def test_a_healthy_engine_is_looked_at_rarely(rank: Rank, most: int) -> None:
    """In five minutes of turns every 5 s."""

    async def script() -> None:
        fake = with_kit(FakeKit(), rank)
        async with scene(fake, policy=POLICY) as s:
            for i in range(60):
                rank.generation_tokens += 10
                rank.iterations = 900.0 + i
                assert (await turns(s, 1))[0][0] is State.HEALTHY
        assert looks(fake) <= most
        assert (looks(fake) > 0) == (most == 10 or looks(fake) == 1)

    play(script)


def test_an_orphan_under_traffic_is_found_by_the_rare_look() -> None:
    """No gauge accuses it: requests run in every reading."""

    async def script() -> None:
        rank = Rank(usage=0.4, running=3)
        async with scene(with_kit(FakeKit(entry()), rank), policy=POLICY) as s:
            for _ in range(130):
                rank.generation_tokens += 10
                told = (await turns(s, 1))[0]
                if told[0] is State.FAULT:
                    break
            assert told == STUCK

    play(script)


def test_an_engine_without_a_kit_is_asked_once() -> None:
    async def script() -> None:
        fake = with_kit(None, Rank(usage=0.3))
        async with scene(fake, policy=POLICY) as s:
            assert await turns(s, 20) == [(State.FAULT, Signature.HELD_IDLE, None)]
            verdict = s.live.turn()[0].verdict
            assert (verdict.unlisted, verdict.no_kit) == ("it has no engine kit", True)
        assert [path for path in fake.paths if path.startswith("/stanch")] == [STATE]

    play(script)


@pytest.mark.parametrize(
    ("what", "words"),
    [
        row("key", "wants vLLM's API key", id="401"),
        row("501", "has no list: off", id="501"),
        row("hangs", "did not answer within", id="time-out"),
        row("missing", "rank 0 did not answer", id="missing-rank"),
        row("absent", "rank 0 is not in its kit's list", id="no-such-rank"),
        row("garbage", "something else", id="garbage"),
        row("schema", "speaks stanch.requests/9", id="other-schema"),
    ],
)
def test_a_kit_that_gives_no_list_changes_nothing_and_is_named(
    what: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if what == "hangs":
        monkeypatch.setattr(kit, "LIST_SECONDS", 0.1)
    server = FakeKit(entry())
    server.key = "sesame" if what == "key" else None
    wrong = {"501": says(501, {"error": "off"}), "hangs": hangs, "garbage": says(200, text="<html>")}
    wrong["schema"] = says(200, {"schema": "stanch.requests/9"})
    if what in wrong:
        server.answers["requests"] = wrong[what]
    if what in ("missing", "absent"):
        server.ranks = {"1": {"requests": [entry()]}}
        server.missing = [0] if what == "missing" else []

    async def script() -> None:
        async with scene(with_kit(server, Rank(usage=0.3)), policy=POLICY) as s:
            assert await turns(s, 12) == [(State.SUSPECT, Signature.HELD_IDLE, None)]
            assert await turns(s, 1) == [(State.FAULT, Signature.HELD_IDLE, None)]
            verdict = s.live.turn()[0].verdict
            assert words in (verdict.unlisted or "")
            assert verdict.stuck is None

    play(script)


def test_one_answer_that_fails_does_not_end_what_the_last_list_showed() -> None:
    async def script() -> None:
        server = FakeKit(entry())
        async with scene(with_kit(server, Rank(usage=0.3)), policy=POLICY) as s:
            assert await turns(s, 2) == [STUCK]
            server.answers["requests"] = says(500)
            assert await turns(s, 2) == [STUCK]
            assert (await turns(s, 4))[0][1] is Signature.HELD_IDLE

    play(script)


def test_each_rank_has_its_own_list() -> None:
    async def script() -> None:
        server = FakeKit()
        server.ranks["1"] = {"requests": [entry()]}
        fake = with_kit(server, Rank("0", usage=0.3), Rank("1", usage=0.3))
        async with scene(fake, policy=POLICY) as s:
            told = await turns(s, 2)
            assert told == [(State.SUSPECT, Signature.HELD_IDLE, None), STUCK]
        assert looks(fake) == 2

    play(script)


def test_a_restart_forgets_what_the_kit_said() -> None:
    async def script() -> None:
        fake = with_kit(FakeKit(entry(), leaseSeconds=77), Rank(usage=0.3))
        async with scene(fake, policy=POLICY) as s:
            await s.live.learn()
            assert await turns(s, 2) == [STUCK]
            assert s.live.policy_of(next(iter(s.live.watched.values()))).lease == 77
            fake.restart()
            fake.kit = FakeKit(leaseSeconds=99)
            fake.kit.boot_id = "boot-2"
            assert (await turns(s, 2))[0][0] is State.HEALTHY
            assert s.live.policy_of(next(iter(s.live.watched.values()))).lease == 99

    play(script)


@pytest.mark.parametrize(
    ("state", "role", "lease", "pin", "parked"),
    [
        row({"leaseSeconds": 45, "role": "kv_producer"}, Role.PREFILL, 45, 0, 120, id="lease-and-role"),
        row({"bidirectional": True, "pinSeconds": 480}, Role.UNKNOWN, 30, 480, 120, id="pins"),
        row({"bidirectional": False, "pinSeconds": 480}, Role.UNKNOWN, 30, 0, 120, id="no-pins"),
        row({"connector": "NixlPushConnector"}, Role.UNKNOWN, 30, 0, 510, id="push"),
        row({}, Role.UNKNOWN, 30, 0, 120, id="nothing-said"),
    ],
)
def test_its_facts_replace_the_guesses(
    state: dict[str, object], role: Role, lease: float, pin: float, parked: float
) -> None:
    async def script() -> None:
        async with scene(with_kit(FakeKit(**state)), role=None, policy=POLICY) as s:
            await s.live.learn()
            (watched,) = s.live.watched.values()
            policy = s.live.policy_of(watched)
            found = (policy.lease, policy.kv_pin_seconds, policy.parked_remote_kv_seconds)
            assert (s.live.role(watched), *found) == (role, lease, pin, parked)

    play(script)


def test_a_draining_engine_is_none_of_ours_until_it_ends() -> None:
    async def script() -> None:
        server = FakeKit(entry(), draining=True)
        async with scene(with_kit(server, Rank(usage=0.3)), policy=POLICY) as s:
            assert (await turns(s, 4))[0][0] is State.HEALTHY
            server.facts["draining"] = False
            assert await turns(s, 2) == [STUCK]

    play(script)


@pytest.mark.parametrize("begins", ["before", "meanwhile", "not"])
def test_a_drain_is_seen_by_the_end_of_a_watch_also_where_nothing_is_suspect(begins: str) -> None:
    """An idle engine's list is not looked at, and no metric shows that it turns requests away."""

    async def script() -> None:
        server = FakeKit(draining=begins == "before")
        fake = with_kit(server, Rank())
        policy = replace(POLICY, interval_seconds=0.2)
        async with fake, watching([from_url(fake.url, Role.DECODE, policy)], policy) as live:
            await live.learn()
            async for judged in live.turns(1.0):
                (verdict,) = [one.verdict for one in judged]
                server.facts["draining"] = begins != "not"
        expected = None if begins == "not" else Lifecycle.DRAINING
        assert (verdict.state, verdict.lifecycle) == (State.HEALTHY, expected)
        # One that drains is looked at in the background, in the last turn perhaps too late to be asked.
        assert looks(fake) == 0 or begins != "not"

    play(script)


class TestAsking:
    """Where there is a kit its list is the confirmation; a canary is for what the list does not prove."""

    def test_the_list_confirms_without_a_canary(self) -> None:
        async def script() -> None:
            fake = with_kit(FakeKit(entry()), Rank(usage=0.3))
            async with scene(fake, policy=POLICY) as s:
                (judged,) = await s.step()
                asked = await s.live.confirm(judged)
                assert asked.verdict.confirmation is Answer.CONFIRMED
            assert fake.asked == []

        play(script)

    def test_a_list_of_before_the_question_confirms_nothing(self) -> None:
        async def script() -> None:
            server = FakeKit(entry())
            async with scene(with_kit(server, Rank(usage=0.3)), policy=POLICY) as s:
                await turns(s, 2)
                (judged,) = s.live.turn()
                server.answers["requests"] = says(500)
                s.now += 1
                asked = await s.live.confirm(judged, canary=False)
                assert asked.verdict.confirmation is Answer.INCONCLUSIVE
                assert asked.verdict.cause == "its kit answers HTTP 500"

        play(script)

    @pytest.mark.parametrize("canary", [True, False])
    def test_a_list_that_proves_nothing_leaves_it_to_the_canary(self, canary: bool) -> None:
        async def script() -> None:
            fake = with_kit(FakeKit(), Rank(usage=0.3, freed={"usage": 0.0}))
            async with scene(fake, policy=POLICY) as s:
                (judged,) = await s.step()
                asked = await s.live.confirm(judged, canary=canary)
                expected = Answer.VETOED if canary else Answer.INCONCLUSIVE
                assert asked.verdict.confirmation is expected
            assert len(fake.asked) == canary

        play(script)
