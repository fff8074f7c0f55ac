"""The tables of bench.operator, in Markdown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from bench.scrape import Usage

GOAL_SECONDS = 5.0
# What a repair by restart must write, and what each is for.
NEEDED: Mapping[tuple[str, str], tuple[int, str]] = {
    ("create", "leakincidents"): (1, "the incident, before anything is done"),
    ("update", "leakincidents/status"): (
        8,
        "each step before it is done: Confirm to Uncordon, twice confirmed",
    ),
    ("patch", "pods"): (4, "cordon, drain, restart, lift"),
    ("get", "pods/log"): (1, "the log's tail before the process ends"),
}


def quantile(values: Sequence[float], share: float) -> float:
    """The least value that so large a share of them does not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def cordon_table(leaks: Sequence[Mapping[str, Any]], hold: float) -> str:
    """From each leak's hold to the cordon on its pod and to the end of its repair."""
    lines = ["| beyond the hold | P50 s | P99 s | most s | goal, P99 | |", "|---|---|---|---|---|---|"]
    for name, start, key, goal in (
        ("cordoned, the hold counted from the first reading that shows it", "seen", "cordoned", GOAL_SECONDS),
        ("cordoned, counted from the leak itself", "planted", "cordoned", None),
        ("restarted, counted from the leak itself", "planted", "restarted", None),
    ):
        late = [one[key] - one[start] - hold for one in leaks if one[key] is not None]
        if not late:
            lines.append(f"| {name} | none | | | | |")
            continue
        p50, p99 = quantile(late, 0.5), quantile(late, 0.99)
        verdict = " | "
        if goal is not None:
            verdict = f"{goal:g} | " + ("met" if p99 <= goal else f"missed by {p99 - goal:.1f} s")
        lines.append(
            f"| {name} ({len(late)} of {len(leaks)}) | {p50:.1f} | {p99:.1f} | {max(late):.1f} | {verdict} |"
        )
    return "\n".join(lines) + "\n"


def cost_table(cost: Mapping[tuple[str, str], int], repairs: int, processor: float) -> str:
    """Requests to the API server between the leak and the end of the last repair."""
    lines = ["| request | in all | a repair | needed | ratio |", "|---|---|---|---|---|"]
    needed_in_all = 0
    for key in sorted(cost, key=lambda one: (one not in NEEDED, -cost[one])):
        count = cost[key]
        if not count:
            continue
        needed, why = NEEDED.get(key, (0, ""))
        if needed:
            needed_in_all += needed * repairs
        ratio = f"{needed} ({why}) | {count / repairs / needed:.2f}" if needed else " | "
        lines.append(f"| {' '.join(key)} | {count} | {count / repairs:.2f} | {ratio} |")
    every = sum(cost.values())
    ratio = f"{needed_in_all / repairs:.0f} | {every / needed_in_all:.2f}"
    lines.append(f"| all | {every} | {every / repairs:.1f} | {ratio} |")
    lines.append(
        f"\nProcessor of the operator: {processor:.1f} s, {processor / repairs * 1e3:.0f} ms a repair."
    )
    return "\n".join(lines) + "\n"


def idle_table(
    seconds: float,
    pods: int,
    cost: Counter[tuple[str, str]],
    before: Usage,
    after: Usage,
    resident: Sequence[int],
) -> str:
    """A healthy fleet to which nothing is done."""
    third = max(1, len(resident) // 3)
    first, last = sum(resident[:third]) / third, sum(resident[-third:]) / third
    lines = [
        f"{pods} healthy pods, {seconds:.0f} s.\n",
        "| | |",
        "|---|---|",
        f"| of a core | {(after.processor - before.processor) / seconds:.3f} |",
        f"| resident, MB | {after.resident / 1e6:.1f} (at most {after.peak / 1e6:.1f}) |",
        f"| last third / first third | {last / first:.4f} |",
        f"| API requests a second | {sum(cost.values()) / seconds:.2f} |",
    ]
    lines += [f"| {' '.join(key)} | {count / seconds:.3f} |" for key, count in cost.most_common(6)]
    return "\n".join(lines) + "\n"


def growth_table(
    resident: Sequence[int], report: Mapping[str, Any], ended: Mapping[str, int], trouble: Mapping[str, int]
) -> str:
    """Memory over a time in which pods are replaced and leaks come and go. trouble: by event of the log."""
    third = max(1, len(resident) // 3)
    parts = [resident[:third], resident[third : 2 * third], resident[-third:]]
    means = [sum(part) / max(1, len(part)) for part in parts]
    endings = ", ".join(f"{count} {name}" for name, count in sorted(ended.items())) or "none"
    shown = " | ".join(f"{mean / 1e6:.1f}" for mean in means)
    lines = [
        f"{report['replaced']} pods replaced, {len(report['leaks'])} leaks so far; "
        f"incidents ended: {endings}; "
        + ", ".join(f"{count} times {event}" for event, count in trouble.items())
        + ".\n",
        "| resident, MB | first third | second | last | last / first |",
        "|---|---|---|---|---|",
        f"| | {shown} | {means[2] / means[0]:.4f} |",
    ]
    return "\n".join(lines) + "\n"
