"""A shop made from nothing: Stanch by its chart, engines by a DisaggDeployment, customers by its router."""

from __future__ import annotations

import itertools
import json
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from tests.bed.cluster import Namespace, Object, wait_for
from tests.bed.vllm import Vllm
from tests.cluster.releases import Release
from tests.e2e.clients import ANSWER_TOKENS, PATIENCE_S, PROMPTS
from tests.e2e.stage import HOLD_S, START_S, STEP_MS, Stage
from tests.engine.client import NoAnswerError, complete
from tests.engine.planting import planted_path

NAME, ROUTER_PORT = "shop", 8090
WATCH: Object = {
    "mode": "Enforce",
    "intervalSeconds": 1,
    "signatures": {"parkedRemoteKvSeconds": HOLD_S, "heldIdleSeconds": HOLD_S},
    "remediation": {"steps": ["Release"], "cooldownSeconds": 0},
}
GROUP = "/apis/stanch.dev/v1alpha1"


class Shop:
    """In a namespace of its own. stage: its engines by the names of their pods, and what leaks them."""

    def __init__(self, namespace: Namespace, vllm: Vllm, release: Release) -> None:
        self.namespace = namespace
        self.vllm = vllm
        self.release = release
        self.stage = Stage(namespace)
        self.planted = planted_path(vllm.directory / "planted")
        self._numbers = itertools.count(1)

    def manifest(self, patch: str, decodes: int = 2, **watch: Any) -> Object:
        router = self.vllm.router([sys.executable, "-m", "tests.e2e.router"], ROUTER_PORT)
        return self.vllm.deployment(
            NAME,
            {"prefill": 1, "decode": decodes},
            patch=patch,
            planted=self.planted,
            step_ms=STEP_MS,
            watch={**WATCH, **watch},
            router=router,
        )

    def apply(self, manifest: Object) -> None:
        """As people do it, and until it is what runs."""
        self.namespace.apply(manifest)
        path = f"{GROUP}/namespaces/{self.namespace.name}/disaggdeployments/{NAME}"

        def well() -> bool:
            found = self.namespace.cluster.api(path)
            conditions = {one["type"]: one for one in found.get("status", {}).get("conditions", [])}
            current: bool = (
                found.get("status", {}).get("observedGeneration") == found["metadata"]["generation"]
            )
            return current and conditions.get("Ready", {}).get("status") == "True"

        wait_for(f"disaggdeployment/{NAME} Ready", well, START_S)
        self.look()

    def look(self) -> dict[str, list[str]]:
        """The names of its pods by role, oldest first; their addresses are known from now on."""
        found: dict[str, list[str]] = {}
        listed = self.namespace.cluster.api(
            f"/api/v1/namespaces/{self.namespace.name}/pods?labelSelector=stanch.dev%2Fdeployment%3D{NAME}"
        )["items"]
        alive = [one for one in listed if "deletionTimestamp" not in one["metadata"]]
        for one in sorted(alive, key=lambda one: one["metadata"]["creationTimestamp"]):
            role, name = one["metadata"]["labels"]["stanch.dev/role"], one["metadata"]["name"]
            found.setdefault(role, []).append(name)
            if "podIP" in one["status"]:
                self.stage.scene.ips[name] = one["status"]["podIP"]
        return found

    def pair(self, decode: int = 0) -> tuple[str, str]:
        """A prefill and a decode, which have shaken hands."""
        names = self.look()
        pair = names["prefill"][0], names["decode"][decode]
        self.stage.warm_up(*pair)
        return pair

    def router(self) -> str:
        path = f"/api/v1/namespaces/{self.namespace.name}/services/{NAME}-router"
        return f"http://{self.namespace.cluster.api(path)['spec']['clusterIP']}:{ROUTER_PORT}"

    def ask(self, prompt: str) -> str:
        """One customer's answer, through the router. Raises NoAnswerError."""
        number = next(self._numbers)
        pending = complete(
            self.router(),
            prompt,
            max_tokens=ANSWER_TOKENS,
            request_id=f"customer-{number}",
            timeout_s=PATIENCE_S,
        )
        answer = pending.answer(PATIENCE_S)
        if answer.status != 200:
            raise NoAnswerError(f"HTTP {answer.status}: {str(answer.body)[:200]}")
        return str(answer.body["choices"][0]["text"])

    @contextmanager
    def customers(self) -> Iterator[Customers]:
        """Who come one after another for as long as it is open."""
        found = Customers(self)
        found.thread.start()
        try:
            yield found
        finally:
            found.stop.set()
            found.thread.join()

    def incidents(self) -> list[Object]:
        """As `kubectl get li -o yaml` prints them, the oldest first."""
        listed = yaml.safe_load(self.namespace.kubectl("get", "li", "-o", "yaml"))["items"]
        return sorted(listed, key=lambda one: one["metadata"]["creationTimestamp"])

    def ended(self, number: int) -> Object:
        """The incident of that number, once it has ended."""

        def look() -> Object | None:
            found = self.incidents()
            if len(found) > number and found[number].get("status", {}).get("ending"):
                return found[number]
            return None

        return wait_for(f"the end of incident {number}", look, START_S)

    def story(self) -> str:
        said = [self.namespace.story(), self.release.story()]
        said += [self.namespace.kubectl("get", kind, "-o", "yaml") for kind in ("dd", "lw", "li")]
        for names in self.look().values():
            said += [f"--- {name}\n{self._log(name)}" for name in names]
        return "\n".join(said)

    def _log(self, pod: str) -> str:
        return self.namespace.kubectl("logs", pod, "--all-containers", "--tail=25", "--ignore-errors")


class Customers:
    """answers: what each got, or why it got none."""

    def __init__(self, shop: Shop) -> None:
        self.answers: list[tuple[str, str]] = []
        self.lost: list[str] = []
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self._come, args=(shop,))

    def _come(self, shop: Shop) -> None:
        for prompt in itertools.cycle(PROMPTS):
            if self.stop.is_set():
                return
            try:
                self.answers.append((prompt, shop.ask(prompt)))
            except NoAnswerError as error:
                self.lost.append(str(error))
                time.sleep(0.2)

    def went_on(self, more: int = 3) -> None:
        """Until so many more have been served."""
        count = len(self.answers)
        wait_for(f"{more} more customers", lambda: len(self.answers) >= count + more, START_S)

    def check(self) -> None:
        """Everybody was served, and whoever asked the same got the same."""
        assert self.lost == [], json.dumps(self.lost[:5])
        assert len({prompt for prompt, _ in self.answers}) == len(set(self.answers))


def old_deployment(vllm: Vllm, planted: list[Path]) -> Object:
    """A stock decode that somebody else made long ago: nothing of Stanch is in it."""
    pod = vllm.pod("old", "decode", kit=False, step_ms=STEP_MS, planted=planted)
    template = {"metadata": {"labels": {"app": "old"}}, "spec": pod["spec"]}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "old"},
        "spec": {
            "replicas": 1,
            "strategy": {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}},
            "selector": {"matchLabels": {"app": "old"}},
            "template": template,
        },
    }
