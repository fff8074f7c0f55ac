"""`stanch remediate`: a person's own incident."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import click

from stanch.edge.cli.kube import Kube, kube_options, sentence
from stanch.edge.cli.options import output_option

if TYPE_CHECKING:
    from stanch.edge.cluster import Cluster

EXIT_DONE, EXIT_REFUSED, EXIT_CANNOT_TELL = 0, 1, 3


@click.command()
@click.argument("pod")
@click.option("--reason", default="", help="Why, for those who read the incident.")
@kube_options
@output_option
def remediate(pod: str, reason: str, kube: Kube, output: str) -> int:
    """Have the engine in POD looked at, and repaired if the engine itself says that it is stuck.

    Makes a LeakIncident. It obeys the mode and the limits of the LeakWatch that selects the pod: under
    Observe it ends by saying what would be done, and with no watch nothing is done. Exit codes: 0 made,
    1 refused (no such pod, not allowed, not valid), 3 cannot tell (no answer: it may have been made).
    """
    from stanch.edge import output as out
    from stanch.edge.cluster import ClusterError, Unreachable

    async def make() -> dict[str, Any]:
        async with kube.cluster() as cluster:
            return await _make(cluster, kube.namespace, pod, reason)

    try:
        made = asyncio.run(make())
    except Unreachable as error:
        click.echo(f"cannot tell: {error}", err=True)
        return EXIT_CANNOT_TELL
    except ClusterError as error:
        click.echo(f"refused: {sentence(error)}", err=True)
        return EXIT_REFUSED
    name = made["metadata"]["name"]
    if output == "json":
        out.json_line(
            {"schema": "stanch.remediation/1", "namespace": kube.namespace, "name": name, "pod": pod}
        )
    else:
        click.echo(f"made incident {name}; what becomes of it: stanch incidents --all -n {kube.namespace}")
    return EXIT_DONE


async def _make(cluster: Cluster, namespace: str, pod: str, reason: str) -> dict[str, Any]:
    """The incident as the server made it, for the pod that has the name now. Raises ClusterError."""
    from stanch.edge.cluster import ClusterError, NotFound

    try:
        found = await cluster.pod(namespace, pod)
    except NotFound:
        raise NotFound(f"there is no pod {pod} in namespace {namespace}", status={"code": 404}) from None
    try:
        by = await cluster.user()
    except ClusterError:
        by = ""  # who it was is for people to read; the server's audit log knows it anyway
    return await cluster.create_incident(namespace, body(pod, found["metadata"]["uid"], reason, by))


def body(pod: str, uid: str, reason: str, by: str) -> dict[str, Any]:
    """A person's LeakIncident. A second one for the same pod is another object, and ends as Duplicate.
    by: who asks for it, as the API server knows them.

    The API server cuts a generateName that is too long (k8s.io/apiserver/pkg/storage/names, 1.35)."""
    from stanch.api.names import API_VERSION, LEAK_INCIDENT
    from stanch.core.history import Trigger

    return {
        "apiVersion": API_VERSION,
        "kind": LEAK_INCIDENT.kind,
        "metadata": {"generateName": f"{pod}-"},
        "spec": {
            "podRef": {"name": pod, "uid": uid},
            "trigger": {"type": Trigger.PERSON.value, "by": by[:253], "reason": reason},
        },
    }
