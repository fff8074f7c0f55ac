"""The page of a stand-in engine: a recorded one of vLLM 0.29.0, with places for the values that move."""

from __future__ import annotations

import re

from bench.page_server import recorded_pages, restrict
from stanch.edge.families import names_to_ask

_SAMPLE = re.compile(rb"^(?P<head>[^#\s][^\n]*) \S+$", re.MULTILINE)
# Which value of an engine stands in which line of the page; every other line keeps its zero.
_LINES = {
    b"process_start_time_seconds": "started",
    b"vllm:num_requests_running{": "running",
    b"vllm:kv_cache_usage_perc{": "usage",
    b"vllm:external_prefix_cache_hits_total{": "transferred",
    b"vllm:prompt_tokens_total{": "prompt",
    b'vllm:prompt_tokens_by_source_total{engine="0",model_name="tiny",source="external': "transferred",
    b"vllm:generation_tokens_total{": "generated",
    b'vllm:request_success_total{engine="0",finished_reason="length"': "finished",
    b"vllm:iteration_tokens_total_count{": "steps",
}


def _template() -> bytes:
    """A recorded page, restricted to what Stanch asks for, with a place for each value that moves."""
    names = {name.encode() for name in names_to_ask(evidence=False)}
    names |= {b"vllm:prompt_tokens_by_source_total", b"vllm:external_prefix_cache_hits_total"}

    def placed(match: re.Match[bytes]) -> bytes:
        head = match["head"]
        key = next((value for start, value in _LINES.items() if head.startswith(start)), None)
        if key is not None:
            return head + b" %(" + key.encode() + b")f"
        return head + (b" 1.0" if b'"awake"' in head else b" 0.0")

    return _SAMPLE.sub(placed, restrict(recorded_pages()[0], names).replace(b"%", b"%%"))


PAGE = _template()
