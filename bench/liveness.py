"""Stanch against a plain liveness kill, on real vLLM pods.

`make engines`, then `python -m tests.bed run -- python -m bench.liveness`; seven minutes a run on a quiet
machine, and every run has fresh pods: one prefill, two decodes with the stock connector. On `stanch` there is
the kit, and the operator watches; on `plain` there is neither, but a liveness probe that fails on the same
condition for the same hold (liveness_probe.py). The clients come through the Services, two requests a second,
each of some two seconds. In each part one decode leaks, and the other is there for whoever is sent on.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.bed.cluster import Access, Cluster, Namespace, Object, wait_for
from tests.bed.vllm import Vllm
from tests.cluster.installed import installed
from tests.cluster.operators import operating
from tests.cluster.scenes import ending, steps
from tests.e2e.clients import Ended
from tests.e2e.endpoints import Endpoints
from tests.e2e.stage import START_S, STEP_MS, Stage

STANCH, PLAIN, PREFILL = "stanch", "plain", "prefill"
# The label of the decode that the watch means.
WATCHED = {"repaired-by": "stanch"}
# For both ways. The kit's list of an engine under traffic is looked at every five of them.
HOLD_S = 6
PROBE = Path(__file__).with_name("liveness_probe.py")
# Before the leak and after the repair, so that what is lost at the edges is counted.
EDGE_S = 5.0


@dataclass(frozen=True, slots=True)
class Part:
    """One repair. sent, lost: requests. unready: seconds without its endpoint. started: of these, from the
    container's start to the first /health 200; None where nothing was restarted. refusing: seconds in which
    the endpoint was ready and /health was not. repaired: from the moment when the last client gave up until
    the engine was well and routed to. backoff: from the old container's end to the new one's start. moments:
    what happened when, in Unix seconds."""

    name: str
    sent: int
    lost: tuple[Ended, ...]
    elsewhere: int
    unready: float
    started: float | None
    refusing: float
    repaired: float
    backoff: float | None
    moments: tuple[tuple[str, float], ...]

    def row(self) -> str:
        how = ", ".join(
            f"{count} {what}" for what, count in Counter(one.lost for one in self.lost).most_common()
        )
        beyond = None if self.started is None else self.unready - self.started
        seconds = (self.unready, self.started, beyond, self.refusing, self.repaired, self.backoff)
        shown = " | ".join("-" if one is None else f"{one:.1f}" for one in seconds)
        return f"| {self.name} | {self.sent} | {len(self.lost)} | {how or '-'} | {self.elsewhere} | {shown} |"


COLUMNS = (
    "way", "requests", "lost", "how", "sent on", "unready s", "start-up s", "beyond it s",
    "ready but refusing s", "repaired s", "end to start s",
)  # fmt: skip
HEAD = f"| {' | '.join(COLUMNS)} |\n|{' --- |' * len(COLUMNS)}"


class Health:
    """A context: while it is open, /health of one pod is looked at ten times a second."""

    def __init__(self, stage: Stage, pod: str) -> None:
        self._stage, self._pod = stage, pod
        self.seen: list[tuple[float, bool]] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Health:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(0.1):
            began = time.time()
            well = self._stage.healthy(self._pod)
            # An answer is as old as its end, a refusal as its question.
            self.seen.append((time.time() if well else began, well))

    def first_well(self, after: float) -> float:
        return next(t for t, well in self.seen if well and t > after)

    def unwell_while(self, ready: Callable[[float], bool]) -> float:
        """Seconds between two looks of which the first was refused, at times that are `ready`."""
        return sum(later - t for (t, well), (later, _) in pairwise(self.seen) if not well and ready(t))


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.liveness", description=__doc__)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--plain-first", action="store_true", help="the liveness kill before the repairs")
    parser.add_argument("--interval", type=int, default=5, help="the watch's intervalSeconds")
    again = "and restart the same pod once more, with its back-off, this the watch's intervalSeconds"
    parser.add_argument("--again", type=int, metavar="INTERVAL", help=again)
    options = parser.parse_args(arguments)
    access = Access.given()
    if access is None or access.bed is None:
        print("bench.liveness runs in the bed: python -m tests.bed run -- python -m bench.liveness")
        return 2
    print(HEAD, flush=True)
    with Cluster(access) as cluster, tempfile.TemporaryDirectory() as directory:
        vllm = Vllm.prepare(Path(directory))
        with (
            installed(cluster, Path(directory)) as found,
            operating(found, Path(directory)) as operator,
        ):
            for _ in range(options.runs):
                namespace = Namespace(cluster, f"bench-{uuid.uuid4().hex[:8]}")
                namespace.make()
                try:
                    run(Stage(namespace, operator), vllm, options)
                finally:
                    namespace.remove()
                    wait_for("the pods' end", lambda n=namespace: _gone(n), 120)  # type: ignore[misc]
    return 0


def run(stage: Stage, vllm: Vllm, options: argparse.Namespace) -> None:
    """Fresh pods, each kind of repair once, and a row for each."""
    plain = vllm.pod(PLAIN, "decode", inject=True, kit=False, step_ms=STEP_MS)
    with_liveness(plain)
    watched = vllm.pod(STANCH, "decode", inject=True, step_ms=STEP_MS)
    watched["metadata"]["labels"] |= WATCHED
    stage.engines(vllm.pod(PREFILL, "prefill"), grace(watched), plain)
    for which in (PLAIN, STANCH) if options.plain_first else (STANCH, PLAIN):
        if which is PLAIN:
            print(part(stage, "liveness kill", PLAIN, lambda: _restarted(stage)).row(), flush=True)
            continue
        for number, step in enumerate(("Release", "Restart")):
            print(_repaired(stage, step, options.interval, number), flush=True)
    if options.again:
        print(_repaired(stage, "Restart", options.again, 2), flush=True)


def _repaired(stage: Stage, step: str, interval_s: int, number: int) -> str:
    stage.watch([step], HOLD_S, interval_s, WATCHED)
    name = f"Stanch, {step.lower()}{' again' * (number > 1)}, {interval_s} s"
    done = part(stage, name, STANCH, lambda: _ended(stage, number))
    return f"{done.row()}\n{_steps(stage.scene.incident(number) or {}, done.moments)}"


def _steps(incident: dict[str, Any], moments: Sequence[tuple[str, float]]) -> str:
    """Where the time went: each step, and what else happened, in seconds since the first step began."""
    found = [
        (one["name"], *(datetime.fromisoformat(one[end]).timestamp() for end in ("start", "end")))
        for one in incident["status"]["steps"]
    ]
    first = min(start for _, start, _ in found)
    said = [(start, f"{name} {start - first:.1f} to {end - first:.1f}") for name, start, end in found]
    said += [(at, f"{name} {at - first:.1f}") for name, at in moments]
    return "steps: " + ", ".join(text for _, text in sorted(said))


def with_liveness(pod: Object) -> None:
    (container,) = pod["spec"]["containers"]
    python = str(Path(sys.executable).resolve())
    container["livenessProbe"] = {
        "exec": {"command": [python, "-I", "-S", str(PROBE), str(HOLD_S)]},
        "periodSeconds": 1,
        "timeoutSeconds": 10,
        "failureThreshold": 1,
    }
    grace(pod)


def grace(pod: Object) -> Object:
    """Kubernetes' default, as people have it."""
    pod["spec"]["terminationGracePeriodSeconds"] = 30
    return pod


