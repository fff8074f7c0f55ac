"""One raw pod as the planner sees it. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from ipaddress import ip_address
from urllib.parse import urlsplit

from stanch.api.names import (
    ANNOTATION_INCIDENT,
    ANNOTATION_KIT,
    ANNOTATION_NOT_INJECTED,
    INJECT_ENABLED,
    LABEL_INJECT,
)
from stanch.core.fleet import Capability, CommandOutcome, CordonMark, Kit
from stanch.edge.kit_answers import Facts
from stanch.edge.units_raw import Object, annotation, condition, dig, label, rows, table, text, texts, whole
from stanch_connector.contract import ANNOTATION_COMMAND, ANNOTATION_CORDON, ROUTE_READY

_PROBES = ("readinessProbe", "startupProbe", "livenessProbe")


def containers(pod: Object) -> list[Object]:
    """Those that run as long as the pod: its containers, and init containers that are side-cars."""
    cars = [one for one in rows(pod, "spec", "initContainers") if one.get("restartPolicy") == "Always"]
    return [*rows(pod, "spec", "containers"), *cars]


def container_named(pod: Object, name: str) -> Object:
    return next((one for one in containers(pod) if text(one, "name") == name), {})


def status_of(pod: Object, container: str) -> Object:
    every = [*rows(pod, "status", "containerStatuses"), *rows(pod, "status", "initContainerStatuses")]
    return next((one for one in every if text(one, "name") == container), {})


def container_id(pod: Object, container: str) -> str | None:
    """Of the container's present run; None while none runs."""
    status = status_of(pod, container)
    return (text(status, "containerID") or None) if "running" in table(status, "state") else None


def is_up(pod: Object, container: str) -> bool:
    """Whether its container runs and has passed its startup probe, if it has one."""
    status = status_of(pod, container)
    return container_id(pod, container) is not None and status.get("started") is not False


def has_been_up(pod: Object, container: str) -> bool:
    return is_up(pod, container) or (whole(status_of(pod, container), "restartCount") or 0) > 0


def is_ready(pod: Object) -> bool:
    return condition(pod, "Ready").get("status") == "True"


def is_terminating(pod: Object) -> bool:
    return dig(pod, "metadata", "deletionTimestamp") is not None


def is_finished(pod: Object) -> bool:
    """Whether all its containers have ended for good; it keeps its address, which may be another's now."""
    return text(pod, "status", "phase") in ("Succeeded", "Failed")


def declares(container: Object, port: int) -> bool:
    """Whether the container says that it serves at that port: as a port of its own, or by a probe."""
    if any(whole(one, "containerPort") == port for one in rows(container, "ports")):
        return True
    return any(port_of(container, table(container, probe)) == port for probe in _PROBES)


def port_of(container: Object, probe: Object) -> int | None:
    """The port that a probe asks, by number or by the container's name for it."""
    for kind in ("httpGet", "tcpSocket", "grpc"):
        port = dig(probe, kind, "port")
        if isinstance(port, int) and not isinstance(port, bool):
            return port
        if isinstance(port, str):
            named = (one for one in rows(container, "ports") if text(one, "name") == port)
            found = next((whole(one, "containerPort") for one in named), None)
            return int(port) if found is None and port.isascii() and port.isdigit() else found
    return None


def scheme(container: Object, port: int) -> str:
    """https where a probe on that port says so."""
    for kind in _PROBES:
        probe = table(container, kind)
        if port_of(container, probe) == port and text(probe, "httpGet", "scheme").upper() == "HTTPS":
            return "https"
    return "http"


def capability(pod: Object, ports: Sequence[int]) -> Capability:
    """READINESS where a container of the pod is ready only as long as the kit says so: by an HTTP probe on an
    engine's port, or by a command that names the route."""
    for container in containers(pod):
        probe = table(container, "readinessProbe")
        path = _path(text(probe, "httpGet", "path"))
        if path == ROUTE_READY and port_of(container, probe) in ports:
            return Capability.READINESS
        if any(ROUTE_READY in word for word in texts(probe, "exec", "command")):
            return Capability.READINESS
    return Capability.NONE


