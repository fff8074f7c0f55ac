"""StanchNixlConnector on real engines of vLLM 0.28.0, whose worker is another one than that of 0.29.0.

`python -m tests.engine.install 0.28.0` installs it beside the others; without it this file is skipped.
"""

from __future__ import annotations

import pytest

from tests.engine import install
from tests.engine.bed import Bed, Engine, Spec, until
from tests.engine.client import pd_request
from tests.engine.marks import PARK, SAME
from tests.engine.model import words
from tests.engine.pair import USAGE
from tests.engine.weights import NEEDS, write_weights

VERSION = "0.28.0"
pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(
        install.locate(VERSION) is None, reason=f"python -m tests.engine.install {VERSION} adds it"
    ),
]
TOKENS = 320


def text(prefill: Engine, decode: Engine, prompt: str, number: int, mark: str = "plain-") -> str:
    answer = pd_request(prefill.url, decode.url, prompt, 8, mark=mark, number=number, timeout_s=90).answer(90)
    assert answer.status == 200, answer.body
    found: str = answer.body["choices"][0]["text"]
    return found


def test_the_fix_on_028(bed: Bed) -> None:
    write_weights(bed.directory / "model")
    prefill, fixed, stock = bed.start_all(
        Spec("prefill", fixed=True, extra_args=NEEDS),
        Spec("decode", name="fixed", inject=True, fixed=True, extra_args=NEEDS),
        Spec("decode", name="stock", inject=True, extra_args=NEEDS),
    )
    for engine in (prefill, fixed):
        assert engine.log.read_text().count("Stanch's NIXL connector: active") >= 2, "scheduler and worker"
    for seed in range(1, 4):
        prompt = words(TOKENS, seed=seed)
        expected = text(prefill, stock, prompt, seed)
        assert text(prefill, fixed, prompt, seed) == expected
        # `([],)` once and `()` once; then what they left in the prefix cache.
        assert text(prefill, fixed, prompt, seed, SAME) == expected
        assert text(prefill, fixed, words(TOKENS, seed=seed + 50), seed, PARK)
        assert text(prefill, fixed, prompt, seed + 90) == expected
    until(lambda: fixed.metric(USAGE) == 0, "all blocks free")
    until(lambda: prefill.metric(USAGE) == 0, "the producer's blocks are free within its lease", 25)

    lost = pd_request(prefill.url, stock.url, words(TOKENS, seed=80), mark=PARK, number=80)
    until(lambda: (stock.metric(USAGE) or 0) > 0.05, "parked")
    lost.give_up()
    with pytest.raises(TimeoutError):
        until(lambda: stock.metric(USAGE) == 0, "the stock connector leaks", 5)
    assert fixed.healthy
    assert "AssertionError" not in fixed.log.read_text()
