"""The operator over a fleet of stand-ins: from a leak to its cordon, and what a repair and idling cost.

    python -m bench.operator [--pods 500] [--leaking 200] [--interval 5]
                             [--idle-minutes 10] [--churn-minutes 30]

A real API server (etcd and kube-apiserver of the test bed's build) in a network namespace of its own, so it
needs root; `python -m stanch operator` as a process under its own service account, with the manifests of the
chart; one process that stands in for kubelet, kit, endpoints and engines of all pods (bench.operator_fleet).
All leaks begin in one moment; the budget is open. Phases of 0 minutes, or 0 leaks, are left out. Linux only
(it reads /proc).
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
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bench.operator_api import ADDRESS, api_server
from bench.operator_objects import NAMESPACE
from bench.operator_process import OperatorProcess
from bench.operator_tables import cordon_table, cost_table, growth_table, idle_table
from bench.scrape import machine, process
from tests.bed import build, manifests
from tests.bed.cluster import Access, Cluster, wait_for
from tests.cluster.installed import CRDS, Installed, account_and_rights

INSIDE = "STANCH_BENCH_INSIDE"
PREFILLS = 8
# Of HeldIdle, which a stand-in's leak is: the default, as every other threshold.
HOLD_SECONDS = 60
_PATIENCE_SECONDS = 900.0
_SAMPLE_SECONDS = 10.0
_SETTLE_SECONDS = 30.0


class Bench:
    """What is up: API server, fleet, operator."""

    def __init__(self, options: argparse.Namespace, stack: ExitStack) -> None:
        self.options = options
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        admin = stack.enter_context(api_server(directory))
        self.cluster = stack.enter_context(Cluster(Access(str(build.kube().program("kubectl")), admin, None)))
        authority = directory / "pki" / "ca.crt"
        self._install()
        fleet = [sys.executable, "-m", "bench.operator_fleet", f"--kubeconfig={admin}"]
        fleet += [f"--decodes={options.pods - PREFILLS}", f"--prefills={PREFILLS}"]
        self._fleet = stack.enter_context(process(*fleet))
        config = Installed(self.cluster, ADDRESS, authority).kubeconfig(directory / "operator.conf")
        log = options.log or directory / "operator.log"
        self.operator = stack.enter_context(OperatorProcess(config, log, options.profile))

    def _install(self) -> None:
        """Stanch as people install it; the namespace's account, which a controller would make; the watch."""
        kubectl = self.cluster.kubectl
        kubectl("apply", "--server-side", "-f", str(CRDS))
        kubectl("wait", "--for=condition=Established", "--timeout=60s", "-f", str(CRDS))
        kubectl("apply", "-f", "-", stdin=account_and_rights())
        kubectl("create", "namespace", NAMESPACE)
        kubectl("create", "serviceaccount", "default", f"--namespace={NAMESPACE}")
        self.cluster.apply(watch(self.options), namespace=NAMESPACE)

    def order(self, **what: Any) -> dict[str, Any]:
        assert self._fleet.stdin is not None
        assert self._fleet.stdout is not None
        self._fleet.stdin.write(json.dumps(what) + "\n")
        self._fleet.stdin.flush()
        answer: dict[str, Any] = json.loads(self._fleet.stdout.readline())
        return answer

    def until_watching(self) -> None:
        """Until every engine has been read and found healthy."""
        wait_for("a healthy fleet", lambda: self.operator.healthy() == self.options.pods, _PATIENCE_SECONDS)

    def until_repaired(self) -> dict[str, Any]:
        """Until no engine leaks or is out of service, and no incident is open; the fleet's report."""

        def look() -> dict[str, Any] | None:
            report = self.order(do="report")
            calm = not report["leaking"] and not report["notReady"] and not self.operator.open_incidents()
            return report if calm else None

        return wait_for("the end of all repairs", look, _PATIENCE_SECONDS)

    def leaks(self) -> None:
        """All leak at once, and are repaired."""
        before, used = self.operator.requests(), self.operator.used()
        began, busy = time.monotonic(), machine()
        self.order(do="leak", count=self.options.leaking)
        report = self.until_repaired()
        took, busy_after = time.monotonic() - began, machine()
        cost: Counter[tuple[str, str]] = Counter(self.operator.requests())
        cost.subtract(before)
        share = (busy_after[0] - busy[0]) / (busy_after[1] - busy[1])
        print(
            f"{self.options.leaking} of {self.options.pods} pods leak in one moment; every "
            f"{self.options.interval} s a turn; hold {HOLD_SECONDS} s; all served again after {took:.0f} s; "
            f"the machine was {share:.0%} busy.\n"
        )
        print(cordon_table(report["leaks"], HOLD_SECONDS))
        print(cost_table(cost, len(report["leaks"]), self.operator.used().processor - used.processor))

    def idle(self) -> None:
        seconds = self.options.idle_minutes * 60
        before, used = Counter(self.operator.requests()), self.operator.used()
        fleet, busy = self._sampled(seconds), machine()
        del busy
        print(
            idle_table(
                seconds,
                self.options.pods,
                Counter(self.operator.requests()) - before,
                used,
                self.operator.used(),
                fleet,
            )
        )

    def churn(self) -> None:
        seconds = self.options.churn_minutes * 60
        assert self._fleet.stdin is not None
        assert self._fleet.stdout is not None
        self._fleet.stdin.write(json.dumps({"do": "churn", "seconds": seconds, "hold": HOLD_SECONDS}) + "\n")
        self._fleet.stdin.flush()
        samples = self._sampled(seconds)
        report = json.loads(self._fleet.stdout.readline())
        print(growth_table(samples, report, self.operator.ended(), self.operator.trouble()))

    def _sampled(self, seconds: float) -> list[int]:
        """Resident bytes of the operator, every ten seconds for so long."""
        end, samples = time.monotonic() + seconds, []
        while (left := end - time.monotonic()) > 0:
            samples.append(self.operator.used().resident)
            time.sleep(min(_SAMPLE_SECONDS, left))
        return samples


