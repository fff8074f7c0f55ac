"""Which pods a LeakWatch means: by labels or by workload, with their engine's container and ports. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from stanch.api.watch import LeakWatch
from stanch.core.sample import Role
from stanch.edge.units_raw import Object, Objects


@dataclass(frozen=True, slots=True)
class Chosen:
    """One pod of the watch.

    container: the name of the engine's. ports: those at which its engines answer; empty for a member of a
    group that serves none (a headless worker). arguments: of the container, command first.
    conflict: what else selects it, None where nothing does.
    """

    raw: Object
    name: str
    uid: str
    role: Role
    container: str
    ports: tuple[int, ...]
    arguments: tuple[str, ...] = ()
    conflict: str | None = None


@dataclass(frozen=True, slots=True)
class Refused:
    """A pod that is selected and cannot be watched; why, as a sentence that says what to do."""

    pod: str
    why: str


@dataclass(frozen=True, slots=True)
class Selection:
    chosen: tuple[Chosen, ...] = ()
    refused: tuple[Refused, ...] = ()


def queries(watch: LeakWatch, objects: Objects) -> tuple[str, ...]:
    """Label selectors, one per role, as the API takes them, whose lists together hold every pod of the watch
    (and maybe others: `select` decides). "" where only the whole namespace does."""
    raise NotImplementedError


def select(
    watch: LeakWatch, pods: Iterable[Object], objects: Objects, others: Sequence[LeakWatch] = ()
) -> Selection:
    """The pods of the watch among these, in the order of their names; a pod that comes twice counts once.

    others: all watches of the namespace, this one may be among them; of those that are not Disabled it is
    noted which select the same pod. Pods whose phase is Succeeded or Failed are no engines any more, and are
    left out without a word.
    """
    raise NotImplementedError
