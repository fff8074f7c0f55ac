"""What the scenario tests play with: engines, a watch, leaks, and their story."""

from __future__ import annotations

import http.client
import json
import threading
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from typing import Any

from tests.bed import manifests
from tests.bed.cluster import Namespace, Object, is_ready, wait_for
from tests.cluster.operators import Operator

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
# Of a request that runs for half a minute. A repair comes to its drain after ten seconds, on a busy machine
# later; what a test does then must come before the request's end, which is the drain's.
BUSY_TOKENS = 1500
# Of a watch that may not release.
RESTART = {"steps": ["Restart"], "drainSeconds": 60, "cooldownSeconds": 0}


class Scene:
    """Prefill and decode engines in a namespace of their own, with their Services, and a watch over them.

    api_key: what the clients send."""

    def __init__(self, namespace: Namespace, operator: Operator | None = None) -> None:
        self.namespace = namespace
        self._operator = operator
        self.ips: dict[str, str] = {}
        self.api_key: str | None = None

    @property
    def operator(self) -> Operator:
        """The process that repairs here; where the chart runs it, there is none of the tests'."""
        assert self._operator is not None
        return self._operator

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
        return sorted(self.labelled("deployment", name, replicas))

    def labelled(self, label: str, value: str, pods: int) -> dict[str, Object]:
        """The ready pods with that label by name, once there are so many."""
        query = urllib.parse.urlencode({"labelSelector": f"{label}={value}"})
        path = f"/api/v1/namespaces/{self.namespace.name}/pods?{query}"

        def look() -> dict[str, Object] | None:
            found = [one for one in self.namespace.cluster.api(path)["items"] if is_ready(one)]
            self.ips |= {one["metadata"]["name"]: one["status"]["podIP"] for one in found}
            return {one["metadata"]["name"]: one for one in found} if len(found) == pods else None

        return wait_for(f"{pods} pods with {label}={value}", look, PATIENCE_S)

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

    def watch_leaking(self, leaks: int) -> Scene:
        """A watch that may restart, from when it knows of so many leaks; before that it is paused, so that
        which of them it happens to read first does not matter."""
        self.watch(remediation={**RESTART, "paused": True})

        def known() -> bool:
            waits = [one.get("status", {}).get("wait", "") for one in self.incidents()]
            return sum(str(wait).startswith("Paused") for wait in waits) == leaks

        wait_for(f"{leaks} incidents", known, PATIENCE_S)
        return self.watch(remediation=RESTART)

    def leak(
        self, decode: str = "d0", prefill: str = "p0", requests: int = 3, ranks: Sequence[int] = (0,)
    ) -> None:
        """The next requests to each of these ranks meet the defect, and their clients give up once the engine
        holds them all."""
        held, many = self.held(decode), requests * len(ranks)
        for rank in ranks:
            self.ask(decode, "/sim/plant", {"requests": requests, "rank": rank})
        asked = [
            (self._prefilled(prefill, f"w{number}"), rank) for rank in ranks for number in range(requests)
        ]
        with ExitStack() as clients:
            # At once, so that they are of one age.
            for body, rank in asked:
                clients.enter_context(closing(self._sent(decode, body, rank)))
            wait_for(f"{many} leaks", lambda: self.held(decode) >= held + many, PATIENCE_S)

    def _sent(self, pod: str, body: Object, rank: int) -> http.client.HTTPConnection:
        """A request under way, whose answer nobody reads."""
        connection = http.client.HTTPConnection(self.ips[pod], manifests.PORT, timeout=20)
        connection.request("POST", "/v1/completions", json.dumps(body), self._headers(rank))
        return connection

    def transfer(
        self, decode: str = "d0", prefill: str = "p0", word: str = "w", rank: int = 0, seconds: float = 20.0
    ) -> Any:
        """The decode's answer to a request whose prompt the prefill has computed. seconds: the decode's."""
        return self.ask(decode, "/v1/completions", self._prefilled(prefill, word), seconds, rank)

    def _prefilled(self, prefill: str, word: str) -> Object:
        """What a decode is asked once the prefill has computed the prompt."""
        ask = {"prompt": " ".join([word] * 300), "max_tokens": 1}
        first = self.ask(
            prefill, "/v1/completions", {**ask, "kv_transfer_params": {"do_remote_decode": True}}
        )
        return {**ask, "max_tokens": 4, "kv_transfer_params": first["kv_transfer_params"]}

    def _headers(self, rank: int | None) -> dict[str, str]:
        headers = {"Content-Type": "application/json"}
        if self.api_key is not None:
            headers["Authorization"] = f"Bearer {self.api_key}"
        if rank is not None:
            headers["X-data-parallel-rank"] = str(rank)
        return headers

    def ask(
        self, pod: str, path: str, body: object = None, seconds: float = 20.0, rank: int | None = None
    ) -> Any:
        data = None if body is None else json.dumps(body).encode()
        url = f"http://{self.ips[pod]}:{manifests.PORT}{path}"
        request = urllib.request.Request(url, data, self._headers(rank))
        with urllib.request.urlopen(request, timeout=seconds) as answer:
            return json.load(answer)

    def busy(self, pod: str, tokens: int = BUSY_TOKENS) -> Future[Any]:
        """An ordinary request of so many tokens, fifty a second at most; its answer."""
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

    def draining(self, *decodes: str, tokens: int = BUSY_TOKENS) -> list[Future[Any]]:
        """A leak on each, while an ordinary request keeps it busy: once each has an incident at Drain. The
        answers to those requests."""
        busy = [self.busy(name, tokens) for name in decodes]
        for name in decodes:
            self.leak(name)
        for number in range(len(decodes)):
            self.at_step("Drain", number)
        return busy

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
        """ "True Reason", of the spec as it is now; None where that is not said yet."""
        found = self.watched(name)
        for one in found.get("status", {}).get("conditions", []):
            if one["type"] == kind and one["observedGeneration"] == found["metadata"]["generation"]:
                return f"{one['status']} {one['reason']}"
        return None

    def until(self, kind: str, said: str, name: str = "shop") -> Scene:
        """Wait until the watch says "True Reason" of that condition."""
        wait_for(f"{kind} {said}", lambda: self.condition(kind, name) == said, PATIENCE_S)
        return self

    def until_watching(self, name: str = "shop") -> Scene:
        return self.until("Ready", "True Watching", name)

    def marks(self, pod: str) -> dict[str, str]:
        """Our annotations on the pod."""
        found = self.namespace.pod(pod)
        assert found is not None
        annotations = found["metadata"].get("annotations") or {}
        return {key: value for key, value in annotations.items() if key.startswith("stanch.dev/")}

    def let_go(self, pod: str) -> None:
        """Wait until it serves, and nothing of ours is on it."""
        wait_for(
            f"{pod} ready, and nothing on it", lambda: self.ready(pod) and not self.marks(pod), PATIENCE_S
        )

    def restarts(self, pod: str) -> int:
        """Of its container; 0 before there is one."""
        found = self.namespace.pod(pod)
        assert found is not None
        return sum(int(one["restartCount"]) for one in found["status"].get("containerStatuses", []))

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


def outcome(incident: Object) -> tuple[str, str]:
    """How it ended, as its two words."""
    return ending(incident), str(incident["status"].get("code"))


def ending(incident: Object) -> str:
    return str(incident["status"].get("ending"))


def of_person(name: str, pod: str) -> Object:
    """An incident as somebody writes it."""
    return {
        "apiVersion": "stanch.dev/v1alpha1",
        "kind": "LeakIncident",
        "metadata": {"name": name},
        "spec": {"podRef": {"name": pod}},
    }
