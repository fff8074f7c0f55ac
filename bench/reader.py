"""Mutated pages through the reader: it must never crash, and never say what the page does not.

    python -m bench.reader [--pages 1000000] [--short 20000] [--whole 2000] [--seed 1]

--pages short (filtered) pages go through the reader alone; --short of them and --whole whole pages are also
read by prometheus_client's parser, and every value of the reader must be there, or the engine must be blind.
Exits with 1 where something else came out.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from prometheus_client.parser import text_string_to_metric_families

from bench.mutations import mutated
from bench.page_server import recorded_pages, restrict
from stanch.edge.exposition import EngineReading, Page, read
from stanch.edge.families import (
    FAMILIES,
    PROCESS_START,
    REQUIRED_GAUGES,
    TOKEN_COUNTERS,
    Family,
    Kind,
    names_to_ask,
    spellings,
)

_Labels = tuple[tuple[str, str], ...]
_Samples = dict[str, list[tuple[dict[str, str], float]]]


def truth(body: bytes) -> _Samples | None:
    """What prometheus_client's parser reads off the page, by name; None where the bytes are no text at all.

    Where it refuses the page as a whole, every line that it does take by itself counts as said.
    """
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return None
    found: _Samples = {}
    try:
        for name, labels, value in _samples(text):
            found.setdefault(name, []).append((labels, value))
    except ValueError:
        found = {}
        for line in text.split("\n"):
            try:
                for name, labels, value in _samples(line):
                    found.setdefault(name, []).append((labels, value))
            except ValueError:
                continue
    return found


def _samples(text: str) -> Iterator[tuple[str, dict[str, str], float]]:
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            try:
                value = float(sample.value)
            except OverflowError:  # the parser reads a long integer as an int
                value = float("inf")
            yield sample.name, sample.labels, value


def violation(page: Page, said: _Samples | None) -> str | None:
    """How the reader's page differs from what was said, other than by being blind; None where it does not."""
    if page.problem is not None:
        return "a problem and engines" if page.engines else None
    if said is None:
        return "read from bytes that are no text"
    if page.process_start is not None:
        starts = [value for _, value in said.get(PROCESS_START, [])]
        if page.process_start not in starts:
            return f"process start {page.process_start} instead of {starts}"
    needed = {name for family in FAMILIES for name in spellings(family)}
    there = {_key(labels) for name in needed for labels, _ in said.get(name, [])}
    if there != {(engine.model, engine.engine) for engine in page.engines}:
        return f"engines {[(e.model, e.engine) for e in page.engines]} instead of {sorted(there)}"
    return next((wrong for engine in page.engines if (wrong := _wrong(engine, said)) is not None), None)


def _key(labels: dict[str, str]) -> tuple[str, str]:
    return labels.get("model_name", ""), labels.get("engine", "")


def _wrong(engine: EngineReading, said: _Samples) -> str | None:
    if engine.problem is None:
        lacks = [name for name in REQUIRED_GAUGES if getattr(engine, name) is None]
        if lacks or all(getattr(engine, name) is None for name in TOKEN_COUNTERS):
            return f"not blind although {lacks or TOKEN_COUNTERS} is missing"
    for family in FAMILIES:
        value: float | None = getattr(engine, family.field)
        if value is not None and not _says(family, (engine.model, engine.engine), value, said):
            return f"{family.field} {value}"
    return None


def _says(family: Family, key: tuple[str, str], value: float, said: _Samples) -> bool:
    """Whether the page says this value of the family, by the first of its names that the engine has."""
    for name in spellings(family):
        samples = [(labels, number) for labels, number in said.get(name, []) if _key(labels) == key]
        if not samples:
            continue
        if family.kind is Kind.PRESENCE:
            return True
        series: dict[_Labels, set[float | str]] = {}
        for labels, number in samples:
            if family.only is None or labels.get(family.only[0]) == family.only[1]:
                series.setdefault(tuple(sorted(labels.items())), set()).add(_same(number))
        if not series or any(len(numbers) > 1 for numbers in series.values()):
            return False
        numbers = [next(iter(distinct)) for distinct in series.values()]
        if family.kind is Kind.GAUGE:
            return set(numbers) == {_same(value)}
        return _same(sum(map(float, numbers))) == _same(value)
    return False


def _same(number: float) -> float | str:
    """A NaN as a word that is equal to itself."""
    return number if number == number else "nan"


@dataclass(slots=True)
class Result:
    """What came out: pages by kind of answer, and the first violations."""

    pages: int = 0
    compared: int = 0
    seconds: float = 0.0
    outcomes: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)

    def take(self, body: bytes, said: _Samples | None, compare: bool) -> None:
        start = time.perf_counter()
        try:
            page = read(body)
        except Exception as error:  # whatever it is, it is what this bench looks for
            self.violations.append(f"{type(error).__name__}: {error} on {body!r}")
            return
        self.seconds += time.perf_counter() - start
        self.pages += 1
        self.outcomes[_outcome(page)] += 1
        if compare:
            self.compared += 1
            wrong = violation(page, said)
            if wrong is not None:
                self.violations.append(f"{wrong} on {body!r}")


def _outcome(page: Page) -> str:
    if page.problem is not None:
        return "blind page"
    return "some engine blind" if any(e.problem is not None for e in page.engines) else "read"


def run(pages: int, short: int, whole: int, seed: int) -> tuple[Result, Result]:
    """The results of the short and of the whole pages."""
    rng = random.Random(seed)
    asked = {name.encode() for name in names_to_ask(evidence=True)}
    wholes = recorded_pages()
    shorts = [restrict(page, asked) for page in wholes]
    results = Result(), Result()
    for result, sources, count, compared in (
        (results[0], shorts, pages, short),
        (results[1], wholes, whole, whole),
    ):
        for body in sources[:: max(1, len(sources) // 20)]:  # untouched, each must simply be read
            result.take(body, truth(body), compare=True)
            if _outcome(read(body)) != "read":
                result.violations.append(f"an untouched page is not read: {read(body).problem}")
        for number in range(count):
            body = mutated(rng.choice(sources), sources, rng)
            compare = number < compared
            result.take(body, truth(body) if compare else None, compare)
    return results


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pages", type=int, default=1_000_000)
    parser.add_argument("--short", type=int, default=20_000)
    parser.add_argument("--whole", type=int, default=2_000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    results = run(arguments.pages, arguments.short, arguments.whole, arguments.seed)
    print("| pages | mutated and read | compared | read | some engine blind | blind | violations | us each |")
    print("|---|---|---|---|---|---|---|---|")
    for name, result in zip(("short", "whole"), results, strict=True):
        cells = [result.outcomes[key] for key in ("read", "some engine blind", "blind page")]
        each = result.seconds / max(1, result.pages) * 1e6
        shown = [result.pages, result.compared, *cells, len(result.violations)]
        print(f"| {name} | {' | '.join(f'{number:,}' for number in shown)} | {each:.0f} |")
    violations = [wrong for result in results for wrong in result.violations]
    for wrong in violations[:10]:
        print(wrong[:2000], file=sys.stderr)
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
