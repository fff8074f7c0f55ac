"""The same engines read one by one and by way of a Prometheus that scrapes them, as ratios.

    python -m bench.prometheus [--targets 500] [--seconds 60] [--interval 15]

Both readers are whole detectors (bench.watch_targets) over the same simulated targets (bench.page_server) at
the same interval, at once. What the questions cost Prometheus itself is the difference to a window before in
which nobody asked it. Needs the Debian package of Prometheus. Linux only (it reads /proc).
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from bench.page_server import address
from bench.scrape import Usage, machine, process, usage

PORT, PROMETHEUS_PORT = 18010, 18011
URL = f"http://127.0.0.1:{PROMETHEUS_PORT}"
# Prometheus looks for its targets after 5 s, and needs an interval to scrape all of them.
WARM_UP_SECONDS = 10.0


def _python(module: str, *arguments: object) -> list[str]:
    return [sys.executable, "-m", module, *map(str, arguments)]


def _prometheus(folder: Path, targets: int, interval: float) -> list[str]:
    configs = [
        {
            "targets": [f"{address(index)}:{PORT}"],
            "labels": {
                "namespace": "bench",
                "pod": f"decode-{index}",
                "container": "vllm",
                "endpoint": "http",
            },
        }
        for index in range(targets)
    ]
    settings = {
        "global": {"scrape_interval": f"{interval:g}s", "scrape_timeout": f"{min(interval, 4):g}s"},
        "scrape_configs": [{"job_name": "bench/decode", "static_configs": configs}],
    }
    configuration = folder / "prometheus.yml"
    configuration.write_text(json.dumps(settings))  # JSON is YAML
    return [
        f"--config.file={configuration}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{PROMETHEUS_PORT}",
        "--log.level=error",
    ]


def _window(seconds: float, watched: Mapping[str, int]) -> tuple[dict[str, float], dict[str, Usage], float]:
    """Processor seconds of each process, what it uses at the end, and how busy the machine was (0..1)."""
    before, busy = {name: usage(pid) for name, pid in watched.items()}, machine()
    time.sleep(seconds)
    after, busy_after = {name: usage(pid) for name, pid in watched.items()}, machine()
    spent = {name: after[name].processor - before[name].processor for name in watched}
    return spent, after, (busy_after[0] - busy[0]) / (busy_after[1] - busy[1])


def _ended(watcher: subprocess.Popen[str]) -> dict[str, int]:
    assert watcher.stdin is not None
    assert watcher.stdout is not None
    watcher.stdin.close()
    counts: dict[str, int] = json.loads(watcher.stdout.readline())
    return counts


def compare(targets: int, seconds: float, interval: float) -> int:
    binary = shutil.which("prometheus")
    if binary is None:
        print("Prometheus is not here: apt-get install prometheus (Debian's package; 2.42.0 was measured).")
        return 1
    common = ("--targets", targets, "--port", PORT, "--interval", interval)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        stack.enter_context(process(*_python("bench.page_server", "--targets", targets, "--port", PORT)))
        theirs = stack.enter_context(
            process(binary, *_prometheus(folder, targets, interval), says_ready=False)
        )
        time.sleep(WARM_UP_SECONDS + interval)
        alone, _, _ = _window(seconds, {"prometheus": theirs.pid})
        scrape = stack.enter_context(process(*_python("bench.watch_targets", *common)))
        asks = stack.enter_context(process(*_python("bench.watch_targets", *common, "--prometheus", URL)))
        time.sleep(WARM_UP_SECONDS + 2 * interval)
        pids = {"scrape": scrape.pid, "asks": asks.pid, "prometheus": theirs.pid}
        spent, after, busy = _window(seconds, pids)
        counts = {"scrape": _ended(scrape), "asks": _ended(asks)}
    more = spent["prometheus"] - alone["prometheus"]
    print(f"{targets} engines, every {interval:g} s, {seconds:g} s; the machine was {busy:.0%} busy.\n")
    print("| | one by one | by Prometheus | ratio |")
    print("|---|---|---|---|")
    one, other = spent["scrape"] / seconds, spent["asks"] / seconds
    print(f"| processor (cores) | {one:.4f} | {other:.4f} | {other / one:.2f} |")
    one, other = after["scrape"].resident / 1e6, after["asks"].resident / 1e6
    print(f"| resident (MB) | {one:.0f} | {other:.0f} | {other / one:.2f} |")
    one, other = after["scrape"].peak / 1e6, after["asks"].peak / 1e6
    print(f"| resident at most (MB) | {one:.0f} | {other:.0f} | {other / one:.2f} |")
    print(f"\nThe questions cost Prometheus {more / seconds:+.4f} cores (", end="")
    print(f"{spent['prometheus'] / alone['prometheus']:.2f} of what it uses without them).")
    print(f"Verdicts, warm-up included: {counts}.")
    blind = counts["asks"].get("blind", 0) / max(1, counts["asks"]["verdicts"])
    if blind > 0.3 or counts["scrape"].get("blind", 0):
        print(f"Not a fair run: {blind:.0%} of the verdicts by Prometheus were blind.")
        return 1
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--targets", type=int, default=500)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--interval", type=float, default=15.0)
    arguments = parser.parse_args()
    return compare(arguments.targets, arguments.seconds, arguments.interval)


if __name__ == "__main__":
    sys.exit(main())
