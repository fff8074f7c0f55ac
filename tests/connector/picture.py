"""A picture of vLLM's scheduler, as far as the list and its hooks touch it (0.29.0). Small on purpose:
what vLLM really does is for tests/engine."""

from __future__ import annotations

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


def request(request_id: str, status: Status = Status.WAITING, **more: Any) -> Any:
    return SimpleNamespace(
        request_id=request_id, status=status, **{"kv_transfer_params": None, "lora_request": None, **more}
    )


class Connector:
    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> str:
        return f"allocated {num_external_tokens}"


class Manager:
    def __init__(self, usable: int) -> None:
        self.block_pool = SimpleNamespace(num_gpu_blocks=usable + 1)
        self.held: dict[str, tuple[list[Any], ...]] = {}

    def get_blocks(self, request_id: str) -> Any:
        return SimpleNamespace(blocks=self.held.get(request_id, ()))


class Scheduler:
    """Each method moves a request as vLLM's does, and returns something to be handed through."""

    def __init__(self, usable: int = 100) -> None:
        self.requests: dict[str, Any] = {}
        self.running: list[Any] = []
        self.skipped_waiting: list[Any] = []
        self.lora_config: Any = None
        self.connector: Any = Connector()
        self.kv_cache_manager: Any = Manager(usable)

    def add_request(self, request: Any) -> None:
        self.requests[request.request_id] = request

    def park(self, request: Any, blocks: int = 10, *, nulls: int = 0) -> None:
        held = [SimpleNamespace(is_null=number < nulls) for number in range(blocks + nulls)]
        self.kv_cache_manager.held[request.request_id] = (held,)
        self.connector.update_state_after_alloc(request, None, blocks)
        request.status = Status.WAITING_FOR_REMOTE_KVS

    def run(self, request: Any) -> None:
        self.connector.update_state_after_alloc(request, None, 0)
        request.status = Status.RUNNING
        self.running.append(request)

    def _update_waiting_for_remote_kv(self, request: Any) -> str:
        request.status = Status.WAITING
        return "resumed"

    def _preempt_request(self, request: Any, timestamp: float) -> None:
        self.running.remove(request)
        request.status = Status.PREEMPTED

    def abort(self, request: Any) -> None:
        parked = request.status is Status.WAITING_FOR_REMOTE_KVS
        request.status = Status.FINISHED_ABORTED
        self._free_request(request, delay_free_blocks=parked)

    def finish(self, request: Any, *, keep: bool) -> None:
        request.status = Status.FINISHED_STOPPED
        self._free_request(request, connector_keeps=keep)

    def _free_request(
        self, request: Any, delay_free_blocks: bool = False, connector_keeps: bool = False
    ) -> tuple[str, None]:
        if not (delay_free_blocks or connector_keeps):
            self._free_blocks(request)
        return "params", None

    def _free_blocks(self, request: Any) -> None:
        self.kv_cache_manager.held.pop(request.request_id, None)
        del self.requests[request.request_id]
