"""The metric families of a vLLM 0.29.0 engine, in the order of its page: names, kinds, help, labels, buckets.

Read off a recorded page of a NIXL engine (tests/data/recordings/0.29.0). Left out: the sizes of HTTP bodies.
"""

from __future__ import annotations

from dataclasses import dataclass

Labels = tuple[tuple[str, str], ...]

_LATENCY = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
_TOKEN_LATENCY = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1, 2.5, 5, 7.5, 10, 20, 40, 80),
)
_FIRST_TOKEN = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560),
)
_LENGTH = (1, 2, 5, 10, 20, 50, 100, 200, 500)
_TRANSFER = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.2, 0.3, 0.5, 0.75, 1, 5)
_HTTP = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 1.5, 2, 2.5, 3, 3.5),
    *(4, 4.5, 5, 7.5, 10, 30, 60),
)


@dataclass(frozen=True, slots=True)
class Family:
    """One family. kind: counter (its name ends in _total), gauge or histogram.

    series: the labels of its series besides engine and model_name. bare: of the process, without those two.
    """

    name: str
    kind: str
    help: str
    buckets: tuple[float, ...] = ()
    series: tuple[Labels, ...] = ((),)
    bare: bool = False


def _each(label: str, *values: str) -> tuple[Labels, ...]:
    return tuple(((label, value),) for value in values)


def _gauge(name: str, text: str, series: tuple[Labels, ...] = ((),)) -> Family:
    return Family(f"vllm:{name}", "gauge", text, series=series)


def _counter(name: str, text: str, series: tuple[Labels, ...] = ((),)) -> Family:
    return Family(f"vllm:{name}_total", "counter", text, series=series)


def _histogram(name: str, text: str, buckets: tuple[float, ...]) -> Family:
    return Family(f"vllm:{name}", "histogram", text, buckets)


def _process(name: str, kind: str, text: str, series: tuple[Labels, ...] = ((),)) -> Family:
    return Family(name, kind, text, series=series, bare=True)


_GENERATIONS = _each("generation", "0", "1", "2")

