"""Idle canaries, sent to real servers; the clock is the test's."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from stanch.core.fleet import Fleet, Pod, Unit
from stanch.core.plan_limits import Limits
from stanch.core.policy import Policy
from stanch.core.sample import Role
from stanch.core.verdict import Answer, Signature, State
from stanch.edge.idle import IdleCanaries
from stanch.edge.live import Judged
from tests.edge.fake_vllm import FakeVllm, Rank, answers, hangs, says
from tests.edge.live_scene import Scene, play, scene, shown

pytestmark = pytest.mark.unit

LIMITS = Limits(idle_every_seconds=600.0)
POLICY = Policy(canary_seconds=1.0)
FAULT = (State.FAULT, Signature.NO_PROGRESS, None)


class Sending:
    """IdleCanaries of one scene, and what they said."""

    def __init__(self, s: Scene) -> None:
        self.s = s
        self.leads = True
        self.told = 0
        self.notes: list[tuple[str, str]] = []
        self.canaries = IdleCanaries(s.live, self._tell, lambda: self.leads, self._note)

    def _tell(self) -> None:
        self.told += 1

    def _note(self, level: str, event: str, message: str, **more: object) -> None:
        self.notes.append((event, message))

    async def turn(self) -> list[Judged]:
        """One turn of 5 s, with the canaries that it sends answered or not."""
        judged = await self.s.step()
        pod = Pod("d0", "u", "c1", ready=True, healthy=True)
        unit = Unit("shop/d0", Role.DECODE, (pod,), tuple(one.verdict.engine for one in judged))
        before = asyncio.all_tasks()
        self.canaries.send(
            Fleet((unit,), self.s.now), {one.verdict.engine: one for one in judged}, (), LIMITS
        )
        await asyncio.gather(*(asyncio.all_tasks() - before))
        return judged

    async def turns(self, count: int) -> list[Judged]:
        for _ in range(count):
            judged = await self.turn()
        return judged


def run(fake: FakeVllm, script: Callable[[Sending], Awaitable[None]]) -> None:
    async def whole() -> None:
        async with scene(fake, policy=POLICY) as s:
            sending = Sending(s)
            try:
                await script(sending)
            finally:
                await sending.canaries.close()

    play(whole)


def test_an_engine_that_answers_is_asked_once_in_so_long_and_nothing_is_said() -> None:
    fake = FakeVllm(Rank())

    async def script(sending: Sending) -> None:
        await sending.turns(120)
        assert len(fake.asked) == 0
        await sending.turns(10)
        assert len(fake.asked) == 1
        assert shown(await sending.turns(120)) == [(State.HEALTHY, None, None)]
        assert len(fake.asked) == 2
        assert (sending.notes, sending.told) == ([], 0)

    run(fake, script)


def test_one_that_does_not_answer_is_a_fault_until_it_does() -> None:
    fake = FakeVllm(Rank())

    async def script(sending: Sending) -> None:
        await sending.turns(120)
        fake.completion = hangs
        await sending.turn()
        assert sending.told == 1
        assert [event for event, _ in sending.notes] == ["idle-canary-unanswered"]
        assert "while /health answered and nothing moved" in sending.notes[0][1]
        (judged,) = await sending.turn()
        assert shown([judged]) == [FAULT]
        assert len(fake.asked) == 1, "a fault is asked by others"
        # As the watchdog asks, and it answers.
        fake.completion = answers
        said = await sending.s.live.ask(judged, canary=True)
        assert said.ruling.answer is Answer.VETOED
        assert shown(await sending.turn()) == [(State.HEALTHY, None, None)]

    run(fake, script)


@pytest.mark.parametrize("why", ["refused", "paused", "no health"])
def test_silence_that_has_another_reason_is_none(why: str) -> None:
    fake = FakeVllm(Rank())

    async def script(sending: Sending) -> None:
        await sending.turns(120)
        fake.completion = says(401, "Unauthorized") if why == "refused" else hangs
        if why == "paused":
            fake.paused = True
        if why == "no health":
            fake.healthy = False
        await sending.turns(2)
        assert [event for event, _ in sending.notes] == ["idle-canary-undecided"]
        assert sending.told == 0
        assert shown(await sending.turn()) == [(State.HEALTHY, None, None)]
        assert len(fake.asked) == 1

    run(fake, script)


def test_a_process_that_does_not_lead_asks_nobody() -> None:
    fake = FakeVllm(Rank())

    async def script(sending: Sending) -> None:
        sending.leads = False
        await sending.turns(130)
        assert fake.asked == []

    run(fake, script)
