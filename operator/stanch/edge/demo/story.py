"""The demo's story: a leak is planted; the product finds it, confirms it, and the engine is healed.

Where the engines have the engine kit exactly the stuck requests are released, and the engine serves on; else
it is taken out of rotation, drained and restarted.

Scraper, detector, confirmation and sentences are the product's own. Only the fleet is given: simulated
engines here, real ones where a `Deployment` over those is passed in.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass

import aiohttp

from stanch.core.policy import Policy
from stanch.core.report import sentence
from stanch.core.sample import Role
from stanch.core.verdict import State
from stanch.edge.advice import advise
from stanch.edge.demo.board import NotInTimeError, following
from stanch.edge.demo.child import StartError
from stanch.edge.demo.fleet import Fleet, Stuck, Traffic
from stanch.edge.demo.repair import Deployment, Limits, Repair, Say, StepFailedError
from stanch.edge.demo.telling import Incident, Output, Probes, Step
from stanch.edge.demo.view import view
from stanch.edge.live import Judged, watching
from stanch.edge.target import Target
from stanch.edge.targets import Watched

_DEPLOYMENT = "demo"
# A demo's patience: in production these are minutes.
POLICY = Policy(interval_seconds=1.0).with_hold(8.0)
_TROUBLE = (StepFailedError, NotInTimeError, StartError, aiohttp.ClientError, asyncio.TimeoutError)


@dataclass(frozen=True, slots=True)
class Stage:
    """What the story is played on.

    opening: its first line. build: makes the deployment, seeded, and may tell how far it is.
    """

    opening: str
    build: Callable[[int, Say], AbstractAsyncContextManager[Deployment]]
    policy: Policy
    limits: Limits


SIMULATED = Stage(
    "starting the fleet: processes of their own on loopback, no network, no GPU, no vLLM needed",
    lambda seed, say: Fleet(seed),
    POLICY,
    Limits(),
)


class Prober:
    """A liveness probe of one engine: /health once a second."""

    def __init__(self, fleet: Deployment) -> None:
        self.seen = Probes()
        self._fleet = fleet

    @asynccontextmanager
    async def on(self, name: str) -> AsyncIterator[None]:
        task = asyncio.create_task(self._probe(name))
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _probe(self, name: str) -> None:
        while True:
            ok = await self._fleet.health(name)
            self.seen = Probes(self.seen.sent + 1, self.seen.ok + ok)
            await asyncio.sleep(1)


class Steps:
    """The steps so far; each is told when it ends."""

    def __init__(self, out: Output) -> None:
        self.taken: list[Step] = []
        self._out = out

    async def take(self, name: str, act: Callable[[], Awaitable[str]]) -> None:
        """Raises StepFailedError, naming the step, for whatever it fails of."""
        start = self._out.elapsed()
        try:
            outcome = await act()
        except _TROUBLE as error:
            what = str(error) or type(error).__name__
            self.taken.append(Step(name, start, self._out.elapsed(), what, failed=True))
            raise StepFailedError(f"{name} failed: {what}") from error
        self.taken.append(Step(name, start, self._out.elapsed(), outcome))
        self._out.say(f"{name}: {outcome}")


async def run(
    fleet: Deployment, policy: Policy, out: Output, seed: int = 0, limits: Limits | None = None
) -> Incident:
    """Play the story once. A step that fails ends it, and the incident says so."""
    members = fleet.engines
    watched = [Watched(Target(m.name, m.url), Role(m.role), policy, _DEPLOYMENT) for m in members]
    async with watching(watched, policy) as live, aiohttp.ClientSession() as session:
        await live.learn()
        async with following(live, out, [m.name for m in members], fleet.traffic) as board:
            repair = Repair(fleet, policy, board, session, limits or Limits(), out.say)
            return await _play(repair, out, random.Random(f"{seed}/story"))


async def _play(repair: Repair, out: Output, rng: random.Random) -> Incident:
    fleet, board = repair.fleet, repair.board
    steps, prober = Steps(out), Prober(fleet)
    failure: str | None = None
    try:
        await board.until(_all_healthy, repair.limits.look, "not every engine was healthy to begin with")
        roles = [member.role for member in fleet.engines]
        out.say(
            f"{roles.count('prefill')} prefill and {roles.count('decode')} decode engines ({fleet.kind}) and "
            "a router with traffic are up; the watchdog reads all of them: healthy",
            State.HEALTHY,
        )
        leaking = rng.choice([member.name for member in fleet.engines if member.role == "decode"])
        await fleet.plant(leaking, repair.limits.planted)
        out.say(
            f"the leak is planted: the next {repair.limits.planted} requests to {leaking} find nothing left "
            "to read and are never reported, the defect of vLLM up to 0.29.0; the watchdog is not told"
        )
        async with prober.on(leaking):
            await steps.take("Observe", repair.observe)
            if repair.suspect != leaking:
                raise StepFailedError(
                    f"the watchdog accuses {repair.suspect}, but it is {leaking} that leaks"
                )
            await steps.take("Confirm", repair.confirm)
            if fleet.token is not None:
                await steps.take("Capture", repair.capture)
                await steps.take("Release", repair.release)
            else:
                await steps.take("Cordon", repair.cordon)
                await steps.take("Drain", repair.drain)
                await steps.take("Confirm again", repair.confirm)
                await steps.take("Capture", repair.capture)
        if fleet.token is not None:
            await steps.take("Verify", repair.verify)
        else:
            await steps.take("Restart", repair.restart)
            await steps.take("Verify", repair.verify)
            await steps.take("Uncordon", repair.uncordon)
    except _TROUBLE as error:
        failure = str(error) or type(error).__name__
        out.say(failure, State.FAULT)
    traffic = await fleet.traffic()
    if repair.suspect in traffic.out:
        out.say(f"{repair.suspect} stays out of rotation, for a person to look at")
    verdict = repair.verdict
    return Incident(
        engine=repair.suspect,
        signature=verdict.signature_name if verdict else "",
        sentence=sentence(verdict) if verdict else "",
        steps=tuple(steps.taken),
        held_ratio=repair.held,
        held_blocks=repair.held_blocks,
        stuck=repair.stuck,
        traffic=traffic,
        lost=lost(traffic, repair.stuck),
        probes=prober.seen,
        advice=advise(board.live.versions.get(repair.suspect)).text,
        failure=failure,
    )


def lost(traffic: Traffic, stuck: tuple[Stuck, ...] | None) -> int:
    """Requests that failed or whose clients left, without those that the leak had swallowed."""
    swallowed = [held.id for held in stuck or ()]

    def was_swallowed(name: str) -> bool:
        # The engine's id of a request is cmpl-<its X-Request-Id>-<prompt>-<random>.
        return name in traffic.planted or any(one.startswith(f"cmpl-{name}-") for one in swallowed)

    return traffic.failed + sum(not was_swallowed(name) for name in traffic.gave_up)


def _all_healthy(now: Mapping[str, Judged]) -> bool | None:
    return True if now and all(one.verdict.state is State.HEALTHY for one in now.values()) else None


def main(seed: int, plain: bool | None = None, stage: Stage = SIMULATED) -> int:
    """Run the demo; 0 when the leak was found and healed, else 1.

    plain: lines instead of a live view; None decides by whether standard output is a terminal.
    """

    async def play() -> int:
        with view(sys.stdout.isatty() if plain is None else not plain) as out:
            out.say(stage.opening)
            async with stage.build(seed, out.say) as fleet:
                incident = await run(fleet, stage.policy, out, seed, stage.limits)
        out.incident(incident)
        return 0 if incident.failure is None else 1

    try:
        return asyncio.run(play())
    except StartError as error:
        sys.stderr.write(f"stanch demo: {error}\n")
        return 1
