"""Stanch and Prometheus on the same simulated targets in one run: processor, memory and bytes.

    python -m bench.scrape [--targets 1000] [--seconds 120]     both, side by side, and the ratios
    python -m bench.scrape --growth                             Stanch alone at 250 .. 4,000 targets

A target is an address of its own in 127.1.0.0/16, as pods have, one port; all are served by one process (see
bench.page_server). Whole pages go out uncompressed, as vLLM's /metrics sends them (0.9 .. 0.33). Needs the
Debian package of Prometheus: apt-get install prometheus. Linux only (it reads /proc).
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.page_server import address

PORT, PROMETHEUS_PORT = 18000, 18001
INTERVAL = 5.0
WARM_UP_SECONDS = 20.0
GROWTH = (250, 500, 1000, 2000, 4000)
# name -> (at most, of what)
GOALS = {"processor": 0.4, "memory": 0.06, "bytes": 0.04}
CORE_GOAL = 0.15
# Above this share of all cores the machine itself is what is measured.
FULL = 0.9


@dataclass(frozen=True, slots=True)
class Usage:
    """What a process has used: seconds of processor so far, bytes resident now and at most."""

    processor: float
    resident: int
    peak: int


def usage(pid: int) -> Usage:
    stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    ticks = int(stat[11]) + int(stat[12])
    resident, peak = (int(status[key].split()[0]) * 1024 for key in ("VmRSS", "VmHWM"))
    return Usage(ticks / os.sysconf("SC_CLK_TCK"), resident, peak)


def machine() -> tuple[float, float]:
    """(busy, all) processor seconds of the machine so far."""
    ticks = [int(word) for word in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    idle = ticks[3] + ticks[4]
    return (sum(ticks) - idle) / os.sysconf("SC_CLK_TCK"), sum(ticks) / os.sysconf("SC_CLK_TCK")


@contextmanager
def process(*command: str, says_ready: bool = True) -> Iterator[subprocess.Popen[str]]:
    """A process of ours that is ended with the block, whatever happens."""
    running = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert running.stdout is not None
        if says_ready and running.stdout.readline().strip() != "ready":
            raise SystemExit(f"{' '.join(command)} did not start")
        yield running
    finally:
        running.terminate()
        try:
            running.wait(10)
        except subprocess.TimeoutExpired:
            running.kill()
            running.wait()


def _python(module: str, *arguments: object) -> list[str]:
    return [sys.executable, "-m", module, *map(str, arguments)]


def _asked(server: subprocess.Popen[str]) -> dict[str, int]:
    """The page server's counts so far."""
    assert server.stdin is not None
    assert server.stdout is not None
    server.stdin.write("counts\n")
    server.stdin.flush()
    counts: dict[str, int] = json.loads(server.stdout.readline())
    return counts


def _ended(watcher: subprocess.Popen[str]) -> dict[str, int]:
    """End Stanch's process by closing its input; what it did."""
    assert watcher.stdin is not None
    assert watcher.stdout is not None
    watcher.stdin.close()
    counts: dict[str, int] = json.loads(watcher.stdout.readline())
    return counts


@dataclass(frozen=True, slots=True)
class Measured:
    """One scraper over the window. processor: cores. memory: bytes, at the end and at most. received, sent:
    bytes over HTTP, with headers, by the targets' own count."""

    requests: int
    processor: float
    memory: int
    peak: int
    received: int
    sent: int


def _window(
    seconds: float, server: subprocess.Popen[str], watched: dict[str, subprocess.Popen[str]]
) -> tuple[dict[str, Measured], float]:
    """What each of the scrapers used in so many seconds, and how busy the machine was (0..1)."""
    counts, before = _asked(server), {name: usage(one.pid) for name, one in watched.items()}
    busy, start = machine(), time.monotonic()
    time.sleep(seconds)
    passed = time.monotonic() - start
    after, counts_after = {name: usage(one.pid) for name, one in watched.items()}, _asked(server)
    busy_after = machine()
    measured = {}
    for name in watched:
        told = {key: counts_after.get(f"{name} {key}", 0) - counts.get(f"{name} {key}", 0) for key in _TOLD}
        processor = (after[name].processor - before[name].processor) / passed
        measured[name] = Measured(
            told["requests"],
            processor,
            after[name].resident,
            after[name].peak,
            told["received"],
            told["sent"],
        )
    return measured, (busy_after[0] - busy[0]) / (busy_after[1] - busy[1])


_TOLD = ("requests", "received", "sent")


