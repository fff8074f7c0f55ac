"""Which container of a pod template is the engine. Pure."""

from __future__ import annotations

from typing import Any

from stanch.edge.render.kit_start import looks_like, mentions
from stanch.edge.units_args import arguments_of
from stanch.edge.units_pod import containers

Object = dict[str, Any]


def engine_of(template: Object, named: str | None) -> Object | str:
    """The container itself, or why it cannot be told. Unlike for a watch, the only container of a pod is not
    taken for an engine unless it looks like one: what follows changes how it starts."""
    every = [
        one for one in containers(template) if isinstance(one, dict) and isinstance(one.get("name"), str)
    ]
    names = ", ".join(str(one["name"]) for one in every) or "none"
    if len({str(one["name"]) for one in every}) < len(every):
        return f"several of its containers have one name ({names}): no API server takes that"
    if named is not None:
        found = [one for one in every if one["name"] == named]
        return found[0] if found else f"it has no container {named} (it has {names})"
    speaking = [one for one in every if arguments_of(one).vllm or looks_like(one)]
    # In a script's variable, say: which one it is, is told, and then why the kit cannot go in.
    speaking = speaking or [one for one in every if mentions(one)]
    if len(speaking) == 1:
        return speaking[0]
    if not speaking:
        return f"none of its containers ({names}) says that it starts vLLM: name the engine's"
    several = ", ".join(str(one["name"]) for one in speaking)
    return f"several of its containers start vLLM ({several}): name the one"
