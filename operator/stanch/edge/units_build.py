"""From the pods of a watch to repair units, their peers, and how many there should be. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from stanch.api.watch import LeakWatch
from stanch.api.watch_status import RoleName
from stanch.core.fleet import Pod, Unit, Way
from stanch.core.sample import Role
from stanch.edge.kit_answers import Facts
from stanch.edge.units_group import Ending, ending, lws_of, replicas
from stanch.edge.units_leaving import leaving
from stanch.edge.units_owner import chain, counts, ref_of, top
from stanch.edge.units_pod import (
    capability,
    command,
    container_id,
    cordon,
    is_ready,
    is_terminating,
    is_up,
    kit_of,
    lock,
    not_injected,
)
from stanch.edge.units_raw import Objects, Ref, annotation, controller, label, text
from stanch.edge.units_select import Chosen

_SLICE_OF = tuple(f"disaggregatedset.x-k8s.io/{key}" for key in ("name", "slice", "revision"))
_OTHER_SIDE = {Role.DECODE: Role.PREFILL, Role.PREFILL: Role.DECODE}


@dataclass(frozen=True, slots=True)
class Heard:
    """What one target (one port of one pod) has said, as far as it was asked.

    engines: as the verdicts name them, one per rank. running: requests under way, of all its ranks.
    arriving: whether its request counter moved between the last two readings. healthy: whether it answered
    /health, or where that was not asked, gave a page. kit: None where no kit answered. transfer_ids: by which
    its peers' connectors know its ranks. role: what it is known to do, by the watch or by what it shows.
    """

    engines: tuple[str, ...] = ()
    running: float | None = None
    arriving: bool | None = None
    healthy: bool | None = None
    kit: Facts | None = None
    transfer_ids: tuple[str, ...] = ()
    role: Role = Role.UNKNOWN


_NOTHING = Heard()


@dataclass(frozen=True, slots=True)
class Built:
    """A unit, and whom its pods talk to: pods of a DisaggregatedSet to those of the same slice and revision
    only (None where they are of none)."""

    unit: Unit
    side: tuple[str, ...] | None


def target_name(one: Chosen, port: int) -> str:
    return one.name if len(one.ports) == 1 else f"{one.name}/{port}"


def living(chosen: Iterable[Chosen], objects: Objects) -> Counter[Ref]:
    """How many pods each nearest owner has that are not being deleted."""
    owners = (chain(one.raw, objects)[:1] for one in chosen if not is_terminating(one.raw))
    return Counter(ref for nearest in owners for ref in nearest)


def build(
    watch: LeakWatch,
    name: str,
    members: Sequence[Chosen],
    objects: Objects,
    open_to: frozenset[tuple[str, str]] | None,
    heard: Mapping[str, Heard],
    active: Mapping[Ref, int],
    now: float,
) -> Built:
    """The unit of these pods, at least one of which serves. open_to: as units_pod.routed has it, None where
    that is not known."""
    ordered = sorted(members, key=_order)
    serving = [one for one in ordered if one.ports]
    pods = [_pod(one, open_to, heard, leaving(one.raw, objects, active, now)) for one in serving]
    if pods[0].leaving is None and (gone := _lost_member(ordered, objects, active, now)) is not None:
        pods[0] = replace(pods[0], leaving=gone)
    lead = serving[0]
    how = _ending(lead, ordered, heard, objects)
    roles = {one.role for one in ordered}
    conflicts = sorted({one.conflict for one in ordered if one.conflict is not None})
    if len(roles) > 1:
        conflicts.append("roles " + " and ".join(sorted(role.value for role in roles)) + " of the same watch")
    unit = Unit(
        key=f"{watch.metadata.namespace}/{name}",
        role=lead.role if len(roles) == 1 else Role.UNKNOWN,
        pods=tuple(pods),
        engines=tuple(dict.fromkeys(engine for one in serving for engine in _engines(one, heard))),
        deployment=watch.metadata.name,
        way=how.way,
        way_why=how.why,
        not_remade=_not_remade(ordered),
        transfer_ids=tuple(
            own for one in serving for said in _targets(one, heard) for own in said.transfer_ids
        ),
        conflict=" and ".join(conflicts) or None,
    )
    side = tuple(label(lead.raw, key) for key in _SLICE_OF)
    return Built(unit, side if side[0] else None)


def _order(one: Chosen) -> tuple[bool, int, str]:
    return (False, 0, one.name) if one.group is None else (not one.group.lead, one.group.order, one.name)


def _lost_member(
    members: Iterable[Chosen], objects: Objects, active: Mapping[Ref, int], now: float
) -> str | None:
    """What takes away a member that serves nothing, and with it the group."""
    for one in members:
        if not one.ports:
            if is_terminating(one.raw):
                return f"the deletion of its worker {one.name}"
            if (why := leaving(one.raw, objects, active, now)) is not None:
                return why
    return None


def _ending(lead: Chosen, members: Sequence[Chosen], heard: Mapping[str, Heard], objects: Objects) -> Ending:
    group = lead.group
    if group is not None and len(members) > 1:
        group = replace(group, several=True)
    how = ending(lead.raw, lead.container, lead.arguments, group, objects)
    boots = {said.boot_id for said in _facts(lead, heard) if said is not None}
    if how.way is Way.IN_PLACE and len(boots) > 1:
        how = Ending(
            Way.EVICT,
            f"{len(boots)} servers in one container, each with a boot id of its own: a command reaches one",
        )
    return how


def _not_remade(members: Iterable[Chosen]) -> str:
    """Why one of these would be lost by an eviction, and what a person can do; "" where none would.

    The kubelet's mirror of a static pod has the Node for its controller; deleting it ends no container
    (kubernetes.io/config.mirror: pkg/kubelet/pod/mirror_client.go).
    """
    for one in members:
        if annotation(one.raw, "kubernetes.io/config.mirror") is not None:
            return (
                f"{one.name} is a static pod of its node, whose containers no eviction ends: "
                "restart it by its manifest on the node"
            )
        if controller(one.raw) is None and lws_of(one.raw) is None:
            return (
                f"no controller owns {one.name}, so nobody would make it anew: delete it and make it again, "
                "or run it by a Deployment, StatefulSet or LeaderWorkerSet"
            )
    return ""


def _targets(one: Chosen, heard: Mapping[str, Heard]) -> list[Heard]:
    return [heard.get(target_name(one, port), _NOTHING) for port in one.ports]


def _facts(one: Chosen, heard: Mapping[str, Heard]) -> list[Facts | None]:
    return [said.kit for said in _targets(one, heard)]


def _engines(one: Chosen, heard: Mapping[str, Heard]) -> list[str]:
    """As the verdicts name them; a target that has not been read yet has a verdict under its own name."""
    named: list[str] = []
    for port in one.ports:
        target = target_name(one, port)
        named += heard.get(target, _NOTHING).engines or (target,)
    return named


def _pod(
    one: Chosen, open_to: frozenset[tuple[str, str]] | None, heard: Mapping[str, Heard], gone: str | None
) -> Pod:
    said = _targets(one, heard)
    counts = [each.running for each in said]
    arriving = [each.arriving for each in said]
    return Pod(
        name=one.name,
        uid=one.uid,
        container_id=container_id(one.raw, one.container),
        ready=is_ready(one.raw),
        healthy=is_up(one.raw, one.container) and all(each.healthy is True for each in said),
        terminating=is_terminating(one.raw),
        leaving=gone,
        routed=None if open_to is None else not open_to.isdisjoint({(one.name, one.uid), (one.name, "")}),
        arriving=True if True in arriving else None if None in arriving else False,
        running=None if None in counts else sum(count for count in counts if count is not None),
        lock=lock(one.raw),
        cordon=cordon(one.raw),
        command=command(one.raw),
        capability=capability(one.raw, one.ports),
        kit=kit_of(_facts(one, heard)),
        version=text(one.raw, "metadata", "resourceVersion"),
        not_injected=not_injected(one.raw, one.ports),
    )


def with_peers(built: Sequence[Built]) -> tuple[Unit, ...]:
    """With the keys of the units on the other side: of the other role, and of the same slice and revision
    where both are of a DisaggregatedSet, whose revisions have Services of their own (LeaderWorkerSet 0.9.0,
    pkg/controllers/disaggregatedset/service_manager.go)."""
    by_role: dict[Role, list[Built]] = {}
    for one in built:
        by_role.setdefault(one.unit.role, []).append(one)
    shared: dict[tuple[Role, tuple[str, ...] | None], tuple[str, ...]] = {}
    for role, other_side in _OTHER_SIDE.items():
        others = by_role.get(other_side, [])
        for side in {one.side for one in by_role.get(role, [])}:
            shared[role, side] = tuple(
                other.unit.key for other in others if None in (side, other.side) or side == other.side
            )
    return tuple(replace(one.unit, peers=shared.get((one.unit.role, one.side), ())) for one in built)


def desired(watch: LeakWatch, chosen: Sequence[Chosen], objects: Objects) -> dict[Role, int]:
    """How many units each role should have: as many as its workloads say, and one for each that stands alone.
    Roles of which no workload could be read are not in it.

    A StatefulSet or Deployment whose pods make up one data-parallel group is one unit, whatever its replicas.
    """
    counted: dict[Role, dict[tuple[str, str], int]] = {}
    alone: dict[Role, set[str]] = {}
    for role in watch.spec.watched:
        ref = None if role.workload_ref is None else ref_of(role.workload_ref)
        # Of a role `auto` each pod's own owners are counted below, for the role that it turned out to have.
        if ref is not None and role.name is not RoleName.AUTO and counts(ref, objects):
            counted.setdefault(Role(role.name.value), {})[_named(ref)] = replicas(objects.get(ref) or {})
    for one in chosen:
        ref = top(one.raw, objects)
        units = one.group is None or (ref is not None and ref.kind == "LeaderWorkerSet")
        if ref is not None:
            # The replicas of any other workload of a group are pods of one unit.
            number = replicas(objects.get(ref) or {}) if units else 0
            counted.setdefault(one.role, {})[_named(ref)] = number
        if ref is None or not units:
            alone.setdefault(one.role, set()).add(one.name if one.group is None else one.group.name)
    return {
        role: sum(by_workload.values()) + len(alone.get(role, ())) for role, by_workload in counted.items()
    }


def _named(ref: Ref) -> tuple[str, str]:
    """Whatever its version."""
    return ref.kind, ref.name
