"""Engine-days of simulated traffic (tests/sim) through the core: no false fault, every leak found in time.

    python -m bench.fleet_days [--engine-days 1000] [--seed 1] [--processes 2] [--only DEPLOYMENT]

Prints a table; exits with 1 where the core and the truth disagree.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Sequence
from multiprocessing import get_context
from time import perf_counter

from tests.sim.referee import Case, Tally, judge
from tests.sim.scrape import settings


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that is not below so much of them; 0 of none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def run(engine_days: int, seed: int, processes: int, only: int | None = None) -> Tally:
    work = [s for s in settings(engine_days, seed) if only is None or s.number == only]
    total = Tally()
    with get_context("spawn").Pool(processes) as pool:
        for done, tally in enumerate(pool.imap_unordered(judge, work), 1):
            total.add(tally)
            if done % 20 == 0:
                print(f"{done} of {len(work)} deployments", file=sys.stderr)
    total.cases.sort(key=lambda c: (c.number, c.start))
    return total


def table(total: Tally, seed: int, wall: float) -> list[str]:
    delays = [d for c in total.cases for d in c.delays]
    met = [c for c in total.cases if c.met is not None]
    episodes = len(delays) + sum(c.missed for c in met)
    late, lapses = sum(c.missed for c in met), sum(c.lapses for c in met)
    whole, core = (1e6 * s / total.samples for s in (total.seconds, total.detector_seconds))
    p50, p99, most = percentile(delays, 0.5), percentile(delays, 0.99), max(delays, default=0.0)
    lines = [
        f"engine-days              {total.engines:,} (seed {seed})",
        f"samples                  {total.samples:,}, {total.blind:,} of them blind",
        f"false faults             {len(total.false_faults)}",
        f"leaks planted            {len(total.cases)}",
        f"  met a condition        {len(met)}, {episodes:,} times",
        f"  found                  {sum(c.found is not None for c in met)}",
        f"  late                   {late} of those times, and {lapses} readings that fell back",
        f"  never met one          {len(total.cases) - len(met)}",
        f"delay beyond the hold    P50 {p50:.1f} s, P99 {p99:.1f} s, max {most:.1f} s",
        f"time                     {wall:.0f} s, {total.samples / wall:,.0f} samples/s",
        f"per sample               {whole:.0f} µs of CPU, {core:.0f} µs of them in the core",
        "",
        "kind       planted  met  found  never met (profiles)             hours from plant to fault, P50",
    ]
    kinds: dict[str, list[Case]] = defaultdict(list)
    for case in total.cases:
        kinds[case.kind].append(case)
    for kind, cases in sorted(kinds.items()):
        some = [c for c in cases if c.met is not None]
        never: dict[str, int] = defaultdict(int)
        for case in cases:
            if case.met is None:
                never[case.profile] += 1
        hours = percentile([(c.found - c.start) / 3600 for c in some if c.found is not None], 0.5)
        names = ", ".join(f"{n} {count}" for n, count in sorted(never.items())) or "-"
        found = sum(c.found is not None for c in some)
        lines.append(f"{kind:<10} {len(cases):>7} {len(some):>4} {found:>6}  {names:<32} {hours:.2f}")
    by: dict[str, int] = defaultdict(int)
    for case in met:
        by[case.by] += 1
    lines += ["", "first condition met: " + ", ".join(f"{n} {count}" for n, count in sorted(by.items()))]
    lines += ["longest hold without a leak (s): " + closest(total)]
    return lines


def closest(total: Tally) -> str:
    return ", ".join(f"{name} {seconds:.0f}" for name, seconds in sorted(total.closest.items()))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--engine-days", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--only", type=int, help="the number of one deployment")
    options = parser.parse_args(arguments)
    begun = perf_counter()
    total = run(options.engine_days, options.seed, options.processes, options.only)
    print("\n".join(table(total, options.seed, perf_counter() - begun)))
    for line in total.false_faults:
        print(f"false fault: {line}")
    for case in total.cases:
        if case.missed or case.lapses:
            print(
                f"late: deployment {case.number} ({case.profile}) {case.engine}, {case.kind} from "
                f"{case.start:.0f} s: {case.missed} of {len(case.delays) + case.missed} episodes, "
                f"{case.lapses} readings"
            )
    return 1 if total.violations else 0


if __name__ == "__main__":
    sys.exit(main())
