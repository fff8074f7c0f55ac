"""Whether the list of pods and what the engines' kits say are of one container run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from stanch.edge.units import Heard, Selection
from stanch.edge.units_build import target_name
from stanch.edge.units_pod import container_id

# How long a list of pods may lag behind a restart that the engine's kit already shows, or be ahead of it.
_LAG_SECONDS = 30.0


@dataclass(slots=True)
class _Run:
    """The first boot id that was seen under a container id, since when another one is, and the last one under
    the container id before: what an engine said is kept for a while when it does not answer."""

    container_id: str | None
    since: float
    before: str | None = None
    boot_id: str | None = None
    another_since: float | None = None


class Runs:
    """Of one watch; remembers from turn to turn."""

    def __init__(self) -> None:
        self._runs: dict[str, _Run] = {}

    def in_step(self, selection: Selection, heard: Mapping[str, Heard], now: float) -> Mapping[str, Heard]:
        """Where list and kit are of two runs, whichever is behind, the pod counts as not healthy until they
        agree. heard: by the name of the target."""
        changed = dict(heard)
        uids = {one.uid for one in selection.chosen}
        for gone in self._runs.keys() - uids:
            del self._runs[gone]
        for one in selection.chosen:
            names = [name for port in one.ports if (name := target_name(one, port)) in heard]
            boots = {kit.boot_id for name in names if (kit := heard[name].kit) is not None}
            run = self._run(one.uid, container_id(one.raw, one.container), now)
            if len(boots) == 1 and not _agree(run, boots.pop(), now):
                changed |= {name: replace(heard[name], healthy=False) for name in names}
        return changed

    def _run(self, uid: str, listed: str | None, now: float) -> _Run:
        old = self._runs.get(uid)
        if old is not None and old.container_id == listed:
            return old
        before = None if old is None else old.boot_id or old.before
        run = self._runs[uid] = _Run(listed, now, before)
        return run


def _agree(run: _Run, boot_id: str, now: float) -> bool:
    if boot_id == run.before and now - run.since <= _LAG_SECONDS:
        return False  # the list is ahead: this was said before the restart
    if run.boot_id is None or boot_id == run.boot_id:
        run.boot_id, run.another_since = boot_id, None
        return True
    run.another_since = now if run.another_since is None else run.another_since
    if now - run.another_since > _LAG_SECONDS:
        run.boot_id, run.another_since = boot_id, None  # a process that restarts inside its container
        return True
    return False
