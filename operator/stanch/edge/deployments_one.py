"""One DisaggDeployment: its objects are made so, and it is told what became of it. Idempotent.

In this order, and nothing further where one of them fails:

1. what is written is understood, and rendered;
2. nothing of the names is somebody else's;
3. the server takes every object that is to be changed, in a dry run: so half of a change is never applied;
4. they are applied, first what pods need, then the pods, then the watch; what is not as applied is put right;
5. what it has not any more is deleted;
6. its status is written.

Whatever ends this in the middle: the next round reads the world and goes on. Nothing is kept but what was
applied last, so that an object that is still so needs no request.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from stanch.api.deployment import DisaggDeployment, Part
from stanch.edge.cluster import Cluster, ClusterError, Conflict, Forbidden, Invalid, NotFound
from stanch.edge.deployments_held import held, said_of_pods
from stanch.edge.deployments_objects import (
    Key,
    Object,
    Owner,
    called,
    digest,
    fingerprint,
    key,
    leftover,
    of_previous,
    ordered,
    whose,
)
from stanch.edge.deployments_status import Stopped
from stanch.edge.render import Place, render
from stanch.edge.render.place import LABEL_ROLE, ROUTER
from stanch.edge.telemetry import Telemetry

# What the server has refused is tried again so often, where neither it nor the objects have changed.
_AGAIN_SECONDS = 60.0
_MOST_SAID = 3


class NotLeadingError(Exception):
    """This process does not hold the Lease any more: nothing further may be written."""


@dataclass(frozen=True, slots=True)
class Made:
    """live: its objects as they are now, by apiVersion, kind and name. stopped: why the spec is not applied;
    None where it is. held: Deployments whose pods are as an earlier version of Stanch has made them; None
    where that was not looked at. ends: its namespace is being deleted, and it with it."""

    deployment: DisaggDeployment | None
    live: Mapping[Key, Object]
    stopped: Stopped | None
    held: tuple[str, ...] | None = None
    ends: bool = False

    @property
    def expected(self) -> list[Part]:
        """The roles that the spec has; those that are there, where it cannot be understood."""
        if self.deployment is None:
            return []
        spec = self.deployment.spec
        return [*(Part(role.name.value) for role in spec.roles), *([Part.ROUTER] if spec.router else [])]


@dataclass(frozen=True, slots=True)
class _Tried:
    """What the server refused. of: the objects, ours and those that there are. until: monotonic."""

    of: str
    until: float
    stopped: Stopped


class Maker:
    """One for all of them. leads: whether this process may write."""

    def __init__(self, cluster: Cluster, telemetry: Telemetry, leads: Callable[[], bool]) -> None:
        self._cluster = cluster
        self._telemetry = telemetry
        self._leads = leads
        # By the owner's UID: of each object what was applied, and what it was then.
        self._applied: dict[str, dict[Key, tuple[str, str]]] = {}
        self._tried: dict[str, _Tried] = {}

    def forget(self, others: Iterable[str]) -> None:
        """Those of other UIDs than these are gone."""
        kept = set(others)
        self._applied = {uid: one for uid, one in self._applied.items() if uid in kept}
        self._tried = {uid: one for uid, one in self._tried.items() if uid in kept}

    async def make(self, raw: Object, found: Iterable[Object], place: Place) -> Made:
        """raw: the DisaggDeployment. found: all objects of its namespace that carry our labels. Raises
        NotLeadingError."""
        meta = raw["metadata"]
        owner = Owner(meta["namespace"], meta["name"], meta["uid"])
        live = {key(one): one for one in found if owner.owns(one)}
        try:
            deployment = DisaggDeployment.model_validate(raw)
        except ValidationError as error:
            return Made(None, live, Stopped("Invalid", problems_of(error)))
        if not place.kit_image:
            why = "the operator does not know the image of the engine kit: set STANCH_KIT_IMAGE"
            return Made(deployment, live, Stopped("NoKitImage", why))
        rendered = render(deployment, place)
        if rendered.problems:
            said = "; ".join(f"{one.path}: {one.message}" for one in rendered.problems)
            return Made(deployment, live, Stopped("Invalid", said))
        desired = [owner.marked(one) for one in ordered(rendered.objects)]
        old: tuple[str, ...] | None = None
        try:
            stopped = await self._conflicts(owner, desired, live)
            if stopped is None:
                desired, old = _held(deployment, desired, live)
                stopped = await self._apply(owner, desired, live)
            if stopped is None:
                await self._delete(owner, desired, live)
        except ClusterError as error:
            if error.namespace_ends:
                return Made(deployment, live, None, ends=True)
            # What was not done is done in the next round.
            self._note(owner, "warning", "deployment-not-made", str(error))
            stopped = Stopped("NotApplied", str(error), passing=True)
        return Made(deployment, live, stopped, old)

    async def _conflicts(
        self, owner: Owner, desired: Sequence[Object], live: dict[Key, Object]
    ) -> Stopped | None:
        """Looks at what has one of the names and none of our labels; what is ours all the same is added."""
        theirs, leaving = [], []
        for one in desired:
            if key(one) in live:
                continue
            try:
                there = await self._cluster.making.get(one)
            except NotFound:
                continue
            if owner.owns(there):
                live[key(one)] = there
            elif of_previous(there, owner):
                leaving.append(f"{one['kind']} {one['metadata']['name']}")
            else:
                theirs.append(f"{one['kind']} {one['metadata']['name']}: {whose(there)}")
        if theirs:
            why = f"{'; '.join(theirs)}. Delete or rename it, or give this another name"
            return Stopped("Conflict", why)
        if leaving:
            why = (
                f"what was made for a DisaggDeployment of the same name is still there: {', '.join(leaving)}"
            )
            return Stopped("Waiting", why, passing=True)
        return None

    async def _apply(
        self, owner: Owner, desired: Sequence[Object], live: dict[Key, Object]
    ) -> Stopped | None:
        applied = self._applied.setdefault(owner.uid, {})
        todo = [
            one for one in desired if applied.get(key(one)) != (digest(one), fingerprint(live.get(key(one))))
        ]
        if not todo:
            return None
        state = digest({"": [(digest(one), fingerprint(live.get(key(one)))) for one in todo]})
        tried = self._tried.get(owner.uid)
        if tried is not None and tried.of == state and time.monotonic() < tried.until:
            return tried.stopped
        stopped = await self._refused(todo, live)
        if stopped is not None:
            self._tried[owner.uid] = _Tried(state, time.monotonic() + _AGAIN_SECONDS, stopped)
            return stopped
        self._tried.pop(owner.uid, None)
        for one in todo:
            before = live.get(key(one))
            try:
                now = await self._applied_one(one, before)
            except (Invalid, Forbidden) as error:
                if error.namespace_ends:
                    raise
                # The dry run has let it through: somebody was faster, or a webhook does not take part in it.
                return _refusal([(one, error)])
            live[key(one)] = now
            drifted = before is not None and applied.get(key(one), ("",))[0] == digest(one)
            applied[key(one)] = digest(one), fingerprint(now)
            self._tell(owner, one, before, now, drifted)
        return None

    async def _refused(self, todo: Sequence[Object], live: Mapping[Key, Object]) -> Stopped | None:
        """What the server would not take, in its words."""
        refused = []
        for one in todo:
            self._may_write()
            try:
                await self._cluster.making.apply(_under(one, live.get(key(one))), dry_run=True)
            except (Invalid, Forbidden) as error:
                if error.code == 401 or error.namespace_ends:
                    raise
                refused.append((one, error))
        return _refusal(refused) if refused else None

    async def _applied_one(self, one: Object, before: Object | None) -> Object:
        making = self._cluster.making
        if before is not None and one["kind"] == "Deployment" and "replicas" not in one["spec"]:
            self._may_write()
            await making.hand_over_replicas(one)
        self._may_write()
        return await making.apply(_under(one, before))

    async def _delete(self, owner: Owner, desired: Sequence[Object], live: dict[Key, Object]) -> None:
        for one in leftover(owner, desired, live.values()):
            self._may_write()
            try:
                await self._cluster.making.delete(one)
            except (NotFound, Conflict):
                continue
            finally:
                live.pop(key(one), None)
                self._applied[owner.uid].pop(key(one), None)
            self._note(owner, "info", "object-deleted", f"{called(one)} is not part of it any more: deleted")

    def _tell(self, owner: Owner, one: Object, before: Object | None, now: Object, drifted: bool) -> None:
        if before is None:
            self._note(owner, "info", "object-made", f"{called(one)} made")
        elif fingerprint(before) != fingerprint(now):
            how = "was changed by somebody, and is put right" if drifted else "changed"
            event = "object-put-right" if drifted else "object-changed"
            self._note(owner, "info", event, f"{called(one)} {how}")

    def _note(self, owner: Owner, level: str, event: str, message: str) -> None:
        self._telemetry.note(level, event, message, deployment=f"{owner.namespace}/{owner.name}")

    def _may_write(self) -> None:
        if not self._leads():
            raise NotLeadingError


def _held(
    deployment: DisaggDeployment, desired: Sequence[Object], live: Mapping[Key, Object]
) -> tuple[list[Object], tuple[str, ...]]:
    """What is to be applied, and the names of Deployments whose pods stay as they are."""
    found, names = [], []
    for one in desired:
        if one["kind"] == "Deployment":
            router = one["metadata"]["labels"][LABEL_ROLE] == ROUTER
            one, old = held(one, live.get(key(one)), said_of_pods(deployment, router))
            names += [one["metadata"]["name"]] if old else []
        found.append(one)
    return found, tuple(names)


def problems_of(error: ValidationError) -> str:
    """The first of what is wrong, each with the path of its field."""
    said = []
    for one in error.errors()[:_MOST_SAID]:
        path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in one["loc"])
        said.append(f"{path.removeprefix('.') or 'the object'}: {one['msg']}")
    more = error.error_count() - len(said)
    return "; ".join(said) + (f"; and {more} more" if more > 0 else "")


def _refusal(refused: Sequence[tuple[Object, ClusterError]]) -> Stopped:
    said = [f"{called(one)}: {error.status.get('message') or error}" for one, error in refused[:_MOST_SAID]]
    more = len(refused) - len(said)
    if more > 0:
        said.append(f"and {more} more")
    return Stopped("Refused", f"the API server does not take {'; '.join(said)}")


def _under(one: Object, before: Mapping[str, Any] | None) -> Object:
    """Of the object that was read, and of no other that has its name by now."""
    if before is None:
        return one
    return {**one, "metadata": {**one["metadata"], "uid": before["metadata"]["uid"]}}
