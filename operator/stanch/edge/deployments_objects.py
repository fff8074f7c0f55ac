"""The objects of a DisaggDeployment: which are its own, what is to be done to them. Pure.

An object is ours where its controller is the DisaggDeployment. One without a controller that carries both of
our labels is left from one that was deleted with --cascade=orphan, or lost its owner: it is taken (back).
Any other of the same name is somebody else's, and is not touched.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from stanch.api.names import API_VERSION, DISAGG_DEPLOYMENT
from stanch.edge.cluster.making import MADE
from stanch.edge.render.place import LABEL_DEPLOYMENT, LABEL_MANAGED, LABEL_ROLE, MANAGED

Object = dict[str, Any]
# apiVersion, kind, name.
Key = tuple[str, str, str]

# Of everything that was ever made for any of them.
SELECTOR: Final = f"{LABEL_MANAGED}={MANAGED},{LABEL_DEPLOYMENT}"

_ORDER = list(MADE)


@dataclass(frozen=True, slots=True)
class Owner:
    """The DisaggDeployment that objects are made for."""

    namespace: str
    name: str
    uid: str

    def owns(self, live: Mapping[str, Any]) -> bool:
        """Whether the object is ours, or nobody's and marked as ours."""
        controller = _controller(live)
        if controller is not None:
            return controller.get("uid") == self.uid
        labels = live["metadata"].get("labels") or {}
        return labels.get(LABEL_MANAGED) == MANAGED and labels.get(LABEL_DEPLOYMENT) == self.name

    def controls(self, live: Mapping[str, Any]) -> bool:
        """Whether it is its controller, so that the object may be deleted."""
        controller = _controller(live)
        return controller is not None and controller.get("uid") == self.uid

    def marked(self, body: Mapping[str, Any]) -> Object:
        """What is applied for a rendered object: in the namespace, under this owner.

        Without blockOwnerDeletion, which would need a right on our kind's finalizers where the admission
        plugin OwnerReferencesPermissionEnforcement is on (as on OpenShift); deletion in the foreground does
        not wait for the objects then, and they go all the same."""
        reference = {
            "apiVersion": API_VERSION,
            "kind": DISAGG_DEPLOYMENT.kind,
            "name": self.name,
            "uid": self.uid,
            "controller": True,
        }
        meta = {**body["metadata"], "namespace": self.namespace, "ownerReferences": [reference]}
        return {**body, "metadata": meta}


def key(body: Mapping[str, Any]) -> Key:
    return body["apiVersion"], body["kind"], body["metadata"]["name"]


def called(body: Mapping[str, Any]) -> str:
    """ "Deployment shop-decode (role decode)": how it is spoken of."""
    role = (body["metadata"].get("labels") or {}).get(LABEL_ROLE)
    return f"{body['kind']} {body['metadata']['name']}{f' (role {role})' if role else ''}"


def ordered(objects: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """In the order in which they are made. Raises ValueError for a kind that is not made."""
    return sorted(objects, key=lambda one: _ORDER.index((one["apiVersion"], one["kind"])))


def whose(live: Mapping[str, Any]) -> str:
    """Who has an object that is not ours, in words."""
    controller = _controller(live)
    if controller is None:
        return "somebody else made it"
    return f"it belongs to {controller.get('kind')} {controller.get('name')}"


def of_previous(live: Mapping[str, Any], owner: Owner) -> bool:
    """Whether it is that of a DisaggDeployment of the same name that was deleted, and goes with it."""
    controller = _controller(live)
    named = controller is not None and (controller.get("kind"), controller.get("name")) == (
        DISAGG_DEPLOYMENT.kind,
        owner.name,
    )
    return named and not owner.controls(live)


def digest(body: Mapping[str, Any]) -> str:
    """The same for the same content, in whatever order."""
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def fingerprint(live: Mapping[str, Any] | None) -> str:
    """Changes with everything that somebody may have written into an object, and not with its status."""
    if live is None:
        return ""
    meta = live["metadata"]
    kept = {name: meta.get(name) or None for name in ("uid", "labels", "annotations", "ownerReferences")}
    left = ("apiVersion", "kind", "metadata", "status")
    return digest({"metadata": kept, **{name: part for name, part in live.items() if name not in left}})


def leftover(owner: Owner, desired: Sequence[Mapping[str, Any]], live: Iterable[Object]) -> list[Object]:
    """Those under this owner that it has not any more, as those of a role that was removed; the last made
    first. Those that are being deleted already are left out."""
    wanted = {key(one) for one in desired}
    found = [
        one
        for one in live
        if owner.controls(one) and key(one) not in wanted and "deletionTimestamp" not in one["metadata"]
    ]
    return list(reversed([dict(one) for one in ordered(found)]))


def _controller(live: Mapping[str, Any]) -> Mapping[str, Any] | None:
    references = live["metadata"].get("ownerReferences") or ()
    return next((one for one in references if one.get("controller") is True), None)
