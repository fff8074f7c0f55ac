"""Names and shapes shared by the kit inside an engine and by whoever talks to it. Standard library only.

Additive only: a key or a value may be added, none is removed or changes its meaning. Whoever reads ignores
what it does not know and takes a missing key for "not said", so a skew of one version works both ways.
"""

from __future__ import annotations

from typing import Final, Literal, TypedDict

CONTRACT_VERSION: Final = 1

# The kit's HTTP routes on the engine's own port.
ROUTE_REQUESTS: Final = "/stanch/v1/requests"  # GET -> Requests
ROUTE_STATE: Final = "/stanch/v1/state"  # GET -> KitState
ROUTE_READY: Final = "/stanch/v1/ready"  # GET -> 200 or 503
ROUTE_COMMAND: Final = "/stanch/v1/command"  # POST Command -> Outcome; only with a token file

SCHEMA_REQUESTS: Final = "stanch.requests/1"
SCHEMA_STATE: Final = "stanch.state/1"

# Annotations on the engine's pod, the only way to command an engine on Kubernetes.
ANNOTATION_COMMAND: Final = "stanch.dev/command"  # JSON: Command
ANNOTATION_CORDON: Final = "stanch.dev/cordon"  # JSON: Cordon

# The file in which a downward-API volume shows the pod's annotations, and the variable that moves it.
ENV_ANNOTATIONS: Final = "STANCH_ANNOTATIONS"
DEFAULT_ANNOTATIONS: Final = "/etc/stanch/podinfo/annotations"
# File with the bearer token for ROUTE_COMMAND; read at every use, because it may rotate.
ENV_TOKEN_FILE: Final = "STANCH_TOKEN_FILE"

# kv_connector_extra_config key that holds the patch mode, and its values.
EXTRA_PATCH: Final = "stanch_connector_patch"
PatchMode = Literal["Auto", "Always", "Never"]

# A request with this prefix in X-Request-Id and the boot id after it passes a draining engine.
CANARY_PREFIX: Final = "stanch-canary-"

CORDON_LEASE_SECONDS: Final = 30.0
CORDON_RENEW_SECONDS: Final = 10.0

Verb = Literal["release", "drain", "undrain", "restart"]
Fix = Literal["active", "not-needed", "unpatched", "off"]
Waits = Literal["remote_kv", "grammar", "capacity", "lora"]
# What a release does to a request. freed: nobody waited for it, its blocks come back. completed: its KV is
# all here, and it goes on as if that had been reported. failed: its client gets an error, its blocks come
# back.
Way = Literal["freed", "completed", "failed"]
# Why a release does not touch a request.
Refusal = Literal[
    "unknown-id", "too-young", "not-stuck", "leased", "pinned", "producer", "no-adapter", "push",
    "not-started", "handshake", "reading", "load-failed", "not-said", "failed", "kit-off",
]  # fmt: skip


class Command(TypedDict, total=False):
    """deadlineSeconds counts from when the kit first sees it, by its monotonic clock. A command whose bootId
    is not this process's is ignored.
    args of release: {"ids": [...], "olderThanSeconds": n, "dryRun": bool}."""

    id: str
    verb: Verb
    bootId: str
    args: dict[str, object]
    deadlineSeconds: float


class Cordon(TypedDict, total=False):
    """Holds while `beat` keeps changing at least every leaseSeconds. A kit that has just started counts the
    first beat only once it changes."""

    incident: str
    beat: int
    leaseSeconds: float


class Outcome(TypedDict, total=False):
    """What became of a command; kept in KitState.outcomes, the last few of them.

    Of a release: released: scheduler ids, under dryRun those that would be; ways: what was done to each of
    them (the first 500); releases: how many, by way. refused: a sentence by scheduler id, or by the id that
    was asked for where no request has it (the first 100); refusals: how many, by kind. missingRanks: ranks
    that did not answer."""

    id: str
    verb: str
    state: Literal["accepted", "running", "done", "refused", "failed", "ignored"]
    reason: str
    dryRun: bool
    released: list[str]
    ways: dict[str, Way]
    releases: dict[str, int]
    refused: dict[str, str]
    refusals: dict[str, int]
    missingRanks: list[int]


class RequestEntry(TypedDict, total=False):
    """One request that holds or waits for blocks. id: as the client knows it. ageSeconds: in this status.
    cacheShare: 0..1. way: what a release would do to it now; null where it would be refused. refusal: why it
    would be, in a sentence; refusalKind: the same for a program. Both null where it would not be."""

    id: str
    schedulerId: str
    status: str
    ageSeconds: float
    blocks: int
    cacheShare: float
    remoteEngine: str | None
    clientGone: bool
    waitsFor: Waits | None
    leased: bool
    pinned: bool
    releasable: bool
    way: Way | None
    refusal: str | None
    refusalKind: Refusal | None


class RankRequests(TypedDict):
    requests: list[RequestEntry]


class Requests(TypedDict):
    """ranks: keyed by the engine's index as the label `engine` has it. A rank that does not answer is in
    missingRanks, never an empty list."""

    schema: str
    bootId: str
    ranks: dict[str, RankRequests]
    missingRanks: list[int]


class KitState(TypedDict, total=False):
    """What the kit says of itself. ready: what ROUTE_READY would say. engineIds: by rank, the id by which
    its peers know it (RequestEntry.remoteEngine of theirs), of the ranks that say so. pinSeconds,
    leaseSeconds: of the connector, null where it has none. errors: exceptions caught in the kit's own
    hooks, by hook, of all processes. fixHits: requests that the fix reported and the stock connector would
    have lost. releases: by Way. refusals: requests that a release did not touch, by Refusal. malformed:
    texts of annotations, and lines of their file, that were not understood."""

    schema: str
    contract: int
    kit: str
    vllm: str
    connector: str | None
    role: str | None
    engineIds: dict[str, str]
    fix: Fix
    fixReason: str
    bootId: str
    ready: bool
    draining: bool
    cordoned: bool
    cordonIncident: str | None
    pinSeconds: float | None
    leaseSeconds: float | None
    bidirectional: bool | None
    outcomes: list[Outcome]
    errors: dict[str, int]
    fixHits: int
    releases: dict[str, int]
    refusals: dict[str, int]
    malformed: int
    disabled: str | None
