"""Takes off the pods what Stanch has put on them, as when it is uninstalled.

First the operator's Lease is taken, so that none cordons again: for long enough that whoever uninstalls has
ended them. A drain is ended by a command (as the planner's LIFT does it), which the kit must have seen before
it is removed; that it did shows by the pod's readiness, so that no engine has to be reached.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stanch.api.names import ANNOTATION_INCIDENT
from stanch.edge.cluster import Cluster, ClusterError, Conflict, NotFound
from stanch.edge.executor_words import undrain
from stanch.edge.permissions import LEASE
from stanch.edge.units import Object
from stanch_connector import contract

# Until a cordon that nobody renews has run out everywhere, operators must be gone.
HOLD_SECONDS = 60.0
_TRIES = 5
OURS = (contract.ANNOTATION_CORDON, contract.ANNOTATION_COMMAND, ANNOTATION_INCIDENT)
# What may have left an engine draining; of these one that has been undrained already is asked once more.
_DRAINS = ("drain", "restart", "undrain")


@dataclass(frozen=True, slots=True)
class Pace:
    """seen_seconds: the kubelet shows a pod its annotations within a second or two of their change; a
    readiness that is older says nothing, and a command that nobody has seen must not be removed.
    ready_seconds: a probe may take its time; a cordon has run out by then in any case."""

    seen_seconds: float = 5.0
    ready_seconds: float = 40.0
    look_seconds: float = 0.5


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


_PACE = Pace()


async def hold(cluster: Cluster, identity: str) -> None:
    """Returns once no operator acts any more. Raises ClusterError."""
    await asyncio.sleep(await cluster.hold(LEASE, identity, HOLD_SECONDS))


async def lifted(
    cluster: Cluster, namespaces: Sequence[str], identity: str, pace: Pace = _PACE
) -> list[Lifted]:
    """All pods in these that an incident of ours works on, let go; none named: wherever there are incidents
    or watches. Raises ClusterError where they cannot be listed. To be called after `hold`."""
    pods: list[Object] = []
    for name in namespaces or await _ours(cluster):
        pods += [one for one in (await cluster.pods(name)).items if incident_of(one)]
    found = await asyncio.gather(*(_let_go(cluster, one, f"{identity}-undrain", pace) for one in pods))
    # From here on those who uninstall have the whole of it.
    await cluster.hold(LEASE, identity, HOLD_SECONDS)
    return sorted(found, key=lambda one: (one.namespace, one.pod))


async def _ours(cluster: Cluster) -> list[str]:
    """Pods of the whole cluster may be too many to hold."""
    lists = [await cluster.incidents(None), await cluster.watches(None)]
    return sorted({one["metadata"]["namespace"] for listing in lists for one in listing.items})


def incident_of(pod: Object) -> str:
    """The incident that works on it; "" where none does: a cordon without one is a person's."""
    return str(_marks(pod).get(ANNOTATION_INCIDENT) or "")


def end_of_drain(pod: Object, name: str) -> str | None:
    """The command of this name that ends the drain that the pod's last command may have begun; None without
    one. An engine does a command of one name once, so another lift needs another."""
    try:
        last = json.loads(_marks(pod).get(contract.ANNOTATION_COMMAND) or "null")
    except ValueError:
        return None
    if not isinstance(last, dict) or last.get("verb") not in _DRAINS or not last.get("bootId"):
        return None
    return undrain(name, str(last["bootId"]))


async def _let_go(cluster: Cluster, pod: Object, name: str, pace: Pace) -> Lifted:
    meta = pod["metadata"]
    did: list[str] = []
    if contract.ANNOTATION_CORDON in _marks(pod):
        did.append("uncordoned")
    command = end_of_drain(pod, name)
    ready: bool | None = None
    problem = ""
    try:
        if command is not None:
            did.append("undrained")
            first = {contract.ANNOTATION_CORDON: None, contract.ANNOTATION_COMMAND: command}
            await _patched(cluster, pod, first)
            ready = await _given_back(cluster, pod, pace)
        await _patched(cluster, pod, dict.fromkeys(OURS))
        if command is None:
            ready = await _given_back(cluster, pod, pace) if did else _is_ready(pod)
        if did and not ready:
            problem = f"it is not ready after {pace.ready_seconds:g} s"
    except NotFound:
        ready, problem = None, ""
    except ClusterError as error:
        problem = str(error)
    return Lifted(meta["namespace"], meta["name"], incident_of(pod), tuple(did), ready, problem)


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


async def _given_back(cluster: Cluster, pod: Object, pace: Pace) -> bool:
    """Whether it serves again, once what was just written on it has been seen."""
    meta, begin = pod["metadata"], time.monotonic()
    while (waited := time.monotonic() - begin) < pace.ready_seconds:
        await asyncio.sleep(pace.look_seconds)
        if waited >= pace.seen_seconds and _is_ready(await cluster.pod(meta["namespace"], meta["name"])):
            return True
    return False


def _is_ready(pod: Object) -> bool:
    conditions = pod.get("status", {}).get("conditions") or ()
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


def _marks(pod: Object) -> dict[str, str]:
    return pod["metadata"].get("annotations") or {}
