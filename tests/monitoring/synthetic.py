"""Made-up engines, as Prometheus sees them: one value a quarter of a minute, and what fires when."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from stanch.core.policy import Policy
from stanch.edge.monitoring.readings import Pace
from tests.monitoring.promtool import Check, Labels, Series, Value, World, tried

STEP = Pace().interval_seconds
PER_MINUTE = 60 // STEP
DECODE = {
    "job": "vllm",
    "instance": "10.0.0.7:8000",
    "namespace": "serving",
    "pod": "decode-0",
    "role": "decode",
}
PREFILL = {**DECODE, "instance": "10.0.0.8:8000", "pod": "prefill-0", "role": "prefill"}
NAMELESS = {key: text for key, text in DECODE.items() if key != "role"}
OWN = {"engine": "0", "model_name": "tiny"}

Values = Sequence[Value] | float | None

# What a page of vLLM 0.29.0 has, of an engine that has served and is idle: selector -> value.
IDLE: Mapping[str, float] = {
    "vllm:kv_cache_usage_perc": 0.0,
    "vllm:num_requests_running": 0,
    "vllm:num_requests_waiting": 0,
    'vllm:num_requests_waiting_by_reason{reason="capacity"}': 0,
    'vllm:num_requests_waiting_by_reason{reason="deferred"}': 0,
    "vllm:generation_tokens_total": 1000,
    "vllm:prompt_tokens_total": 1000,
    "vllm:iteration_tokens_total_count": 900,
    'vllm:request_success_total{finished_reason="stop"}': 20,
    'vllm:request_success_total{finished_reason="length"}': 30,
    "vllm:nixl_num_failed_transfers_total": 0,
    "vllm:nixl_num_failed_notifications_total": 0,
    'vllm:engine_sleep_state{sleep_state="awake"}': 1,
}
# The names by which the tests call them.
SHORT = {
    "usage": "vllm:kv_cache_usage_perc",
    "running": "vllm:num_requests_running",
    "waiting": "vllm:num_requests_waiting",
    "deferred": 'vllm:num_requests_waiting_by_reason{reason="deferred"}',
    "capacity": 'vllm:num_requests_waiting_by_reason{reason="capacity"}',
    "generation": "vllm:generation_tokens_total",
    "prompt": "vllm:prompt_tokens_total",
    "iterations": "vllm:iteration_tokens_total_count",
    "stopped": 'vllm:request_success_total{finished_reason="stop"}',
    "transfers": "vllm:nixl_num_failed_transfers_total",
    "notifications": "vllm:nixl_num_failed_notifications_total",
    "awake": 'vllm:engine_sleep_state{sleep_state="awake"}',
}


def engine(
    minutes: float,
    target: Labels = DECODE,
    page: Mapping[str, Values] | None = None,
    *,
    drop: Sequence[str] = (),
    **values: Values,
) -> list[Series]:
    """One engine over so many minutes. page: more of its page, by selector. values: by SHORT's names; one
    number stands for all times. drop: what is not on its page."""
    count = points(minutes)
    shown: dict[str, Values] = {"up": 1.0, **IDLE, **(page or {})}
    for name, over in values.items():
        shown[SHORT[name]] = over
    for name in drop:
        del shown[SHORT[name]]
    found = []
    for selector, over in shown.items():
        name, _, more = selector.partition("{")
        labels = dict(target) if name == "up" else {**target, **OWN}
        if more:
            key, _, text = more.rstrip("}").partition("=")
            labels[key] = text.strip('"')
        every = list(over) if isinstance(over, Sequence) and not isinstance(over, str) else [over] * count
        found.append(Series(name, labels, every))
    return found


def points(minutes: float) -> int:
    return int(minutes * PER_MINUTE)


def steps(*parts: tuple[float, Value]) -> list[Value]:
    """(minutes, value), one after the other."""
    return [value for minutes, value in parts for _ in range(points(minutes))]


def rising(minutes: float, start: float = 1000, each: float = 10) -> list[Value]:
    return [start + i * each for i in range(points(minutes))]


def fires(minute: float, *alerts: str) -> Check:
    """Exactly these fire then; "Name/case" for one of several rules of an alert."""
    labels = []
    for alert in alerts:
        name, _, case = alert.partition("/")
        labels.append({"alertname": name, **({"case": case} if case else {})})
    return Check(minute * 60, 'group by (alertname, case) (ALERTS{alertstate="firing"})', labels)


def wrong(
    series: Sequence[Series], checks: Sequence[Check], folder: Path, policy: Policy | None = None
) -> str:
    """What is not as the checks say; "" where all is."""
    return tried(World(series, checks, policy or Policy()), folder)
