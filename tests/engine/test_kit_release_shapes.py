"""Release on vLLM 0.29.0 in other shapes: two tensor ranks, a MultiConnector, under the fixed connector."""

from __future__ import annotations

import json

import pytest

from tests.engine.bed import Bed, Spec, until
from tests.engine.chaos_bed import start
from tests.engine.client import pd_request
from tests.engine.kit import ask
from tests.engine.marks import HALF, MUTE, SAME
from tests.engine.model import words
from tests.engine.pair import USAGE
from tests.engine.release_bed import Pair, text, with_kit
from tests.engine.weights import write_weights

pytestmark = pytest.mark.engine
VERSION = "0.29.0"

MULTI = {
    "kv_connector": "MultiConnector",
    "kv_role": "kv_consumer",
    "kv_connector_extra_config": {
        "connectors": [
            {
                # Its class has a name that a MultiConnector finds; Never makes it the stock connector.
                "kv_connector": "StanchFixedInjector",
                "kv_connector_extra_config": {"stanch_connector_patch": "Never"},
                "kv_connector_module_path": "tests.engine.injector",
                "kv_role": "kv_consumer",
                "kv_buffer_device": "cpu",
            }
        ]
    },
}


@pytest.fixture(scope="module")
def pairs(bed: Bed) -> dict[str, Pair]:
    write_weights(bed.directory / "model")
    multi = ("--kv-transfer-config", json.dumps(MULTI))
    prefill = with_kit(bed, Spec("prefill"))
    decodes = {
        "tensor": with_kit(bed, Spec("decode", name="tensor", inject=True, extra_args=("-tp", "2"))),
        "multi": with_kit(bed, Spec("decode", name="multi", inject=True, extra_args=multi)),
        "fixed": with_kit(bed, Spec("decode", name="fixed", inject=True, fixed=True)),
    }
    start(prefill, *decodes.values())
    for decode in decodes.values():
        assert pd_request(prefill.url, decode.url, words(64, seed=9), 4).answer(90).status == 200
    return {name: Pair(prefill, decode) for name, decode in decodes.items()}


def settle(pair: Pair, released: dict[str, int]) -> None:
    until(lambda: pair.decode.metric(USAGE) == 0, "nothing is held")
    state = ask(pair.decode, "state").body
    assert (state["releases"], state["errors"]) == (released, {})
    assert pair.decode.healthy


@pytest.mark.parametrize("name", ["tensor", "multi"])
def test_completed_where_every_rank_has_nothing_to_read(pairs: dict[str, Pair], name: str) -> None:
    pair = pairs[name]
    expected = pair.tokens(1)
    client, waiting = pair.request(1, SAME)
    pair.parked([client])
    outcome = pair.command({"ids": [client]})
    assert list(outcome["ways"].values()) == ["completed"], outcome
    assert text(waiting) == expected
    assert pair.tokens(1) == expected
    settle(pair, {"completed": 1})


def test_one_rank_that_has_reported_and_one_that_has_not(pairs: dict[str, Pair]) -> None:
    pair = pairs["tensor"]
    before = ask(pair.decode, "state").body["releases"]
    expected = pair.tokens(2)
    client, waiting = pair.request(3, HALF)
    gone = pair.orphan(4, HALF)
    pair.parked([client])
    outcome = pair.command({"ids": [client, gone]})
    assert sorted(outcome["ways"].values()) == ["failed", "freed"], outcome
    assert waiting.answer().status == 500
    assert pair.tokens(2) == expected
    settle(pair, {**before, "failed": 1, "freed": 1})


def test_under_the_fixed_connector(pairs: dict[str, Pair]) -> None:
    """Nothing is lost that the fix can report, and each such report is counted; another leak is released."""
    pair = pairs["fixed"]
    expected = pair.tokens(5)
    assert text(pair.request(5, SAME)[1]) == expected
    until(lambda: ask(pair.decode, "state").body["fixHits"] == 1, "the worker's count is here")
    assert pair.decode.metric("stanch_fix_hits", engine="0") == 1
    gone = pair.orphan(6, MUTE)
    assert pair.command({"ids": [gone]})["state"] == "done"
    settle(pair, {"freed": 1})
