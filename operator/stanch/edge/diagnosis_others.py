"""Findings about other operators of the same cluster, which know nothing of this one. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from stanch.edge.findings import Finding, Mark
from stanch.edge.units import Object
from stanch.edge.units_raw import dig, rows, text

# As the chart labels its Deployment.
SELECTOR: Final = "app.kubernetes.io/name=stanch,app.kubernetes.io/component=operator"
_WATCHED: Final = "STANCH_WATCH_NAMESPACES"


def others(deployments: Iterable[Object], own_namespace: str, namespace: str | None) -> list[Finding]:
    """Of other releases that watch there too. deployments: of all releases. namespace: None for all of them,
    where two releases are well as long as each has some of its own."""
    watched = {
        (text(one, "metadata", "namespace"), text(one, "metadata", "name")): _watched(one)
        for one in deployments
        if dig(one, "spec", "replicas") != 0
    }
    ours = [names for (where, _), names in watched.items() if where == own_namespace]
    found = []
    for (where, name), names in watched.items():
        if where == own_namespace or not ours:
            continue
        if namespace is None:
            both = any(not names or not mine or names & mine for mine in ours)
        else:
            both = all(not one or namespace in one for one in (names, *ours))
        if both:
            what = "some of these namespaces" if namespace is None else f"namespace {namespace}"
            said = f"the operator {where}/{name} watches {what} too: each repairs as if there were no other"
            todo = "uninstall one, or give them watchNamespaces that do not overlap (docs/install.md)"
            found.append(Finding("cluster", "operator", Mark.FAIL, said, todo))
    return found


def _watched(deployment: Object) -> frozenset[str]:
    """Empty: all namespaces."""
    every = [
        row
        for one in rows(deployment, "spec", "template", "spec", "containers")
        for row in rows(one, "env")
        if text(row, "name") == _WATCHED
    ]
    said = text(every[-1], "value") if every else ""
    return frozenset(name.strip() for name in said.split(",") if name.strip())
