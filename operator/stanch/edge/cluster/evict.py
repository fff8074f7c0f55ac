"""What a refused eviction means, and which PodDisruptionBudgets there are for a pod. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from stanch.edge.cluster.errors import ClusterError, Object, Refused
from stanch.edge.cluster.refs import PODS, Request

# pkg/registry/core/pod/storage/eviction.go, 1.35: a budget refuses by 429 with this cause; several budgets
# for one pod by 500 with these words.
_CAUSE = "DisruptionBudget"
_SEVERAL = "more than one PodDisruptionBudget"


def eviction(namespace: str, name: str, uid: str, dry_run: bool) -> Request:
    """The Eviction of the pod with this UID, never of its successor of the same name."""
    options: Object = {"preconditions": {"uid": uid}}
    if dry_run:
        options["dryRun"] = ["All"]
    body = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": name, "namespace": namespace},
        "deleteOptions": options,
    }
    query = {"dryRun": "All"} if dry_run else {}
    return Request("create", PODS, namespace, name, "eviction", query, body)


def refusal(error: ClusterError) -> Refused | None:
    """The error as a budget's own refusal; None where it is none, but any other 429, say."""
    said = [str(cause.get("message", "")) for cause in error.causes if cause.get("reason") == _CAUSE]
    if error.code == 429 and said:
        return Refused(f"{error}: {'; '.join(said)}", error.code, error.status)
    return None


def by_several(error: ClusterError) -> bool:
    """Whether it was refused because several budgets select the pod; the server does not say which."""
    return error.code == 500 and _SEVERAL in str(error)


def budgets(pod: Object, pdbs: Iterable[Object]) -> list[str]:
    """The names of the PodDisruptionBudgets that select the pod, all of its namespace."""
    labels = pod["metadata"].get("labels") or {}
    return sorted(one["metadata"]["name"] for one in pdbs if selects(one["spec"].get("selector"), labels))


def selects(selector: Object | None, labels: Mapping[str, str]) -> bool:
    """Whether a LabelSelector selects what has these labels: an empty one everything, none nothing
    (policy/v1)."""
    if selector is None:
        return False
    if any(labels.get(key) != value for key, value in (selector.get("matchLabels") or {}).items()):
        return False
    return all(_holds(one, labels) for one in selector.get("matchExpressions") or ())


def _holds(requirement: Object, labels: Mapping[str, str]) -> bool:
    key, values = requirement["key"], requirement.get("values") or ()
    holds = {
        "In": key in labels and labels[key] in values,
        "NotIn": key not in labels or labels[key] not in values,
        "Exists": key in labels,
        "DoesNotExist": key not in labels,
    }
    return holds[requirement["operator"]]