def compare(targets: int, seconds: float, scrape_only: bool) -> int:
    binary = shutil.which("prometheus")
    if binary is None:
        print("Prometheus is not here: apt-get install prometheus (Debian's package; 2.42.0 was measured).")
        return 1
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        server = stack.enter_context(process(*_server(targets)))
        prometheus = stack.enter_context(process(binary, *_prometheus(folder, targets), says_ready=False))
        stanch = stack.enter_context(process(*_stanch(targets, scrape_only)))
        time.sleep(WARM_UP_SECONDS)
        measured, busy = _window(seconds, server, {"stanch": stanch, "prometheus": prometheus})
        up = _up()
        counts = _ended(stanch)
    ours, theirs = measured["stanch"], measured["prometheus"]
    rows = [
        ("requests a second", ours.requests / seconds, theirs.requests / seconds, None),
        ("processor (cores)", ours.processor, theirs.processor, GOALS["processor"]),
        ("resident at the end (MB)", ours.memory / 1e6, theirs.memory / 1e6, GOALS["memory"]),
        ("resident at most (MB)", ours.peak / 1e6, theirs.peak / 1e6, GOALS["memory"]),
        ("received (MB)", ours.received / 1e6, theirs.received / 1e6, GOALS["bytes"]),
        ("sent (MB)", ours.sent / 1e6, theirs.sent / 1e6, None),
    ]
    print(
        f"{targets} targets, every {INTERVAL:g} s, {seconds:g} s after {WARM_UP_SECONDS:g} s of warm-up; ",
        end="",
    )
    print(
        f"the machine was {busy:.0%} busy{' (full)' if busy > FULL else ''}; {up} targets up in Prometheus.\n"
    )
    print("| | Stanch | Prometheus | ratio | goal | |")
    print("|---|---|---|---|---|---|")
    for name, one, other, goal in rows:
        ratio = one / other
        shown = f"{goal} | {_verdict(ratio, goal)}" if goal is not None else " | "
        print(f"| {name} | {one:.3g} | {other:.4g} | {ratio:.3f} | {shown} |")
    print(
        f"\nStanch: {ours.processor:.3f} of a core, goal {CORE_GOAL}: {_verdict(ours.processor, CORE_GOAL)}."
    )
    print(f"Its verdicts, warm-up included: {counts}.")
    lost = _lost(targets, seconds, ours.requests)
    if lost or up != str(targets):
        print(f"Not a fair run: Stanch lost {lost} turns, Prometheus had {up} of {targets} targets.")
    return 1 if lost or up != str(targets) else 0


def _verdict(value: float, goal: float) -> str:
    return "met" if value <= goal else f"missed by {value / goal - 1:.0%}"


def _lost(targets: int, seconds: float, requests: int) -> int:
    """Turns that should have been within the window and were not; its two ends may cut a few off."""
    due = targets * seconds / INTERVAL
    return max(0, round(due * 0.99 - targets * 0.02) - requests)


def growth(seconds: float, scrape_only: bool) -> int:
    print(
        "| targets | scrapes a second | of a core | us each | MB | kB a target | turns lost | machine busy |"
    )
    print("|---|---|---|---|---|---|---|---|")
    first: Measured | None = None
    failed = False
    for targets in GROWTH:
        with process(*_server(targets)) as server, process(*_stanch(targets, scrape_only)) as stanch:
            time.sleep(WARM_UP_SECONDS)
            measured, busy = _window(seconds, server, {"stanch": stanch})
            _ended(stanch)
        one = measured["stanch"]
        first = first or one
        lost = _lost(targets, seconds, one.requests)
        failed = failed or lost > 0 or one.processor / targets > 1.1 * first.processor / GROWTH[0]
        print(
            f"| {targets:,} | {one.requests / seconds:.1f} | {one.processor:.3f} | "
            f"{one.processor * seconds / one.requests * 1e6:.0f} | {one.memory / 1e6:.1f} | "
            f"{(one.memory - first.memory) / 1e3 / max(1, targets - GROWTH[0]):.1f} | {lost} | "
            f"{busy:.0%}{' (full)' if busy > FULL else ''} |",
            flush=True,
        )
    return 1 if failed else 0


def _server(targets: int) -> list[str]:
    return _python("bench.page_server", "--targets", targets, "--port", PORT)


def _stanch(targets: int, scrape_only: bool) -> list[str]:
    command = _python("bench.watch_targets", "--targets", targets, "--port", PORT, "--interval", INTERVAL)
    return [*command, "--scrape-only"] if scrape_only else command


def _prometheus(folder: Path, targets: int) -> list[str]:
    """The arguments of a Prometheus that does nothing but scrape these targets."""
    scrape = {
        "job_name": "vllm",
        "static_configs": [{"targets": [f"{address(index)}:{PORT}" for index in range(targets)]}],
    }
    settings = {
        "global": {"scrape_interval": f"{INTERVAL:g}s", "scrape_timeout": "4s"},
        "scrape_configs": [scrape],
    }
    configuration = folder / "prometheus.yml"
    configuration.write_text(json.dumps(settings))  # JSON is YAML
    return [
        f"--config.file={configuration}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{PROMETHEUS_PORT}",
        "--log.level=error",
    ]


def _up() -> str:
    query = urllib.parse.urlencode({"query": "sum(up)"})
    with urllib.request.urlopen(
        f"http://127.0.0.1:{PROMETHEUS_PORT}/api/v1/query?{query}", timeout=10
    ) as answer:
        result = json.load(answer)["data"]["result"]
    return str(result[0]["value"][1]) if result else "no"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--targets", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=None, help="120; 60 with --growth")
    parser.add_argument("--growth", action="store_true", help="Stanch alone, more and more targets")
    parser.add_argument("--scrape-only", action="store_true", help="the scraper without the detector")
    arguments = parser.parse_args()
    if arguments.growth:
        return growth(arguments.seconds or 60.0, arguments.scrape_only)
    return compare(arguments.targets, arguments.seconds or 120.0, arguments.scrape_only)


if __name__ == "__main__":
    sys.exit(main())
