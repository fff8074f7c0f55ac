"""What the engine kit costs.

    python -m bench.kit                                       the ledger and the list; needs no engine
    python -m bench.kit --engines [--starts 8] [--pairs 3]   and real engines, with the kit and stock
    python -m bench.kit --engines --control                   two stock pairs: what the method itself says

The engines are a prefill and a decode of vLLM on the CPU (`make engines`) with the tests' tiny model, whose
step is a few milliseconds: on a real device the same microseconds are a smaller share. Prints ratios, asserts
nothing. Times without engines are of processor, of this one thread.
"""

from __future__ import annotations

import argparse
import gc
import tracemalloc
from collections.abc import Sequence
from statistics import median
from time import thread_time
from types import SimpleNamespace

from stanch_connector.engine.guard import Guard
from stanch_connector.engine.hooks import attach
from stanch_connector.engine.kit import Kit
from stanch_connector.ledger import Event, Ledger
from tests.connector import picture

LISTED = 1_000
BLOCKS = 60
ENTERED = 50_000
# Of a request's life.
LIFE = (Event.ADDED, Event.ALLOCATED, Event.RESUMED, Event.ALLOCATED, Event.FINISHED, Event.FREED)


def name(number: int) -> str:
    """An id as vLLM's scheduler has it."""
    return f"cmpl-0123456789abcdef0123456789abcdef-{number}-0badcafe"


def list_seconds() -> tuple[float, int]:
    """(seconds of one list of LISTED requests of BLOCKS blocks each, its entries), a third of them parked, a
    third at work, a third held after their client's end."""
    scheduler = picture.Scheduler(usable=LISTED * BLOCKS, connector=picture.NixlPullConnector())
    states = (picture.Status.WAITING_FOR_REMOTE_KVS, picture.Status.RUNNING, picture.Status.FINISHED_ABORTED)
    kit = Kit(scheduler, Guard())
    block = SimpleNamespace(is_null=False)
    for number in range(LISTED):
        params = {"remote_engine_id": "prefill-0", "do_remote_prefill": False}
        one = picture.request(name(number), kv_transfer_params=params)
        scheduler.add_request(one)
        one.status = states[number % 3]
        scheduler.kv_cache_manager.held[name(number)] = ([block] * BLOCKS,)
    taken = []
    for _ in range(50):
        began = thread_time()
        listed = kit.requests()
        taken.append(thread_time() - began)
    return median(taken), len(listed["requests"])


def ledger_costs() -> tuple[float, float]:
    """(bytes a request, its id left out, which the engine has anyway; seconds of a request's whole life)."""
    names = [name(number) for number in range(ENTERED)]
    ledger = Ledger()
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for one in names:
        ledger.record(Event.ADDED, one, 1.0)
    held = (tracemalloc.get_traced_memory()[0] - before) / ENTERED
    tracemalloc.stop()
    ledger = Ledger()
    taken = []
    for start in range(0, ENTERED, 1_000):
        began = thread_time()
        for one in names[start : start + 1_000]:
            for event in LIFE:
                ledger.record(event, one, began)
        taken.append((thread_time() - began) / 1_000)
    return held, median(taken)


def hook_seconds() -> float:
    """What one hook adds to one call: the wrapper, the clock, the guard and the ledger."""
    plain, hooked = picture.Scheduler(), picture.Scheduler()
    attach(hooked, Ledger(), Guard())
    taken = {}
    for what, scheduler in (("plain", plain), ("hooked", hooked)):
        rounds = []
        for _ in range(50):
            requests = [picture.request(name(number)) for number in range(200)]
            began = thread_time()
            for one in requests:
                scheduler.add_request(one)
            rounds.append((thread_time() - began) / len(requests))
            scheduler.requests.clear()
        taken[what] = median(rounds)
    return taken["hooked"] - taken["plain"]


def without_engines() -> None:
    seconds, entries = list_seconds()
    print(f"list      {1e3 * seconds:.1f} ms for {entries:,} requests of {BLOCKS} blocks (goal: under 10)")
    held, life = ledger_costs()
    print(
        f"ledger    {held:.0f} bytes a request without its id; {1e6 * life:.1f} µs for its whole life of",
        end="",
    )
    print(f" {len(LIFE)} events")
    print(f"hook      {1e6 * hook_seconds():.2f} µs a call, over vLLM's own method")


def with_engines(version: str, starts: int, pairs: int, requests: int, control: bool) -> None:
    from bench import kit_engines

    if not control:
        print()
        print("goal for the kit's own code: under 1 % of a step")
        print("process                        steps   ms a step   µs ours   calls    share   of 10 ms")
        for one in kit_engines.shares(version, requests):
            print(
                f"{one.what:<28} {one.steps:>7,} {1e3 * one.step:>11.2f} {1e6 * one.ours:>9.1f} "
                f"{one.calls:>7.1f} {100 * one.ours / one.step:>7.2f} % {100 * one.ours / 0.01:>7.2f} %"
            )
    found = kit_engines.compare(version, starts, pairs, requests, control)
    what = "stock against stock" if control else "kit against stock"
    print()
    print(f"{what}, {starts} starts, {pairs} pairs of runs of {requests} requests in each, ", end="")
    print(f"{kit_engines.CLIENTS} at a time; vLLM {version}; above 1 is better")
    for label, ratio in (
        ("tokens a second", found.tokens),
        ("time to first token", found.first),
        ("time between tokens", found.gap),
        ("processor a token", found.processor),
    ):
        met = "met" if ratio.low > 0.95 and ratio.high >= 0.99 else "missed"
        print(f"  {label:<20} {ratio}   goal: reaches 0.99, above 0.95: {met}")
    for label, runs in (("kit" if not control else "stock a", found.kit), ("stock", found.stock)):
        print(
            f"  {label:<8} medians: {median(r.tokens for r in runs):.0f} tokens/s, first token "
            f"{1e3 * median(r.first for r in runs):.0f} ms, then {1e3 * median(r.gap for r in runs):.1f} ms "
            f"a token, {1e3 * median(r.processor for r in runs):.1f} ms of processor a token; slowest run "
            f"{min(r.tokens for r in runs):.0f}, fastest {max(r.tokens for r in runs):.0f} tokens/s"
        )
    print(f"  the machine was {100 * found.busy:.0f} % busy, {100 * found.others:.0f} % not with the pair")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--engines", action="store_true")
    parser.add_argument("--control", action="store_true")
    parser.add_argument("--starts", type=int, default=8, help="of all engines; at least 3")
    parser.add_argument("--pairs", type=int, default=3, help="of runs, in each start")
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--version", default="0.29.0")
    options = parser.parse_args(arguments)
    without_engines()
    if options.engines:
        with_engines(options.version, options.starts, options.pairs, options.requests, options.control)


if __name__ == "__main__":
    main()
