"""The one function that puts the engine kit into a pod template, and the one that takes it out. Pure.

What it puts there is said in docs/injection.md. A template that bears it says so by the annotation
stanch.dev/kit, which also keeps what is needed to take it out again, so that `remove(inject(x)) == x`.
Where the kit cannot go in whole (no engine to be found, arguments not understood) nothing is changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Literal

from stanch.edge.render import kit_parts, kit_transfer
from stanch.edge.render.kit_engine import Untold, engine_of
from stanch.edge.render.kit_parts import Object
from stanch.edge.render.kit_start import (
    Start,
    add_middleware,
    has_middleware,
    over_ray,
    serves,
    start_of,
    take_middleware,
)
from stanch.edge.render.kit_undo import Undo
from stanch.edge.units_pod import containers

ConnectorPatch = Literal["Auto", "Always", "Never"]
PATCHES: tuple[ConnectorPatch, ...] = ("Auto", "Always", "Never")


@dataclass(frozen=True, slots=True)
class KitOptions:
    """image: that of Stanch, which holds the kit. container: the engine's, by name; None: the one that starts
    vLLM. connector_patch: mode of the fixed connector in place of the stock NIXL one; None or Never: the
    connector is left alone. image_volume: mount the image itself (Kubernetes 1.33 and later with the feature
    ImageVolume) in place of an init container that copies from it."""

    image: str
    pull_policy: str = "IfNotPresent"
    container: str | None = None
    connector_patch: ConnectorPatch | None = None
    image_volume: bool = False


@dataclass(frozen=True, slots=True)
class Injected:
    """problems: sentences; where the kit went in (or is in), what it cannot do there; else why it did not.
    container: the engine's; "" where the template has none that can be told. failed: it has an
    engine or a kit, and what was to be done to it was not."""

    template: Object
    changed: bool
    problems: tuple[str, ...] = ()
    container: str = ""
    failed: bool = False


def inject(template: Mapping[str, Any], options: KitOptions) -> Injected:
    """A template (or pod) with the kit in it. One that has a kit already gets this one in its place."""
    old = deepcopy(dict(template))
    taken = remove(old)
    if taken.problems:
        return Injected(old, False, taken.problems, taken.container, True)
    new = taken.template
    engine = engine_of(new, options.container)
    if isinstance(engine, Untold):
        return Injected(old, False, (engine.why,), failed=engine.engines)
    name = str(engine["name"])
    start = start_of(engine)
    hindered = kit_parts.hindrances(new, engine)
    if isinstance(start, str) or hindered:
        said = [start, *hindered] if isinstance(start, str) else hindered
        return Injected(old, False, tuple(f"container {name}: {one}" for one in said), name, True)
    undo = Undo(container=name, image=options.image)
    kit_parts.add_files(new, engine, options.image, options.pull_policy, options.image_volume, undo)
    kit_parts.add_environment(engine, undo)
    problems = _patch(engine, start, options.connector_patch, undo)
    if serves(engine, start):
        # One without a server of its own (the worker of a group) has nothing to ask and nothing to cordon.
        kit_parts.add_annotations(new, engine)
        problems += kit_parts.add_readiness(engine, undo)
        if not has_middleware(engine):
            add_middleware(engine, start)
            undo.middleware = True
    undo.mark(new)
    # Others may have put theirs around ours since, and an API server its defaults: no reason to put it in
    # anew.
    changed = not taken.changed or not kit_parts.holds(old, new)
    return Injected(
        new if changed else old, changed, tuple(f"container {name}: {one}" for one in problems), name
    )


def remove(template: Mapping[str, Any]) -> Injected:
    """The template without the kit that `inject` put there; one without its mark as it is."""
    new = deepcopy(dict(template))
    undo = Undo.of(new)
    if not isinstance(undo, Undo):
        return Injected(new, False) if undo is None else Injected(new, False, (undo,), failed=True)
    engine = next((one for one in containers(new) if one.get("name") == undo.container), None)
    if not isinstance(engine, dict):
        said = f"it has no container {undo.container} any more, in which its kit is: take the kit out by hand"
        return Injected(new, False, (said,), undo.container, True)
    kit_parts.take_files(new, undo)
    if undo.middleware:
        take_middleware(engine)
    _unpatch(engine, undo)
    kit_parts.take_from(engine, undo)
    undo.unmark(new)
    return Injected(new, True, (), undo.container)


def is_in(template: Mapping[str, Any]) -> bool:
    """Whether `inject` has put a kit there."""
    return isinstance(Undo.of(template), Undo)


def _patch(engine: Object, start: Start, mode: ConnectorPatch | None, undo: Undo) -> list[str]:
    if mode is None or mode == "Never":
        return []
    places = kit_transfer.places(engine, start)
    if not places:
        return [
            "no --kv-transfer-config in its arguments (a file of --config is not read): its connector stays"
        ]
    if any(place.value is not None and kit_transfer.has_ours(place.value) for place in places):
        return []
    if over_ray(engine):
        return [
            "its ranks run where Ray starts them, and could not load the fixed connector: its connector stays"
        ]
    if not any(kit_transfer.patched_at(place, mode) for place in places):
        said = (places[-1].value or places[-1].raw)[:80]
        return [
            f"its --kv-transfer-config ({said}) names no NixlConnector as plain JSON: its connector stays"
        ]
    undo.transfers = [place.raw for place in places]
    undo.patch = mode
    kit_transfer.change(engine, start, lambda place: kit_transfer.patched_at(place, mode) or place.raw)
    return []


def _unpatch(engine: Object, undo: Undo) -> None:
    start = start_of(engine)
    if not undo.transfers or isinstance(start, str):
        return
    # By what a place holds, not by its number: a person may have added another since.
    before: dict[str, str] = {}
    for raw in undo.transfers:
        place = kit_transfer.Place(0, 0, 0, raw, start.script is not None)
        before[kit_transfer.patched_at(place, undo.patch) or raw] = raw
    kit_transfer.change(engine, start, lambda place: before.get(place.raw) or kit_transfer.stock_at(place))
