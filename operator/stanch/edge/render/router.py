"""The router's workload: any image, told by its environment where both roles are. Pure.

Images differ in what they want to be told and how: what stands in a variable can be put into arguments by
`$(NAME)`. Variables are documented in docs/deployments.md.
"""

from __future__ import annotations

from stanch.api.deployment import DisaggDeployment, Router
from stanch.edge.render.engine import spread
from stanch.edge.render.merge import merged
from stanch.edge.render.overlay import checked
from stanch.edge.render.place import (
    HTTP,
    ROUTER,
    Object,
    Problem,
    account_name,
    headless_name,
    labels,
    selector,
    workload_name,
)

PATH = "spec.router"


def pod_template(deployment: DisaggDeployment, router: Router) -> tuple[Object, tuple[Problem, ...]]:
    container: Object = {
        "name": ROUTER,
        "image": router.image,
        "env": _environment(deployment, router),
        "ports": [{"name": HTTP, "containerPort": router.port}],
        # What paths it serves is not known here.
        "readinessProbe": {"tcpSocket": {"port": HTTP}, "periodSeconds": 5},
    }
    base: Object = {
        "metadata": {"labels": labels(deployment, ROUTER)},
        "spec": {
            "serviceAccountName": account_name(deployment),
            "automountServiceAccountToken": False,
            "topologySpreadConstraints": [spread(deployment, ROUTER)],
            "containers": [container],
        },
    }
    laid, problems = merged(base, router.template, f"{PATH}.template")
    return laid, problems or checked(router.template, laid, f"{PATH}.template", ROUTER, router.port)


def _environment(deployment: DisaggDeployment, router: Router) -> list[Object]:
    namespace = deployment.metadata.namespace
    found = {
        "STANCH_NAMESPACE": namespace,
        "STANCH_MODEL": deployment.spec.model.name or deployment.spec.model.uri,
        "STANCH_ROUTER_PORT": str(router.port),
    }
    for role in sorted(deployment.spec.roles, key=lambda one: one.name.value, reverse=True):
        name, port = role.name.value, role.engine.port
        service, prefix = workload_name(deployment, name), f"STANCH_{name.upper()}"
        found[f"{prefix}_SERVICE"] = service
        found[f"{prefix}_HEADLESS"] = f"{headless_name(deployment, name)}.{namespace}.svc"
        found[f"{prefix}_PORT"] = str(port)
        found[f"{prefix}_URL"] = f"http://{service}.{namespace}.svc:{port}"
        found[f"{prefix}_SELECTOR"] = ",".join(
            f"{key}={value}" for key, value in selector(deployment, name).items()
        )
    return [{"name": key, "value": value} for key, value in found.items()]
