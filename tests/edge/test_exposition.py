"""The reader of metric pages, against pages of every kind and against prometheus_client's own parser."""

from __future__ import annotations

from dataclasses import fields
from math import isnan

import pytest

from stanch.edge.exposition import MAX_SERIES, EngineReading, read
from stanch.edge.families import FAMILIES, names_to_ask, spellings
from tests.edge.pages import TINY, page, parsed

pytestmark = pytest.mark.unit


def only(body: bytes) -> EngineReading:
    """The one engine of the page, which must be readable."""
    found = read(body)
    assert found.problem is None
    (engine,) = found.engines
    assert engine.problem is None
    return engine


def test_labels_longer_than_any_of_an_engine_are_not_read() -> None:
    """A million of them would be kept with the page's, and there may be another million in the next one."""
    long = ",".join(f'a{number}=""' for number in range(100_000))
    assert read(page(f"vllm:num_requests_running{{{long}}} 1")).problem == (
        "the line of vllm:num_requests_running is malformed"
    )
    fits = ",".join(f'a{number}=""' for number in range(700))
    assert read(page(f"vllm:num_requests_running{{{fits},{TINY}}} 3")).problem is None


def test_every_field_of_the_table_is_a_field_of_the_reading() -> None:
    own = {field.name for field in fields(EngineReading)} - {"model", "engine", "problem"}
    assert own == {family.field for family in FAMILIES}


def test_what_is_asked_for_is_what_is_read_and_evidence_only_on_request() -> None:
    plain, evidence = names_to_ask(), names_to_ask(evidence=True)
    assert len(set(plain)) == len(plain)
    assert set(plain) < set(evidence)
    readable = {name for family in FAMILIES for name in spellings(family)} | {"process_start_time_seconds"}
    assert set(evidence) <= readable


@pytest.mark.parametrize(
    ("line", "field", "value"),
    [
        pytest.param(f"vllm:num_requests_running{{{TINY}}} 7 1795967622000", "running", 7, id="timestamp"),
        pytest.param(f"vllm:num_requests_running{{{TINY}}} 7\t-5", "running", 7, id="negative timestamp"),
        pytest.param(f"vllm:num_requests_running{{{TINY}}} 7\r", "running", 7, id="carriage return"),
        pytest.param(f"vllm:num_requests_running {{{TINY}}}\t7 ", "running", 7, id="blanks around"),
        pytest.param(f"vllm:num_requests_running{{{TINY}}}7", "running", 7, id="no blank"),
        pytest.param(f"vllm:num_requests_running{{{TINY},}} 7", "running", 7, id="last comma"),
        pytest.param(
            'vllm:num_requests_running{ model_name = "tiny" , engine = "0" } 7',
            "running",
            7,
            id="label order",
        ),
        pytest.param(f"vllm:num_requests_running{{{TINY}}} 1.25e+02", "running", 125, id="exponent"),
        pytest.param(f"vllm:num_requests_running{{{TINY}}} 1E2", "running", 100, id="capital exponent"),
        pytest.param(f"vllm:num_requests_running{{{TINY}}} +7.", "running", 7, id="plus sign"),
        pytest.param(f"vllm:num_requests_running{{{TINY}}} -1", "running", -1, id="negative"),
        pytest.param(f"vllm:num_requests_running{{{TINY}}} +Inf", "running", float("inf"), id="infinite"),
        pytest.param(
            f"vllm:num_requests_running{{{TINY}}} -inf", "running", float("-inf"), id="less than all"
        ),
        pytest.param(
            f'vllm:num_requests_waiting_by_reason{{{TINY},reason="deferred"}} 2',
            "waiting_deferred",
            2,
            id="0.20",
        ),
        pytest.param(
            f'vllm:num_requests_waiting_by_reason{{{TINY},reason="capacity"}} 2',
            "waiting_deferred",
            None,
            id="another reason is not deferred",
        ),
        pytest.param(f"vllm:iteration_tokens_total_count{{{TINY}}} 9", "iterations", 9, id="histogram count"),
        pytest.param(f"vllm:iteration_tokens_total_sum{{{TINY}}} 9", "iterations", None, id="not its sum"),
        pytest.param(
            f'vllm:engine_sleep_state{{{TINY},sleep_state="awake"}} 0',
            "awake",
            0,
            id="sleep state of one level",
        ),
        pytest.param(
            f'vllm:num_requests_kv_fetch_by_stage{{{TINY},stage="in_progress"}} 0',
            "consumer",
            1,
            id="presence",
        ),
    ],
)
def test_one_line(line: str, field: str, value: float | None) -> None:
    name = line.split("{")[0].strip()
    assert getattr(only(page(line, without=name)), field) == value


