"""What the mutating webhook answers: an AdmissionReview of a new pod to one with the patch that puts the
kit in.

Pure, and it never refuses a pod: where the kit cannot go in, the pod starts without it, and an annotation
on it says why (which makes the condition NotInjected of its LeakWatch).
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from stanch.api.names import (
    ANNOTATION_INJECT_CONTAINER,
    ANNOTATION_INJECT_PATCH,
    ANNOTATION_NOT_INJECTED,
    INJECT_ENABLED,
    LABEL_INJECT,
)
from stanch.edge.json_patch import difference
from stanch.edge.render.kit import PATCHES, Injected, KitOptions, inject, is_in
from stanch.edge.text import one_line
from stanch.edge.units_raw import annotation, label, name_of, table, text

Outcome = Literal["injected", "already", "refused", "not-asked", "failed"]
API_VERSION: Final = "admission.k8s.io/v1"
# All of them share 4096 bytes, and each is to have at most 256 (admission/v1 AdmissionResponse.Warnings).
_MOST_WARNING = 256
_MOST_WARNINGS = 8
_MOST_NOTE = 1000


class NoReviewError(ValueError):
    """The body is no AdmissionReview that could be answered; the text says why."""


@dataclass(frozen=True, slots=True)
class Answer:
    """body: of the response. outcome: for a counter. pod: namespace/name, as far as it has one yet. said: why
    it was not injected, or what the kit cannot do there."""

    body: bytes
    outcome: Outcome
    pod: str
    said: str = ""


def answer(body: bytes, options: KitOptions | None) -> Answer:
    """options: None where the operator does not know the kit's image. Raises NoReviewError."""
    request = _request(body)
    pod = request.get("object")
    name = f"{text(request, 'namespace')}/{name_of(pod) or text(pod, 'metadata', 'generateName')}"
    try:
        return _answered(request, pod, name, options)
    except Exception as error:  # a pod must start, whatever is wrong with us
        said = f"the operator could not put the kit in: {type(error).__name__}"
        return Answer(_written(request, [], [said]), "failed", name, said)


def _request(body: bytes) -> dict[str, Any]:
    try:
        review = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise NoReviewError(f"the body is not JSON: {one_line(str(error), 100)}") from None
    if not isinstance(review, dict) or review.get("kind") != "AdmissionReview":
        raise NoReviewError("the body is no AdmissionReview")
    if review.get("apiVersion") != API_VERSION:
        raise NoReviewError(f"its apiVersion is not {API_VERSION}, the only one that is answered")
    request = review.get("request")
    if not isinstance(request, dict) or not isinstance(request.get("uid"), str) or not request["uid"]:
        raise NoReviewError("the AdmissionReview has no request with a uid")
    return request


def _answered(request: dict[str, Any], pod: Any, name: str, options: KitOptions | None) -> Answer:
    asked = text(request, "operation") == "CREATE" and text(request, "resource", "resource") == "pods"
    if not (asked and isinstance(pod, dict) and label(pod, LABEL_INJECT) == INJECT_ENABLED):
        return Answer(_written(request, [], []), "not-asked", name)
    if is_in(pod):
        # By us, asked again, or by its template: whoever put it there may have chosen otherwise.
        return Answer(_written(request, [], []), "already", name)
    done = injected(pod, options)
    said = "; ".join(done.problems)
    if done.changed:
        template, warnings = _noted(done.template, None), [f"stanch: {one}" for one in done.problems]
    else:
        template, warnings = _noted(pod, said), [f"stanch: the pod has no kit: {said}"]
    outcome: Outcome = "injected" if done.changed else "refused"
    return Answer(_written(request, difference(pod, template), warnings), outcome, name, said)


def injected(pod: dict[str, Any], options: KitOptions | None) -> Injected:
    """With what the pod's own annotations ask for: the engine's container, the connector."""
    if options is None:
        return Injected(pod, False, ("the operator has no STANCH_KIT_IMAGE, so it has no kit to put in",))
    asked = annotation(pod, ANNOTATION_INJECT_PATCH)
    mode = next((one for one in PATCHES if one == asked), None)
    if asked is not None and mode is None:
        said = f"its annotation {ANNOTATION_INJECT_PATCH} is {asked[:40]!r}: it may be {', '.join(PATCHES)}"
        return Injected(pod, False, (said,))
    container = annotation(pod, ANNOTATION_INJECT_CONTAINER) or options.container
    return inject(pod, replace(options, container=container, connector_patch=mode or options.connector_patch))


def _noted(pod: dict[str, Any], why: str | None) -> dict[str, Any]:
    """The pod with the reason why it has no kit, or (None) without one from before."""
    note = ANNOTATION_NOT_INJECTED
    kept = {key: value for key, value in table(pod, "metadata", "annotations").items() if key != note}
    if why is not None:
        kept[note] = why[:_MOST_NOTE]
    if kept == table(pod, "metadata", "annotations"):
        return pod
    return {**pod, "metadata": {**table(pod, "metadata"), "annotations": kept}}


def _written(request: dict[str, Any], patch: list[dict[str, Any]], warnings: list[str]) -> bytes:
    response: dict[str, Any] = {"uid": request["uid"], "allowed": True}
    if patch:
        response["patchType"] = "JSONPatch"
        response["patch"] = base64.b64encode(json.dumps(patch).encode()).decode()
    if warnings:
        response["warnings"] = [one_line(one, _MOST_WARNING) for one in warnings[:_MOST_WARNINGS]]
    return json.dumps({"apiVersion": API_VERSION, "kind": "AdmissionReview", "response": response}).encode()
