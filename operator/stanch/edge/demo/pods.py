"""Where the demo's watchdog acts: what is a pod on Kubernetes is a process here.

A process reads its annotations from a file, as a container does from a downward-API volume, so its kit is
commanded and cordoned in the same way. The fleet's router is the Service.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from uuid import uuid4

from stanch.core.fleet import Fleet, Pod, Unit
from stanch.core.sample import Role
from stanch.edge.cluster import Conflict, Refused
from stanch.edge.demo.deployment import Deployment, Member, Traffic
from stanch.edge.units import Heard
from stanch.edge.units_pod import command, cordon, kit_of, lock

NAMESPACE = "demo"


class Pods:
    """The pods as place.Pods has them, and as facts for the planner."""

    def __init__(self, deployment: Deployment) -> None:
        self._deployment = deployment
        self._annotations: dict[str, dict[str, str]] = {}
        self._uids: defaultdict[str, str] = defaultdict(lambda: str(uuid4()))
        self._versions: Counter[str] = Counter()

    async def patch_pod(
        self, namespace: str, name: str, *, uid: str, version: str, annotations: Mapping[str, str | None]
    ) -> str:
        if (uid, version) != (self._uids[name], str(self._versions[name])):
            raise Conflict(f"{namespace}/{name} is not as it was read")
        merged = {**self._annotations.get(name, {}), **annotations}
        self._annotations[name] = {key: value for key, value in merged.items() if value is not None}
        self._versions[name] += 1
        self._deployment.annotate(name, self._annotations[name])
        return str(self._versions[name])

    async def evict(self, namespace: str, name: str, *, uid: str, dry_run: bool) -> None:
        raise Refused(f"{namespace}/{name} is a process, and nothing would make it anew elsewhere")

    async def logs(self, namespace: str, pod: str, container: str, lines: int) -> str:
        return self._deployment.log(pod, lines)

    def fleet(
        self,
        before: Sequence[Member],
        after: Sequence[Member],
        heard: Mapping[str, Heard],
        traffic: Traffic | None,
        listed_at: float,
    ) -> Fleet:
        """before, after: the engines as they were when they began to be heard, and when they had been."""
        pids = {member.name: member.pid for member in before}
        units = []
        for member in after:
            # What another process has said than the one that runs now is nobody's word.
            said = heard[member.name] if member.pid == pids[member.name] else Heard()
            others = tuple(other.name for other in after if other.role != member.role)
            units.append(
                Unit(
                    key=member.name,
                    role=Role(member.role),
                    pods=(self._pod(member, said, traffic),),
                    engines=said.engines or (member.name,),
                    deployment=NAMESPACE,
                    peers=others,
                )
            )
        return Fleet(tuple(units), listed_at)

    def _pod(self, member: Member, said: Heard, traffic: Traffic | None) -> Pod:
        raw = {"metadata": {"annotations": self._annotations.get(member.name, {})}}
        up = member.pid is not None and said.healthy is True
        return Pod(
            name=member.name,
            uid=self._uids[member.name],
            container_id=None if member.pid is None else f"pid {member.pid}",
            ready=up and said.kit is not None and said.kit.ready is True,
            healthy=up,
            routed=None if traffic is None else member.name not in traffic.out,
            arriving=said.arriving,
            running=said.running,
            lock=lock(raw),
            cordon=cordon(raw),
            command=command(raw),
            kit=kit_of([said.kit]),
            version=str(self._versions[member.name]),
        )
