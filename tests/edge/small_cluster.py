"""A small API server over real HTTP, with objects, versions and preconditions, and pods whose engines are
FakeVllm servers: what is annotated on a pod happens to its engine as the kit would have it.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from aiohttp import web

from stanch_connector import contract
from tests.edge.fake_api import ApiServer, refusal
from tests.edge.fake_kit import FakeKit
from tests.edge.fake_vllm import FakeVllm

NAMESPACE = "shop"
Raw = dict[str, Any]
Hook = Callable[[web.Request], Awaitable[tuple[int, Raw] | None]]
_KINDS = {"pods": "Pod", "leakwatches": "LeakWatch", "leakincidents": "LeakIncident"}


_OWNER = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "d", "uid": "u", "controller": True}


class SmallCluster(ApiServer):
    """objects: by (plural, name), all of one namespace. seen: "VERB plural/name[/sub]" of every request.

    refuse: asked before each request; an answer from it is sent in place of the true one.
    """

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self.objects: dict[tuple[str, str], Raw] = {}
        self.seen: list[str] = []
        self.refuse: Hook | None = None
        self.budget: str | None = None
        self.evicted: list[str] = []
        self._engines: dict[str, FakeVllm] = {}
        self._versions = itertools.count(100)
        self._directory = directory

    @property
    def config(self) -> str:
        """The name of a kubeconfig for it."""
        return self.kubeconfig(self._directory / "kubeconfig")

    # What a test puts in and looks at

    def put(self, plural: str, name: str, raw: Raw) -> Raw:
        meta = {"name": name, "namespace": NAMESPACE, "uid": f"uid-{name}", "generation": 1}
        raw["metadata"] = {**meta, **raw.get("metadata", {})}
        self.objects[plural, name] = raw
        return self._touched(raw)

    def watch(self, **spec: Any) -> Raw:
        port = int(next(iter(self._engines.values())).url.rpartition(":")[2])
        roles = [{"name": "decode", "selector": {"matchLabels": {"app": "d"}}, "ports": [port]}]
        signatures = {"heldIdleSeconds": 1, "parkedRemoteKvSeconds": 1}
        rest = {"mode": "Enforce", "intervalSeconds": 1, "signatures": signatures}
        return self.put("leakwatches", "shop", {"spec": {"roles": roles, **rest, **spec}})

    def pod(self, name: str, engine: FakeVllm, *, restart_policy: str = "Always") -> Raw:
        """A ready pod whose only container is that engine."""
        self._engines[name] = engine
        port = int(engine.url.rpartition(":")[2])
        probe = {"httpGet": {"path": contract.ROUTE_READY, "port": port}}
        container: Raw = {"name": "vllm", "image": "x", "ports": [{"containerPort": port}]}
        if engine.kit is not None:
            container["readinessProbe"] = probe
        raw: Raw = {
            "metadata": {"labels": {"app": "d"}, "annotations": {}, "ownerReferences": [_OWNER]},
            "spec": {"containers": [container], "restartPolicy": restart_policy},
            "status": {"phase": "Running", "podIP": engine.host},
        }
        self.put("pods", name, raw)
        self._run(raw, 0)
        return raw

    @property
    def incidents(self) -> list[Raw]:
        return [raw for (plural, _), raw in self.objects.items() if plural == "leakincidents"]

    def marks(self, pod: str) -> dict[str, str]:
        found: dict[str, str] = self.objects["pods", pod]["metadata"]["annotations"]
        return found

    def restarts(self, pod: str) -> int:
        found: int = self.objects["pods", pod]["status"]["containerStatuses"][0]["restartCount"]
        return found

    def writes(self) -> list[str]:
        return [one for one in self.seen if not one.startswith("GET") and "events" not in one]

    # The server

    async def answer(self, request: web.Request) -> web.Response:
        parts = request.path.strip("/").split("/")
        everywhere = 3 if parts[0] == "apis" else 2
        place = parts.index("namespaces") + 2 if "namespaces" in parts else everywhere
        plural, name, sub = [*parts[place:], "", "", ""][:3]
        self.seen.append("/".join(filter(None, (f"{request.method} {plural}", name, sub))))
        if self.refuse is not None and (answer := await self.refuse(request)) is not None:
            return web.json_response(answer[1], status=answer[0])
        body = json.loads(await request.text() or "null")
        code, data = self._answer(request.method, plural, name, sub, body)
        return web.json_response(data, status=code)

    def _answer(self, method: str, plural: str, name: str, sub: str, body: Any) -> tuple[int, Raw]:
        if method == "GET" and not name:
            return 200, {
                "metadata": {"resourceVersion": "7"},
                "items": [raw for (kind, _), raw in self.objects.items() if kind == plural],
            }
        if method == "POST" and plural in ("leakincidents", "leases"):
            name = body["metadata"]["name"]
            if (plural, name) in self.objects:
                return refusal(409, "AlreadyExists", f"{name} already exists")
            return 201, self.put(plural, name, {**body, "status": {}})
        if method == "POST" and plural == "events":
            return 201, body
        found = self.objects.get((plural, name))
        if found is None:
            return refusal(404, "NotFound", f"{plural} {name} not found")
        if method == "GET":
            return 200, found
        if method == "DELETE":
            return 200, self.objects.pop((plural, name))
        if sub == "eviction":
            if self.budget is not None:
                said = f"The disruption budget {self.budget} needs 1 healthy pods and has 1 currently"
                cause = {"reason": "DisruptionBudget", "message": said}
                return refusal(429, "TooManyRequests", "Cannot evict pod", causes=[cause])
            if body.get("deleteOptions", {}).get("dryRun") != ["All"]:
                self.evicted.append(name)
                del self.objects[plural, name]
            return 201, {}
        meta = body["metadata"]
        if meta.get("resourceVersion") != found["metadata"]["resourceVersion"]:
            return refusal(409, "Conflict", f"{name}: the object has been modified")
        if method == "PUT" and sub == "status":
            found["status"] = body["status"]
        elif method == "PUT":
            found["spec"] = body["spec"]
        elif method == "PATCH":
            marks = {**found["metadata"]["annotations"], **meta["annotations"]}
            found["metadata"]["annotations"] = {k: v for k, v in marks.items() if v is not None}
            self._obey(found)
        return 200, self._touched(found)

    def _touched(self, raw: Raw) -> Raw:
        raw["metadata"]["resourceVersion"] = str(next(self._versions))
        return raw

    # The engines

    def _obey(self, raw: Raw) -> None:
        engine = self._engines[raw["metadata"]["name"]]
        kit, marks = engine.kit, raw["metadata"]["annotations"]
        if kit is None:
            return
        cordon = json.loads(marks.get(contract.ANNOTATION_CORDON, "null"))
        kit.facts["cordoned"] = cordon is not None
        kit.facts["cordonIncident"] = cordon and cordon["incident"]
        self._ready(raw, cordon is None)
        command = json.loads(marks.get(contract.ANNOTATION_COMMAND, "null"))
        known = {one["id"] for one in kit.facts["outcomes"]}
        if command is None or command["bootId"] != kit.boot_id or command["id"] in known:
            return
        outcome = {"id": command["id"], "verb": command["verb"], "state": "done"}
        kit.facts["outcomes"] = [*kit.facts["outcomes"], outcome]
        if command["verb"] == "release":
            ids = command["args"]["ids"]
            listed = kit.ranks["0"]["requests"]
            kit.ranks["0"]["requests"] = [one for one in listed if one["id"] not in ids]
            engine.rank.usage = 0.0
        elif command["verb"] in ("drain", "undrain"):
            kit.facts["draining"] = command["verb"] == "drain"
        elif command["verb"] == "restart":
            engine.restart()
            engine.kit = FakeKit()
            engine.kit.boot_id = f"{kit.boot_id}+"
            count = raw["status"]["containerStatuses"][0]["restartCount"] + 1
            self._run(raw, count)
            self._obey(raw)

    def _run(self, raw: Raw, count: int) -> None:
        raw["status"]["containerStatuses"] = [
            {
                "name": "vllm",
                "containerID": f"containerd://{raw['metadata']['name']}-{count}",
                "restartCount": count,
                "started": True,
                "ready": True,
                "state": {"running": {"startedAt": "2026-11-30T13:00:00Z"}},
            }
        ]
        self._ready(raw, True)

    def _ready(self, raw: Raw, ready: bool) -> None:
        raw["status"]["conditions"] = [{"type": "Ready", "status": str(ready)}]
        name = raw["metadata"]["name"]
        target = {"kind": "Pod", "name": name, "uid": raw["metadata"]["uid"], "namespace": NAMESPACE}
        endpoint = {"addresses": ["127.0.0.1"], "conditions": {"ready": ready}, "targetRef": target}
        self.put("endpointslices", f"s-{name}", {"addressType": "IPv4", "endpoints": [endpoint]})
