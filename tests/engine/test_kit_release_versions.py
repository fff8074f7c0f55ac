"""Release on vLLM 0.28.0, whose worker is another one, and 0.32.0, which reports otherwise."""

from __future__ import annotations

import pytest

from tests.engine import install
from tests.engine.bed import Bed, Spec, until
from tests.engine.chaos_bed import start
from tests.engine.client import Traffic, pd_request
from tests.engine.kit import ask
from tests.engine.marks import MUTE
from tests.engine.model import words
from tests.engine.pair import USAGE
from tests.engine.release_bed import Pair, with_kit
from tests.engine.weights import write_weights

pytestmark = pytest.mark.engine
VERSIONS = ["0.28.0", "0.32.0"]


@pytest.mark.parametrize("version", VERSIONS)
def test_freed_and_failed(version: str) -> None:
    if install.locate(version) is None:
        pytest.skip(f"python -m tests.engine.install {version} adds it")
    with Bed(version) as bed:
        write_weights(bed.directory / "model")
        prefill, decode = with_kit(bed, Spec("prefill")), with_kit(bed, Spec("decode", inject=True))
        start(prefill, decode)
        assert pd_request(prefill.url, decode.url, words(64, seed=9), 4).answer(90).status == 200
        pair = Pair(prefill, decode)
        expected = pair.tokens(1)
        with Traffic(prefill.url, decode.url, pause_s=0.05) as traffic:
            client, waiting = pair.request(2, MUTE)
            gone = pair.orphan(3)
            pair.parked([client])
            outcome = pair.command({"ids": [client, gone]})
            assert sorted(outcome["ways"].values()) == ["failed", "freed"], outcome
            assert waiting.answer().status == 500
            answered = traffic.answered
            until(lambda: traffic.answered > answered, "the others go on")
        assert traffic.failed == 0
        until(lambda: decode.metric(USAGE) == 0, "nothing is held")
        assert pair.tokens(1) == expected
        assert pair.tokens(2) == pair.tokens(2)
        state = ask(decode, "state").body
        assert (state["releases"], state["errors"]) == ({"failed": 1, "freed": 1}, {})
        assert decode.healthy
