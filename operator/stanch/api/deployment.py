"""DisaggDeployment: a prefill/decode deployment that Stanch makes, and how it is watched."""

from __future__ import annotations

import re
from enum import Enum
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, StringConstraints

from stanch.api.base import ATOMIC, Model, Rule, list_map
from stanch.api.common import Condition, Count, Metadata
from stanch.api.watch import Watching

PRESERVED: dict[str, Any] = {"x-kubernetes-preserve-unknown-fields": True}
# Of what the API server checks itself, when the rendered object is tried: no schema of ours can know it.
AnyObject = Annotated[dict[str, Any], Field(max_length=64, json_schema_extra=PRESERVED)]
Image = Annotated[str, StringConstraints(min_length=1, max_length=1024, pattern=r"^\S+$")]
Port = Annotated[int, Field(ge=1, le=65535)]

# The longest name that is made of it is NAME-prefill-headless, and a Service's has at most 63 characters and
# begins with a letter.
_NAME = r"^[a-z]([-a-z0-9]{0,44}[a-z0-9])?$"


class EngineRole(str, Enum):
    PREFILL = "prefill"
    DECODE = "decode"


class Part(str, Enum):
    """What a DisaggDeployment makes a workload for."""

    PREFILL = "prefill"
    DECODE = "decode"
    ROUTER = "router"


class TransferMode(str, Enum):
    PULL = "Pull"
    PUSH = "Push"
    BIDIRECTIONAL = "Bidirectional"


class ConnectorPatch(str, Enum):
    AUTO = "Auto"
    ALWAYS = "Always"
    NEVER = "Never"


class ServedModel(Model):
    """The model that all engines serve."""

    uri: Annotated[str, StringConstraints(min_length=1, max_length=1024, pattern=r"^[^\s-]\S*$")]
    """As `vllm serve` takes it: a repository (ORG/NAME), a path in the container, an address (s3://...)."""
    name: Annotated[str, StringConstraints(min_length=1, max_length=253, pattern=r"^[^\s-]\S*$")] | None = (
        None
    )
    """The name that clients ask for. Left out: the uri."""


class EnvVar(Model):
    """A variable of the engine's environment, as in a container."""

    name: Annotated[str, StringConstraints(min_length=1, max_length=253)]
    """Its name."""
    value: Annotated[str, StringConstraints(max_length=32768)] | None = None
    """Its value."""
    value_from: AnyObject | None = None
    """Where its value comes from, as in a container."""


class EngineSpec(Model):
    """The vLLM server of each pod."""

    image: Image
    """Image with vLLM in it."""
    args: Annotated[
        list[Annotated[str, StringConstraints(max_length=32768)]],
        Field(max_length=256, json_schema_extra=ATOMIC),
    ] = []
    """More arguments of `vllm serve`. Not those that this kind has a field for. The keys of a
    --kv-transfer-config go into the one that is made, where they do not contradict it."""
    env: Annotated[list[EnvVar], Field(max_length=256, json_schema_extra=list_map("name"))] = []
    """More variables."""
    port: Port = 8000
    """Its HTTP port."""
    shutdown_timeout_seconds: Annotated[int, Field(ge=0, le=3600)] | None = None
    """How long vLLM lets running requests end when its pod is deleted (--shutdown-timeout). Left out: vLLM's
    own default, which is not to wait."""


class Parallelism(Model):
    """How many devices one pod uses. An engine that needs several pods is adopted by a LeakWatch instead."""

    tensor: Annotated[int, Field(ge=1, le=64)] = 1
    """Tensor parallel size of each engine."""
    data: Annotated[int, Field(ge=1, le=64)] = 1
    """Engines (data-parallel ranks) in one pod, behind one port."""


# The server judges the default of a whole object, {}, before it fills in those of its fields: hence has().
class Rollout(Model):
    """How pods are replaced when the role changes. By default one by one without a spare: accelerators are
    rarely left over."""

    rules: ClassVar = (
        Rule(
            "!has(self.maxSurge) || !has(self.maxUnavailable) || self.maxSurge + self.maxUnavailable > 0",
            "maxSurge and maxUnavailable cannot both be 0: no pod could ever be replaced",
            lambda it: it.max_surge > 0 or it.max_unavailable > 0,
        ),
    )

    max_surge: Annotated[int, Field(ge=0, le=1000)] = 0
    """Pods that may be there beyond the replicas."""
    max_unavailable: Annotated[int, Field(ge=0, le=1000)] = 1
    """Pods that may be missing."""


class DisruptionBudget(Model):
    """A PodDisruptionBudget that never holds up the eviction of a pod that is not ready."""

    max_unavailable: Annotated[int, Field(ge=0, le=1000)] = 1
    """Pods that evictions may take away at once."""


class DeployedRole(Model):
    """The pods of one role: a Deployment with two Services."""

    name: EngineRole
    """prefill or decode."""
    replicas: Annotated[int, Field(ge=0, le=10000)] | None = None
    """Pods. Left out: the Deployment's own number, for `kubectl scale` or an autoscaler to set."""
    engine: EngineSpec
    """The vLLM server of each pod."""
    parallelism: Parallelism = Parallelism()
    """How many devices one pod uses."""
    template: AnyObject = {}
    """A pod template (metadata and spec) that is laid over the one that is made: containers, init
    containers, volumes, variables and ports by name, mounts by their path. The engine's container is vllm."""
    rollout: Rollout = Rollout()
    """How pods are replaced."""
    disruption_budget: DisruptionBudget | None = None
    """Left out: none is made."""


