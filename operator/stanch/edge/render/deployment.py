"""All objects of a DisaggDeployment, or what is wrong with it. Pure."""

from __future__ import annotations

from stanch.api.deployment import DeployedRole, DisaggDeployment, Router
from stanch.edge.render import engine, router
from stanch.edge.render.place import (
    ROUTER,
    Object,
    Place,
    Problem,
    Rendered,
    metadata,
    selector,
    workload_name,
)
from stanch.edge.render.services import account, disruption_budget, leak_watch, pod_monitor, services


def render(deployment: DisaggDeployment, place: Place) -> Rendered:
    """Every problem is told, not only the first. The order of roles in the spec makes no difference."""
    spec = deployment.spec
    if not place.kit_image:
        words = "needs an engine kit, and this operator was told of no image for it: set STANCH_KIT_IMAGE"
        return Rendered(problems=(Problem("spec", words),))
    problems: list[Problem] = []
    objects: list[Object] = [account(deployment)]
    workloads: list[Object] = []
    roles = sorted(spec.roles, key=lambda role: role.name.value, reverse=True)
    for role in roles:
        name = role.name.value
        template, found = engine.pod_template(deployment, role, f"spec.roles[{name}]", place)
        problems += found
        workloads.append(_role(deployment, role, template))
        objects += services(deployment, name, role.engine.port)
        if role.disruption_budget is not None:
            objects.append(disruption_budget(deployment, name, role.disruption_budget))
    if spec.router is not None:
        template, found = router.pod_template(deployment, spec.router)
        problems += found
        workloads.append(_router(deployment, spec.router, template))
        objects += services(deployment, ROUTER, spec.router.port, headless=False)
    if place.pod_monitors:
        objects.append(pod_monitor(deployment))
    if problems:
        return Rendered(problems=tuple(problems))
    return Rendered((*objects, *workloads, leak_watch(deployment, roles)))


def _role(deployment: DisaggDeployment, role: DeployedRole, template: Object) -> Object:
    surge, unavailable = role.rollout.max_surge, role.rollout.max_unavailable
    more = {
        "strategy": {
            "type": "RollingUpdate",
            "rollingUpdate": {"maxSurge": surge, "maxUnavailable": unavailable},
        },
        # Else a model that takes its time to load would be told as a failure.
        "progressDeadlineSeconds": engine.STARTUP_SECONDS + 600,
    }
    return _workload(deployment, role.name.value, role.replicas, template, more)


def _router(deployment: DisaggDeployment, one: Router, template: Object) -> Object:
    return _workload(deployment, ROUTER, one.replicas, template, {})


def _workload(
    deployment: DisaggDeployment, role: str, replicas: int | None, template: Object, more: Object
) -> Object:
    spec = {"selector": {"matchLabels": selector(deployment, role)}, **more, "template": template}
    if replicas is not None:
        spec = {"replicas": replicas, **spec}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata(deployment, workload_name(deployment, role), role),
        "spec": spec,
    }
