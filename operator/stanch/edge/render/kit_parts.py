"""The parts that the kit adds to a pod template, and how each is taken out again. Pure.

All but `hindrances` and `holds` change the template that they are given, in place.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final
from urllib.parse import urlsplit

from stanch.edge.render.kit_undo import Undo
from stanch.edge.units_args import arguments_of
from stanch.edge.units_pod import port_of
from stanch.edge.units_raw import rows, table, text
from stanch_connector.contract import DEFAULT_ANNOTATIONS, ENV_ANNOTATIONS, ROUTE_READY
from stanch_connector.install.names import PLUGIN_NAME

Object = dict[str, Any]
# The init container's name, and that of the volume that it fills.
NAME: Final = "stanch-kit"
PODINFO: Final = "stanch-podinfo"
# Where the kit lies: in the engine's container, and in Stanch's own image.
TARGET: Final = "/opt/stanch"
# The user of Stanch's image; by number, because runAsNonRoot is judged by it.
USER: Final = 65532
# Readiness for which the kit's may stand: without a cordon it says what vLLM's own health says. llm-d's
# charts ask for the list of models, which vLLM serves once it is healthy.
_HEALTH = ("/health", "/v1/models")
_PATH, _PLUGINS = "PYTHONPATH", "VLLM_PLUGINS"
_INFO_DIRECTORY, _, _INFO_FILE = DEFAULT_ANNOTATIONS.rpartition("/")


def hindrances(template: Object, engine: Object) -> list[str]:
    """Why the kit cannot go in."""
    spec = template["spec"]
    shapes = [(spec, "volumes"), (spec, "initContainers"), (engine, "volumeMounts"), (engine, "env")]
    found = [f"{key} is no list" for at, key in shapes if not isinstance(at.get(key), (list, type(None)))]
    tables = [(template, "metadata"), (table(template, "metadata"), "annotations")]
    found += [f"{key} is no mapping" for at, key in tables if not isinstance(at.get(key), (dict, type(None)))]
    for name in (_PATH, _PLUGINS):
        every = [one for one in rows(engine, "env") if one.get("name") == name]
        if any(not isinstance(one.get("value", ""), str) or "valueFrom" in one for one in every):
            found.append(f"its {name} is no plain text (valueFrom?): give it a plain value")
        elif len(every) > 1:
            found.append(f"its {name} is given {len(every)} times: give it once")
    for mount in rows(engine, "volumeMounts"):
        path = text(mount, "mountPath").rstrip("/")
        if path == TARGET or TARGET.startswith(f"{path}/") or path.startswith(f"{TARGET}/"):
            what = text(mount, "name")
            found.append(
                f"it mounts {what} at {path or '/'}: the kit goes to {TARGET} (is it there by hand?)"
            )
    kinds = ("volumes", "initContainers", "containers")
    taken = {text(one, "name") for kind in kinds for one in rows(spec, kind)}
    return [*found, *(f"its pod has a {one} already" for one in (NAME, PODINFO) if one in taken)]


def add_files(
    template: Object, engine: Object, image: str, policy: str, image_volume: bool, undo: Undo
) -> None:
    """The kit in a volume, and the volume in the engine's container."""
    spec = template["spec"]
    mount: Object = {"name": NAME, "mountPath": TARGET, "readOnly": True}
    if image_volume:
        volume: Object = {"name": NAME, "image": {"reference": image, "pullPolicy": policy}}
        mount["subPath"] = TARGET.lstrip("/")
    else:
        volume = {"name": NAME, "emptyDir": {"sizeLimit": "32Mi"}}
        # Before all others, because an engine may be an init container itself (a side-car).
        undo.list_at(spec, "initContainers", "initContainers").insert(0, _installer(image, policy))
    undo.list_at(spec, "volumes", "volumes").append(volume)
    undo.list_at(engine, "volumeMounts", "volumeMounts").append(mount)