def part(stage: Stage, name: str, pod: str, repaired: Callable[[], object]) -> Part:
    before = _container(stage, pod)
    with (
        Endpoints(stage.namespace, "decode") as endpoints,
        Health(stage, pod) as health,
        stage.clients(per_s=2.0) as clients,
    ):
        _pass(EDGE_S)
        stage.leak(PREFILL, pod, 3)
        leaked = time.time()
        wait_for(f"{name}: repaired", repaired, START_S)
        wait_for(f"{pod} routed to", lambda: endpoints.ready(pod), START_S)
        well = time.time()
        _pass(EDGE_S)
    after = _container(stage, pod)
    changes = endpoints.changes(pod)
    unready = sum(later - t for (t, ready), (later, _) in pairwise(changes) if not ready)
    moments = [("endpoint on" if ready else "endpoint off", at) for at, ready in changes if at > leaked]
    started = backoff = None
    if after["containerID"] != before["containerID"]:
        began = process_start(stage, pod)
        started = health.first_well(began) - began
        last = after["lastState"]["terminated"]
        ended_at = datetime.fromisoformat(last["finishedAt"].replace("Z", "+00:00")).timestamp()
        backoff = began - ended_at
        moments.append((f"process ends with {last['exitCode']}, to the second", ended_at))
        moments += [("process starts", began), ("answers /health", began + started)]
    ended = clients.ended
    return Part(
        name,
        len(ended),
        tuple(clients.lost),
        sum(one.elsewhere for one in ended),
        unready,
        started,
        health.unwell_while(lambda t: _ready_at(changes, t)),
        well - leaked,
        backoff,
        tuple(moments),
    )


def process_start(stage: Stage, pod: str) -> float:
    """time.time() of the start of the container's first process, to 10 ms; Kubernetes says whole seconds."""
    stat = stage.namespace.kubectl("exec", pod, "--", "cat", "/proc/1/stat")
    uptime = float(Path("/proc/uptime").read_text().split()[0])
    ticks = int(stat.rpartition(")")[2].split()[19])
    return time.time() - uptime + ticks / 100


def _ready_at(changes: Sequence[tuple[float, bool]], t: float) -> bool:
    return [ready for at, ready in changes if at <= t][-1:] == [True]


def _ended(stage: Stage, number: int) -> bool:
    found = stage.scene.incident(number)
    if found is None or not found.get("status", {}).get("ending"):
        return False
    assert ending(found) == "Resolved", steps(found)
    return True


def _restarted(stage: Stage) -> bool:
    return stage.scene.restarts(PLAIN) > 0 and stage.scene.ready(PLAIN)


def _container(stage: Stage, pod: str) -> dict[str, Any]:
    found = stage.namespace.pod(pod)
    assert found is not None
    status: dict[str, Any] = found["status"]["containerStatuses"][0]
    return status


def _gone(namespace: Namespace) -> bool:
    return not namespace.cluster.api(f"/api/v1/namespaces/{namespace.name}/pods")["items"]


def _pass(seconds: float) -> None:
    time.sleep(seconds)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