class KVTransfer(Model):
    """How the KV cache comes from prefill to decode engines."""

    rules: ClassVar = (
        Rule(
            "!has(self.mode) || self.mode == 'Pull' || self.connector == 'NixlConnector'",
            "mode Push and Bidirectional are for connector NixlConnector",
            lambda it: it.mode is TransferMode.PULL or it.connector == NIXL,
            ".mode",
        ),
        Rule(
            "!has(self.connectorPatch) || self.connectorPatch != 'Always' || "
            "(self.connector == 'NixlConnector' && self.mode != 'Push')",
            "connectorPatch Always is for connector NixlConnector in mode Pull or Bidirectional: Stanch has "
            "no patch for others",
            lambda it: (
                it.connector_patch is not ConnectorPatch.ALWAYS
                or (it.connector == NIXL and it.mode is not TransferMode.PUSH)
            ),
            ".connectorPatch",
        ),
    )

    connector: Annotated[
        str, StringConstraints(min_length=1, max_length=253, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")
    ] = "NixlConnector"
    """vLLM's KV connector (kv_connector)."""
    mode: TransferMode = TransferMode.PULL
    """Pull: decodes read. Push: prefills write. Bidirectional: Pull, and prefills may read finished turns
    back from decodes."""
    lease_seconds: Annotated[int, Field(ge=6, le=86400)] | None = None
    """How long a prefill keeps a prompt that no decode asks for (kv_lease_duration, vLLM 0.22 and later).
    Left out: vLLM's own default."""
    block_size_tokens: Annotated[int, Field(ge=1, le=1024)] | None = None
    """Tokens of one KV cache block (--block-size), the same on both sides. Left out: vLLM chooses."""
    connector_patch: ConnectorPatch = ConnectorPatch.AUTO
    """Whether engines run Stanch's fixed NIXL connector. Auto: where their vLLM has the defect and is known.
    Always: an engine that cannot be patched does not start. Never: the stock one."""


NIXL = "NixlConnector"


class Router(Model):
    """What stands before the engines: any image that serves HTTP and sends each request through both."""

    image: Image
    """Its image."""
    port: Port = 8080
    """Its HTTP port."""
    replicas: Annotated[int, Field(ge=0, le=1000)] | None = None
    """Pods. Left out: the Deployment's own number."""
    template: AnyObject = {}
    """A pod template that is laid over the one that is made, as for a role. Its container is router."""


class DisaggDeploymentSpec(Model):
    """The engines, how they hand over their KV cache, and how they are watched."""

    model: ServedModel
    """The model that all engines serve."""
    roles: Annotated[
        list[DeployedRole], Field(min_length=2, max_length=2, json_schema_extra=list_map("name"))
    ]
    """One prefill and one decode role. An engine is one pod; those of several are adopted by a LeakWatch."""
    kv_transfer: KVTransfer = KVTransfer()
    """How the KV cache comes from prefill to decode engines."""
    router: Router | None = None
    """What stands before the engines. Left out: nothing is made; the Services of both roles are there."""
    watch: Watching = Watching()
    """How the engines are watched: the spec of the LeakWatch that is made, without its roles."""


class PartStatus(Model):
    """The pods of a role, or of the router."""

    name: Part
    """prefill, decode or router."""
    replicas: Count = 0
    """Pods that there are."""
    ready: Count = 0
    """Pods that are ready."""
    updated: Count = 0
    """Pods as the spec has them now."""


class DisaggDeploymentStatus(Model):
    """What became of the spec."""

    observed_generation: Annotated[int, Field(ge=0)] = 0
    """The generation of the spec that this is about."""
    conditions: Annotated[list[Condition], Field(max_length=16, json_schema_extra=list_map("type"))] = []
    """Ready first: the spec is what runs, and enough of it is ready to serve."""
    roles: Annotated[list[PartStatus], Field(max_length=3, json_schema_extra=list_map("name"))] = []
    """The pods by role, the router's too."""


class DisaggDeployment(Model):
    """A prefill/decode deployment of vLLM with the engine kit in it: makes Deployments, Services and a
    LeakWatch, and keeps them so."""

    rules: ClassVar = (
        Rule(
            f"self.metadata.name.matches('{_NAME}')",
            "metadata.name must begin with a letter, have only letters, digits and dashes, and at most 46 of "
            "them: Services are named after it",
            lambda it: re.fullmatch(_NAME, it.metadata.name) is not None,
        ),
    )

    api_version: Literal["stanch.dev/v1alpha1"] = "stanch.dev/v1alpha1"
    kind: Literal["DisaggDeployment"] = "DisaggDeployment"
    metadata: Metadata
    spec: DisaggDeploymentSpec
    """The engines, how they hand over their KV cache, and how they are watched."""
    status: DisaggDeploymentStatus = DisaggDeploymentStatus()
    """What became of the spec."""
