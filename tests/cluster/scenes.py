"""What the scenario tests play with: the operator as a process, engines, a watch, leaks, and their story."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.bed import manifests
from tests.bed.cluster import Namespace, Object, is_ready, wait_for
from tests.cluster.installed import NAMESPACE, Installed

GROUP = "/apis/stanch.dev/v1alpha1"
# Long enough for a machine that does other things as well.
PATIENCE_S = 150.0
_HOLDS = (
    "heldIdleSeconds",
    "deferredStallSeconds",
    "queueDeadlockSeconds",
    "noProgressSeconds",
    "parkedRemoteKvSeconds",
)
HOLD_S = 2


class Operator:
    """One `stanch operator` process under its own service account."""

    def __init__(self, config: str, log: Path, **environment: str) -> None:
        self.log = log
        self._config = config
        self._environment = environment
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> Operator:
        own = {"STANCH_HTTP_HOST": "127.0.0.1", "STANCH_HTTP_PORT": "0", "STANCH_NAMESPACE": NAMESPACE}
        environment = {**os.environ, "KUBECONFIG": self._config, **own, **self._environment}
        with self.log.open("ab") as out:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "stanch", "operator"], stdout=out, stderr=out, env=environment
            )
        return self

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def kill(self) -> None:
        """SIGKILL: as a node that fails."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def stop(self) -> int:
        """SIGTERM, and its exit code."""
        assert self._process is not None
        self._process.terminate()
        try:
            return self._process.wait(30)
        except subprocess.TimeoutExpired:
            self.kill()
            raise

    def lines(self) -> list[dict[str, Any]]:
        """Its log so far; what is not of the log is left out."""
        found = []
        for line in self.log.read_text().splitlines():
            try:
                found.append(json.loads(line))
            except ValueError:
                continue
        return [line for line in found if isinstance(line, dict)]

    def elected(self) -> bool:
        return any(line["event"] == "elected" for line in self.lines())


@contextmanager
def operating(installed: Installed, directory: Path, **environment: str) -> Iterator[Operator]:
    """An operator that acts, ended at the end."""
    one = Operator(
        installed.kubeconfig(directory / "operator.conf"), directory / "operator.log", **environment
    )
    one.start()
    try:
        wait_for("the operator's election", lambda: one.elected() or _ended(one))
        yield one
    finally:
        if one.alive:
            one.stop()


def _ended(one: Operator) -> bool:
    assert one.alive, one.log.read_text()[-3000:]
    return False