def test_nan_is_handed_on_as_it_is() -> None:
    assert isnan(only(page(kv_cache="NaN")).usage or 0)


@pytest.mark.parametrize(
    ("written", "model"),
    [
        pytest.param(r"a\"b", 'a"b', id="quote"),
        pytest.param(r"a\\b", r"a\b", id="backslash"),
        pytest.param(r"a\nb", "a\nb", id="line feed"),
        pytest.param(r"a\\nb", r"a\nb", id="backslash and an n"),
        pytest.param(r"a\qb", r"a\qb", id="unknown escape stays"),
        pytest.param(r"a\\", "a\\", id="backslash at the end"),
        pytest.param("a} 1.0", "a} 1.0", id="brace"),
        pytest.param('a,engine=\\"7\\"', 'a,engine="7"', id="labels inside"),
        pytest.param("a # {b", "a # {b", id="hash"),
        pytest.param("模型", "模型", id="beyond ASCII"),
        pytest.param("", "", id="empty"),
    ],
)
def test_label_values(written: str, model: str) -> None:
    body = page(labels=f'engine="0",model_name="{written}"')
    assert only(body).model == model
    assert {labels["model_name"] for _, labels, _ in parsed(body)} == {model}


def test_counters_are_summed_over_the_labels_that_are_not_ours() -> None:
    reasons = {"stop": 3, "length": 4, "abort": 0}
    lines = [f'vllm:request_success_total{{{TINY},finished_reason="{r}"}} {n}' for r, n in reasons.items()]
    pids = [f'vllm:generation_tokens_total{{{TINY},pid="{pid}"}} {pid}' for pid in (11, 12)]
    found = only(page(*lines, *pids, without="vllm:generation_tokens_total"))
    assert (found.finished, found.generation_tokens) == (7, 23)


