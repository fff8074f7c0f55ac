"""The pod template of a role. Pure.

Facts of vLLM 0.29.0 that it stands on: each engine core listens for its peers' handshakes on
VLLM_NIXL_SIDE_CHANNEL_HOST, at VLLM_NIXL_SIDE_CHANNEL_PORT plus its data-parallel index, and tells them that
host (nixl/base_scheduler.py); ranks behind one server share its port (entrypoints/cli/serve.py, the internal
load balancer); an engine whose workers are processes of their own (several devices, pipeline stages, every
one on a CPU) wants 160 MiB of /dev/shm and does not start without (device_communicators/shm_broadcast.py),
and a container has 64.
"""

from __future__ import annotations

from stanch.api.deployment import ConnectorPatch, DeployedRole, DisaggDeployment
from stanch.edge.render.flags import KV_TRANSFER, serve_args
from stanch.edge.render.kit import KitOptions, inject
from stanch.edge.render.kit_shell import script_index
from stanch.edge.render.kit_start import words_in
from stanch.edge.render.kit_transfer import patched
from stanch.edge.render.merge import merged
from stanch.edge.render.overlay import checked
from stanch.edge.render.place import ENGINE, HTTP, Object, Place, Problem, account_name, labels, selector
from stanch_connector.contract import ROUTE_READY

_SIDE_HOST = "VLLM_NIXL_SIDE_CHANNEL_HOST"
_SIDE_PORT = "VLLM_NIXL_SIDE_CHANNEL_PORT"
# vLLM's own default, said so that the ports can be listed.
_SIDE_BASE = 5600
# A pod that is being deleted still serves for so long: by then no proxy sends it anything new.
_LEAVE_SECONDS = 10
# What is left for the process to end, after everything that it may wait for.
_END_SECONDS = 30
STARTUP_SECONDS = 3600


def pod_template(
    deployment: DisaggDeployment, role: DeployedRole, path: str, place: Place
) -> tuple[Object, tuple[Problem, ...]]:
    """path: the role's, for problems. With one, the template is of no use."""
    args, problems = serve_args(deployment.spec, role, path)
    under, port = f"{path}.template", role.engine.port
    laid, more = merged(_base(deployment, role, args), role.template, under)
    problems += more or (
        *checked(role.template, laid, under, ENGINE, port),
        *_arguments(role.template, under),
    )
    last = _SIDE_BASE + role.parallelism.data - 1
    if _SIDE_BASE <= port <= last:
        words = f"is one of {_SIDE_BASE} to {last}, where engines listen for their peers: take another"
        problems = (*problems, Problem(f"{path}.engine.port", words))
    if problems:
        return laid, problems
    made = inject(laid, _kit(deployment, place, args))
    return made.template, tuple(Problem(under, words) for words in made.problems)


def _arguments(template: Object, path: str) -> tuple[Problem, ...]:
    """What would lose the arguments that make the engine part of the deployment."""
    found = []
    for index, one in enumerate((template.get("spec") or {}).get("containers") or []):
        here = f"{path}.spec.containers[{index}]"
        if one["name"] != ENGINE:
            continue
        if "args" in one:
            found.append(Problem(f"{here}.args", "has a field of its own: set engine.args of the role"))
        words = words_in(one, "command")
        script = script_index(words)
        if script is not None and "$@" not in words[script]:
            said = 'is a script that does not hand on its arguments: let it end in `vllm serve "$@"`'
            found.append(
                Problem(f"{here}.command[{script}]", f"{said}, and put a word behind it, which is $0")
            )
    return tuple(found)


def _kit(deployment: DisaggDeployment, place: Place, args: list[str]) -> KitOptions:
    mode = deployment.spec.kv_transfer.connector_patch
    transfer = args[args.index(KV_TRANSFER) + 1]
    # One that Stanch has no fixed one for keeps its own; under Always the kit says that it cannot.
    patch = mode is ConnectorPatch.ALWAYS or patched(transfer, mode.value) is not None
    return KitOptions(
        image=place.kit_image,
        pull_policy=place.kit_pull_policy,
        container=ENGINE,
        connector_patch=mode.value if patch else None,
        image_volume=place.image_volumes,
    )


def _base(deployment: DisaggDeployment, role: DeployedRole, args: list[str]) -> Object:
    container: Object = {
        "name": ENGINE,
        "image": role.engine.image,
        "command": ["vllm", "serve"],
        "args": args,
        "env": _environment(role),
        "ports": [{"name": HTTP, "containerPort": role.engine.port}],
        **_probes(),
        "lifecycle": {"preStop": {"sleep": {"seconds": _LEAVE_SECONDS}}},
        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],
    }
    spec: Object = {
        "serviceAccountName": account_name(deployment),
        "automountServiceAccountToken": False,
        # A Service named vllm would give the container a VLLM_PORT, which is a setting of vLLM's
        # (vllm/envs.py).
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": _grace_seconds(deployment, role),
        "topologySpreadConstraints": [spread(deployment, role.name.value)],
        "containers": [container],
        "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory"}}],
    }
    return {"metadata": {"labels": labels(deployment, role.name.value)}, "spec": spec}


def _environment(role: DeployedRole) -> list[Object]:
    """In the order of the role's own, with ours in front, so that theirs may refer to them."""
    ours: list[Object] = [
        {"name": _SIDE_HOST, "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        {"name": _SIDE_PORT, "value": str(_SIDE_BASE)},
    ]
    theirs = [one.model_dump(by_alias=True, exclude_none=True) for one in role.engine.env]
    return list({one["name"]: one for one in (*ours, *theirs)}.values())


def _probes() -> dict[str, Object]:
    """Startup: vLLM's own health, so long that a large model gets loaded. Readiness: the kit's, which fails
    while the engine is cordoned. Liveness: vLLM's own health, which a leaking engine passes, and that is
    meant: it fails only once the engine core has died or its server has hung for a minute. An engine that
    leaks still answers what it has room for; killing it, and perhaps all decodes at the same time, would lose
    that and the list of what is stuck, and what a leak needs is a release or one drained restart after the
    other, which is the LeakWatch's. Nor may it be the kit's readiness: a cordoned engine would be killed
    while it drains."""
    return {
        "startupProbe": _asks("/health", periodSeconds=5, failureThreshold=STARTUP_SECONDS // 5),
        "readinessProbe": _asks(ROUTE_READY, periodSeconds=5, failureThreshold=2),
        "livenessProbe": _asks("/health", periodSeconds=10, failureThreshold=6),
    }


def _asks(path: str, **times: int) -> Object:
    return {"httpGet": {"path": path, "port": HTTP}, "timeoutSeconds": 5, **times}


def _grace_seconds(deployment: DisaggDeployment, role: DeployedRole) -> int:
    """Longer than everything that may be under way: the drain of a repair, vLLM's own wait, and the end."""
    drain = deployment.spec.watch.remediation.drain_seconds
    return _LEAVE_SECONDS + drain + (role.engine.shutdown_timeout_seconds or 0) + _END_SECONDS


def spread(deployment: DisaggDeployment, role: str) -> Object:
    """Over the nodes, as far as there are any: one that is lost takes the fewest with it."""
    return {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": selector(deployment, role)},
    }
