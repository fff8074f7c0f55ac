"""Which labels of an alert name the pod that it is about: a table, and what it says of an alert. Pure, but
for reading the file.

A mapping stands for one way in which alerts are labelled; its labels are taken together or not at all. The
first mapping whose labels an alert all has is the one that counts. (Lists of labels, one for the namespace
and one for the pod, could take the two halves from different places: `exported_pod` is a pod of
`exported_namespace`, while `namespace` beside it is that of the exporter.)
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping as Labels
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

from stanch.api.common import DNS_LABEL, DNS_NAME
from stanch.edge.text import printable
from stanch.edge.yaml_file import load

LabelName = Annotated[str, StringConstraints(pattern=r"^[a-zA-Z_][a-zA-Z0-9_]*$", max_length=128)]

_POD, _NAMESPACE = re.compile(DNS_NAME), re.compile(DNS_LABEL)


class Mapping(BaseModel):
    """Names of labels. Either pod and namespace, or instance (HOST:PORT, whose host is a pod's IP address),
    with or without namespace. engine: the rank inside the pod; for people to read."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    namespace: LabelName | None = None
    pod: LabelName | None = None
    instance: LabelName | None = None
    engine: LabelName | None = None

    @model_validator(mode="after")
    def _whole(self) -> Mapping:
        if (self.pod is None) is (self.instance is None):
            raise ValueError("exactly one of pod and instance must be set")
        if self.pod is not None and self.namespace is None:
            raise ValueError("pod needs namespace beside it: a name alone is no pod of any namespace")
        return self

    @property
    def needs(self) -> tuple[str, ...]:
        """The labels that an alert must have for it."""
        return tuple(name for name in (self.namespace, self.pod, self.instance) if name is not None)


class Table(BaseModel):
    """The first mapping that fits counts."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    mappings: Annotated[tuple[Mapping, ...], Field(min_length=1, max_length=100)]


# What docs/alerts.md says of each.
DEFAULT = Table(
    mappings=(
        Mapping(namespace="exported_namespace", pod="exported_pod", engine="engine"),
        Mapping(namespace="namespace", pod="model_server_pod"),
        Mapping(namespace="namespace", pod="pod", engine="engine"),
        Mapping(namespace="kubernetes_namespace", pod="kubernetes_pod_name", engine="engine"),
        Mapping(namespace="kubernetes_namespace", pod="kubernetes_pod", engine="engine"),
        Mapping(namespace="namespace", instance="instance", engine="engine"),
        Mapping(instance="instance", engine="engine"),
    )
)


def load_table(path: Path | None) -> Table:
    """The file's table; the default where none is named. Raises FileError, which names the line."""
    return DEFAULT if path is None else load(path, Table)


@dataclass(frozen=True, slots=True)
class Place:
    """Where an alert's engine is. Either pod, in its namespace, or the IP address of a pod, whose namespace
    is None where it is not known. engine: "" where it is not said."""

    namespace: str | None
    pod: str | None = None
    address: str | None = None
    engine: str = ""

    def __str__(self) -> str:
        what = self.pod or f"the pod at {self.address}"
        return what if self.namespace is None else f"{what} in namespace {self.namespace}"


def place_of(table: Table, labels: Labels[str, str]) -> Place | str:
    """Where the alert's engine is; a sentence that says why that cannot be told."""
    for mapping in table.mappings:
        if all(labels.get(name) for name in mapping.needs):
            return _place(mapping, labels)
    wanted = ", or ".join(" and ".join(mapping.needs) for mapping in table.mappings)
    return f"it has none of the labels that would name its pod: {wanted}"


def _place(mapping: Mapping, labels: Labels[str, str]) -> Place | str:
    namespace = labels[mapping.namespace] if mapping.namespace is not None else None
    if namespace is not None and not (len(namespace) <= 63 and _NAMESPACE.fullmatch(namespace)):
        return f"its label {mapping.namespace} is no name of a namespace: {_shown(namespace)}"
    engine = labels.get(mapping.engine, "") if mapping.engine is not None else ""
    if mapping.pod is not None:
        pod = labels[mapping.pod]
        if not (len(pod) <= 253 and _POD.fullmatch(pod)):
            return f"its label {mapping.pod} is no name of a pod: {_shown(pod)}"
        return Place(namespace, pod=pod, engine=printable(engine)[:253])
    assert mapping.instance is not None
    address = _address(labels[mapping.instance])
    if address is None:
        shown = _shown(labels[mapping.instance])
        return f"its label {mapping.instance} does not begin with the IP address of a pod: {shown}"
    return Place(namespace, address=address, engine=printable(engine)[:253])


def _address(instance: str) -> str | None:
    """The IP address of HOST:PORT, as Kubernetes writes it."""
    host = instance.strip()
    if host.startswith("["):
        host = host[1:].partition("]")[0]
    elif host.count(":") == 1:
        host = host.partition(":")[0]
    if "%" in host:
        return None  # with the zone of a link-local address, which no pod has
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        return None


def _shown(text: str) -> str:
    return repr(printable(text if len(text) <= 60 else f"{text[:57]}..."))
