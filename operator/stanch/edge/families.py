"""THE table of metric names: what each value is called on a vLLM /metrics page, over vLLM 0.9 .. 0.33.

Read from `vllm/v1/metrics/loggers.py` (class PrometheusStatLogger) and the NIXL connector's statistics in the
wheels 0.9.0 .. 0.33.0. The names are those of the samples (prometheus_client adds `_total` to a counter and
`_count` to a histogram). Every scheduler family has the labels model_name and engine in all of them. Nothing
else in the product spells a metric name of vLLM.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Kind(str, Enum):
    """How several samples of one engine are put together."""

    GAUGE = "gauge"  # one true value: two different ones make it unusable
    COUNTER = "counter"  # summed over the labels that are not ours (finished_reason, pid)
    PRESENCE = "presence"  # the value does not matter, only that the family is there


@dataclass(frozen=True, slots=True)
class Family:
    """One value of an engine and its names, the preferred first.

    field: the field of exposition.EngineReading. only: the label and value of the one series that counts.
    since: the first vLLM that has it ("" where all have it). evidence: needed only to guess a role.
    """

    field: str
    kind: Kind
    names: tuple[str, ...]
    only: tuple[str, str] | None = None
    since: str = ""
    evidence: bool = False


_SLEEP = "vllm:engine_sleep_state"

FAMILIES: tuple[Family, ...] = (
    # 0.9.2 .. 0.11.0 export both names with equal values; the old one alone is 0.9.0 and 0.9.1.
    Family("usage", Kind.GAUGE, ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")),
    Family("running", Kind.GAUGE, ("vllm:num_requests_running",)),
    Family("waiting", Kind.GAUGE, ("vllm:num_requests_waiting",)),
    Family(
        "waiting_deferred",
        Kind.GAUGE,
        ("vllm:num_requests_waiting_by_reason",),
        only=("reason", "deferred"),
        since="0.20.0",
    ),
    Family("generation_tokens", Kind.COUNTER, ("vllm:generation_tokens_total",)),
    Family("prompt_tokens", Kind.COUNTER, ("vllm:prompt_tokens_total",)),
    # A histogram that is itself named `iteration_tokens_total`: one observation per step.
    Family("iterations", Kind.COUNTER, ("vllm:iteration_tokens_total_count",)),
    Family("finished", Kind.COUNTER, ("vllm:request_success_total",)),
    Family("failed_transfers", Kind.COUNTER, ("vllm:nixl_num_failed_transfers_total",), since="0.11.1"),
    Family(
        "failed_notifications", Kind.COUNTER, ("vllm:nixl_num_failed_notifications_total",), since="0.11.1"
    ),
    # awake 0 and neither of the others is a paused scheduler (level 0). Set by the API process that served
    # /sleep only, so an engine may sleep without it; nobody sleeps while it says so.
    Family("awake", Kind.GAUGE, (_SLEEP,), only=("sleep_state", "awake"), since="0.11.1"),
    Family("offloaded", Kind.GAUGE, (_SLEEP,), only=("sleep_state", "weights_offloaded"), since="0.11.1"),
    Family("discarded", Kind.GAUGE, (_SLEEP,), only=("sleep_state", "discard_all"), since="0.11.1"),
    # From here on: what tells a role (reading.role_evidence).
    # Rises when a request with remote KV is admitted, also if its transfer then never ends.
    Family(
        "external_hits",
        Kind.COUNTER,
        ("vllm:external_prefix_cache_hits_total",),
        since="0.11.1",
        evidence=True,
    ),
    # Rises with a request's first token by what of its prompt came from elsewhere: what a P/D probe looks at.
    Family(
        "transferred_tokens",
        Kind.COUNTER,
        ("vllm:prompt_tokens_by_source_total",),
        only=("source", "external_kv_transfer"),
        since="0.16.0",
        evidence=True,
    ),
    # A router asks a prefill engine for one token per request. Fed when a request ends with an output.
    Family("asked", Kind.COUNTER, ("vllm:request_params_max_tokens_count",), evidence=True),
    Family(
        "asked_one_token",
        Kind.COUNTER,
        ("vllm:request_params_max_tokens_bucket",),
        only=("le", "1.0"),
        evidence=True,
    ),
    # Registered only where kv_role is kv_consumer or kv_both: any series of it is the evidence.
    Family(
        "consumer", Kind.PRESENCE, ("vllm:num_requests_kv_fetch_by_stage",), since="0.32.0", evidence=True
    ),
    # Only its presence counts: with NIXL every 0.32 and later has it.
    Family(
        "since_032",
        Kind.PRESENCE,
        ("vllm:nixl_num_notifications_after_expiry_total",),
        since="0.32.0",
        evidence=True,
    ),
    Family(
        "expired_leases",
        Kind.COUNTER,
        ("vllm:nixl_num_kv_expired_reqs_total",),
        since="0.15.0",
        evidence=True,
    ),
)

# Of the process that serves the page (the API server), without labels; absent in multi-process mode.
PROCESS_START = "process_start_time_seconds"

# Gauge 1 with the cache's configuration as labels, block_size among them (0.9 .. 0.33).
CACHE_CONFIG = "vllm:cache_config_info"

# What a page must have for an engine to be judged at all (law 1); of the token counters one is enough.
REQUIRED_GAUGES = ("usage", "running", "waiting")
TOKEN_COUNTERS = ("generation_tokens", "prompt_tokens")

# On every whole page since 0.9 and never asked for: a server that sends it has ignored `name[]`.
UNASKED = "vllm:time_to_first_token_seconds"

BY_FIELD: dict[str, Family] = {family.field: family for family in FAMILIES}


def ray_names(name: str) -> tuple[str, ...]:
    """The names that Ray's agent gives to a vLLM family: `ray_` before it; from 0.11 on no colon.

    A counter is there with `_total`, without it, or with both (then they are equal and never to be added),
    depending on Ray's version. A Ray counter is absent until it first moves.
    """
    forms = (name, name.removesuffix("_total")) if name.endswith("_total") else (name,)
    return tuple(f"ray_{form.replace(':', sep)}" for form in forms for sep in "_:")


def spellings(family: Family) -> tuple[str, ...]:
    """Every sample name that may carry this value, the preferred first."""
    return family.names + tuple(ray for name in family.names for ray in ray_names(name))


def names_to_ask(evidence: bool = False) -> tuple[str, ...]:
    """The sample names for `name[]`: prometheus_client filters by sample name, not by family.

    Only vLLM's own form: Ray's pages answer empty to it, and are then asked for as a whole.
    """
    asked = [name for family in FAMILIES if evidence or not family.evidence for name in family.names]
    return (*dict.fromkeys(asked), PROCESS_START)
