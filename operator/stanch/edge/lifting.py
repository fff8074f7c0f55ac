"""Takes off the pods what Stanch has put on them, as when it is uninstalled.

First the operator's Lease is taken, so that none cordons again: for long enough that whoever uninstalls has
ended them. A drain is ended by a command (as the planner's LIFT does it), which the kit must have seen before
it is removed; that it did shows by the pod's readiness, so that no engine has to be reached.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from stanch.api.names import ANNOTATION_INCIDENT
from stanch.edge.cluster import Cluster, ClusterError, Conflict, NotFound
from stanch.edge.executor_words import undrain
from stanch.edge.permissions import LEASE
from stanch.edge.units import Object
from stanch_connector import contract

# Until a cordon that nobody renews has run out everywhere, operators must be gone.
HOLD_SECONDS = 60.0
# The kubelet shows a pod its annotations within a second or two of their change. A readiness that is older
# says nothing, and a command that nobody has seen must not be removed.
_SEEN_SECONDS = 5.0
# A readiness probe may take its time. A cordon has run out by then in any case.
READY_SECONDS = 40.0
_LOOK_SECONDS = 0.5
_TRIES = 5
_OURS = (contract.ANNOTATION_CORDON, contract.ANNOTATION_COMMAND, ANNOTATION_INCIDENT)
# What may have left an engine draining; of these one that has been undrained already is asked once more.
_DRAINS = ("drain", "restart", "undrain")


@dataclass(frozen=True, slots=True)
class Lifted:
    """What became of one pod. did: "uncordoned", "undrained". ready: whether it serves; None where it is
    gone. problem: why not all of it was done, "" where it was."""

    namespace: str
    pod: str
    incident: str
    did: tuple[str, ...] = ()
    ready: bool | None = None
    problem: str = ""


async def hold(cluster: Cluster, identity: str) -> None:
    """Returns once no operator acts any more. Raises ClusterError."""
    await asyncio.sleep(await cluster.hold(LEASE, identity, HOLD_SECONDS))


async def lifted(cluster: Cluster, namespaces: Iterable[str | None], identity: str) -> list[Lifted]:
    """All pods in these (None: all) that an incident of ours works on, let go. Raises ClusterError where they
    cannot be listed. To be called after `hold`."""
    pods = [one for name in namespaces for one in (await cluster.pods(name)).items if incident_of(one)]
    found = await asyncio.gather(*(_let_go(cluster, one) for one in pods))
    # From here on those who uninstall have the whole of it.
    await cluster.hold(LEASE, identity, HOLD_SECONDS)
    return sorted(found, key=lambda one: (one.namespace, one.pod))


def incident_of(pod: Object) -> str:
    """The incident that works on it; "" where none does: a cordon without one is a person's."""
    return str(_marks(pod).get(ANNOTATION_INCIDENT) or "")


def end_of_drain(pod: Object) -> str | None:
    """The command that ends the drain that the pod's last command may have begun; None without one."""
    try:
        last = json.loads(_marks(pod).get(contract.ANNOTATION_COMMAND) or "null")
    except ValueError:
        return None
    if not isinstance(last, dict) or last.get("verb") not in _DRAINS or not last.get("bootId"):
        return None
    return undrain(str(last.get("id")).removesuffix("-lifted") + "-lifted", str(last["bootId"]))


async def _let_go(cluster: Cluster, pod: Object) -> Lifted:
    meta = pod["metadata"]
    namespace, name, did = meta["namespace"], meta["name"], []
    if contract.ANNOTATION_CORDON in _marks(pod):
        did.append("uncordoned")
    command = end_of_drain(pod)
    ready: bool | None = None
    problem = ""
    try:
        if command is not None:
            did.append("undrained")
            first = {contract.ANNOTATION_CORDON: None, contract.ANNOTATION_COMMAND: command}
            await _patched(cluster, pod, first)
            ready = await _given_back(cluster, pod)
        await _patched(cluster, pod, dict.fromkeys(_OURS))
        if command is None:
            ready = await _given_back(cluster, pod) if did else _is_ready(pod)
        if did and not ready:
            problem = f"it is not ready after {READY_SECONDS:.0f} s"
    except NotFound:
        ready, problem = None, ""
    except ClusterError as error:
        problem = str(error)
    return Lifted(namespace, name, incident_of(pod), tuple(did), ready, problem)


async def _patched(cluster: Cluster, pod: Object, marks: Mapping[str, str | None]) -> None:
    """Raises NotFound where there is no such pod any more."""
    meta = pod["metadata"]
    for _ in range(_TRIES):
        now = await cluster.pod(meta["namespace"], meta["name"])
        if now["metadata"]["uid"] != meta["uid"]:
            raise NotFound(f"pod {meta['name']} in {meta['namespace']}: another one has the name")
        try:
            await cluster.patch_pod(
                meta["namespace"],
                meta["name"],
                uid=meta["uid"],
                version=now["metadata"]["resourceVersion"],
                annotations=marks,
            )
        except Conflict:
            continue
        return
    raise Conflict(f"pod {meta['name']} in {meta['namespace']}: it changes all the time")


async def _given_back(cluster: Cluster, pod: Object) -> bool:
    """Whether it serves again, once what was just written on it has been seen."""
    meta, begin = pod["metadata"], time.monotonic()
    while (waited := time.monotonic() - begin) < READY_SECONDS:
        await asyncio.sleep(_LOOK_SECONDS)
        if waited >= _SEEN_SECONDS and _is_ready(await cluster.pod(meta["namespace"], meta["name"])):
            return True
    return False


def _is_ready(pod: Object) -> bool:
    conditions = pod.get("status", {}).get("conditions") or ()
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


def _marks(pod: Object) -> dict[str, str]:
    return pod["metadata"].get("annotations") or {}
