"""A prefill and a decode engine of one version, and the states that the live scenarios want them in."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tests.engine.bed import Bed, Engine, Spec, until
from tests.engine.client import Pending, complete, pd_request, prefill_only
from tests.engine.marks import PARK
from tests.engine.model import words

USAGE = "vllm:kv_cache_usage_perc"
RUNNING = "vllm:num_requests_running"
WAITING = "vllm:num_requests_waiting"
# A prompt of ten blocks: a tenth of the cache.
TEN_BLOCKS = 300


class Pair:
    """Two engines. The decode's steps are slowed to 50 ms, so that a generation can be seen."""

    def __init__(self, bed: Bed) -> None:
        self.prefill, self.decode = bed.start_all(
            Spec("prefill", max_model_len=2048),
            Spec("decode", inject=True, max_model_len=2048, connector={"stanch_step_delay_ms": 50}),
        )
        self._number = 0
        self.warm_up()

    def warm_up(self) -> None:
        """The first request after a start makes the NIXL handshake, which once took half a minute."""
        assert self.request(64).answer(90).status == 200

    def request(self, tokens: int, *, mark: str = "plain-", max_tokens: int = 4) -> Pending:
        """One request through both engines, every time another prompt."""
        self._number += 1
        prompt = words(tokens, seed=self._number)
        return pd_request(
            self.prefill.url, self.decode.url, prompt, max_tokens, mark=mark, number=self._number
        )

    def generate(self, tokens: int, max_tokens: int) -> Pending:
        """One request to the decode engine alone, which computes the prompt itself."""
        self._number += 1
        return complete(
            self.decode.url, words(tokens, seed=self._number), max_tokens=max_tokens, timeout_s=120
        )

    def unread_prefill(self) -> tuple[str, dict[str, object]]:
        """A prompt that the prefill engine has computed and keeps for a reader, and how to read it."""
        self._number += 1
        prompt = words(TEN_BLOCKS, seed=self._number)
        return prompt, prefill_only(self.prefill.url, prompt)

    def read(self, prompt: str, params: dict[str, object]) -> Pending:
        """The decode engine's half of a request whose first half unread_prefill made."""
        return complete(self.decode.url, prompt, kv_transfer_params=params)

    def usage(self, engine: Engine | None = None) -> float:
        """kv_cache_usage_perc of the decode engine, or of the one given."""
        value = (engine or self.decode).metric(USAGE)
        assert value is not None
        return value

    def clean(self) -> None:
        """A decode engine that holds nothing: as it is, or started again."""
        if not self.decode.healthy or self.usage() != 0:
            self.decode.restart()
            self.warm_up()

    @contextmanager
    def parked(self, count: int = 3, *, mark: str = PARK) -> Iterator[list[Pending]]:
        """That many requests of ten blocks, planted to be stuck; their clients leave when the block ends."""
        before = self.usage()
        pending = [self.request(TEN_BLOCKS, mark=mark) for _ in range(count)]
        try:
            until(lambda: self.decode.metric(WAITING) == count, f"{count} requests parked")
            yield pending
        finally:
            for one in pending:
                one.give_up()
        until(lambda: self.decode.metric(WAITING) == 0, "the clients are gone")
        assert self.usage() > before

    def leak(self, share: float = 0.3, *, mark: str = PARK) -> float:
        """Make the decode engine hold at least that share for nobody; return what it holds."""
        missing = round((share - self.usage()) * 10)
        if missing > 0:
            with self.parked(missing, mark=mark):
                pass
        return self.usage()
