"""A picture of the workers' side of an engine: ranks with a NIXL connector each, the executor that gathers
their outputs, and steps in flight. What the ranks really write into is known here, so that a test can say
whether a release let go of something that was still written to.

Two forms: up to 0.31 start_load_kv begins the handshake; from 0.32 on _read_blocks_for_req does (read in
nixl/pull_worker.py).
"""

from __future__ import annotations

import pickle
import sys
from collections import defaultdict, deque
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any

from stanch_connector.engine import rank
from stanch_connector.engine.guard import Guard
from stanch_connector.nixl_fix import has_blocks
from tests.connector.picture import Core, NixlPullConnector, Output, ReqMeta, Scheduler

BASE = "vllm.distributed.kv_transfer.kv_connector.v1.base"
OURS = "stanch_connector.engine.rank_meta"


class WorkerMetadata:
    """Stands for KVConnectorWorkerMetadata."""


@contextmanager
def vllm_modules() -> Iterator[None]:
    """The two modules of vLLM that a release imports; gone afterwards."""
    outputs, base = ModuleType("vllm.v1.outputs"), ModuleType(BASE)
    outputs.KVConnectorOutput = Output  # type: ignore[attr-defined]
    base.KVConnectorWorkerMetadata = WorkerMetadata  # type: ignore[attr-defined]
    parents = [BASE.rsplit(".", count)[0] for count in range(1, 6)]
    made = {name: ModuleType(name) for name in ("vllm", "vllm.v1", *parents)}
    made |= {"vllm.v1.outputs": outputs, BASE: base}
    before = {name: sys.modules.pop(name, None) for name in (*made, OURS)}
    sys.modules.update(made)
    try:
        yield
    finally:
        for name in (*made, OURS):
            sys.modules.pop(name, None)
        sys.modules.update({name: module for name, module in before.items() if module is not None})


class Worker:
    """One rank's worker. agents: peers that it knows. writing: what it reads right now. endless: requests
    whose reads do not end. unset: requests whose reads cannot be set up."""

    def __init__(self, own_handshake: bool) -> None:
        self._own_handshake = own_handshake
        self._recving_metadata: dict[str, ReqMeta] = {}
        self._recving_transfers: defaultdict[str, list[int]] = defaultdict(list)
        self._failed_recv_reqs: set[str] = set()
        self._ready: list[tuple[str, ReqMeta]] = []
        self.agents = {"prefill-1"}
        self.shaking: list[tuple[str, ReqMeta]] = []
        self.writing: set[str] = set()
        self.wrote: list[str] = []
        self.notified: list[str] = []
        self.endless: set[str] = set()
        self.unset: set[str] = set()

    def start_load_kv(self, metadata: Any) -> None:
        for name, meta in metadata.reqs_to_recv.items():
            self._recving_metadata[name] = meta
            if not self._own_handshake and meta.remote.engine_id not in self.agents:
                self.shaking.append((name, meta))
                continue
            self._read_blocks_for_req(name, meta)
        ready, self._ready = self._ready, []
        for name, meta in ready:
            self._read_blocks_for_req(name, meta)

    def _read_blocks_for_req(self, req_id: str, meta: ReqMeta) -> None:
        if meta.remote.engine_id not in self.agents:
            self.shaking.append((req_id, meta))
            return
        if has_blocks(meta.local_block_ids):
            self._recving_transfers.setdefault(req_id, [])
        self._read_blocks(request_id=req_id, meta=meta)

    def _read_blocks(self, request_id: str, meta: ReqMeta) -> None:
        if not has_blocks(meta.local_block_ids):
            self.notified.append(request_id)
        elif request_id in self.unset:
            self._handle_failed_transfer(request_id, None)
        else:
            self._recving_transfers[request_id].append(1)
            self.writing.add(request_id)
            self.wrote.append(request_id)

    def _handle_failed_transfer(self, req_id: str, handle: int | None) -> None:
        self._failed_recv_reqs.add(req_id)

    def shake_hands(self, well: bool = True) -> None:
        """All pending handshakes end."""
        pending, self.shaking = self.shaking, []
        for name, meta in pending:
            if well:
                self.agents.add(meta.remote.engine_id)
                self._ready.append((name, meta))
            else:
                self._handle_failed_transfer(name, None)

    def get_finished(self) -> tuple[set[str], set[str]]:
        done = {name for name in self._recving_transfers if name not in self.endless}
        for name in done:
            self.writing.discard(name)
            del self._recving_transfers[name]
        done |= self._failed_recv_reqs
        self._failed_recv_reqs = set()
        for name in done:
            assert self._recving_metadata.pop(name, None) is not None
        return set(), done


