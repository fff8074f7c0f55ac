"""A stand-in for vLLM's API-server processes, with a Gate and a Watcher of its own.

Run by test_restart_processes.py as `python restart_standin.py KIND ...`. It says in JSON lines on standard
output what happens to it. Times are short, nothing else differs.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from stanch_connector.apiserver import restart, watcher
from stanch_connector.apiserver.gate import Gate

restart.TERM_GRACE_SECONDS = 0.3
restart.KILL_GRACE_SECONDS = 0.3
watcher.POLL_SECONDS = 0.05
# Longer than any test: a stand-in that nobody ends ends by itself.
LIFE_SECONDS = 30.0


def say(**what: object) -> None:
    os.write(1, (json.dumps({"pid": os.getpid(), **what}) + "\n").encode())


def leave(*_: object) -> None:
    say(event="term")
    os._exit(0)


def serve(kind: str, boot_id: str, file: str, hold: str = "") -> None:
    """hold: a file; while it is there, one request is open."""
    if kind == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    elif kind != "default":
        signal.signal(signal.SIGTERM, leave)
    child = subprocess.Popen(["sleep", "60"]) if kind == "stubborn" else None
    gate = Gate(boot_id, counting=True)
    if hold:
        gate.opened()
    look = watcher.Watcher(gate, file)
    look.start()
    say(event="serving", child=child.pid if child else None)
    ends = time.monotonic() + LIFE_SECONDS
    said: object = None
    while time.monotonic() < ends:
        if kind == "stubborn":
            continue  # the main thread is stuck; it lets go of the interpreter only when it is made to
        if hold and not Path(hold).exists():
            hold = ""
            say(event="closed")
            gate.closed()
        now = [gate.not_ready(), gate.outcomes()]
        if now != said:
            said = now
            say(event="state", not_ready=now[0], outcomes=now[1])
        time.sleep(0.02)


def launch(count: str, boot_id: str, file: str, hold: str) -> None:
    """What `vllm serve --api-server-count N` is: a parent that serves nothing and ends its children."""
    spawn = multiprocessing.get_context("spawn")
    servers = [
        spawn.Process(target=serve, args=("default", boot_id, file, hold if number else ""))
        for number in range(int(count))
    ]
    for server in servers:
        server.start()

    def end(*_: object) -> None:
        say(event="launcher term")
        for server in servers:
            server.kill()
            server.join()
        os._exit(7)

    signal.signal(signal.SIGTERM, end)
    say(event="launched")
    time.sleep(LIFE_SECONDS)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        # As `vllm serve COUNT ...`, under whatever name this file has.
        launch(*sys.argv[2:6])
    else:
        serve(*sys.argv[1:])
