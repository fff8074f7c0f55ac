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

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from stanch.api.watch import LeakWatch
from stanch.core.fleet import Fleet
from stanch.edge.kit import Facts
from stanch.edge.targets import Watched
from stanch.edge.units_raw import Object, Objects, Ref
from stanch.edge.units_select import Chosen, Refused, Selection, queries, select

__all__ = [
    "Chosen",
    "Heard",
    "Object",
    "Objects",
    "Ref",
    "Refused",
    "Selection",
    "fleet_of",
    "queries",
    "select",
    "targets",
    "wanted",
]


@dataclass(frozen=True, slots=True)
class Heard:
    """What one target (one port of one pod) has said, as far as it was asked.

    engines: as the verdicts name them, one per rank. running: requests under way, of all its ranks.
    arriving: whether its request counter moved between the last two readings. healthy: whether it answered
    /health, or where that was not asked, gave a page. kit: None where no kit answered.
    """

    engines: tuple[str, ...] = ()
    running: float | None = None
    arriving: bool | None = None
    healthy: bool | None = None
    kit: Facts | None = None


def wanted(watch: LeakWatch, pods: Iterable[Object], objects: Objects) -> frozenset[Ref]:
    """The objects that are needed next and that `objects` has no entry for: the watch's own workloads, the
    owners of the pods, their owners, and the pods' nodes. Empty: all are known."""
    raise NotImplementedError


def targets(watch: LeakWatch, selection: Selection) -> list[Watched]:
    """What to read: one target per serving port of each pod that has an address and has been up once.

    Named by the pod, or pod/port where it has several; the deployment is the watch. The policy is the
    watch's, with the lease and pin times that the engine's arguments say. A pod that is still on its first
    start is not there yet; one whose container has restarted is, so that its restart is noticed.
    """
    raise NotImplementedError


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
    raise NotImplementedError
