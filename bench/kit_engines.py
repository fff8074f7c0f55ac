"""What the kit costs a real engine: the part of bench.kit that needs engines (`make engines`)."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median

from bench.kit_inside import VARIABLE
from bench.kit_ratio import Ratio, paired
from tests.engine import processes
from tests.engine.bed import REPOSITORY, Bed, Engine, Role, Spec, until
from tests.engine.chaos_bed import Fitted, Stream, payload, start
from tests.engine.client import NoAnswerError, get, prefill_only
from tests.engine.kit import MIDDLEWARE, kit_path
from tests.engine.model import words

CLIENTS = 4
PROMPT_TOKENS = 200
NEW_TOKENS = 64
# As often as an operator and a Prometheus of five seconds together, and more.
SCRAPE_EVERY_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Pair:
    prefill: Engine
    decode: Engine

    @property
    def engines(self) -> tuple[Engine, Engine]:
        return self.prefill, self.decode


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a pair. tokens: a second. first: seconds to the first token, prefill and transfer included,
    the median. gap: seconds between two tokens of a request, the mean. processor: seconds of it a token, of
    all processes of both engines."""

    tokens: float
    first: float
    gap: float
    processor: float


@dataclass(frozen=True, slots=True)
class Share:
    """One process of an engine. step, ours: seconds a step."""

    what: str
    steps: int
    step: float
    ours: float
    calls: float


@dataclass(frozen=True, slots=True)
class Compared:
    """Kit against stock; above 1 is better with the kit in all of them. busy: of the machine during the runs,
    0..1; others: what of that was not of the pair that ran."""

    tokens: Ratio
    first: Ratio
    gap: Ratio
    processor: Ratio
    kit: list[Run]
    stock: list[Run]
    busy: float
    others: float


def pair(bed: Bed, name: str, kit: bool, meters: Path | None = None) -> Pair:
    """Not started. kit: connector, plug-in and middleware. meters: where the processes write kit_inside's
    sums, each engine's in a directory of its name."""
    options: dict[str, object] = {}
    if kit:
        path = kit_path(bed.directory / f"kit-{name}")
        options = {"fixed": True, "extra_args": MIDDLEWARE, "python_path": path}
        if meters is not None:
            (entry_points,) = path[-1].glob("*.dist-info/entry_points.txt")
            entry_points.write_text("[vllm.general_plugins]\nstanch = bench.kit_inside:register\n")
            options["python_path"] = [REPOSITORY, *path]

    def engine(role: Role) -> Engine:
        spec = Spec(role, name=f"{name}-{role}", **options)  # type: ignore[arg-type]
        variables = {}
        if meters is not None:
            (meters / spec.name).mkdir(parents=True)
            variables[VARIABLE] = str(meters / spec.name)
        return Fitted(bed, spec, variables)

    return Pair(engine("prefill"), engine("decode"))


def load(one: Pair, requests: int, seed: int) -> Run:
    """So many requests by CLIENTS at a time, each another prompt; the pages are read meanwhile."""
    before, began = _processor(one), time.monotonic()
    with _scraped(one), ThreadPoolExecutor(CLIENTS) as clients:
        streams = list(clients.map(lambda number: _request(one, seed * 10_000 + number), range(requests)))
    passed = time.monotonic() - began
    tokens = NEW_TOKENS * requests
    return Run(
        tokens / passed,
        median(stream.times[0] - asked for asked, stream in streams),
        fmean((s.times[-1] - s.times[0]) / (NEW_TOKENS - 1) for _, s in streams),
        (_processor(one) - before) / tokens,
    )


