"""From raw Kubernetes objects and what the engines said to the planner's Fleet. Pure, and never raises.

How a turn uses it (edge/watchdog.py):

    objects = {}                                           # kept between turns, at most 60 s old
    pods = list of every selector in queries(watch, objects)
    while need := wanted(watch, pods, objects):            # a few rounds; each Ref gets a value
        objects |= {ref: object or None for ref in need}
    selection = select(watch, pods, objects, watches)
    watched = targets(watch, selection)                    # what Live reads
    fleet = fleet_of(watch, selection, objects, slices, heard, ...)

Facts about workloads, with their sources: docs/units.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from stanch.api.convert import policy_of
from stanch.api.names import ANNOTATION_RESET_BREAKER
from stanch.api.watch import LeakWatch
from stanch.core.fleet import Fleet
from stanch.core.policy import Policy
from stanch.core.sample import Role
from stanch.edge.target import Target
from stanch.edge.targets import Watched
from stanch.edge.units_build import Heard, build, desired, living, target_name, with_peers
from stanch.edge.units_owner import node_of, owners_wanted, workloads
from stanch.edge.units_pod import address, container_named, has_been_up, routed, scheme
from stanch.edge.units_raw import Object, Objects, Ref
from stanch.edge.units_select import Chosen, Refused, Selection, queries, select, selects

_MOST_OF_A_RESET = 1024

__all__ = [
    "Chosen",
    "Heard",
    "Object",
    "Objects",
    "Ref",
    "Refused",
    "Selection",
    "fleet_of",
    "paced",
    "queries",
    "select",
    "targets",
    "wanted",
]


def wanted(watch: LeakWatch, pods: Iterable[Object], objects: Objects) -> frozenset[Ref]:
    """The objects that are needed next and that `objects` has no entry for: the watch's own workloads, the
    owners of the pods, their owners, and the pods' nodes. Empty: all are known.

    A pod that the watch does not mean, as far as is known, is followed only where the watch names workloads.
    """
    by_owner = bool(workloads(watch))
    meant, followed = [], []
    for pod in pods:
        if selects(watch, pod, objects):
            meant.append(pod)
        elif by_owner:
            followed.append(pod)
    nodes = {ref for pod in meant if (ref := node_of(pod)) is not None and ref not in objects}
    return frozenset(owners_wanted(watch, [*meant, *followed], objects) | nodes)


def targets(watch: LeakWatch, selection: Selection) -> list[Watched]:
    """What to read: one target per serving port of each pod that has an address and has been up once.

    Named by the pod, or pod/port where it has several; the deployment is the watch. The policy is the
    watch's, with the lease and pin times that the engine's arguments say. A pod that is still on its first
    start is not there yet; one whose container has restarted is, so that its restart is noticed.
    """
    policy = policy_of(watch)
    found: list[Watched] = []
    for one in selection.chosen:
        host = address(one.raw)
        if host is None or not has_been_up(one.raw, one.container):
            continue
        container = container_named(one.raw, one.container)
        own = _policy(policy, one.arguments.lease_seconds, one.arguments.pin_seconds)
        for port in one.ports:
            role = None if one.role_open else one.role
            url = f"{scheme(container, port)}://{host}:{port}"
            target = _target(target_name(one, port), url, role is None)
            found.append(Watched(target, role, own, watch.metadata.name))
    return found


# The same ones in every turn: their URLs are checked once.
_target = lru_cache(maxsize=16_384)(Target)


@lru_cache(maxsize=1024)
def _policy(policy: Policy, lease_seconds: float | None, pin_seconds: float | None) -> Policy:
    """What the watch says of the lease comes first; of two pin times the longer one counts."""
    return replace(
        policy,
        lease_seconds=lease_seconds if policy.lease_seconds is None else policy.lease_seconds,
        kv_pin_seconds=max(policy.kv_pin_seconds, pin_seconds or 0.0),
    )


def paced(watched: Iterable[Watched], every: Callable[[str], float]) -> list[Watched]:
    """The same, each to be judged by readings that are so many seconds apart, where they come more rarely
    than the watch's own interval. every: by the target's name."""
    found = []
    for one in watched:
        seconds = every(one.target.name)
        longer = seconds > one.policy.interval_seconds
        found.append(replace(one, policy=_slower(one.policy, seconds)) if longer else one)
    return found


@lru_cache(maxsize=1024)
def _slower(policy: Policy, every_seconds: float) -> Policy:
    return replace(policy, interval_seconds=every_seconds)


def fleet_of(
    watch: LeakWatch,
    selection: Selection,
    objects: Objects,
    slices: Sequence[Object] | None,
    heard: Mapping[str, Heard],
    *,
    listed_at: float,
    now: float,
    stop: str | None = None,
) -> Fleet:
    """The units of the watch.

    slices: the EndpointSlices of the namespace; None where they could not be read. heard: by the name of the
    target. listed_at: when the list of pods was asked for, Unix seconds. stop: why all action is stopped.
    """
    chosen = [_with_role(one, heard) for one in selection.chosen]
    active = living(chosen, objects)
    members: dict[str, list[Chosen]] = {}
    for one in chosen:
        members.setdefault(one.name if one.group is None else one.group.name, []).append(one)
    open_to = None if slices is None else routed(slices)
    built = [
        build(watch, name, several, objects, open_to, heard, active, now) for name, several in members.items()
    ]
    return Fleet(
        with_peers(built),
        listed_at,
        desired(watch, chosen, objects),
        stop,
        _reset(watch),
    )


def _with_role(one: Chosen, heard: Mapping[str, Heard]) -> Chosen:
    """With the role that its engines tell, where nothing of the pod does and they agree."""
    if not one.role_open:
        return one
    told = {heard[name].role for port in one.ports if (name := target_name(one, port)) in heard}
    return replace(one, role=told.pop() if len(told) == 1 else Role.UNKNOWN)


def _reset(watch: LeakWatch) -> str | None:
    """As much of it as the status can remember."""
    value = watch.metadata.annotations.get(ANNOTATION_RESET_BREAKER)
    return None if value is None else value[:_MOST_OF_A_RESET]
