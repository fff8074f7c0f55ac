"""A small edition of bench.reader: mutated pages are read as what they say, or not at all."""

from __future__ import annotations

import pytest

from bench.reader import run, truth, violation
from stanch.edge.exposition import Page, read
from tests.edge.pages import page

pytestmark = pytest.mark.unit


def test_mutated_pages_are_blind_or_what_they_say() -> None:
    short, whole = run(pages=5000, short=500, whole=50, seed=7)
    assert short.violations == []
    assert whole.violations == []
    assert (short.pages, short.compared) == (5021, 521)
    # The mutations must be worth something: some pages survive, some lose an engine, some are lost.
    assert min(short.outcomes.values()) > 100
    assert len(short.outcomes) == 3


@pytest.mark.parametrize(
    ("read_from", "said_by", "found"),
    [
        pytest.param(page(), page(), None, id="the same"),
        pytest.param(page(kv_cache=0.5), page(), "usage 0.5", id="another value"),
        pytest.param(page(labels='engine="1"'), page(), "engines", id="another engine"),
        pytest.param(
            page("process_start_time_seconds 5"), page(), "process start 5.0", id="an invented start"
        ),
        pytest.param(
            page(), page(without="vllm:num_requests_running"), "running 3.0", id="an invented value"
        ),
        pytest.param(b"", page(), None, id="blind is always right"),
    ],
)
def test_the_comparison_itself_finds_what_is_wrong(
    read_from: bytes, said_by: bytes, found: str | None
) -> None:
    wrong = violation(read(read_from), truth(said_by))
    assert (wrong is None) if found is None else (wrong or "").startswith(found)


def test_a_problem_beside_engines_is_a_violation() -> None:
    assert violation(Page(read(page()).engines, problem="cut"), truth(page())) is not None
