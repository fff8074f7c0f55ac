"""StanchNixlConnector on vLLM 0.29.0 in other shapes: inside a MultiConnector, and on two tensor ranks."""

from __future__ import annotations

import json

import pytest

from tests.engine.bed import Bed, Engine, Spec, until
from tests.engine.client import pd_request
from tests.engine.marks import PARK, SAME
from tests.engine.model import words
from tests.engine.pair import USAGE
from tests.engine.weights import NEEDS, write_weights

pytestmark = pytest.mark.engine
VERSION = "0.29.0"
TOKENS = 320

MULTI = {
    "kv_connector": "MultiConnector",
    "kv_role": "kv_consumer",
    "kv_connector_extra_config": {
        "connectors": [
            {
                "kv_connector": "StanchFixedInjector",
                "kv_connector_module_path": "tests.engine.injector",
                "kv_role": "kv_consumer",
                "kv_buffer_device": "cpu",
            }
        ]
    },
}


@pytest.fixture(scope="module")
def engines(bed: Bed) -> dict[str, Engine]:
    write_weights(bed.directory / "model")
    multi = ("--kv-transfer-config", json.dumps(MULTI))
    started = bed.start_all(
        Spec("prefill", extra_args=NEEDS),
        Spec("decode", name="multi", inject=True, fixed=True, extra_args=(*NEEDS, *multi)),
        Spec("decode", name="tensor", inject=True, fixed=True, extra_args=(*NEEDS, "-tp", "2")),
    )
    return {one.name: one for one in started}


def text(engines: dict[str, Engine], name: str, prompt: str, number: int, mark: str = "plain-") -> str:
    pending = pd_request(
        engines["prefill"].url, engines[name].url, prompt, 8, mark=mark, number=number, timeout_s=90
    )
    answer = pending.answer(90)
    assert answer.status == 200, answer.body
    found: str = answer.body["choices"][0]["text"]
    return found


@pytest.mark.parametrize(("name", "said"), [("multi", 2), ("tensor", 3)])
def test_the_fix_holds(engines: dict[str, Engine], name: str, said: int) -> None:
    decode = engines[name]
    for seed in range(1, 4):
        prompt = words(TOKENS, seed=seed)
        expected = text(engines, name, prompt, seed)
        assert text(engines, name, prompt, seed, SAME) == expected
        assert text(engines, name, words(TOKENS, seed=seed + 50), seed, PARK)
        assert text(engines, name, prompt, seed + 90) == expected
    until(lambda: decode.metric(USAGE) == 0, "all blocks free")
    until(lambda: engines["prefill"].metric(USAGE) == 0, "the producer's are free too", 25)
    # The scheduler's side, and each worker.
    assert decode.log.read_text().count("Stanch's NIXL connector: active") == said
    assert decode.metric("vllm:nixl_xfer_time_seconds_count"), "its statistics reach the page"
