"""What a DisaggDeployment says of itself, as a finding. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stanch.api.names import ANNOTATION_UPDATE, DISAGG_DEPLOYMENT
from stanch.edge.deployments_status import DEGRADED, OUTDATED, READY
from stanch.edge.findings import Finding, Mark
from stanch.edge.units_raw import rows, text, whole

_CHECK = "deployment"
_TODO = {
    "Invalid": f"change the field of the {DISAGG_DEPLOYMENT.kind} that is named; what runs was not touched",
    "Refused": "change the template so that the API server takes it; what runs was not touched",
    "NoKitImage": "give the operator STANCH_KIT_IMAGE (the chart does)",
    "Stuck": "look at the role's pods: kubectl get pods, and their events",
}


def deployment(raw: Mapping[str, Any]) -> Finding:
    """raw: as the API server has it."""
    about = f"{text(raw, 'metadata', 'namespace')}/{text(raw, 'metadata', 'name')}"
    conditions = {text(one, "type"): one for one in rows(raw, "status", "conditions")}
    seen, generation = whole(raw, "status", "observedGeneration"), whole(raw, "metadata", "generation")
    if READY not in conditions or seen != generation:
        said = "no operator has looked at it as it is now"
        todo = "wait some seconds; else see whether one is active, and whether it watches this namespace"
        return Finding(about, _CHECK, Mark.WARN, said, todo)

    def true(kind: str) -> bool:
        return text(conditions.get(kind, {}), "status") == "True"

    def says(kind: str) -> str:
        return f"{text(conditions[kind], 'reason')}: {text(conditions[kind], 'message')}"

    if true(DEGRADED):
        todo = _TODO.get(text(conditions[DEGRADED], "reason"), "")
        return Finding(about, _CHECK, Mark.FAIL, says(DEGRADED), todo)
    if not true(READY):
        return Finding(about, _CHECK, Mark.WARN, says(READY), "wait, or look at its pods and its LeakWatch")
    if true(OUTDATED):
        todo = f"when its pods may be replaced: kubectl annotate it with a new value of {ANNOTATION_UPDATE}"
        return Finding(about, _CHECK, Mark.WARN, says(OUTDATED), todo)
    return Finding(about, _CHECK, Mark.OK, text(conditions[READY], "message"))