def _installer(image: str, policy: str) -> Object:
    # Requests as high as limits: else a pod that is Guaranteed would become Burstable. It ends before the
    # engine starts, so the pod takes no more of a node than the engine does.
    resources = {"cpu": "100m", "memory": "64Mi"}
    return {
        "name": NAME,
        "image": image,
        "imagePullPolicy": policy,
        "command": ["python", "-m", "stanch_connector.install", TARGET],
        "volumeMounts": [{"name": NAME, "mountPath": TARGET}],
        "resources": {"requests": resources, "limits": dict(resources)},
        "securityContext": {
            "runAsUser": USER,
            "runAsNonRoot": True,
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }


def add_environment(engine: Object, undo: Undo) -> None:
    """PYTHONPATH with ours in front; VLLM_PLUGINS only where it is set: then it leaves out all others."""
    env = undo.list_at(engine, "env", "env")
    there = {text(one, "name"): one for one in env}
    for name, joined in _JOINED.items():
        if name in there:
            undo.environment[name] = there[name].get("value")
            there[name]["value"] = joined(there[name].get("value") or "")
        elif name == _PATH:
            env.append({"name": name, "value": joined("")})


def _with_target(value: str) -> str:
    return ":".join([TARGET, *(part for part in value.split(":") if part and part != TARGET)])


def _with_plugin(value: str) -> str:
    return ",".join([*(part for part in value.split(",") if part and part != PLUGIN_NAME), PLUGIN_NAME])


_JOINED: dict[str, Callable[[str], str]] = {_PATH: _with_target, _PLUGINS: _with_plugin}


def add_annotations(template: Object, engine: Object) -> None:
    """The pod's annotations as a file; not where somebody shows them to the kit already."""
    named = any(one.get("name") == ENV_ANNOTATIONS for one in rows(engine, "env"))
    shown = any(text(one, "mountPath").rstrip("/") == _INFO_DIRECTORY for one in rows(engine, "volumeMounts"))
    if named or shown:
        return
    items = [{"path": _INFO_FILE, "fieldRef": {"fieldPath": "metadata.annotations"}}]
    template["spec"]["volumes"].append({"name": PODINFO, "downwardAPI": {"items": items}})
    engine["volumeMounts"].append({"name": PODINFO, "mountPath": _INFO_DIRECTORY, "readOnly": True})


def add_readiness(engine: Object, undo: Undo) -> list[str]:
    """The kit's readiness in place of vLLM's health; sentences where a cordon has no effect."""
    probe = engine.get("readinessProbe")
    if not isinstance(probe, dict):
        return [f"it has no readinessProbe, so a cordon has no effect: give it one with httpGet {_HEALTH[0]}"]
    asked = text(probe, "httpGet", "path")
    path, port = _path(asked), port_of(engine, probe)
    served = arguments_of(engine).port
    if path not in (*_HEALTH, ROUTE_READY):
        return [
            f"its readinessProbe is its own ({asked or 'no httpGet'}) and stays, so a cordon has no effect: "
            f"ask {ROUTE_READY} or {_HEALTH[0]} instead"
        ]
    if served is not None and port != served:
        return [
            f"its readinessProbe asks port {port}, not the engine's {served}, and stays, so a cordon has no "
            "effect"
        ]
    if path != ROUTE_READY:
        undo.probe = asked
        probe["httpGet"]["path"] = ROUTE_READY
    return []


def _path(value: str) -> str:
    try:
        return urlsplit(value).path.rstrip("/")
    except ValueError:
        return ""


def take_files(template: Object, undo: Undo) -> None:
    """Of the pod, what `add_files` and `add_annotations` put there."""
    spec = template.get("spec")
    if isinstance(spec, dict):
        _drop(spec, "initContainers", (NAME,), undo)
        _drop(spec, "volumes", (NAME, PODINFO), undo)


def take_from(engine: Object, undo: Undo) -> None:
    """Of the engine's container, all but its arguments."""
    _drop(engine, "volumeMounts", (NAME, PODINFO), undo)
    if undo.probe and text(engine, "readinessProbe", "httpGet", "path") == ROUTE_READY:
        engine["readinessProbe"]["httpGet"]["path"] = undo.probe
    for one in rows(engine, "env"):
        name = text(one, "name")
        if name in undo.environment and isinstance(one, dict):
            _restore(one, undo.environment[name])
    if _PATH not in undo.environment:
        _drop(engine, "env", (_PATH,), undo)


def _restore(variable: Object, before: str | None) -> None:
    joined = _JOINED[variable["name"]]
    if variable.get("value") == joined(before or ""):
        if before is None:
            del variable["value"]
        else:
            variable["value"] = before


def _drop(holder: Object, key: str, names: tuple[str, ...], undo: Undo) -> None:
    old = holder.get(key)
    if not isinstance(old, list):
        return
    holder[key] = [one for one in old if text(one, "name") not in names]
    if len(holder[key]) < len(old):
        undo.leave(holder, key, key)


def holds(there: Any, wanted: Any) -> bool:
    """Whether all that is wanted is there; there may be more of it, but in a list of plain values."""
    if isinstance(wanted, dict):
        return isinstance(there, dict) and all(k in there and holds(there[k], v) for k, v in wanted.items())
    if isinstance(wanted, list) and isinstance(there, list):
        if all(isinstance(one, dict) for one in wanted):
            return all(any(holds(one, each) for one in there) for each in wanted)
        return len(there) == len(wanted) and all(map(holds, there, wanted))
    return bool(there == wanted)
