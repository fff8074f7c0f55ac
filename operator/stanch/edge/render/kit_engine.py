"""Which container of a pod template is the engine. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from stanch.api.names import ANNOTATION_INJECT_CONTAINER
from stanch.edge.render.kit_start import looks_like, mentions
from stanch.edge.units_args import arguments_of
from stanch.edge.units_pod import containers

Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Untold:
    """why: a sentence. engines: whether there are containers that start vLLM all the same, so that a pod is
    left without a kit that wants one."""

    why: str
    engines: bool


def engine_of(template: Object, named: str | None) -> Object | Untold:
    """The container itself, or why it cannot be told. Unlike for a watch, the only container of a pod is not
    taken for an engine unless it looks like one: what follows changes how it starts."""
    every = [
        one for one in containers(template) if isinstance(one, dict) and isinstance(one.get("name"), str)
    ]
    names = ", ".join(str(one["name"]) for one in every) or "none"
    speaking = [one for one in every if arguments_of(one).vllm or looks_like(one)]
    # In a script's variable, say: which one it is, is told, and then why the kit cannot go in.
    speaking = speaking or [one for one in every if mentions(one)]
    if len({str(one["name"]) for one in every}) < len(every):
        why = f"several of its containers have one name ({names}): no API server takes that"
        return Untold(why, bool(speaking))
    if named is not None:
        found = [one for one in every if one["name"] == named]
        return found[0] if found else Untold(f"it has no container {named} (it has {names})", bool(speaking))
    if len(speaking) == 1:
        return speaking[0]
    if not speaking:
        why = f"none of its containers ({names}) says that it starts vLLM: name the engine's"
        return Untold(why, False)
    several = ", ".join(str(one["name"]) for one in speaking)
    return Untold(f"several of its containers start vLLM ({several}): {_NAME}", True)


_NAME = f"name the engine's by `stanch inject --container` or the annotation {ANNOTATION_INJECT_CONTAINER}"
