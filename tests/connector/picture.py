"""A picture of vLLM's scheduler, as far as the list, the release and their hooks touch it (0.29.0). Small on
purpose: what vLLM really does is for tests/engine. Its assertions are vLLM's, which end the engine."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, auto
from types import SimpleNamespace
from typing import Any


class Status(Enum):
    WAITING = auto()
    WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR = auto()
    WAITING_FOR_REMOTE_KVS = auto()
    WAITING_FOR_STREAMING_REQ = auto()
    RUNNING = auto()
    PREEMPTED = auto()
    FINISHED_STOPPED = auto()
    FINISHED_ABORTED = auto()
    FINISHED_ERROR = auto()


def request(request_id: str, status: Status = Status.WAITING, **more: Any) -> Any:
    return SimpleNamespace(
        request_id=request_id,
        status=status,
        **{"kv_transfer_params": None, "lora_request": None, "client_index": 0, **more},
    )


@dataclass
class Output:
    """KVConnectorOutput (v1/outputs.py)."""

    finished_sending: set[str] | None = None
    finished_recving: set[str] | None = None
    kv_connector_worker_meta: Any = None


class NoBlocks(tuple[Any, ...]):
    """KVCacheBlocks without one."""

    def new_empty(self) -> NoBlocks:
        return self


class Connector:
    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> str:
        return f"allocated {num_external_tokens}"

    def update_connector_output(self, output: Output) -> None:
        """Nothing to do."""


class ReqMeta:
    """nixl/metadata.py. local_block_ids: by cache group."""

    def __init__(self, local_block_ids: Any, remote: str) -> None:
        self.local_block_ids = local_block_ids
        self.remote = SimpleNamespace(engine_id=remote)


class NixlMetadata:
    """NixlConnectorMetadata: what is to be received, by request."""

    def __init__(self, reqs_to_recv: dict[str, ReqMeta]) -> None:
        self.reqs_to_recv = reqs_to_recv


class NixlPullConnector(Connector):
    """The scheduler's half of the NIXL connector in pull mode. blocks: what there is to read, by group."""

    def __init__(self) -> None:
        self.connector_scheduler = SimpleNamespace(_reqs_need_recv={})
        self.outputs: list[Output] = []

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> str:
        if (request.kv_transfer_params or {}).get("do_remote_prefill"):
            to_read = blocks if num_external_tokens > 0 else ()
            self.connector_scheduler._reqs_need_recv[request.request_id] = (request, to_read)
            request.kv_transfer_params["do_remote_prefill"] = False
        return super().update_state_after_alloc(request, blocks, num_external_tokens)

    def request_finished(self, request: Any, block_ids: Any) -> None:
        """Aborted before it was scheduled: the producer is told."""
        if (request.kv_transfer_params or {}).get("do_remote_prefill"):
            self.connector_scheduler._reqs_need_recv[request.request_id] = (request, [])
            request.kv_transfer_params["do_remote_prefill"] = False

    def build_connector_meta(self, scheduler_output: Any) -> NixlMetadata:
        needed = self.connector_scheduler._reqs_need_recv
        receives = {
            name: ReqMeta(blocks, request.kv_transfer_params["remote_engine_id"])
            for name, (request, blocks) in needed.items()
        }
        needed.clear()
        return NixlMetadata(receives)

    def update_connector_output(self, output: Output) -> None:
        self.outputs.append(output)


class Manager:
    def __init__(self, usable: int) -> None:
        self.block_pool = SimpleNamespace(num_gpu_blocks=usable + 1)
        self.held: dict[str, tuple[list[Any], ...]] = {}

    def get_blocks(self, request_id: str) -> Any:
        return SimpleNamespace(blocks=self.held.get(request_id, ()))


