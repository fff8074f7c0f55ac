"""StanchNixlConnector on real engines of vLLM 0.29.0, beside a stock decode engine with the same fault.

Three engines: one prefill, which both decode engines read from. The requests marked `same` meet the defect
with their KV truly here (injector.py), and the model's weights make every block count (weights.py), so their
tokens mean something.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from tests.engine.bed import Bed, Engine, Spec, until
from tests.engine.client import Pending, complete, pd_request, prefill_only
from tests.engine.marks import PARK, SAME
from tests.engine.model import words
from tests.engine.pair import USAGE, WAITING
from tests.engine.weights import NEEDS, write_weights

pytestmark = pytest.mark.engine
VERSION = "0.29.0"
# Ten full blocks: of a prompt that ends with a block, a second request reads that last block anew.
TOKENS = 320


@dataclass
class Trio:
    prefill: Engine
    fixed: Engine
    stock: Engine
    numbers: Iterator[int] = field(default_factory=lambda: iter(range(1, 1000)))

    def request(self, decode: Engine, prompt: str, mark: str = "plain-") -> Pending:
        number = next(self.numbers)
        return pd_request(self.prefill.url, decode.url, prompt, 8, mark=mark, number=number)


@pytest.fixture(scope="module")
def trio(bed: Bed) -> Trio:
    write_weights(bed.directory / "model")
    prefill, fixed, stock = bed.start_all(
        Spec("prefill", fixed=True, extra_args=NEEDS),
        Spec("decode", name="fixed", inject=True, fixed=True, extra_args=NEEDS),
        Spec("decode", name="stock", inject=True, extra_args=NEEDS),
    )
    three = Trio(prefill, fixed, stock)
    for decode in (three.fixed, three.stock):
        # The first request makes the handshake, which once took half a minute.
        assert three.request(decode, words(64, seed=9)).answer(90).status == 200
    return three


def text(pending: Pending) -> str:
    answer = pending.answer()
    assert answer.status == 200, answer.body
    found: str = answer.body["choices"][0]["text"]
    return found


def drained(engine: Engine, deadline_s: float = 120) -> None:
    until(lambda: engine.metric(USAGE) == 0, f"{engine.name}: all blocks free", deadline_s)


def test_it_says_that_the_fix_is_in(trio: Trio) -> None:
    for engine in (trio.prefill, trio.fixed):
        assert engine.log.read_text().count("Stanch's NIXL connector: active") >= 2, "scheduler and worker"
    assert "Stanch's NIXL connector" not in trio.stock.log.read_text()


def test_the_tokens_are_those_of_the_stock_connector(trio: Trio) -> None:
    for seed in range(100, 104):
        prompt = words(TOKENS, seed=seed)
        expected = text(trio.request(trio.stock, prompt))
        assert text(trio.request(trio.fixed, prompt)) == expected
        # The second one is parked for a block that is already here.
        assert text(trio.request(trio.fixed, prompt, SAME)) == expected
        # And what it left in the prefix cache is right.
        assert text(trio.request(trio.fixed, prompt)) == expected
    drained(trio.fixed)
    # Well within the lease of 30 s: the notification arrived.
    drained(trio.prefill, 25)


def test_what_leaks_with_the_stock_connector_is_answered(trio: Trio) -> None:
    prompts = [words(TOKENS, seed=seed) for seed in range(200, 203)]
    for decode in (trio.stock, trio.fixed):
        for prompt in prompts:
            assert trio.request(decode, prompt).answer().status == 200
        drained(decode)
    answers = [trio.request(trio.fixed, prompt, SAME) for prompt in prompts]
    assert [one.answer().status for one in answers] == [200, 200, 200]
    drained(trio.fixed)
    lost = [trio.request(trio.stock, prompt, SAME) for prompt in prompts]
    until(lambda: trio.stock.metric(WAITING) == 3, "three parked")
    for one in lost:
        one.give_up()
    until(lambda: trio.stock.metric(WAITING) == 0, "the clients are gone")
    assert (trio.stock.metric(USAGE) or 0) > 0.2, "the stock connector leaks"
    assert trio.stock.healthy


def test_the_form_that_was_injected_before(trio: Trio) -> None:
    """An empty list of groups, as a local hit has it."""
    answers = [trio.request(trio.fixed, words(TOKENS, seed=seed), PARK) for seed in range(300, 303)]
    assert [one.answer().status for one in answers] == [200, 200, 200]
    drained(trio.fixed)


def test_the_clients_that_leave_at_once_leave_nothing(trio: Trio) -> None:
    """Aborted around the report: it frees them once, and the scheduler's assertion stays quiet."""
    for seed in range(400, 405):
        trio.request(trio.fixed, words(TOKENS, seed=seed), PARK).give_up()
    drained(trio.fixed)
    assert trio.request(trio.fixed, words(64, seed=450)).answer().status == 200


def test_a_request_aborted_between_parking_and_report(trio: Trio) -> None:
    """A frozen worker keeps the report back until the engine has taken the abort."""
    with trio.fixed.frozen():
        pending = [trio.request(trio.fixed, words(TOKENS, seed=seed), PARK) for seed in range(460, 463)]
        time.sleep(1)
        for one in pending:
            one.give_up()
        time.sleep(1)
    drained(trio.fixed)
    assert trio.request(trio.fixed, words(64, seed=470)).answer().status == 200
    assert trio.fixed.healthy


def test_a_dead_producer_cannot_hold_a_request(trio: Trio) -> None:
    """Whether the notification fails depends on when the transport notices the death: seen both ways here, so
    the conformance tests make it fail for certain. This one ends the prefill engine, so it comes last."""
    prompt = words(TOKENS, seed=500)
    expected = text(trio.request(trio.fixed, prompt))
    params = prefill_only(trio.prefill.url, prompt)
    trio.prefill.kill()
    pending = complete(
        trio.fixed.url, prompt, max_tokens=8, request_id=f"{SAME}999", kv_transfer_params=params
    )
    assert text(pending) == expected
    drained(trio.fixed)
    assert trio.fixed.healthy
    assert "AssertionError" not in trio.fixed.log.read_text()
