"""Real engines in pods, their Services, and the fault planted in one of them."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.bed import manifests
from tests.bed.cluster import Namespace, wait_for
from tests.cluster.operators import Operator
from tests.cluster.scenes import Scene
from tests.e2e.clients import PROMPTS, Clients, learn
from tests.engine.client import NoAnswerError, Pending, get, pd_request
from tests.engine.marks import SAME
from tests.engine.model import words

# An engine takes a minute to start, longer where several start at once on a busy machine.
START_S = 900.0
# Longer than anything honest is parked here; a first handshake has taken more, and is made beforehand.
HOLD_S = 12
STEP_MS = 50
# Ten blocks: a tenth of the cache.
STUCK_TOKENS = 320
USAGE, WAITING = "vllm:kv_cache_usage_perc", "vllm:num_requests_waiting"


@dataclass(frozen=True)
class Parked:
    """A request that waits for what will not come. id: as its client knows it; text: the right answer."""

    id: str
    pending: Pending
    text: str


class Stage:
    """Scene (of simulated engines, tests/cluster/scenes.py) has what is the same for real ones."""

    def __init__(self, namespace: Namespace, operator: Operator | None = None) -> None:
        self.namespace = namespace
        self.scene = Scene(namespace, operator)
        self.expected: dict[str, str] = {}
        self._numbers = itertools.count(1)

    def engines(self, *pods: dict[str, Any]) -> None:
        """Start them, wait until each is Ready and each pair has made its handshake."""
        self.namespace.apply(manifests.service("prefill"), manifests.service("decode"), *pods)
        names = {role: _names(pods, role) for role in ("prefill", "decode")}
        self.scene.ips |= self.namespace.wait_ready(*names["prefill"], *names["decode"], deadline_s=START_S)
        for prefill, decode in itertools.product(*names.values()):
            self.warm_up(prefill, decode)
        self.expected = learn(self.url(names["prefill"][0]), self.url(names["decode"][0]), PROMPTS)

    def story(self) -> str:
        """Incidents, pods, and the ends of the logs, for a failure's report."""
        parts = [self.scene.story(), self.namespace.story()]
        for pod in self.scene.ips:
            parts += [f"--- {pod}", self.namespace.kubectl("logs", pod, "--tail=25")]
        parts += ["--- operator", *(str(line) for line in self.scene.operator.lines()[-60:])]
        return "\n".join(parts)

    def url(self, pod: str) -> str:
        return f"http://{self.scene.ips[pod]}:{manifests.PORT}"

    def service(self, role: str) -> str:
        """The URL of its Service."""
        path = f"/api/v1/namespaces/{self.namespace.name}/services/{role}"
        return f"http://{self.namespace.cluster.api(path)['spec']['clusterIP']}:{manifests.PORT}"

    def clients(self, per_s: float = 1.0) -> Clients:
        return Clients(self.service("prefill"), self.service("decode"), self.expected, per_s)

    def warm_up(self, prefill: str, decode: str) -> None:
        number = next(self._numbers)
        pending = pd_request(self.url(prefill), self.url(decode), words(64, seed=number), number=number)
        assert pending.answer(120).status == 200

    def watch(
        self,
        steps: Sequence[str],
        hold_s: int = HOLD_S,
        interval_s: int = 1,
        decodes: Mapping[str, str] | None = None,
    ) -> None:
        """Enforce, with these steps allowed. decodes: labels of the only ones that are meant."""
        roles = [
            {"name": role, "selector": {"matchLabels": {"app": manifests.APP, "role": role, **more}}}
            for role, more in (("prefill", {}), ("decode", decodes or {}))
        ]
        self.scene.watch(
            roles=roles,
            intervalSeconds=interval_s,
            signatures={"parkedRemoteKvSeconds": hold_s, "heldIdleSeconds": hold_s},
            remediation={"steps": list(steps), "drainSeconds": 60, "cooldownSeconds": 0},
        ).until_watching()

    def park(self, prefill: str, decode: str, seed: int) -> Parked:
        """Plant one: it meets the defect where the decode's connector has it."""
        urls = self.url(prefill), self.url(decode)
        prompt = words(STUCK_TOKENS, seed=seed)
        before = pd_request(*urls, prompt, 8, number=next(self._numbers)).answer()
        number = next(self._numbers)
        pending = pd_request(*urls, prompt, 8, mark=SAME, number=number, timeout_s=START_S)
        return Parked(f"cmpl-{SAME}{number}", pending, text(before.status, before.body))

    def until_waiting(self, decode: str, count: int) -> None:
        """So many requests have waited for a second: none of them is on its way only."""
        since: list[float] = []

        def still() -> bool:
            if (self.metric(decode, WAITING) or 0) < count:
                since.clear()
                return False
            since.append(time.monotonic())
            return since[-1] - since[0] > 1

        wait_for(f"{count} parked requests in {decode}", still, 180)

    def leak(self, prefill: str, decode: str, count: int) -> list[str]:
        """So many requests meet the defect, and their clients give up; their ids."""
        parked = [self.park(prefill, decode, seed) for seed in range(1, count + 1)]
        self.until_waiting(decode, count)
        for one in parked:
            assert one.pending.open, f"{one.id} was answered: there is no leak"
            one.pending.give_up()
        return [one.id for one in parked]

    def metric(self, pod: str, name: str) -> float | None:
        """The first series of that name; None where there is none."""
        for line in get(self.url(pod), "/metrics", timeout_s=20).body.splitlines():
            if line.startswith((name + "{", name + " ")):
                return float(line.rpartition(" ")[2])
        return None

    def stuck(self, pod: str) -> list[dict[str, Any]]:
        """What the kit lists as waiting for remote KV."""
        listed = json.loads(get(self.url(pod), "/stanch/v1/requests", timeout_s=20).body)
        ranks = listed["ranks"].values()
        return [one for rank in ranks for one in rank["requests"] if one["waitsFor"] == "remote_kv"]

    def state(self, pod: str) -> dict[str, Any]:
        """What the kit says of itself."""
        found: dict[str, Any] = json.loads(get(self.url(pod), "/stanch/v1/state", timeout_s=20).body)
        return found

    def healthy(self, pod: str) -> bool:
        try:
            return get(self.url(pod), "/health", timeout_s=20).status == 200
        except NoAnswerError:
            return False

    def until_free(self, pod: str) -> None:
        """Its usage comes down to nothing, which under traffic is so in a pause only."""
        wait_for(f"{pod} holds nothing", lambda: self.metric(pod, USAGE) == 0, 180)


def text(status: int, body: Any) -> str:
    """Of a completion."""
    assert status == 200, body
    return str(body["choices"][0]["text"])


def _names(pods: Sequence[dict[str, Any]], role: str) -> list[str]:
    return [one["metadata"]["name"] for one in pods if one["metadata"]["labels"]["role"] == role]