class Scheduler:
    """Each method moves a request as vLLM's does, and returns something to be handed through."""

    def __init__(self, usable: int = 100, connector: Any = None, world_size: int = 1) -> None:
        self.requests: dict[str, Any] = {}
        self.running: list[Any] = []
        self.skipped_waiting: list[Any] = []
        self.lora_config: Any = None
        self.connector: Any = connector or Connector()
        self.finished_req_ids: set[str] = set()
        self.finished_recving_kv_req_ids: set[str] = set()
        self.vllm_config = SimpleNamespace(parallel_config=SimpleNamespace(world_size=world_size))
        self.kv_cache_manager: Any = Manager(usable)

    def add_request(self, request: Any) -> None:
        self.requests[request.request_id] = request

    def park(self, request: Any, blocks: int = 10, *, nulls: int = 0, to_read: Any = None) -> None:
        held = [SimpleNamespace(is_null=number < nulls) for number in range(blocks + nulls)]
        self.kv_cache_manager.held[request.request_id] = (held,)
        self.connector.update_state_after_alloc(request, to_read, blocks)
        request.status = Status.WAITING_FOR_REMOTE_KVS

    def run(self, request: Any) -> None:
        self.connector.update_state_after_alloc(request, NoBlocks(), 0)
        request.status = Status.RUNNING
        self.running.append(request)

    def _update_waiting_for_remote_kv(self, request: Any) -> str:
        self.finished_recving_kv_req_ids.discard(request.request_id)
        request.status = Status.WAITING
        return "resumed"

    def _preempt_request(self, request: Any, timestamp: float) -> None:
        self.running.remove(request)
        request.status = Status.PREEMPTED

    def abort(self, request: Any) -> None:
        self.finish_requests([request.request_id], Status.FINISHED_ABORTED)

    def finish_requests(self, request_ids: Iterable[str], finished_status: Status) -> None:
        for name in set(request_ids):
            request = self.requests.get(name)
            if request is None or request.status.name.startswith("FINISHED"):
                continue
            if request in self.running:
                self.running.remove(request)
            delay = False
            if request.status is Status.WAITING_FOR_REMOTE_KVS:
                delay = name not in self.finished_recving_kv_req_ids
                self.finished_recving_kv_req_ids.discard(name)
            request.status = finished_status
            self._free_request(request, delay_free_blocks=delay)

    def _update_from_kv_xfer_finished(self, kv_connector_output: Output) -> None:
        if self.connector is not None:
            self.connector.update_connector_output(kv_connector_output)
        for name in kv_connector_output.finished_recving or ():
            assert name in self.requests
            request = self.requests[name]
            if request.status is Status.WAITING_FOR_REMOTE_KVS:
                self.finished_recving_kv_req_ids.add(name)
            else:
                assert request.status.name.startswith("FINISHED")
                self._free_blocks(request)

    def has_requests(self) -> bool:
        """As up to 0.21: one that has ended and is held makes no step."""
        unfinished = [one for one in self.requests.values() if not one.status.name.startswith("FINISHED")]
        return bool(self.finished_req_ids or unfinished)

    def step(self) -> Any:
        """schedule(): what has arrived goes on, and the connector's metadata is made."""
        for name in sorted(self.finished_recving_kv_req_ids):
            request = self.requests[name]
            self._update_waiting_for_remote_kv(request)
            self.run(request)
        self.finished_req_ids = set()
        return self.connector.build_connector_meta(None)

    def finish(self, request: Any, *, keep: bool) -> None:
        request.status = Status.FINISHED_STOPPED
        self._free_request(request, connector_keeps=keep)

    def _free_request(
        self, request: Any, delay_free_blocks: bool = False, connector_keeps: bool = False
    ) -> tuple[str, None]:
        if hasattr(self.connector, "request_finished"):
            self.connector.request_finished(request, [])
        self.finished_req_ids.add(request.request_id)
        if not (delay_free_blocks or connector_keeps):
            self._free_blocks(request)
        return "params", None

    def _free_blocks(self, request: Any) -> None:
        self.kv_cache_manager.held.pop(request.request_id, None)
        del self.requests[request.request_id]


class Core:
    """EngineCoreProc, and the executor's count of reports (KVOutputAggregator)."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.errors_to: list[tuple[list[str], int]] = []
        aggregator = SimpleNamespace(_recv_remaining_count={})
        self.model_executor = SimpleNamespace(kv_output_aggregator=aggregator)

    def _send_error_outputs_to_client(self, req_ids: list[str], client_index: int) -> None:
        self.errors_to.append((req_ids, client_index))