class Scene:
    """Prefill and decode engines in a namespace of their own, with their Services, and a watch over them."""

    def __init__(self, namespace: Namespace, operator: Operator) -> None:
        self.namespace = namespace
        self.operator = operator
        self.ips: dict[str, str] = {}

    def engines(
        self,
        prefill: Sequence[str] = ("p0",),
        decode: Sequence[str] = ("d0",),
        kit: bool = True,
        arguments: Sequence[str] = (),
    ) -> Scene:
        pods = [manifests.engine(name, "prefill", arguments, kit=kit) for name in prefill]
        pods += [manifests.engine(name, "decode", arguments, kit=kit) for name in decode]
        self.namespace.apply(manifests.service("prefill"), manifests.service("decode"), *pods)
        self.ips |= self.namespace.wait_ready(*prefill, *decode)
        return self

    def deployed(self, name: str, replicas: int) -> list[str]:
        """The ready pods of a Deployment, once there are so many."""
        path = f"/api/v1/namespaces/{self.namespace.name}/pods?labelSelector=deployment%3D{name}"

        def look() -> list[str] | None:
            pods = [one for one in self.namespace.cluster.api(path)["items"] if is_ready(one)]
            self.ips |= {one["metadata"]["name"]: one["status"]["podIP"] for one in pods}
            return sorted(one["metadata"]["name"] for one in pods) if len(pods) == replicas else None

        return wait_for(f"{replicas} pods of {name}", look, PATIENCE_S)

    def allowed_disruptions(self, budget: str) -> int | None:
        path = f"/apis/policy/v1/namespaces/{self.namespace.name}/poddisruptionbudgets/{budget}"
        status = self.namespace.cluster.api(path).get("status", {})
        return status.get("disruptionsAllowed") if status.get("currentHealthy") else None

    def watch(self, mode: str = "Enforce", name: str = "shop", **spec: Any) -> Scene:
        """remediation=..., signatures=... and so on replace what stands here."""
        roles = [
            {"name": role, "selector": {"matchLabels": {"app": manifests.APP, "role": role}}}
            for role in ("prefill", "decode")
        ]
        self.namespace.apply(
            {
                "apiVersion": "stanch.dev/v1alpha1",
                "kind": "LeakWatch",
                "metadata": {"name": name},
                "spec": {
                    "mode": mode,
                    "intervalSeconds": 1,
                    "roles": roles,
                    "signatures": dict.fromkeys(_HOLDS, HOLD_S),
                    "remediation": {"drainSeconds": 5, "cooldownSeconds": 0},
                    **spec,
                },
            }
        )
        return self

    def leak(self, decode: str = "d0", prefill: str = "p0", requests: int = 3) -> None:
        """The next requests to that decode meet the defect, and their clients give up."""
        self.ask(decode, "/sim/plant", {"requests": requests})
        # At once, so that they are of one age.
        with ThreadPoolExecutor(requests) as clients:
            list(clients.map(lambda number: self._give_up(number, decode, prefill), range(requests)))

    def _give_up(self, number: int, decode: str, prefill: str) -> None:
        prompt = " ".join(f"w{number}" for _ in range(300))
        ask = {"prompt": prompt, "max_tokens": 1}
        first = self.ask(
            prefill, "/v1/completions", {**ask, "kv_transfer_params": {"do_remote_decode": True}}
        )
        second = {**ask, "max_tokens": 4, "kv_transfer_params": first["kv_transfer_params"]}
        try:
            self.ask(decode, "/v1/completions", second, seconds=0.7)
        except OSError:
            return
        raise AssertionError(f"request {number} was answered: there is no leak")

    def ask(self, pod: str, path: str, body: object = None, seconds: float = 20.0) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            f"http://{self.ips[pod]}:{manifests.PORT}{path}", data, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=seconds) as answer:
            return json.load(answer)

    def busy(self, pod: str, tokens: int = 600) -> Future[Any]:
        """An ordinary request that runs for some twelve seconds; its answer."""
        body = {"prompt": "one two three", "max_tokens": tokens}
        clients = ThreadPoolExecutor(1)
        asked = clients.submit(self.ask, pod, "/v1/completions", body, PATIENCE_S)
        clients.shutdown(wait=False)
        return asked

    @contextmanager
    def traffic(self, pod: str) -> Iterator[None]:
        """Short requests to the pod's own address, one after another."""
        over = threading.Event()

        def client() -> None:
            while not over.wait(0.2):
                with suppress(OSError):
                    self.ask(pod, "/v1/completions", {"prompt": "one", "max_tokens": 1})

        thread = threading.Thread(target=client)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def at_step(self, name: str, number: int = 0) -> Object:
        """The incident of that number, once that step of it has begun."""

        def look() -> Object | None:
            found = self.incident(number)
            names = [step["name"] for step in (found or {}).get("status", {}).get("steps", [])]
            return found if name in names else None

        return wait_for(f"step {name}", look, PATIENCE_S)

    def reason(self, unit: str) -> str | None:
        """Why nothing is done to the unit now, by the watch's status."""
        for one in self.watched().get("status", {}).get("suspects", []):
            if one["unit"].rpartition("/")[2] == unit:
                return str(one.get("reason"))
        return None

    # What is looked at

    def incidents(self) -> list[Object]:
        path = f"{GROUP}/namespaces/{self.namespace.name}/leakincidents"
        found = self.namespace.cluster.api(path)["items"]
        return sorted(found, key=lambda one: one["metadata"]["creationTimestamp"])

    def incident(self, number: int = 0) -> Object | None:
        found = self.incidents()
        return found[number] if len(found) > number else None

    def ended(self, number: int = 0, deadline_s: float = PATIENCE_S) -> Object:
        """The incident of that number, once it has ended."""

        def look() -> Object | None:
            found = self.incident(number)
            return found if found is not None and found.get("status", {}).get("ending") else None

        return wait_for(f"the end of incident {number}", look, deadline_s)

    def watched(self, name: str = "shop") -> Object:
        path = f"{GROUP}/namespaces/{self.namespace.name}/leakwatches/{name}"
        return self.namespace.cluster.api(path)

    def condition(self, kind: str, name: str = "shop") -> str | None:
        """ "True Reason", or None where it is not said yet."""
        for one in self.watched(name).get("status", {}).get("conditions", []):
            if one["type"] == kind:
                return f"{one['status']} {one['reason']}"
        return None

    def until_watching(self, name: str = "shop") -> Scene:
        wait_for("the watch Ready", lambda: self.condition("Ready", name) == "True Watching", PATIENCE_S)
        return self

    def marks(self, pod: str) -> dict[str, str]:
        """Our annotations on the pod."""
        found = self.namespace.pod(pod)
        assert found is not None
        annotations = found["metadata"].get("annotations") or {}
        return {key: value for key, value in annotations.items() if key.startswith("stanch.dev/")}

    def restarts(self, pod: str) -> int:
        found = self.namespace.pod(pod)
        assert found is not None
        return int(found["status"]["containerStatuses"][0]["restartCount"])

    def ready(self, pod: str) -> bool:
        found = self.namespace.pod(pod)
        return found is not None and is_ready(found)

    def held(self, pod: str) -> int:
        """Requests that the engine holds for nobody."""
        return len(self.ask(pod, "/sim/requests"))

    def story(self) -> str:
        kinds = ("leakwatches", "leakincidents")
        return "\n".join(self.namespace.kubectl("get", kind, "-o", "yaml") for kind in kinds)


def steps(incident: Object) -> list[str]:
    """Its steps, as Name:Outcome."""
    return [f"{one['name']}:{one.get('outcome', '')}" for one in incident["status"].get("steps", [])]


def ending(incident: Object) -> str:
    return str(incident["status"].get("ending"))
