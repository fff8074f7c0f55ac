"""Turns a second of the pure core, its memory, and that a day does not make it grow.

    python -m bench.detect [--turns 40] [--day-engines 1000]

One turn is everything from readings to verdicts (core/turn.py). The readings are made before the clock
starts; times are CPU seconds of this one process. Exits with 1 where the state grew over the day.
"""

from __future__ import annotations

import argparse
import gc
import sys
import tracemalloc
from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from statistics import median
from time import process_time

from stanch.core.policy import Policy
from stanch.core.sample import Role, Sample
from stanch.core.turn import Memory, Reading, Turn, turn

INTERVAL = 5.0
DAY_SECONDS = 86_400.0
PER_DEPLOYMENT = 10
POLICY = Policy(interval_seconds=INTERVAL, lease_seconds=30.0)


def reading(engine: int, number: int, t: float) -> Reading:
    """One engine in one turn. Of ten in a deployment three prefill; one engine in fifty is stuck, one holds
    blocks but makes a token now and then (a suspect, and after a quarter of an hour a fault); one page in two
    hundred fails; half of the others are always busy, the rest for three turns of eight."""
    place = engine % PER_DEPLOYMENT
    role = Role.PREFILL if place < 3 else Role.DECODE
    deployment = f"deployment-{engine // PER_DEPLOYMENT}"
    name = f"{deployment}/{role.value}-{place}"
    if (engine * 7 + number) % 200 == 0:
        return Reading(Sample(t, name, blind="no answer in time"), role, deployment)
    stuck, leaking = engine % 50 == 7, engine % 50 == 19
    busy = not (stuck or leaking) and (engine % 2 == 0 or (number + engine) % 8 < 3)
    # What a busy engine has made by now; an idle one stands where it stood.
    turns_at_work = number if engine % 2 == 0 else (number + engine) // 8 * 3 + min(3, (number + engine) % 8)
    made = 0 if stuck else turns_at_work
    return Reading(
        Sample(
            t + place / PER_DEPLOYMENT,
            name,
            usage=0.42 if stuck or leaking else (0.2 + 0.001 * (number % 300) if busy else 0.0),
            running=6 if busy else 0,
            waiting=number % 3 if busy else 0,
            waiting_deferred=0,
            generation_tokens=5_000 + 750 * made,
            prompt_tokens=90_000 + 4_000 * made,
            iterations=4_000 + 125 * made,
            finished=300 + 3 * made,
            failed_transfers=0,
            failed_notifications=0,
            process_start=1_000.0,
            container_id=f"container-{engine}",
        ),
        role,
        deployment,
    )


def readings(engines: int, number: int, interval: float) -> list[Reading]:
    return [reading(engine, number, number * interval) for engine in range(engines)]


def seconds_per_turn(engines: int, turns: int) -> tuple[float, Turn]:
    """(median of the CPU seconds of a turn, the last one's outcome); twenty turns more come first."""
    memory, taken = Memory(), []
    for number in range(20 + turns):
        now = readings(engines, number, INTERVAL)
        begun = process_time()
        memory, outcome = turn(memory, now, POLICY, number * INTERVAL)
        taken.append(process_time() - begun)
    return median(taken[20:]), outcome


def bytes_per_engine(engines: int) -> float:
    """What the fleet's state holds, by tracemalloc: the last readings are a part of it."""
    memory = Memory()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for number in range(40):
        memory, _ = turn(memory, readings(engines, number, INTERVAL), POLICY, number * INTERVAL)
    del _
    gc.collect()
    held = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    return held / len(memory.engines)


def size(thing: object, seen: set[int]) -> int:
    """Bytes of a value and of all that it refers to, each counted once."""
    if id(thing) in seen:
        return 0
    seen.add(id(thing))
    total = sys.getsizeof(thing)
    if is_dataclass(thing):
        return total + sum(size(getattr(thing, f.name), seen) for f in fields(thing))
    if isinstance(thing, (tuple, list)):
        return total + sum(size(item, seen) for item in thing)
    if isinstance(thing, dict):
        return total + sum(size(key, seen) + size(value, seen) for key, value in thing.items())
    return total


def sizes_over_a_day(engines: int, interval: float) -> dict[int, float]:
    """Bytes of state per engine after 1, 6, 12, 18 and 24 hours."""
    policy = Policy(interval_seconds=interval, lease_seconds=30.0)
    last = int(DAY_SECONDS / interval)
    marks = {int(hour * 3600 / interval): hour for hour in (1, 6, 12, 18, 24)}
    memory, found = Memory(), {}
    for number in range(1, last + 1):
        memory, _ = turn(memory, readings(engines, number, interval), policy, number * interval)
        if number in marks:
            found[marks[number]] = size(memory, set()) / engines
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--turns", type=int, default=40)
    parser.add_argument("--day-engines", type=int, default=1_000)
    options = parser.parse_args(arguments)
    print("engines   turns/s   ms/turn   µs/engine   bytes/engine   verdicts of the last turn")
    cost = {}
    for engines, turns in ((1_000, options.turns), (10_000, max(5, options.turns // 4))):
        seconds, outcome = seconds_per_turn(engines, turns)
        held = bytes_per_engine(engines)
        cost[engines] = (seconds, held)
        states = [v.state.value for v in outcome.verdicts]
        kinds = ", ".join(f"{states.count(s)} {s}" for s in sorted(set(states)))
        print(
            f"{engines:>7,} {1 / seconds:>9.1f} {1e3 * seconds:>9.1f} {1e6 * seconds / engines:>11.1f} "
            f"{held:>14,.0f}   {kinds}"
        )
    (small, small_held), (large, large_held) = cost[1_000], cost[10_000]
    print(f"ratio     time per turn {large / small:.1f} for 10 times the engines, memory per engine ", end="")
    print(f"{large_held / small_held:.2f}")
    print(f"share of one core at {INTERVAL:.0f} s: ", end="")
    print(f"{100 * small / INTERVAL:.2f} % for 1,000 engines, {100 * large / INTERVAL:.1f} % for 10,000")
    print()
    grew = False
    days = (
        (options.day_engines, 50.0, "every tenth turn"),
        (options.day_engines // 20, INTERVAL, "every turn"),
    )
    print("a day                        bytes of state per engine after 1 h    6 h   12 h   18 h   24 h")
    for engines, interval, what in days:
        found = sizes_over_a_day(engines, interval)
        print(f"{engines:>5,} engines, {what:<28}  " + "".join(f"{held:>7,.0f}" for held in found.values()))
        grew = grew or found[24] > 1.05 * found[1]
    print("the state grew" if grew else "no growth")
    return 1 if grew else 0


if __name__ == "__main__":
    sys.exit(main())
