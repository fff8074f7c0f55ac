"""Where in an object the templates of pods are. Pure.

Only kinds that are known: of any other, what looks like a pod template may be something else.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from stanch.edge.units_raw import rows, text

Object = dict[str, Any]
Path = tuple[str | int, ...]

_TEMPLATE: Path = ("spec", "template")
_LWS: tuple[Path, ...] = (
    ("leaderWorkerTemplate", "leaderTemplate"),
    ("leaderWorkerTemplate", "workerTemplate"),
)
# By kind. A DisaggregatedSet has a LeaderWorkerSet per role (api/disaggregatedset/v1, LeaderWorkerSet 0.9.0).
_PLACES: dict[str, tuple[Path, ...]] = {
    "Pod": ((),),
    **dict.fromkeys(("Deployment", "StatefulSet", "DaemonSet", "ReplicaSet", "Job"), (_TEMPLATE,)),
    "ReplicationController": (_TEMPLATE,),
    "CronJob": (("spec", "jobTemplate", "spec", "template"),),
    "PodTemplate": (("template",),),
    "LeaderWorkerSet": tuple(("spec", *path) for path in _LWS),
}
# What has a pod's `template` as a bare spec, and its `annotations` beside it (KServe's WorkloadSpec in
# pkg/apis/serving/v1alpha1/llm_inference_service_types.go). Its `worker` shares these annotations, and is
# left alone.
_BARE = dict.fromkeys(("LLMInferenceService", "LLMInferenceServiceConfig"), (("spec",), ("spec", "prefill")))


@dataclass(frozen=True, slots=True)
class Place:
    """owner: path of the object in what was read (items of a List). path: in the object, of the template;
    where `bare`, of what has the spec and the annotations."""

    owner: Path
    path: Path
    bare: bool = False

    def template(self, whole: Object) -> Object:
        """A copy."""
        found: Object = deepcopy(_at(_at(whole, self.owner), self.path))
        if not self.bare:
            return found
        metadata = {"metadata": {"annotations": found["annotations"]}} if "annotations" in found else {}
        return {**metadata, "spec": found["template"]}

    def put(self, whole: Object, template: Object) -> Object:
        """A copy of the whole with this template in its place."""
        path = (*self.owner, *self.path)
        if self.bare:
            before: Object = _at(whole, path)
            made = {key: value for key, value in before.items() if key != "annotations"}
            made["template"] = template["spec"]
            if "metadata" in template:
                made["annotations"] = template["metadata"]["annotations"]
            template = made
        found: Object = _with(whole, path, template)
        return found


def places(whole: object, owner: Path = ()) -> Iterator[Place]:
    """Of one object; of a List, of each of its items."""
    obj = _at(whole, owner)
    if not isinstance(obj, dict):
        return
    kind, items = str(obj.get("kind")), obj.get("items")
    if kind.endswith("List") and isinstance(items, list):
        for number in range(len(items)):
            yield from places(whole, (*owner, "items", number))
        return
    found = [Place(owner, path) for path in _PLACES.get(kind, ())]
    found += [Place(owner, path, True) for path in _BARE.get(kind, ())]
    if kind == "DisaggregatedSet":
        count = len(rows(obj, "spec", "roles"))
        found += [Place(owner, ("spec", "roles", n, "spec", *path)) for n in range(count) for path in _LWS]
    yield from (place for place in found if _is_there(_at(obj, place.path), place.bare))


def _is_there(found: object, bare: bool) -> bool:
    return isinstance(found, dict) and (not bare or isinstance(found.get("template"), dict))


def name_at(whole: Object, place: Place) -> str:
    """The object's kind and name, and which of its templates, for people."""
    obj = _at(whole, place.owner)
    name = text(obj, "metadata", "name") or text(obj, "metadata", "generateName") or "?"
    where = ".".join(str(key) for key in place.path)
    return f"{obj.get('kind')} {name}" + (f" ({where})" if where not in ("", "spec.template") else "")


def _at(obj: Any, path: Path) -> Any:
    for key in path:
        if isinstance(key, int):
            obj = obj[key] if isinstance(obj, list) and key < len(obj) else None
        else:
            obj = obj.get(key) if isinstance(obj, dict) else None
    return obj


def _with(obj: Any, path: Path, value: Any) -> Any:
    if not path:
        return value
    key, *rest = path
    made: Any = list(obj) if isinstance(obj, list) else dict(obj)
    made[key] = _with(obj[key], tuple(rest), value)
    return made
