"""The demo's story: a leak is planted; the product finds it, has it confirmed, and heals the engine; and once
more where no release is allowed, so that the process is restarted in place.

The watchdog, its planner and what it does are the product's own (ladder.py). Only the fleet is given:
simulated engines here, real ones where a `Deployment` over those is passed in.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import aiohttp

from stanch.core.history import Ending, Incident, StepName
from stanch.core.plan_limits import Limits, Mode, Rung
from stanch.core.policy import Policy
from stanch.core.sample import Role
from stanch.core.verdict import State
from stanch.edge import client, incident_list
from stanch.edge.advice import advise
from stanch.edge.demo.board import Board, NotInTimeError, following
from stanch.edge.demo.child import StartError
from stanch.edge.demo.deployment import Deployment, Say, Traffic
from stanch.edge.demo.fleet import Fleet
from stanch.edge.demo.pods import NAMESPACE
from stanch.edge.demo.telling import Account, Output, Probes, Told
from stanch.edge.demo.view import objects_of, view
from stanch.edge.target import Target
from stanch.edge.targets import Watched
from stanch.edge.waking import ended
from stanch.edge.watching import watching

# Requests that meet the defect, and for how long from the first of them on: all have been stuck for long
# enough to be released when the first one is found.
_PLANTED, _PLANTED_SECONDS = 4, 3.0


class StoryError(Exception):
    """The story does not go on; the text says why."""


@dataclass(frozen=True, slots=True)
class Act:
    """One leak and its repair. says: what is special about it. steps: of the ladder that are allowed."""

    says: str
    steps: frozenset[Rung]


RELEASE = Act("", frozenset({Rung.RELEASE}))
RESTART = Act("this time no release is allowed (remediation.steps: [Restart]); ", frozenset({Rung.RESTART}))
# A kit finds the process that it is to end in /proc.
_ACTS = (RELEASE, RESTART) if Path("/proc/self").is_dir() else (RELEASE,)


@dataclass(frozen=True, slots=True)
class Stage:
    """What the story is played on.

    opening: its first line. build: makes the deployment, seeded, and may tell how far it is.
    patience_seconds: for each thing that is waited for.
    """

    opening: str
    build: Callable[[int, Say], AbstractAsyncContextManager[Deployment]]
    policy: Policy
    acts: tuple[Act, ...]
    patience_seconds: float = 60.0


def policy(parked_seconds: float, interval_seconds: float = 1.0) -> Policy:
    """A demo's patience: in production these are minutes. The list of the engine kit comes first, since it
    names the requests: what the gauges alone show counts later."""
    shown = Policy(interval_seconds=interval_seconds).with_hold(2 * parked_seconds + 2)
    return replace(shown, parked_remote_kv_seconds=parked_seconds)


SIMULATED = Stage(
    "starting the fleet: processes of their own on loopback, no network, no GPU, no vLLM needed",
    lambda seed, say: Fleet(seed),
    policy(5.0),
    _ACTS,
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
            await ended(task)

    async def _probe(self, name: str) -> None:
        while True:
            ok = await self._fleet.health(name)
            self.seen = Probes(self.seen.sent + 1, self.seen.ok + ok)
            await asyncio.sleep(1)


async def run(fleet: Deployment, stage: Stage, out: Output, seed: int = 0) -> Account:
    """Play the story once. What goes wrong ends it, and the account says so."""
    targets = [Watched(Target(m.name, m.url), Role(m.role), stage.policy, NAMESPACE) for m in fleet.engines]
    limits = Limits(
        mode=Mode.ENFORCE,
        drain_seconds=10.0,
        interval_seconds=stage.policy.interval_seconds,
        floor_ratio=stage.policy.floor_ratio,
    )
    async with watching(targets, stage.policy) as live, client.session() as session:
        await live.learn()
        async with following(fleet, live, session, limits, out) as board:
            return await _play(fleet, board, stage, out, random.Random(f"{seed}/story"))


async def _play(fleet: Deployment, board: Board, stage: Stage, out: Output, rng: random.Random) -> Account:
    began = board.ladder.live.clock() - out.elapsed()
    probes: dict[str, Probes] = {}
    failure: str | None = None
    decodes = [member.name for member in fleet.engines if member.role == "decode"]
    leaking = rng.sample(decodes, len(stage.acts))
    try:
        await board.until(_all_healthy(board), stage.patience_seconds, "not every engine is healthy")
        prefills = len(fleet.engines) - len(decodes)
        out.say(
            f"{prefills} prefill and {len(decodes)} decode engines ({fleet.kind}) and a router with traffic "
            "are up; the watchdog reads all of them: healthy",
            State.HEALTHY,
        )
        for act, name in zip(stage.acts, leaking, strict=True):
            prober = Prober(fleet)
            try:
                await _act(fleet, board, stage, act, name, out, prober)
            finally:
                probes[name] = prober.seen
    except (StoryError, NotInTimeError, aiohttp.ClientError, asyncio.TimeoutError) as error:
        failure = str(error) or type(error).__name__
        out.say(failure, State.FAULT)
    traffic = await fleet.traffic()
    incidents, live = tuple(board.ladder.incidents.values()), board.ladder.live
    return Account(
        began,
        tuple(Told(one, board.cause[one.name], probes.get(one.unit, Probes())) for one in incidents),
        traffic,
        lost(traffic, incidents),
        advise(live.versions.get(leaking[0]), live.facts(leaking[0])).text,
        failure,
    )


async def _act(
    fleet: Deployment, board: Board, stage: Stage, act: Act, name: str, out: Output, prober: Prober
) -> None:
    """One leak, from its plant to the end of its incident. Raises StoryError, NotInTimeError."""
    known = set(board.ladder.incidents)
    board.ladder.limits = replace(board.ladder.limits, steps=act.steps)
    await fleet.plant(name, _PLANTED, _PLANTED_SECONDS)
    out.say(
        f"a leak is planted in {name}: up to {_PLANTED} requests to it find nothing left to read and are "
        f"never reported, the defect of vLLM up to 0.29.0; {act.says}the watchdog is not told"
    )

    def newest() -> Incident | None:
        return next((one for key, one in board.ladder.incidents.items() if key not in known), None)

    def interrupted() -> Incident | None:
        one = newest()
        serves = one is None or (one.open and one.last(StepName.RESTART) is None)
        return None if serves else one

    def ended() -> Incident | None:
        one = newest()
        return None if one is None or one.open else one

    patience = stage.patience_seconds
    async with prober.on(name):
        found = await board.until(newest, patience, "no engine was found at fault")
        if found.unit != name:
            raise StoryError(f"the watchdog accuses {found.unit}, but it is {name} that leaks")
        await board.until(interrupted, patience, f"{found.name} has not come to a restart, nor to its end")
    over = await board.until(ended, patience, f"{found.name} has not come to its end")
    if over.ending is not Ending.RESOLVED:
        raise StoryError(f"{over.name} ended as {over.code}: {over.detail}")


def lost(traffic: Traffic, incidents: Sequence[Incident]) -> int:
    """Requests that failed or whose clients left, without those that a leak had swallowed."""
    swallowed = {stuck.id for incident in incidents for stuck in incident.stuck}

    def was_swallowed(name: str) -> bool:
        return name in traffic.planted or f"cmpl-{name}" in swallowed

    return traffic.failed + sum(not was_swallowed(name) for name in traffic.gave_up)


def _all_healthy(board: Board) -> Callable[[], bool | None]:
    def ready() -> bool | None:
        judged, traffic = board.ladder.judged, board.ladder.traffic
        well = all(one.verdict.state is State.HEALTHY for one in judged.values())
        return True if judged and well and traffic is not None and not traffic.out else None

    return ready


def main(seed: int, plain: bool | None = None, stage: Stage = SIMULATED) -> int:
    """Run the demo; 0 when every leak was found and healed, else 1.

    plain: lines instead of a live view; None decides by whether standard output is a terminal.
    """

    async def play() -> int:
        with view(sys.stdout.isatty() if plain is None else not plain) as out:
            out.say(stage.opening)
            async with stage.build(seed, out.say) as fleet:
                account = await run(fleet, stage, out, seed)
        out.account(account)
        sys.stdout.write("\nAs `stanch incidents --all` shows them on Kubernetes:\n")
        listed = incident_list.ordered(objects_of(account), ended=True)
        incident_list.show(listed, time.time(), ended=True, everywhere=False)
        return 0 if account.failure is None else 1

    try:
        return asyncio.run(play())
    except StartError as error:
        sys.stderr.write(f"stanch demo: {error}\n")
        return 1