FAMILIES: tuple[Family, ...] = (
    _process("python_gc_objects_collected_total", "counter", "Objects collected during gc", _GENERATIONS),
    _process(
        "python_gc_objects_uncollectable_total",
        "counter",
        "Uncollectable objects found during GC",
        _GENERATIONS,
    ),
    _process(
        "python_gc_collections_total",
        "counter",
        "Number of times this generation was collected",
        _GENERATIONS,
    ),
    _process("process_resident_memory_bytes", "gauge", "Resident memory size in bytes."),
    _process("process_start_time_seconds", "gauge", "Start time of the process since unix epoch in seconds."),
    _process("process_cpu_seconds_total", "counter", "Total user and system CPU time spent in seconds."),
    _histogram(
        "nixl_xfer_time_seconds", "Histogram of transfer duration for NIXL KV Cache transfers.", _TRANSFER
    ),
    _histogram(
        "nixl_post_time_seconds",
        "Histogram of transfer post time for NIXL KV Cache transfers.",
        (0.001, *_TRANSFER),
    ),
    _histogram(
        "nixl_bytes_transferred",
        "Histogram of bytes transferred per NIXL KV Cache transfers.",
        tuple(float(2 ** (11 + 2 * power)) for power in range(12)),
    ),
    _histogram(
        "nixl_num_descriptors",
        "Histogram of number of descriptors per NIXL  KV Cache transfers.",
        (10, 20, 30, 50, 75, 100, 200, 400, 1000, 2000, 4000, 10000, 20000, 50000),
    ),
    _counter("nixl_num_failed_transfers", "Number of failed NIXL KV Cache transfers."),
    _counter("nixl_num_failed_notifications", "Number of failed NIXL KV Cache notifications."),
    _counter(
        "nixl_num_kv_expired_reqs",
        "Number of requests that had their KV expire. NOTE: This metric is tracked on the P instance.",
    ),
    _counter(
        "estimated_flops_per_gpu",
        "Estimated number of floating point operations per GPU (for Model Flops Utilization calculations).",
    ),
    _counter(
        "estimated_read_bytes_per_gpu",
        "Estimated number of bytes read from memory per GPU (for Model Flops Utilization calculations).",
    ),
    _counter(
        "estimated_write_bytes_per_gpu",
        "Estimated number of bytes written to memory per GPU (for Model Flops Utilization calculations).",
    ),
    _gauge("num_requests_running", "Number of requests in model execution batches."),
    _gauge("num_requests_waiting", "Number of requests waiting to be processed."),
    _gauge(
        "num_requests_waiting_by_reason",
        "Number of waiting requests by reason. Reason labels: 'capacity' = waiting for scheduling capacity; "
        "'deferred' = deferred by transient constraints (LoRA budget, KV transfer, blocked status). "
        "Sum of all reasons equals vllm:num_requests_waiting.",
        _each("reason", "capacity", "deferred"),
    ),
    _gauge(
        "engine_sleep_state",
        "Engine sleep state; awake = 0 means engine is sleeping; awake = 1 means engine is awake; "
        "weights_offloaded = 1 means sleep level 1; discard_all = 1 means sleep level 2.",
        _each("sleep_state", "awake", "weights_offloaded", "discard_all"),
    ),
    _gauge("kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage."),
    _counter("prefix_cache_queries", "Prefix cache queries, in terms of number of queried tokens."),
    _counter("prefix_cache_hits", "Prefix cache hits, in terms of number of cached tokens."),
    _counter(
        "external_prefix_cache_queries",
        "External prefix cache queries from KV connector cross-instance cache sharing, "
        "in terms of number of queried tokens.",
    ),
    _counter(
        "external_prefix_cache_hits",
        "External prefix cache hits from KV connector cross-instance cache sharing, "
        "in terms of number of cached tokens.",
    ),
    _counter("mm_cache_queries", "Multi-modal cache queries, in terms of number of queried items."),
    _counter("mm_cache_hits", "Multi-modal cache hits, in terms of number of cached items."),
    _counter("num_preemptions", "Cumulative number of preemption from the engine."),
    _counter("prompt_tokens", "Number of prefill tokens processed."),
    _counter(
        "prompt_tokens_by_source",
        "Number of prompt tokens by source.",
        _each("source", "local_compute", "local_cache_hit", "external_kv_transfer"),
    ),
    _counter("prompt_tokens_cached", "Number of cached prompt tokens (local + external)."),
    _counter("generation_tokens", "Number of generation tokens processed."),
    _counter(
        "request_success",
        "Count of successfully processed requests.",
        _each("finished_reason", "stop", "length", "abort", "error", "repetition"),
    ),
    _histogram("request_prompt_tokens", "Number of prefill tokens processed.", _LENGTH),
    _histogram("request_generation_tokens", "Number of generation tokens processed.", _LENGTH),
    _histogram(
        "iteration_tokens_total",
        "Histogram of number of tokens per engine_step.",
        (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384),
    ),
    _histogram(
        "request_max_num_generation_tokens",
        "Histogram of maximum number of requested generation tokens.",
        _LENGTH,
    ),
    _histogram("request_params_n", "Histogram of the n request parameter.", (1, 2, 5, 10, 20)),
    _histogram("request_params_max_tokens", "Histogram of the max_tokens request parameter.", _LENGTH),
    _histogram("time_to_first_token_seconds", "Histogram of time to first token in seconds.", _FIRST_TOKEN),
    _histogram("inter_token_latency_seconds", "Histogram of inter-token latency in seconds.", _TOKEN_LATENCY),
    _histogram(
        "request_time_per_output_token_seconds",
        "Histogram of time_per_output_token_seconds per request.",
        _TOKEN_LATENCY,
    ),
    _histogram("e2e_request_latency_seconds", "Histogram of e2e request latency in seconds.", _LATENCY),
    _histogram(
        "request_queue_time_seconds", "Histogram of time spent in WAITING phase for request.", _LATENCY
    ),
    _histogram(
        "request_inference_time_seconds", "Histogram of time spent in RUNNING phase for request.", _LATENCY
    ),
    _histogram(
        "request_prefill_time_seconds", "Histogram of time spent in PREFILL phase for request.", _LATENCY
    ),
    _histogram(
        "request_decode_time_seconds", "Histogram of time spent in DECODE phase for request.", _LATENCY
    ),
    _histogram(
        "request_prefill_kv_computed_tokens",
        "Histogram of new KV tokens computed during prefill (excluding cached tokens).",
        _LENGTH,
    ),
    _gauge("cache_config_info", "Information of the LLMEngine CacheConfig"),
    Family(
        "http_requests_total",
        "counter",
        "Total number of requests by method, status and handler.",
        series=(),
        bare=True,
    ),
    Family(
        "http_request_duration_highr_seconds",
        "histogram",
        "Latency with many buckets but no API specific labels. "
        "Made for more accurate percentile calculations. ",
        _HTTP,
        bare=True,
    ),
)
