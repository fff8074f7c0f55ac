"""One remediation that is disturbed, and what became of it: the runs of the crash matrix.

Each has a namespace, fresh pods, an operator and a Lease of its own, so several go on at a time. What must
hold however a remediation is disturbed is asserted here (`_Play.judged`).
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from tests.bed import manifests
from tests.bed.cluster import ApiError, Cluster, Namespace, Object, is_ready, wait_for
from tests.bed.faults import Rule
from tests.bed.proxy import FaultProxy
from tests.cluster.installed import TOP, Installed, rights_in
from tests.cluster.operators import Operator
from tests.cluster.scenes import PATIENCE_S, Scene, ending, steps

Ladder = Literal["restart", "release", "evict"]
_SHORT = {"drainSeconds": 5, "cooldownSeconds": 0}
REMEDIATION: dict[Ladder, dict[str, Any]] = {
    "restart": {"steps": ["Restart"], **_SHORT},
    "release": {"steps": ["Release"], **_SHORT},
    "evict": {"steps": ["Evict"], **_SHORT},
}
CODES: dict[Ladder, str] = {"restart": "Restarted", "release": "Released", "evict": "Evicted"}
# How a place at an await is named, and the stage in which nothing is wrong yet.
AWAIT, IDLE = "after await ", " at idle"
# Longer than a cordon's lease and the time in which an order reaches an engine: what has served for so long
# without a break is not about to be stopped. Where nothing is left on the pod, a part of it.
_STEADY_S, _CLEAN_S = 8.0, 3.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run came to. ended: how the incident ended, empty where there was no operator to end it.
    restarts: of the engine's container, or pods that took the place of one. seconds: from the disturbance
    until the engine served for good; 0 where it always did. met: the effects of an operator that was not to
    crash. faults: the calls that met one."""

    ended: str
    restarts: int
    seconds: float
    steps: tuple[str, ...] = ()
    met: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()


class RunError(AssertionError):
    """What must hold did not; the message has what the cluster and the operator say of it."""


class CrashingOperator(Operator):
    """With short leases, in the namespace of the run."""

    def __init__(self, config: str, directory: Path, namespace: str) -> None:
        super().__init__(config, directory / "operator.log")
        self._seen = directory / "seen"
        # As a container that is started again in its pod may be named: the Lease is still its own.
        names = dict.fromkeys(("STANCH_NAMESPACE", "STANCH_WATCH_NAMESPACES", "STANCH_IDENTITY"), namespace)
        http = {"STANCH_HTTP_HOST": "127.0.0.1", "STANCH_HTTP_PORT": "0"}
        self._own = {**os.environ, "KUBECONFIG": config, **names, **http}

    def start(self, at: str | None = None, *, awaits: bool = False) -> CrashingOperator:
        """at: where it kills itself, as "after pod: cordon"; None: nowhere, and it notes what it does.
        awaits: and each await of its loops."""
        more = {"STANCH_CRASH": at} if at else {"STANCH_CRASH_SEEN": str(self._seen)}
        if awaits or (at and at.startswith(AWAIT)):
            more["STANCH_CRASH_AWAITS"] = "1"
        command = [sys.executable, "-m", "tests.cluster.crash_inside"]
        with self.log.open("ab") as out:
            self._process = subprocess.Popen(command, stdout=out, stderr=out, env=self._own | more, cwd=TOP)
        return self

    def met(self) -> tuple[str, ...]:
        return tuple(self._seen.read_text().splitlines()) if self._seen.is_file() else ()


@dataclass(slots=True)
class _Sight:
    """What a thread sees of the decode pods all along. boots: of kits, by pod. gone_at: when last none of
    them was ready (monotonic seconds)."""

    boots: dict[str, set[str]] = field(default_factory=dict)
    uids: set[str] = field(default_factory=set)
    gone_at: float = 0.0
    looked_at: float = 0.0