def watch(options: argparse.Namespace) -> dict[str, Any]:
    roles = [
        {
            "name": role,
            "selector": {"matchLabels": {"app": manifests.APP, "role": role}},
            "containerName": "vllm",
        }
        for role in ("prefill", "decode")
    ]
    return {
        "apiVersion": "stanch.dev/v1alpha1",
        "kind": "LeakWatch",
        "metadata": {"name": "fleet"},
        "spec": {
            "mode": "Enforce",
            "intervalSeconds": options.interval,
            "roles": roles,
            "remediation": {
                "steps": ["Restart"],
                "maxUnavailable": "100%",
                "maxPerHour": 1000,
                "cooldownSeconds": 0,
                "breaker": {"failures": 100},
                "drainSeconds": 5,
            },
        },
    }


def run(options: argparse.Namespace) -> int:
    with ExitStack() as stack:
        bench = Bench(options, stack)
        bench.until_watching()
        time.sleep(_SETTLE_SECONDS)
        if options.idle_minutes:
            bench.idle()
        if options.leaking:
            bench.leaks()
        if options.churn_minutes:
            bench.churn()
    return 0


def inside() -> None:
    """The namespace's own network: loopback, and every address of the fleet on it."""
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    subprocess.run(["ip", "route", "add", "local", "10.203.0.0/16", "dev", "lo"], check=True)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pods", type=int, default=500)
    parser.add_argument("--leaking", type=int, default=200)
    parser.add_argument("--interval", type=int, default=5, help="spec.intervalSeconds")
    parser.add_argument("--idle-minutes", type=float, default=10.0)
    parser.add_argument("--churn-minutes", type=float, default=30.0)
    parser.add_argument("--log", type=Path, help="where the operator's log goes; else it is thrown away")
    parser.add_argument("--profile", type=Path, help="run the operator under cProfile, into this file")
    options = parser.parse_args()
    if os.environ.get(INSIDE):
        inside()
        return run(options)
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        print("bench.operator needs root and util-linux: it makes a network namespace of its own.")
        return 1
    command = ["unshare", "--net", sys.executable, "-m", "bench.operator", *sys.argv[1:]]
    return subprocess.run(command, env={**os.environ, INSIDE: "1"}, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
