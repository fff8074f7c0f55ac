"""The simulated engine's page: to the letter the form of a recorded one, and counters that move as vLLM's."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path

import pytest
from prometheus_client.utils import floatToGoString

from stanch.edge.demo.page import Page, number, text_of
from stanch.edge.demo.scheduler import Ask, Remote, Scheduler
from stanch.edge.exposition import read

pytestmark = pytest.mark.unit

RECORDING = Path(__file__).parents[1] / "data" / "recordings" / "0.29.0" / "decode.jsonl.gz"


def recorded() -> str:
    with gzip.open(RECORDING, "rt") as lines:
        for line in lines:
            entry = json.loads(line)
            if entry["scenario"] == "orphans_with_healthy_traffic":
                return str(entry["body"])
    raise AssertionError("the recording lacks the scenario")


def shape(page: str) -> dict[str, tuple[str, ...]]:
    """Per family: its HELP and TYPE lines and its series with their labels, without the values."""
    found: dict[str, tuple[str, ...]] = {}
    family = ""
    for line in page.splitlines():
        if line.startswith("# HELP "):
            family = line.split(" ")[2]
            found[family] = (line,)
        else:
            found[family] += (line if line.startswith("#") else line.rsplit(" ", 1)[0],)
    return found


def test_every_family_has_the_recorded_form() -> None:
    """HELP and TYPE lines, label order, bucket bounds: to the letter, for every family that is simulated."""
    real = shape(recorded())
    page = Page("tiny", 1.0, {"block_size": "32"})
    page.add("http_requests_total", handler="/v1/completions", method="POST", status="2xx")
    ours = shape(text_of([page]))
    varying = {"vllm:cache_config_info", "http_requests_total", "http_requests_created"}
    assert {name: form for name, form in ours.items() if name not in varying} == {
        name: form for name, form in real.items() if name in ours and name not in varying
    }
    left_out = {name for name in real if name not in ours}
    assert {re.sub("_created$", "", name) for name in left_out} == {
        "http_request_size_bytes",
        "http_response_size_bytes",
        "http_request_duration_seconds",
        "process_virtual_memory_bytes",
        "process_open_fds",
        "process_max_fds",
        "python_info",
    }
    assert [name for name in real if name in ours] == list(ours)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        pytest.param(0, "0.0", id="zero"),
        pytest.param(1 - 70 / 100, "0.30000000000000004", id="every bit"),
        pytest.param(999999.5, "999999.5", id="below a million"),
        pytest.param(1000000, "1e+06", id="a million"),
        pytest.param(1245184, "1.245184e+06", id="Go's exponent"),
        pytest.param(1.79596762277e9, "1.79596762277e+09", id="a Unix time"),
        pytest.param(34359738368.0, "3.4359738368e+10", id="two digits"),
    ],
)
def test_numbers_are_written_as_prometheus_client_writes_them(value: float, text: str) -> None:
    assert number(value) == text == floatToGoString(value)  # type: ignore[no-untyped-call]


def test_counters_move_when_vllms_do() -> None:
    """Queries when a request leaves the queue, prompt tokens with its first token, success at its end."""
    page, scheduler = Page("tiny", 1.0, {}), Scheduler()
    names = ("prefix_cache_queries", "prompt_tokens", "generation_tokens", "request_success")

    def counts() -> list[float]:
        text = text_of([page], [f"vllm:{name}_total" for name in names])
        found = dict.fromkeys(names, 0.0)
        for line in text.splitlines():
            if not line.startswith("#"):
                found[line.split("{")[0].removeprefix("vllm:").removesuffix("_total")] += float(
                    line.split()[-1]
                )
        return list(found.values())

    scheduler.submit(Ask("a", 100, 2, remote=Remote("p", "r", "h", 1)), 0.0)
    page.count(scheduler.step(0.0))
    assert counts() == [100, 0, 0, 0]
    scheduler.pulled("a", 0.5)
    page.count(scheduler.step(0.5))
    assert counts() == [100, 100, 1, 0]
    page.count(scheduler.step(0.6))
    assert counts() == [100, 100, 2, 1]
    page.count(scheduler.step(0.7))
    assert counts() == [100, 100, 2, 1], "a step without a token counts nothing"


def test_the_product_reads_it() -> None:
    """Every reading that the detector needs, from a page as served."""
    page, scheduler = Page("tiny", 1.0, {}), Scheduler()
    scheduler.plant(3)
    for number_ in range(3):
        scheduler.submit(Ask(f"r{number_}", 310, 4, remote=Remote("p", "r", "h", 1)), 0.0)
    page.set("process_start_time_seconds", 7.0)
    page.count(scheduler.step(0.0))
    seen = read(text_of([page]).encode())
    assert (seen.problem, seen.process_start, len(seen.engines)) == (None, 7.0, 1)
    engine = seen.engines[0]
    assert (engine.running, engine.waiting, engine.waiting_deferred) == (0, 3, 3)
    assert (engine.usage, engine.generation_tokens, engine.iterations) == (1 - 70 / 100, 0, 0)
    assert (engine.awake, engine.failed_transfers, engine.failed_notifications) == (1, 0, 0)
