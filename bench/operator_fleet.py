"""The stand-in of bench.operator: pods in the API server, and one process that answers for all their engines.

    python -m bench.operator_fleet --kubeconfig FILE --decodes N --prefills N

It does what kubelet, kit, endpoint controller and engines would: it sees annotations, obeys them, and sets
pod status and EndpointSlices. Every pod has an address of its own in 10.203.0.0/16, all of them this
machine's. A line of JSON on its input is an order (leak, churn, report), answered by a line of JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import socket
import ssl
import sys
import time
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.operator_api import MERGE, Api, Object
from bench.operator_engine import Engine, Leak
from bench.operator_http import Connection, Logs
from bench.operator_objects import KUBELET_PORT, NAMESPACE, NODE, NODE_ADDRESS, endpoint, node, owner, status
from tests.bed import manifests

PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
SLICES = f"/apis/discovery.k8s.io/v1/namespaces/{NAMESPACE}/endpointslices"
_IN_SLICE = 100
_TICK_SECONDS, _CHURN_SECONDS = 0.1, 0.5


def address(index: int) -> str:
    return f"10.203.{index // 250}.{index % 250 + 1}"


class Fleet:
    def __init__(self, api: Api, decodes: int, prefills: int) -> None:
        roles = ["prefill"] * prefills + ["decode"] * decodes
        self.engines = [Engine(f"{role}-{n}", role, address(n)) for n, role in enumerate(roles)]
        self.by_address = {one.address: one for one in self.engines}
        self._by_name = {one.name: one for one in self.engines}
        self.leaks: list[Leak] = []
        self.replaced = 0
        self._api = api
        self._owners: dict[str, Object] = {}
        self._dirty: set[int] = set()
        self._busy: set[str] = set()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._made = len(roles)

    async def make(self) -> None:
        """Owners, node, pods with their status, and endpoints."""
        api = self._api
        await api.send("POST", "/api/v1/nodes", node())
        for role in ("prefill", "decode"):
            self._owners[role] = await self._workload(role)
        await asyncio.gather(*(self._create(one) for one in self.engines))
        self._dirty = set(range(0, len(self.engines), _IN_SLICE))
        await self._write_slices()

    async def _workload(self, role: str) -> Object:
        """A Deployment and its ReplicaSet, which nobody but us acts on; the owner of their pods."""
        count = sum(one.role == role for one in self.engines)
        deployment = manifests.deployment(role, role, count)  # type: ignore[arg-type]
        revision = {"deployment.kubernetes.io/revision": "1"}
        deployment["metadata"]["annotations"] = revision
        at = f"/apis/apps/v1/namespaces/{NAMESPACE}"
        made = await self._api.send("POST", f"{at}/deployments", deployment)
        replicas = {**deployment, "kind": "ReplicaSet"}
        replicas["metadata"] = {
            "name": f"{role}-1",
            "annotations": revision,
            "ownerReferences": [owner("Deployment", made)],
        }
        await self._api.send("POST", f"/api/v1/namespaces/{NAMESPACE}/services", manifests.service(role))  # type: ignore[arg-type]
        return await self._api.send("POST", f"{at}/replicasets", replicas)

    async def _create(self, engine: Engine) -> None:
        workload = self._owners[engine.role]
        pod = manifests.engine(engine.name, engine.role)  # type: ignore[arg-type]
        pod["metadata"]["labels"] = workload["spec"]["selector"]["matchLabels"]
        pod["metadata"]["ownerReferences"] = [owner("ReplicaSet", workload)]
        pod["spec"]["nodeName"] = NODE
        made = await self._api.send("POST", PODS, pod)
        engine.uid, engine.number = made["metadata"]["uid"], 0
        engine.start()
        await self._tell(engine)

    async def _tell(self, engine: Engine) -> None:
        """The pod's status, as its kubelet would write it."""
        with suppress(RuntimeError):  # it has just been deleted
            await self._api.send("PATCH", f"{PODS}/{engine.name}/status", {"status": status(engine)}, MERGE)

    async def obey(self) -> None:
        """See what is written on pods, for ever."""
        while True:
            async for kind, pod in self._api.watch(PODS):
                engine = self._by_name.get(pod["metadata"]["name"])
                if engine is None or kind == "DELETED" or pod["metadata"]["uid"] != engine.uid:
                    continue
                if engine.obey(pod["metadata"].get("annotations") or {}):
                    self._changed(engine)

    def _changed(self, engine: Engine) -> None:
        self._dirty.add(self.engines.index(engine) // _IN_SLICE * _IN_SLICE)
        self._begin(self._tell(engine))

    def _begin(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def tick(self) -> None:
        """Cordons that run out, and endpoints that have changed, for ever."""
        while True:
            for engine in self.engines:
                if engine.lapse():
                    self._changed(engine)
            await self._write_slices()
            await asyncio.sleep(_TICK_SECONDS)

    async def _write_slices(self) -> None:
        dirty, self._dirty = self._dirty, set()
        await asyncio.gather(*(self._slice(first) for first in dirty))

    async def _slice(self, first: int) -> None:
        name = f"engines-{first}"
        members = self.engines[first : first + _IN_SLICE]
        body = {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {"name": name, "labels": {"kubernetes.io/service-name": "decode"}},
            "addressType": "IPv4",
            "endpoints": [endpoint(one) for one in members if one.uid],
            "ports": [{"port": manifests.PORT}],
        }
        patch = "application/apply-patch+yaml"
        await self._api.send("PATCH", f"{SLICES}/{name}?fieldManager=bench&force=true", body, patch)

    # Orders

    def leak(self, count: int) -> dict[str, Any]:
        """So many decodes leak, all in this moment."""
        healthy = [one for one in self.engines if one.role == "decode" and one.leak is None]
        self.leaks += [one.plant() for one in healthy[:count]]
        return {"leaking": sum(one.leak is not None for one in self.engines)}

    async def churn(self, seconds: float, hold: float) -> dict[str, Any]:
        """Every second a pod is replaced, every ten a leak begins; every third leak ends by itself, before it
        has held for long enough."""
        end, number = time.monotonic() + seconds, 0
        while time.monotonic() < end:
            number += 1
            idle = [
                one for one in self.engines if one.leak is None and one.ready and one.name not in self._busy
            ]
            one = random.choice(idle)
            if number % 2:
                self._begin(self._replace(one))
            elif one.role == "decode" and number % 20 == 0:
                self.leaks.append(one.plant())
                if number % 60 == 0:
                    asyncio.get_running_loop().call_later(hold / 2, one.mend)
            await asyncio.sleep(_CHURN_SECONDS)
        return self.report()

    async def _replace(self, engine: Engine) -> None:
        """As a ReplicaSet does: the pod goes, and one of another name at another address comes."""
        self._busy.add(engine.name)
        body = {"gracePeriodSeconds": 0}
        await self._api.send("DELETE", f"{PODS}/{engine.name}", body)
        del self._by_name[engine.name], self.by_address[engine.address]
        new = Engine(f"{engine.role}-{self._made}", engine.role, address(self._made % 60_000))
        self._made += 1
        place = self.engines.index(engine)
        self.engines[place] = self._by_name[new.name] = self.by_address[new.address] = new
        await self._create(new)
        self._dirty.add(place // _IN_SLICE * _IN_SLICE)
        self._busy.discard(engine.name)
        self.replaced += 1

    def report(self) -> dict[str, Any]:
        return {
            "leaks": [asdict(one) for one in self.leaks],
            "replaced": self.replaced,
            "leaking": sum(one.leak is not None for one in self.engines),
            "notReady": sum(not one.ready for one in self.engines),
        }


async def _serve(kubeconfig: Path, decodes: int, prefills: int) -> None:
    loop = asyncio.get_running_loop()
    async with Api(kubeconfig) as api:
        fleet = Fleet(api, decodes, prefills)
        # One socket for every address: the whole range is local (an AnyIP route).
        listener = socket.create_server(("0.0.0.0", manifests.PORT), backlog=1024)
        await loop.create_server(lambda: Connection(fleet.by_address), sock=listener)
        keys = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        pki = Path(api.authority).parent
        keys.load_cert_chain(pki / "api.crt", pki / "api.key")
        await loop.create_server(Logs, NODE_ADDRESS, KUBELET_PORT, ssl=keys)
        await fleet.make()
        forever = [asyncio.ensure_future(fleet.obey()), asyncio.ensure_future(fleet.tick())]
        print("ready", flush=True)
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            for task in forever:
                if task.done():
                    task.result()
            print(json.dumps(await _ordered(fleet, json.loads(line))), flush=True)


async def _ordered(fleet: Fleet, order: dict[str, Any]) -> dict[str, Any]:
    if order["do"] == "leak":
        return fleet.leak(order["count"])
    if order["do"] == "churn":
        return await fleet.churn(order["seconds"], order["hold"])
    return fleet.report()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kubeconfig", type=Path, required=True)
    parser.add_argument("--decodes", type=int, required=True)
    parser.add_argument("--prefills", type=int, required=True)
    arguments = parser.parse_args()
    asyncio.run(_serve(arguments.kubeconfig, arguments.decodes, arguments.prefills))
