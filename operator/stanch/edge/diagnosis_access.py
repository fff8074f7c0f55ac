"""Findings about who may do what: the operator to the API server, and it to an engine. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from stanch.api.names import DISAGG_DEPLOYMENT, GROUP
from stanch.edge.findings import Finding, Mark
from stanch.edge.permissions import NEEDED, WORK, Guard, Permission, policy_name
from stanch.edge.units import Object
from stanch.edge.units_raw import rows, text, texts


def permissions(
    account: str, absent: Sequence[Permission], excess: Sequence[Permission], namespace: str | None = None
) -> list[Finding]:
    """absent: what the account needs and may not in that namespace (None: in all of them by one right), by
    resource; excess: what it may and never needs."""
    if set(absent) >= set(NEEDED):
        said = f"{account} may do nothing that the operator does: is Stanch installed, and by that name?"
        todo = "helm install (docs/install.md), or name it: --operator-namespace and --service-account"
        return [Finding("cluster", "permission", Mark.FAIL, said, todo)]
    if set(absent) >= WORK:
        return [_nothing(account, namespace)]
    found: list[Finding] = []
    for what, verbs in _by_resource(absent).items():
        said = f"{account} may not {', '.join(verbs)} {what}"
        mark, todo = _LESS.get(what, (Mark.FAIL, "helm upgrade with rbac.create true (docs/install.md)"))
        found.append(Finding("cluster", "permission", mark, said, todo))
    if not absent:
        said = f"{account} may do all that the operator does"
        found = [Finding("cluster", "permission", Mark.OK, said)]
    if excess:
        kinds = "; ".join(f"{', '.join(verbs)} {what}" for what, verbs in _by_resource(excess).items())
        said = f"{account} may also {kinds}: Stanch never does"
        found.append(
            Finding("cluster", "permission", Mark.WARN, said, "give the operator an account of its own")
        )
    return found


_LESS = {
    "nodes": (
        Mark.WARN,
        "helm upgrade with rbac.nodes true; without it a drain may be done in vain (docs/install.md)",
    )
}


def _nothing(account: str, namespace: str | None) -> Finding:
    if namespace is None:
        said = f"{account} has no rights in all namespaces at once, so whether in those that it watches"
        return Finding(
            "cluster", "permission", Mark.UNKNOWN, said, "with watchNamespaces: look at each with -n"
        )
    said = f"{account} may do nothing in namespace {namespace} that the operator does there"
    todo = "helm upgrade with it among watchNamespaces, or with rbac.create true (docs/install.md)"
    return Finding("cluster", "permission", Mark.FAIL, said, todo)


_KEEPS = {
    Guard.PODS: f"the operator to annotations of {GROUP} when it patches a pod",
    Guard.WORKLOADS: f"what the operator makes and changes to what a {DISAGG_DEPLOYMENT.kind} controls",
}
_WITHOUT = {
    Guard.PODS: "replace a pod's image",
    Guard.WORKLOADS: "change and delete Deployments and Services of others",
}


def policy(account: str | None, guard: Guard, found: Object | None, binding: Object | None) -> Finding:
    """account: the operator's as the API server names it, None where that is not known. found, binding: the
    ValidatingAdmissionPolicy and its binding, None where there is none."""
    name = policy_name(account, guard)
    lacks = [
        what
        for what, there in (
            (f"ValidatingAdmissionPolicy {name}", found is not None),
            (f"ValidatingAdmissionPolicyBinding {name}", binding is not None),
            ("Deny among the binding's validationActions", binding is None or _denies(binding, name)),
            (f"match condition for {account}", found is None or account is None or _means(found, account)),
        )
        if not there
    ]
    if not lacks:
        return Finding("cluster", "policy", Mark.OK, f"{name} keeps {_KEEPS[guard]}")
    return Finding(
        "cluster",
        "policy",
        Mark.WARN,
        f"there is no {', no '.join(lacks)}: whoever has the operator's token may {_WITHOUT[guard]}",
        "helm upgrade with admissionPolicy.enabled true (docs/install.md)",
    )


def _denies(binding: Object, name: str) -> bool:
    return text(binding, "spec", "policyName") == name and "Deny" in texts(
        binding, "spec", "validationActions"
    )


def _means(found: Object, account: str) -> bool:
    conditions = rows(found, "spec", "matchConditions")
    return not conditions or any(f"'{account}'" in text(one, "expression") for one in conditions)


def _by_resource(several: Sequence[Permission]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for one in several:
        found.setdefault(one.what, []).append(one.verb)
    return found


def key(pod: str, locked: bool, given: bool = False) -> list[Finding]:
    """locked: whether its requests want another --api-key than was given, if one was."""
    if not locked:
        return [Finding(pod, "API key", Mark.OK, "the key that was given is taken")] if given else []
    if given:
        return [Finding(pod, "API key", Mark.FAIL, "it refuses the key that was given", _GIVE_KEY)]
    said = "it wants vLLM's --api-key: without it no leak is confirmed, so none is repaired"
    return [Finding(pod, "API key", Mark.FAIL, said, f"{_GIVE_KEY}; then try it here with --api-key-file")]


_GIVE_KEY = "put its key into the Secret that the chart's apiKeys names, under the name of the namespace"
