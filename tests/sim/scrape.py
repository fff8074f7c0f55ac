"""The watcher's view: one reading of each engine in each interval, some failed, some late, or none."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import nan
from random import Random

from stanch.core.sample import Sample
from tests.sim import plants, trouble
from tests.sim.deployment import Deployment
from tests.sim.engine import Leak, SimEngine
from tests.sim.load import DAY_SECONDS, PROFILES, Profile

ONE_LOST_PAGE = 1 / 2_000
ONE_LATE_PAGE = 1 / 500
ONE_BROKEN_PAGE = 1 / 20_000


@dataclass(frozen=True, slots=True)
class Setting:
    """One day of one deployment: everything that its readings depend on."""

    number: int
    seed: int
    interval: float
    profile: Profile


def settings(engine_days: int, seed: int) -> list[Setting]:
    """Deployments, profile by profile in turn, until they have so many engines (or a few more)."""
    found: list[Setting] = []
    engines = 0
    while engines < engine_days:
        number = len(found)
        profile = PROFILES[number % len(PROFILES)]
        # Not in step with the profiles, so that every profile is seen at both intervals.
        interval = 10.0 if (number + number // len(PROFILES)) % 4 == 3 else 5.0
        found.append(Setting(number, seed, interval, profile))
        engines += profile.prefills + profile.decodes + profile.boths
    return found


@dataclass(frozen=True, slots=True)
class Seen:
    """One reading, and what was planted on its engine at that time."""

    sample: Sample
    leak: Leak | None


def build(setting: Setting) -> Deployment:
    random = Random(f"{setting.seed}/{setting.number}")
    deployment = Deployment(setting.profile, random)
    trouble.plan(deployment)
    plants.plan(deployment, setting.number)
    return deployment


def turns(deployment: Deployment, interval: float, seconds: float = DAY_SECONDS) -> Iterator[list[Seen]]:
    """The readings of each turn, one of every engine; no turn while the watcher is away.

    seconds: only so much of the day; what there is of it is the same."""
    random = deployment.random
    away_from = random.uniform(0, DAY_SECONDS) if random.random() < 1 / 3 else DAY_SECONDS
    away_until = away_from + random.uniform(10, 600)
    share = interval / len(deployment.engines)
    last = [-1.0] * len(deployment.engines)
    for number in range(int(seconds / interval)):
        start = number * interval
        if away_from <= start < away_until:
            continue
        seen = []
        for place, engine in enumerate(deployment.engines):
            t = start + (place + 0.5) * share + min(0.3 * share, max(-0.3 * share, random.gauss(0, 0.1)))
            if random.random() < ONE_LATE_PAGE:
                t += random.uniform(0, 0.9) * interval
            # The clock of the deployment never goes back; a late page of one engine is read a little early
            # by its neighbours, which nobody can see.
            t = last[place] = max(t, last[place] + 0.001)
            deployment.clock.advance(t)
            seen.append(Seen(read(deployment, engine, t), engine.leak))
        yield seen


def read(deployment: Deployment, engine: SimEngine, t: float) -> Sample:
    random, profile = deployment.random, deployment.profile
    if engine.down_until > t:
        return Sample(t, engine.name, blind="connection refused")
    if engine.dark_until > t or random.random() < ONE_LOST_PAGE:
        return Sample(t, engine.name, blind="no answer in time")
    deployment.serving.preempt(t, engine)
    usage, running, waiting, deferred, generation, prompt, iterations, finished, transfers, notes = (
        engine.look(t)
    )
    if random.random() < ONE_BROKEN_PAGE:
        usage = nan
    return Sample(
        t,
        engine.name,
        usage,
        running,
        waiting,
        deferred if profile.by_reason else None,
        generation,
        prompt,
        iterations if profile.iterations else None,
        finished,
        transfers,
        notes,
        engine.process_start if profile.process_start else None,
        f"{engine.name}#{engine.container}" if profile.container else None,
        engine.lifecycle,
    )
