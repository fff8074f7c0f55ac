"""StanchNixlConnector on vLLM 0.32.0, which needs no fix: the stock connector, and it says so."""

from __future__ import annotations

import pytest

from tests.engine.bed import Bed, Spec, until
from tests.engine.client import pd_request
from tests.engine.marks import PARK
from tests.engine.model import words
from tests.engine.pair import USAGE

pytestmark = pytest.mark.engine
VERSION = "0.32.0"


def test_it_is_the_stock_connector(bed: Bed) -> None:
    """Always, because not needed is no reason to refuse."""
    mode = {"stanch_connector_patch": "Always"}
    prefill, decode = bed.start_all(
        Spec("prefill", fixed=True, connector=mode), Spec("decode", inject=True, fixed=True, connector=mode)
    )
    assert pd_request(prefill.url, decode.url, words(64, seed=1)).answer(90).status == 200
    for engine in (prefill, decode):
        assert engine.log.read_text().count("Stanch's NIXL connector: not-needed") == 2
    answers = [
        pd_request(prefill.url, decode.url, words(320, seed=seed), mark=PARK, number=seed)
        for seed in range(2, 5)
    ]
    assert [one.answer().status for one in answers] == [200, 200, 200]
    until(lambda: decode.metric(USAGE) == 0, "all blocks free")