class _Play:
    def __init__(
        self, cluster: Cluster, found: Installed, directory: Path, ladder: Ladder, rules: tuple[Rule, ...]
    ) -> None:
        self.ladder = ladder
        self.namespace = Namespace(cluster, f"crash-{uuid.uuid4().hex[:8]}")
        self.directory = directory / self.namespace.name
        self.rules = rules
        self._installed = found
        self.sight = _Sight()

    @contextmanager
    def staged(self) -> Iterator[Scene]:
        """Engines, rights in the namespace, and an operator that is not started yet."""
        self.directory.mkdir()
        self.namespace.make()
        self.namespace.apply(*rights_in(self.namespace.name))
        with FaultProxy(self._installed.address, trust=self._installed.authority) as self.proxy:
            url = self.proxy.url if self.rules else None
            config = self._installed.kubeconfig(self.directory / "operator.conf", url)
            self.operator = CrashingOperator(config, self.directory, self.namespace.name)
            self.scene = Scene(self.namespace, self.operator)
            try:
                yield self.scene
            except Exception as error:
                with suppress(Exception):
                    error = RunError(f"{type(error).__name__}: {error}\n{self.story()}")
                raise error from None
            finally:
                if self.operator.alive:
                    self.operator.kill()
                self.namespace.remove()

    def story(self) -> str:
        log = self.operator.log.read_text()[-6000:]
        faults = [str(one) for one in self.proxy.faults.hit()]
        return "\n".join([self.scene.story(), self.namespace.story(), *faults, log])

    def engines(self) -> str:
        """The name of the pod that will leak."""
        if self.ladder != "evict":
            self.scene.engines()
            return "d0"
        without = ("--no-kit",)
        self.namespace.apply(manifests.deployment("decode", "decode", 1, without, kit=False))
        self.scene.engines(decode=(), arguments=without, kit=False)
        return self.scene.deployed("decode", 1)[0]

    @contextmanager
    def watching(self) -> Iterator[None]:
        over = threading.Event()

        def look() -> None:
            while not over.is_set():
                with suppress(OSError, ApiError):
                    self._look()
                over.wait(0.3)

        thread = threading.Thread(target=look, daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def _look(self) -> None:
        pods = self.decodes()
        for pod in pods:
            self.sight.uids.add(pod["metadata"]["uid"])
            ip = pod["status"].get("podIP")
            if ip and self.ladder != "evict":
                name = pod["metadata"]["name"]
                self.scene.ips[name] = ip
                with suppress(OSError, ValueError):
                    boot = self.scene.ask(name, "/stanch/v1/state", seconds=2.0)["bootId"]
                    self.sight.boots.setdefault(name, set()).add(boot)
        now = time.monotonic()
        if not any(is_ready(pod) and "deletionTimestamp" not in pod["metadata"] for pod in pods):
            self.sight.gone_at = now
        self.sight.looked_at = now

    def decodes(self) -> list[Object]:
        path = f"/api/v1/namespaces/{self.namespace.name}/pods?labelSelector=role%3Ddecode"
        found: list[Object] = self.namespace.cluster.api(path)["items"]
        return found

    def serving(self, seconds: float) -> None:
        """Wait until a decode has been ready for so long without a break, seen from now on."""
        since = time.monotonic()
        wait_for(
            "serving for good",
            lambda: self.sight.looked_at - max(self.sight.gone_at, since) >= seconds,
            PATIENCE_S,
        )

    def clean(self) -> bool:
        """Whether nothing of ours is on any decode pod."""
        marks = [pod["metadata"].get("annotations") or {} for pod in self.decodes()]
        return not any(key.startswith("stanch.dev/") for one in marks for key in one)

    def judged(self, disturbed: float, *, ended: bool) -> Outcome:
        """What must hold, whatever happened. ended: whether an operator was there to end it."""
        found = self.scene.incidents()
        states = [pod["status"]["containerStatuses"][0]["restartCount"] for pod in self.decodes()]
        restarts = sum(states) + len(self.sight.uids) - 1
        boots = {name: len(ids) for name, ids in self.sight.boots.items()}
        assert restarts <= 1, f"double restart: {restarts}"
        assert all(count <= restarts + 1 for count in boots.values()), f"boot ids {boots}"
        assert len(found) <= 1, f"{len(found)} incidents"
        names: tuple[str, ...] = ()
        how = ""
        if ended:
            how = f"{ending(found[0])} {found[0]['status'].get('code', '')}".strip()
            names = tuple(steps(found[0]))
            assert how == f"Resolved {CODES[self.ladder]}", f"{how} {names}"
            assert restarts == (self.ladder != "release"), restarts
        for pod in self.decodes():
            name = pod["metadata"]["name"]
            if "deletionTimestamp" not in pod["metadata"]:
                self.scene.ips[name] = pod["status"]["podIP"]
                answer = self.scene.ask(name, "/v1/completions", {"prompt": "one", "max_tokens": 1})
                assert answer["usage"]["completion_tokens"] == 1
                if ended:
                    assert self.scene.held(name) == 0, "the leak is still there"
        faults = tuple(
            f"{one.call.verb} {one.call.resource}" for one in self.proxy.faults.hit() if one.fault is not None
        )
        seconds = max(0.0, self.sight.gone_at - disturbed)
        return Outcome(how, restarts, seconds, names, self.operator.met(), faults)


def crashed(
    cluster: Cluster,
    found: Installed,
    directory: Path,
    ladder: Ladder,
    at: str | None,
    *,
    back: bool = True,
    awaits: bool = False,
) -> Outcome:
    """at: where the operator is killed, None: nowhere. back: whether it is started again then. awaits: note
    each that is passed."""
    play = _Play(cluster, found, directory, ladder, ())
    with play.staged() as scene:
        patient = play.engines()
        play.operator.start(at, awaits=awaits)
        scene.watch(remediation=REMEDIATION[ladder])
        if at is not None and at.startswith(AWAIT) and at.endswith(IDLE):
            wait_for(f"its end {at}", lambda: not play.operator.alive, PATIENCE_S)
            play.operator.start()
            at = None
        scene.until_watching()
        if at is not None and at.endswith("renewed"):
            scene.busy(patient)  # it drains for as long as it may
        with play.watching():
            scene.leak(patient)
            disturbed = time.monotonic()
            if at is not None:
                wait_for(f"its end {at}", lambda: not play.operator.alive, PATIENCE_S)
                disturbed = time.monotonic()
                if back:
                    play.operator.start()
            if back:
                scene.ended()
                wait_for("nothing of ours on the pods", play.clean, PATIENCE_S)
            play.serving(_CLEAN_S if back else _STEADY_S)
        return play.judged(disturbed, ended=back)


def troubled(
    cluster: Cluster, found: Installed, directory: Path, ladder: Ladder, rules: tuple[Rule, ...]
) -> Outcome:
    """The proxy's faults, for calls from the leak on; those of watches from the operator's start on."""
    play = _Play(cluster, found, directory, ladder, rules)
    with play.staged() as scene:
        patient = play.engines()
        play.proxy.faults.add(*(rule for rule in rules if rule.verb == "watch"))
        play.operator.start()
        scene.watch(remediation=REMEDIATION[ladder]).until_watching()
        with play.watching():
            play.proxy.faults.add(*(rule for rule in rules if rule.verb != "watch"))
            disturbed = time.monotonic()
            scene.leak(patient)
            scene.ended(deadline_s=2 * PATIENCE_S)
            wait_for("nothing of ours on the pods", play.clean, PATIENCE_S)
            play.serving(_CLEAN_S)
        outcome = play.judged(disturbed, ended=True)
        missed = [rule for rule in rules if f"{rule.verb} {rule.resource}" not in outcome.faults]
        assert not missed, f"calls that never came: {missed}"
        return outcome
