"""Pages for the tests of the reader and the scraper, and what prometheus_client's parser says of a page."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

RECORDINGS = Path(__file__).parents[1] / "data" / "recordings"

VALUES: dict[str, float] = {
    "vllm:kv_cache_usage_perc": 0.25,
    "vllm:num_requests_running": 3,
    "vllm:num_requests_waiting": 2,
    "vllm:generation_tokens_total": 100,
    "vllm:prompt_tokens_total": 200,
}
"""What an engine must have, and a value for each."""

TINY = 'engine="0",model_name="tiny"'


def page(*lines: str, labels: str = TINY, without: str = "", **changed: str | float) -> bytes:
    """A page with the required families (changed: by the start of their name), then the given lines."""
    text = []
    for name, value in VALUES.items():
        if name != without:
            shown = next((v for key, v in changed.items() if name.startswith(f"vllm:{key}")), value)
            text.append(f"{name}{{{labels}}} {shown}\n")
    return "".join([*text, *(line + "\n" for line in lines)]).encode()


@cache
def recorded(role: str, version: str = "0.29.0") -> tuple[bytes, ...]:
    """Every page of a recording, as bytes."""
    with gzip.open(RECORDINGS / version / f"{role}.jsonl.gz", "rt") as lines:
        bodies = [json.loads(line)["body"] for line in lines]
    return tuple(body.encode() for body in bodies if body is not None)


def parsed(body: bytes) -> Iterator[tuple[str, dict[str, str], float]]:
    """(name, labels, value) of every sample, by prometheus_client's parser."""
    for family in text_string_to_metric_families(body.decode()):
        for sample in family.samples:
            yield sample.name, sample.labels, float(sample.value)