class Results:
    """KVConnectorTransferResults, of 0.30 and later."""

    def __init__(self, finished_recving: set[str]) -> None:
        self.finished_sending: set[str] = set()
        self.finished_recving = finished_recving
        self.failed_recving: set[str] = set()


class LaterWorker(Worker):
    """From 0.30 on: nobody calls get_finished."""

    def get_transfer_results(self) -> Results:
        return Results(super().get_finished()[1])

    def get_finished(self) -> Any:
        raise AssertionError("0.30 and later do not call it")


class RankConnector:
    """The worker's half of the connector. lost: requests whose report this rank loses, the fault; late: those
    that it holds back until they are no longer in here."""

    def __init__(self, number: int, own_handshake: bool, later: bool) -> None:
        self.connector_worker: Any = (LaterWorker if later else Worker)(own_handshake)
        self._vllm_config = SimpleNamespace(parallel_config=SimpleNamespace(rank=number))
        self._connector_metadata: Any = None
        self.lost: set[str] = set()
        self.late: set[str] = set()
        self._held_back: set[str] = set()

    def start_load_kv(self, forward_context: Any) -> None:
        self.connector_worker.start_load_kv(self._connector_metadata)

    def get_finished(self) -> set[str]:
        worker = self.connector_worker
        later = isinstance(worker, LaterWorker)
        received = worker.get_transfer_results().finished_recving if later else worker.get_finished()[1]
        self._held_back |= received & self.late
        told = (received - self.lost - self.late) | (self._held_back - self.late)
        self._held_back &= self.late
        return set(told)

    def build_connector_worker_meta(self) -> Any:
        return None


class Engine:
    """A scheduler, its ranks, and up to `depth` steps between a schedule and its output (1 is without async
    scheduling). Metadata and answers pass as pickles."""

    def __init__(
        self,
        ranks: int = 1,
        *,
        depth: int = 1,
        own_handshake: bool = False,
        later: bool = False,
        plugged: bool = True,
    ) -> None:
        self.scheduler = Scheduler(connector=NixlPullConnector(), world_size=ranks)
        self.core = Core(self.scheduler)
        self.guard = Guard()
        self.connectors = [RankConnector(number, own_handshake, later) for number in range(ranks)]
        if plugged:
            assert rank.attach(self.connectors, self.guard) == ranks
        self._depth = depth
        self._scheduled: deque[bytes] = deque()

    @property
    def workers(self) -> list[Worker]:
        return [one.connector_worker for one in self.connectors]

    def step(self) -> None:
        """One turn of the engine's loop: a step is scheduled; the oldest one runs when `depth` are under
        way."""
        self._scheduled.append(pickle.dumps(self.scheduler.step()))
        if len(self._scheduled) >= self._depth:
            self._finish_one()

    def in_flight(self) -> list[Any]:
        """The metadata of steps that were scheduled and have not run."""
        return [pickle.loads(one) for one in self._scheduled]

    def settle(self, steps: int = 4) -> None:
        for _ in range(steps):
            self.step()

    def _finish_one(self) -> None:
        metadata = self._scheduled.popleft()
        told: Any = None
        finished: set[str] = set()
        counts = self.core.model_executor.kv_output_aggregator._recv_remaining_count
        for connector in self.connectors:
            connector._connector_metadata = pickle.loads(metadata)
            connector.start_load_kv(None)
            for name in connector.get_finished():
                counts[name] = counts.get(name, len(self.connectors)) - 1
                if counts[name] == 0:
                    finished.add(name)
                    del counts[name]
            own = pickle.loads(pickle.dumps(connector.build_connector_worker_meta()))
            told = own if told is None else told.aggregate(own) if own is not None else told
        output = Output(finished_recving=finished or None, kv_connector_worker_meta=told)
        self.scheduler._update_from_kv_xfer_finished(output)
