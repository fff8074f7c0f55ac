"""By which labels other projects tell the roles of their engines' pods; read from their sources
(docs/adoption.md)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final


class Preset(str, Enum):
    """Projects that make prefill and decode pods."""

    LLM_D = "llm-d"
    KSERVE = "KServe"
    DISAGGREGATED_SET = "DisaggregatedSet"
    DYNAMO = "Dynamo"
    ROLE_BASED_GROUP = "RoleBasedGroup"
    AIBRIX = "AIBrix"


@dataclass(frozen=True, slots=True)
class Known:
    """label: the key whose value tells the role. roles: its values by role, each the watch's or `both`.
    beside: other labels that such a pod has, where the key is a common word. container: the engine's. port:
    its own; None: as its arguments say."""

    label: str
    roles: Mapping[str, tuple[str, ...]]
    beside: tuple[str, ...] = ()
    container: str | None = None
    port: int | None = None


_PLAIN: Final = {"prefill": ("prefill",), "decode": ("decode",)}

PRESETS: Final[Mapping[Preset, Known]] = {
    Preset.LLM_D: Known("llm-d.ai/role", _PLAIN),
    Preset.KSERVE: Known("llm-d.ai/role", _PLAIN, ("kserve.io/component",), "main"),
    Preset.DISAGGREGATED_SET: Known(
        "disaggregatedset.x-k8s.io/role", _PLAIN, ("disaggregatedset.x-k8s.io/name",)
    ),
    # The worker's system status server, which has vLLM's metrics; it serves no model.
    Preset.DYNAMO: Known("nvidia.com/dynamo-sub-component-type", _PLAIN, (), "main", 9090),
    Preset.ROLE_BASED_GROUP: Known("rbg.workloads.x-k8s.io/role-name", _PLAIN),
    Preset.AIBRIX: Known("role-name", _PLAIN, ("storm-service-name",)),
}

# Of a role `auto`: our own label first, then every project's; llm-d has pods that do both.
OWN_LABEL: Final = "stanch.dev/role"


def role_by_label(labels: Mapping[str, object]) -> str | None:
    """decode, prefill or both, as one of these labels says; None where none does."""
    for known in (Known(OWN_LABEL, _PLAIN), *PRESETS.values()):
        if any(key not in labels for key in known.beside):
            continue
        value = labels.get(known.label)
        if value == "both":
            return "both"
        for role, values in known.roles.items():
            if value in values:
                return role
    return None
