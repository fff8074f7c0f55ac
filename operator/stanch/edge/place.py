"""What the executor needs of the place where it acts: pods on Kubernetes (Cluster, Survey), processes in the
demo (edge/demo/pods.py)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from stanch.core.fleet import Fleet
from stanch.core.plan_limits import Limits
from stanch.edge.asking import Judged
from stanch.edge.targets import Watched


class Pods(Protocol):
    """Where a pod's annotations are written, and what else is done to it; in words as Cluster has them.
    Raises ClusterError."""

    async def patch_pod(
        self, namespace: str, name: str, *, uid: str, version: str, annotations: Mapping[str, str | None]
    ) -> str: ...

    async def evict(self, namespace: str, name: str, *, uid: str, dry_run: bool) -> None: ...

    async def logs(self, namespace: str, pod: str, container: str, lines: int) -> str: ...


class Seen(Protocol):
    """What was read in the turn whose plan is carried out. judged: by the engine's name; reached: targets by
    unit. open: names of the incidents that are open."""

    @property
    def namespace(self) -> str: ...

    @property
    def limits(self) -> Limits: ...

    @property
    def fleet(self) -> Fleet: ...

    @property
    def judged(self) -> Mapping[str, Judged]: ...

    @property
    def reached(self) -> Mapping[str, tuple[Watched, ...]]: ...

    @property
    def open(self) -> frozenset[str]: ...

    def container(self, pod: str) -> str:
        """The engine's container. Raises KeyError where the pod is none of this turn's."""
