"""One reading of one engine, and what makes a reading unfit to judge by.

What was not read is None, never 0 (law 1). A reading that cannot be trusted is *blind*: it has a reason,
and no value of it is used.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from math import isfinite


class Role(str, Enum):
    """What an engine does in a prefill/decode deployment."""

    DECODE = "decode"
    PREFILL = "prefill"
    BOTH = "both"
    UNKNOWN = "unknown"


class Lifecycle(str, Enum):
    """A state of an engine in which holding or standing still is expected."""

    ASLEEP = "asleep"
    PAUSED = "paused"
    LOADING = "loading"
    DRAINING = "draining"


@dataclass(frozen=True, slots=True)
class Sample:
    """One reading of one engine (one vLLM EngineCore, one data-parallel rank).

    t: seconds, Unix time live, the file's own time in a replay: when the engine gave the values, which for a
    reading by way of Prometheus is when that scraped it. age_seconds: how old they are by now, where that is
    more than a gap.
    usage: referenced share of the KV cache, 0..1 (cached but free blocks do not count).
    running, waiting: requests. waiting_deferred: the part of waiting that waits for a KV transfer, a grammar,
    a LoRA slot or a streaming session (vLLM 0.20 and later).
    *_tokens, iterations, finished, failed_*: counters since the process started.
    process_start: Unix time. container_id: on Kubernetes. lifecycle: where something told it.
    blind: why nothing could be read; then the values are None.
    """

    t: float
    engine: str
    usage: float | None = None
    running: float | None = None
    waiting: float | None = None
    waiting_deferred: float | None = None
    generation_tokens: float | None = None
    prompt_tokens: float | None = None
    iterations: float | None = None
    finished: float | None = None
    failed_transfers: float | None = None
    failed_notifications: float | None = None
    process_start: float | None = None
    container_id: str | None = None
    lifecycle: Lifecycle | None = None
    age_seconds: float = 0.0
    blind: str | None = None


COUNTERS = (
    "generation_tokens",
    "prompt_tokens",
    "iterations",
    "finished",
    "failed_transfers",
    "failed_notifications",
)


def counted(value: float | None) -> float | None:
    """A counter or gauge of requests as it may be used: None unless it is finite and not negative."""
    return value if value is not None and isfinite(value) and value >= 0 else None


def problem(sample: Sample) -> str | None:
    """Why this reading must not be judged, as the end of "cannot tell: ..."; None where it is fit.

    Required are usage, running, waiting and one token counter.
    """
    if sample.blind is not None:
        return sample.blind
    if not isfinite(sample.t):
        return f"the time of the reading is {sample.t}"
    for name, value in (("usage", sample.usage), ("running", sample.running), ("waiting", sample.waiting)):
        if value is None:
            return f"{name} is missing"
        if not isfinite(value):
            return f"{name} is {value}"
        if value < 0:
            return f"{name} is negative ({value:g})"
    # One in a thousand above 1 is rounding of a gauge; more is a gauge that means something else.
    if sample.usage is not None and sample.usage > 1.001:
        return f"usage is {sample.usage:g}, more than the whole cache"
    if counted(sample.generation_tokens) is None and counted(sample.prompt_tokens) is None:
        bad = sample.generation_tokens if sample.generation_tokens is not None else sample.prompt_tokens
        return "the token counters are missing" if bad is None else f"a token counter is {bad:g}"
    return None