def compare(version: str, starts: int, pairs: int, requests: int, control: bool) -> Compared:
    """In each start both pairs of engines stand side by side and take turns for so many pairs of runs; which
    is started first, and which begins, alternates. control: neither has the kit, which shows what the method
    itself makes of two equal pairs."""
    kits: list[list[Run]] = []
    stocks: list[list[Run]] = []
    own = busy = passed = 0.0
    for number in range(starts):
        with Bed(version) as bed:
            kit, stock = pair(bed, "kit", not control), pair(bed, "stock", False)
            both = (kit, stock) if number % 2 == 0 else (stock, kit)
            start(*both[0].engines, *both[1].engines)
            for one in both:
                load(one, 2 * CLIENTS, 0)
                load(one, requests, 1)
            kits.append([])
            stocks.append([])
            machine, began = _machine(), time.monotonic()
            for turn in range(pairs):
                order = [(kit, kits[-1]), (stock, stocks[-1])]
                for one, runs in order if (number + turn) % 2 == 0 else reversed(order):
                    before = _processor(one)
                    runs.append(load(one, requests, number * pairs + turn + 2))
                    own += _processor(one) - before
            passed += time.monotonic() - began
            busy += _machine() - machine
    capacity = passed * (os.cpu_count() or 1)

    def ratio(what: Callable[[Run], float], more_is_better: bool = False) -> Ratio:
        ours, theirs = ([[what(run) for run in runs] for runs in each] for each in (kits, stocks))
        return paired(ours, theirs) if more_is_better else paired(theirs, ours)

    return Compared(
        tokens=ratio(lambda run: run.tokens, more_is_better=True),
        first=ratio(lambda run: run.first),
        gap=ratio(lambda run: run.gap),
        processor=ratio(lambda run: run.processor),
        kit=[run for runs in kits for run in runs],
        stock=[run for runs in stocks for run in runs],
        busy=busy / capacity,
        others=(busy - own) / capacity,
    )


def shares(version: str, requests: int) -> list[Share]:
    """Time in the kit's own code against the steps of each process."""
    found = []
    with Bed(version) as bed:
        meters = bed.directory / "meters"
        one = pair(bed, "timed", True, meters)
        start(*one.engines)
        load(one, requests, 0)
        before = {engine: _meters(meters / engine.name) for engine in one.engines}
        load(one, requests, 1)
        for engine in one.engines:
            for what, now in _meters(meters / engine.name).items():
                then = before[engine][what]
                steps = now["steps"] - then["steps"]
                found.append(
                    Share(
                        f"{engine.spec.role}, {what}",
                        steps,
                        (now["stepNs"] - then["stepNs"]) / steps / 1e9,
                        (now["oursNs"] - then["oursNs"]) / steps / 1e9,
                        (now["calls"] - then["calls"]) / steps,
                    )
                )
    return found


def _request(one: Pair, seed: int) -> tuple[float, Stream]:
    """(when it was asked for, its stream, which has ended well)."""
    prompt, asked = words(PROMPT_TOKENS, seed=seed), time.monotonic()
    params = prefill_only(one.prefill.url, prompt)
    stream = Stream(one.decode.url, payload(prompt, NEW_TOKENS, kv_transfer_params=params))
    if stream.wait() != "done" or stream.tokens != NEW_TOKENS:
        raise NoAnswerError(f"a request ended with {stream.ended} after {len(stream.times)} pieces")
    return asked, stream


@contextmanager
def _scraped(one: Pair) -> Iterator[None]:
    stop = threading.Event()

    def scrape() -> None:
        while not stop.wait(SCRAPE_EVERY_SECONDS):
            for engine in one.engines:
                with suppress(NoAnswerError):
                    get(engine.url, "/metrics")

    thread = threading.Thread(target=scrape, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _meters(directory: Path) -> dict[str, dict[str, int]]:
    """By role, as last written."""
    until(lambda: len(list(directory.glob("*.json"))) == 2, "core and worker have written", 30)
    sums = [json.loads(path.read_text()) for path in directory.glob("*.json")]
    return {one["role"]: one for one in sums}


def _processor(one: Pair) -> float:
    """Seconds of processor that the living processes of both engines have used."""
    ticks = 0
    for engine in one.engines:
        for pid in processes.in_group(engine._group()):
            with suppress(OSError):
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def _machine() -> float:
    """Seconds of processor that the machine has been busy, what a host took from it included."""
    ticks = [int(word) for word in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return (sum(ticks) - ticks[3] - ticks[4]) / os.sysconf("SC_CLK_TCK")