@pytest.mark.parametrize(
    ("lines", "field", "value", "problem"),
    [
        pytest.param(
            [
                f'vllm:num_requests_running{{{TINY},pid="1"}} 3',
                f'vllm:num_requests_running{{{TINY},pid="2"}} 0',
            ],
            "running",
            None,
            "the page gives vllm:num_requests_running of one engine twice (0 and 3)",
            id="two processes that disagree",
        ),
        pytest.param(
            [
                f'vllm:num_requests_running{{{TINY},pid="1"}} 3',
                f'vllm:num_requests_running{{{TINY},pid="2"}} 3',
            ],
            "running",
            3,
            None,
            id="two processes that agree",
        ),
        pytest.param(
            [f"vllm:num_requests_running{{{TINY}}} 3", f"vllm:num_requests_running{{{TINY}}} 4"],
            "running",
            None,
            "the page has one series of vllm:num_requests_running twice, and they differ",
            id="one series twice",
        ),
        pytest.param(
            [f"vllm:generation_tokens_total{{{TINY}}} 3", f"vllm:generation_tokens_total{{{TINY}}} 4"],
            "generation_tokens",
            None,
            "the page has one series of vllm:generation_tokens_total twice, and they differ",
            id="one counter twice",
        ),
        pytest.param(
            [f"vllm:generation_tokens_total{{{TINY}}} 3", f"vllm:generation_tokens_total{{{TINY}}} 3"],
            "generation_tokens",
            3,
            None,
            id="one counter twice, equal, is no sum",
        ),
        pytest.param(
            [f"vllm:num_requests_running{{{TINY}}} NaN", f"vllm:num_requests_running{{{TINY}}} NaN"],
            "running",
            None,
            "the page has one series of vllm:num_requests_running twice, and they differ",
            id="NaN is not even itself",
        ),
        pytest.param(
            [
                f'vllm:engine_sleep_state{{{TINY},sleep_state="awake",pid="1"}} 1',
                f'vllm:engine_sleep_state{{{TINY},sleep_state="awake",pid="2"}} 0',
            ],
            "awake",
            None,
            None,
            id="an optional value that contradicts itself is missing",
        ),
    ],
)
def test_what_is_there_twice(lines: list[str], field: str, value: float | None, problem: str | None) -> None:
    found = read(page(*lines, without=lines[0].split("{")[0]))
    assert found.problem is None
    (engine,) = found.engines
    assert engine.problem == problem
    assert getattr(engine, field) == value


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        pytest.param(b"", "the page is empty", id="empty"),
        pytest.param(b"\n\r\n ", "the page is empty", id="blank"),
        pytest.param(page()[:-1], "the page is cut off inside a line", id="no last line feed"),
        pytest.param(page()[:-9], "the page is cut off inside a line", id="cut inside a line"),
        pytest.param(page() + b"\xff\n", "the page has bytes that are not UTF-8", id="bytes"),
        pytest.param(page() + b"\0\n", "does not start with the name", id="NUL"),
        pytest.param(b"<html>\n" + page(), "does not start with the name", id="a page for people"),
        pytest.param(b'{"a": 1}\n', "does not start with the name", id="JSON"),
        pytest.param(b"up 1\n", "no metric of an engine", id="another exporter"),
        pytest.param(b"# HELP a\n# EOF\n", "no metric of an engine", id="comments only"),
        pytest.param(page() + b"vllm:num_requests_running\n", "running is malformed", id="name alone"),
        pytest.param(page() + b"vllm:num_requests_running{} \n", "running is malformed", id="no value"),
        pytest.param(page() + b"vllm:num_requests_running 1_0\n", "running is malformed", id="underscore"),
        pytest.param(page() + b"vllm:num_requests_running 1.0.0\n", "running is malformed", id="two points"),
        pytest.param(page() + b"vllm:num_requests_running 1 2 3\n", "running is malformed", id="too much"),
        pytest.param(page() + b"vllm:num_requests_running\x01 1\n", "running is malformed", id="control"),
        pytest.param(
            page() + b'vllm:num_requests_running{a="b} 1\n', "running is malformed", id="open quote"
        ),
        pytest.param(page() + b"vllm:num_requests_running{a=b} 1\n", "running is malformed", id="no quotes"),
        pytest.param(page() + b'vllm:num_requests_running{a="b"x} 1\n', "is malformed", id="after the quote"),
        pytest.param(page() + b'vllm:num_requests_running{a="b" c="d"} 1\n', "is malformed", id="no comma"),
        pytest.param(
            page() + b'vllm:num_requests_running{a="b",a="c"} 1\n', "is malformed", id="label twice"
        ),
        pytest.param(
            page() + b'vllm:num_requests_running{__name__="b"} 1\n', "is malformed", id="second name"
        ),
        pytest.param(page(labels='model_name="a"') + page(), "some of its series name an engine", id="mixed"),
    ],
)
def test_a_page_that_cannot_be_used_says_why(body: bytes, problem: str) -> None:
    found = read(body)
    assert found.engines == ()
    assert problem in (found.problem or "")


@pytest.mark.parametrize(
    "line",
    [
        pytest.param('vllm:num_requests_running{{engine="{}",model_name="a"}} 0\n', id="engines"),
        pytest.param('vllm:num_requests_running{{engine="0",x="{}"}} 0\n', id="series"),
    ],
)
def test_reading_ends_where_a_page_has_gone_wrong(line: str) -> None:
    body = "".join(line.format(number) for number in range(MAX_SERIES + 1)).encode()
    assert read(body).problem == "the page has more than 1024 engines or 32768 series of them"


@pytest.mark.parametrize(
    ("without", "problem"),
    [
        pytest.param("vllm:kv_cache_usage_perc", "vllm:kv_cache_usage_perc is missing", id="usage"),
        pytest.param("vllm:num_requests_running", "vllm:num_requests_running is missing", id="running"),
        pytest.param("vllm:num_requests_waiting", "vllm:num_requests_waiting is missing", id="waiting"),
        pytest.param("vllm:prompt_tokens_total", None, id="one token counter is enough"),
    ],
)
def test_a_missing_family_is_named(without: str, problem: str | None) -> None:
    (engine,) = read(page(without=without)).engines
    if problem is None:
        assert engine.problem is None
    else:
        assert (engine.problem or "").startswith(problem)
        assert "may not be the /metrics of vLLM" in (engine.problem or "")


def test_several_missing_families_are_all_named() -> None:
    (engine,) = read(b"vllm:num_requests_running 1\n").engines
    assert engine.problem == (
        "vllm:kv_cache_usage_perc, vllm:num_requests_waiting, vllm:generation_tokens_total are missing from "
        "the page: this may not be the /metrics of vLLM"
    )