def _path(value: str) -> str:
    try:
        return urlsplit(value).path.rstrip("/")
    except ValueError:
        return ""


def not_injected(pod: Object, ports: Sequence[int]) -> str:
    """Why the pod has no kit, although its label asks for one; "" where it has, or does not ask. One whose
    readiness is a kit's has it by hand."""
    asks = label(pod, LABEL_INJECT) == INJECT_ENABLED and annotation(pod, ANNOTATION_KIT) is None
    if not asks or capability(pod, ports) is Capability.READINESS:
        return ""
    said = annotation(pod, ANNOTATION_NOT_INJECTED)
    return said or (
        "no webhook of Stanch was asked when it was made (not switched on, or no operator up): delete the "
        "pod, or restart its workload, to have it made anew"
    )


def lock(pod: Object) -> str | None:
    return annotation(pod, ANNOTATION_INCIDENT) or None


def cordon(pod: Object) -> CordonMark | None:
    """The cordon's mark; one that is no cordon as the contract has it is somebody else's, of no time."""
    raw = annotation(pod, ANNOTATION_CORDON)
    if raw is None:
        return None
    found = _json(raw)
    incident, beat = text(found, "incident"), whole(found, "beat")
    return CordonMark("", 0) if beat is None else CordonMark(incident, beat)


def command(pod: Object) -> str | None:
    """The id of the command; "" where the annotation is no command."""
    raw = annotation(pod, ANNOTATION_COMMAND)
    return None if raw is None else text(_json(raw), "id")


def _json(raw: str) -> object:
    try:
        return json.loads(raw)
    except (ValueError, RecursionError):
        return None


def kit_of(facts: Sequence[Facts | None]) -> Kit | None:
    """What the kits of the pod's servers say; None where one of them does not answer.

    Where several processes have a kit each, the boot id is the first one's (such a pod is never restarted in
    place), and what one says of a cordon or a drain counts only if all of them do.
    """
    said = [one for one in facts if one is not None]
    if not said or len(said) < len(facts):
        return None
    cordons = {(one.cordon_incident or "") if one.cordoned else None for one in said}
    outcomes: dict[str, CommandOutcome] = {}
    for one in said:
        for name, outcome in _outcomes(one.outcomes):
            # A command for one process is ignored by the others.
            if name not in outcomes or outcomes[name].state == "ignored":
                outcomes[name] = outcome
    return Kit(
        said[0].boot_id,
        cordons.pop() if len(cordons) == 1 else None,
        all(one.draining is True for one in said),
        outcomes,
    )


def _outcomes(found: Iterable[Mapping[str, object]]) -> Iterable[tuple[str, CommandOutcome]]:
    for one in found:
        name, state = text(one, "id"), text(one, "state")
        if name and state:
            yield name, CommandOutcome(state, text(one, "reason"))


def routed(slices: Sequence[Object]) -> frozenset[tuple[str, str]]:
    """Names and uids ("" where a slice does not say it) of the pods that a ready endpoint points at.

    `serving` is the pod's readiness whatever the Service's publishNotReadyAddresses says, by which headless
    Services of groups call every pod ready (k8s.io/endpointslice 0.35.4, utils.go podToEndpoint). A missing
    `ready` or `serving` is to be read as true (discovery/v1 EndpointConditions).
    """
    found = set()
    for endpoint in (endpoint for one in slices for endpoint in rows(one, "endpoints")):
        target, conditions = table(endpoint, "targetRef"), table(endpoint, "conditions")
        closed = conditions.get("ready") is False or conditions.get("serving") is False
        if target.get("kind") == "Pod" and not closed:
            found.add((text(target, "name"), text(target, "uid")))
    return frozenset(found)


def address(pod: Object) -> str | None:
    """As a URL has it; None where it has none yet."""
    try:
        ip = ip_address(text(pod, "status", "podIP"))
    except ValueError:
        return None
    return f"[{ip}]" if ip.version == 6 else str(ip)
