"""Pages of every version, of Ray, of several ranks and models; recorded and written by prometheus_client."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from stanch.edge.exposition import EngineReading, read
from tests.edge.pages import TINY, page, parsed, recorded

pytestmark = pytest.mark.unit


def only(body: bytes) -> EngineReading:
    """The one engine of the page, which must be readable."""
    found = read(body)
    assert found.problem is None
    (engine,) = found.engines
    assert engine.problem is None
    return engine


OLD = page(f"vllm:gpu_cache_usage_perc{{{TINY}}} 0.5", without="vllm:kv_cache_usage_perc")


@pytest.mark.parametrize(
    ("body", "usage", "generated"),
    [
        pytest.param(OLD, 0.5, 100, id="0.9.0"),
        pytest.param(page(f"vllm:gpu_cache_usage_perc{{{TINY}}} 0.25"), 0.25, 100, id="0.9.2, both names"),
        pytest.param(page().replace(b"vllm:", b"ray_vllm_"), 0.25, 100, id="Ray"),
        pytest.param(page().replace(b"vllm:", b"ray_vllm:"), 0.25, 100, id="Ray before 0.11"),
        pytest.param(
            page().replace(b"vllm:", b"ray_vllm_").replace(b"_total", b""), 0.25, 100, id="Ray without _total"
        ),
        pytest.param(
            (page() + page().replace(b"_total", b"")).replace(b"vllm:", b"ray_vllm_"),
            0.25,
            100,
            id="Ray, both",
        ),
    ],
)
def test_names_by_version(body: bytes, usage: float, generated: float) -> None:
    found = only(body)
    assert (found.usage, found.generation_tokens) == (usage, generated)


def test_workers_of_ray_that_share_a_label_are_not_mixed_up() -> None:
    one = page(labels=TINY + ',WorkerId="a",ReplicaId="x"').replace(b"vllm:", b"ray_vllm_")
    other = page(labels=TINY + ',WorkerId="b",ReplicaId="y"', kv_cache=0.75).replace(b"vllm:", b"ray_vllm_")
    assert only(one).usage == 0.25
    (engine,) = read(one + other + b"process_start_time_seconds 1\n").engines
    assert engine.problem == "the page gives ray_vllm_kv_cache_usage_perc of one engine twice (0.25 and 0.75)"


@pytest.mark.parametrize(
    ("lines", "start"),
    [
        pytest.param(["process_start_time_seconds 1.79596792852e+09"], 1795967928.52, id="as served"),
        pytest.param([], None, id="multi-process mode"),
        pytest.param(["process_start_time_seconds NaN"], None, id="NaN"),
        pytest.param(["process_start_time_seconds -1"], None, id="negative"),
        pytest.param(["process_start_time_seconds 1", "process_start_time_seconds 2"], None, id="two"),
    ],
)
def test_process_start(lines: list[str], start: float | None) -> None:
    assert read(page(*lines)).process_start == start


def test_ranks_and_models_are_engines_of_their_own() -> None:
    body = page(kv_cache=0.1) + page(labels='engine="1",model_name="tiny"', kv_cache=0.8)
    body += page(labels='engine="0",model_name="other"', kv_cache=0.3)
    found = {(engine.model, engine.engine): engine.usage for engine in read(body).engines}
    assert found == {("tiny", "0"): 0.1, ("tiny", "1"): 0.8, ("other", "0"): 0.3}


def test_what_prometheus_client_writes_is_what_is_read() -> None:
    registry = CollectorRegistry()
    names = ["model_name", "engine"]
    model = 'a"\\b\n{,} é'
    Gauge("vllm:kv_cache_usage_perc", "Usage", names, registry=registry).labels(model, "0").set(0.123456789)
    Gauge("vllm:num_requests_running", "Running", names, registry=registry).labels(model, "0").set(1e21)
    Gauge("vllm:num_requests_waiting", "Waiting", names, registry=registry).labels(model, "0").set(-1)
    Counter("vllm:generation_tokens", "Tokens\nmore", names, registry=registry).labels(model, "0").inc(3)
    Histogram("vllm:iteration_tokens_total", "Steps", names, registry=registry).labels(model, "0").observe(5)
    found = only(generate_latest(registry))
    assert found.model == model
    assert (found.usage, found.running, found.waiting) == (0.123456789, 1e21, -1)
    assert (found.generation_tokens, found.iterations) == (3, 1)


@pytest.mark.parametrize("role", ["decode", "prefill"])
def test_every_tenth_recorded_page_is_what_prometheus_client_reads(role: str) -> None:
    for body in recorded(role)[::10]:
        truth = {(name, tuple(sorted(labels.items()))): value for name, labels, value in parsed(body)}
        found = only(body)
        label = (("engine", "0"), ("model_name", "tiny"))
        assert found.usage == truth["vllm:kv_cache_usage_perc", label]
        assert found.running == truth["vllm:num_requests_running", label]
        assert found.waiting == truth["vllm:num_requests_waiting", label]
        assert found.generation_tokens == truth["vllm:generation_tokens_total", label]
        assert found.iterations == truth["vllm:iteration_tokens_total_count", label]
        assert found.finished == sum(v for (n, _), v in truth.items() if n == "vllm:request_success_total")
        deferred = (*label, ("reason", "deferred"))
        assert found.waiting_deferred == truth["vllm:num_requests_waiting_by_reason", deferred]
        assert read(body).process_start == truth["process_start_time_seconds", ()]
