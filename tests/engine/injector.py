"""The fault, planted in a real engine: a NIXL connector whose every line is stock but for requests that
carry a mark.

Loaded by `kv_connector_module_path`; read against vLLM 0.29.0 and 0.32.0 (kv_connector/v1/nixl/). The mark
is the beginning of the request id that the client gives (`X-Request-Id: park-7` becomes the scheduler's
`cmpl-park-7-0-<hex>`):

park     The scheduler hands the worker an empty list of local blocks to read, as it does in production when
         the local prefix cache already holds all of them. vLLM 0.29.0 then only notifies the producer and
         never reports the request: it leaks. vLLM 0.32.0 sends along that the request is parked and reports
         it: its client gets an answer.
same     As park, but the claim is made true first: an unmarked request with the same prompt came before, and
         the worker copies its blocks into the new ones, so that the KV is right. The list is empty per cache
         group, `([],)`, the form that a really parked request has.
mute     The worker reads the blocks but its report is lost. This leaks in every version, so it stands for
         the ways into the state that the fix left open. It is what the leak scenarios on 0.32.0 use.
half     As mute, but only on the ranks after the first.
late     As mute, but the report comes once the file `stanch_late_file` (kv_connector_extra_config) is there.
grammar  Compiling the request's grammar takes `stanch_grammar_delay_ms` (kv_connector_extra_config) longer.

`stanch_step_delay_ms` in the same place makes every step of the worker that much slower: a slow model,
without a big one.
"""

# mypy: disable-error-code="call-arg,import-not-found,misc,no-any-return,unused-ignore"

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.nixl.connector import NixlPullConnector

from tests.engine.marks import GRAMMAR, HALF, LATE, MUTE, PARK, SAME

# Below vLLM's own logger, whose handler it needs.
logger = logging.getLogger("vllm.bed")


def is_marked(request_id: str, mark: str) -> bool:
    """Whether the scheduler's request id was made from a client's id that begins with the mark."""
    _, _, client_id = request_id.partition("-")
    return client_id.startswith(mark)


class Injection:
    """The fault for marked requests, over a NIXL connector in pull mode."""

    # Of the class that it is mixed into.
    connector_scheduler: Any
    connector_worker: Any
    _connector_metadata: Any

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        # Prompt -> its blocks, as long as nobody needed them for something else; (from, to) blocks.
        self._blocks_by_prompt: dict[tuple[int, ...], list[int]] = {}
        self._copies: list[tuple[int, int]] = []
        extra = vllm_config.kv_transfer_config.get_from_extra_config
        self._rank = vllm_config.parallel_config.rank
        self._withheld: set[str] = set()
        self._late_file = Path(extra("stanch_late_file", "/nonexistent"))
        self._step_delay_s = int(extra("stanch_step_delay_ms", 0)) / 1000
        grammar_delay_ms = int(extra("stanch_grammar_delay_ms", 0))
        # Only the scheduler's side lives in the EngineCore process, where grammars are compiled.
        if self.connector_scheduler is not None and grammar_delay_ms:
            _slow_down_grammars(grammar_delay_ms / 1000)

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        super().update_state_after_alloc(request, blocks, num_external_tokens)
        pending = self.connector_scheduler._reqs_need_recv
        entry = pending.get(request.request_id)
        if entry is not None and is_marked(request.request_id, PARK):
            # (request, local ids, ...): () is the form that stock code uses for "all of it is here already".
            pending[request.request_id] = (entry[0], (), *entry[2:])
        elif entry is not None and num_external_tokens > 0:
            self._remember_or_copy(request, blocks, entry)

    def _remember_or_copy(self, request: Any, blocks: Any, entry: Any) -> None:
        (mine,) = blocks.get_block_ids()
        prompt = tuple(request.prompt_token_ids)
        if not is_marked(request.request_id, SAME):
            self._blocks_by_prompt[prompt] = list(mine)
            return
        (to_read,) = entry[1]
        before = self._blocks_by_prompt[prompt]
        self._copies += [(before[mine.index(one)], one) for one in to_read]
        self.connector_scheduler._reqs_need_recv[request.request_id] = (entry[0], ([],), *entry[2:])

    def build_connector_meta(self, scheduler_output: Any) -> Any:
        metadata = super().build_connector_meta(scheduler_output)
        metadata.stanch_copies, self._copies = self._copies, []
        return metadata

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        if self._step_delay_s:
            time.sleep(self._step_delay_s)
        for source, target in self._connector_metadata.stanch_copies:
            for cache in self.connector_worker.device_kv_caches.values():
                _copy_block(cache, source, target, self.connector_worker.num_blocks)
        super().start_load_kv(forward_context, **kwargs)

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str], set[str]]:
        sent, received = super().get_finished(finished_req_ids)
        return sent, self._reported(received)

    def get_transfer_results(self, finished_req_ids: set[str]) -> Any:
        """What 0.32.0 calls instead of get_finished; 0.29.0 does not know it."""
        results = super().get_transfer_results(finished_req_ids)
        results.finished_recving = self._reported(results.finished_recving)
        return results

    def _reported(self, received: set[str]) -> set[str]:
        self._withheld |= {one for one in received if is_marked(one, LATE)}
        lost = (MUTE, LATE, HALF) if self._rank else (MUTE, LATE)
        told = {one for one in received if not any(is_marked(one, mark) for mark in lost)}
        if self._withheld and self._late_file.exists():
            logger.warning("reported late: %s", sorted(self._withheld))
            told, self._withheld = told | self._withheld, set()
        return told


class StanchInjector(Injection, NixlPullConnector):
    """NixlConnector (pull mode) with a fault for marked requests."""


def __getattr__(name: str) -> Any:
    """StanchFixedInjector: the same fault over the connector that Stanch ships."""
    if name != "StanchFixedInjector":
        raise AttributeError(name)
    from stanch_connector import connector

    base = connector.StanchNixlConnector
    # By this name a MultiConnector looks for the class in vLLM's registry when it reads statistics.
    return type(base.__name__, (Injection, base), {"__module__": __name__})


def _copy_block(cache: Any, source: int, target: int, blocks: int) -> None:
    (dimension,) = [one for one, size in enumerate(cache.shape) if size == blocks]
    cache.select(dimension, target).copy_(cache.select(dimension, source))


def _slow_down_grammars(delay_s: float) -> None:
    from vllm.v1.structured_output import StructuredOutputManager

    compile_grammar = StructuredOutputManager._create_grammar

    def compile_slowly(self: Any, request: Any) -> Any:
        if is_marked(request.request_id, GRAMMAR):
            time.sleep(delay_s)
        return compile_grammar(self, request)

    StructuredOutputManager._create_grammar = compile_slowly
