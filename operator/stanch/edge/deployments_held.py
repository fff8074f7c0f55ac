"""Pods are replaced when the DisaggDeployment says something else of them, not when Stanch does. Pure.

Another version of Stanch, or another image of the engine kit, makes other pod templates of the same spec.
To apply them would restart every engine of the cluster because its operator was upgraded. So each Deployment
keeps, in an annotation, the template that was applied and a digest of what the spec says of pods; while that
is the same, the template stays as well, and is still put right where somebody edits it. It is replaced with
the next change of what the spec says of pods, or when the DisaggDeployment's annotation stanch.dev/update has
a new value.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from stanch.api.deployment import DisaggDeployment
from stanch.api.names import ANNOTATION_UPDATE, GROUP
from stanch.edge.deployments_objects import Object, digest

# On a Deployment: what it was made of.
ANNOTATION_RENDERED: Final = f"{GROUP}/rendered"
# All annotations of an object may have 256 KiB (k8s.io/apimachinery 0.35, pkg/api/validation/objectmeta.go).
# What is longer than this is not kept, and so not held.
_MOST_CHARS = 128 * 1024
# What a pod is not told of.
_NOT_OF_PODS = ("replicas", "rollout", "disruption_budget")


def said_of_pods(deployment: DisaggDeployment, router: bool) -> str:
    """A digest of all that may make other pod templates: of the router, or of the engines, which are told
    nothing of it. What is as by default counts as not said: a field that is new in the kind changes nothing
    before somebody sets it, and then it counts."""
    spec = deployment.spec.model_dump(mode="json", exclude_defaults=True)
    for role in (*spec["roles"], spec.get("router", {})):
        for name in _NOT_OF_PODS:
            role.pop(name, None)
    # The time that a pod has to end is longer than a drain.
    spec["watch"] = spec.get("watch", {}).get("remediation", {}).get("drain_seconds")
    if not router:
        spec.pop("router", None)
    spec["roles"].sort(key=lambda role: str(role["name"]))
    return digest({"spec": spec, "update": deployment.metadata.annotations.get(ANNOTATION_UPDATE)})


def held(desired: Object, live: Mapping[str, Any] | None, said: str) -> tuple[Object, bool]:
    """What to apply of a rendered Deployment, and whether its pods are made otherwise than they would be now.
    said: of `said_of_pods`."""
    kept = None if live is None else _kept(live)
    template = desired["spec"]["template"]
    if kept is not None and kept["said"] == said:
        template = kept["template"]
    text = json.dumps({"said": said, "template": template}, sort_keys=True, separators=(",", ":"))
    meta = desired["metadata"]
    if len(text) <= _MOST_CHARS:
        meta = {**meta, "annotations": {**meta.get("annotations", {}), ANNOTATION_RENDERED: text}}
    found = {**desired, "metadata": meta, "spec": {**desired["spec"], "template": template}}
    return found, template != desired["spec"]["template"]


def _kept(live: Mapping[str, Any]) -> Object | None:
    """None where there is none, or somebody else wrote it."""
    text = (live["metadata"].get("annotations") or {}).get(ANNOTATION_RENDERED)
    try:
        found = json.loads(text or "")
    except (ValueError, RecursionError):
        return None
    whole = isinstance(found, dict) and isinstance(found.get("template"), dict) and "said" in found
    return found if whole else None
