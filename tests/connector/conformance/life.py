"""The life of one request through a version's own NIXL connector, scheduler side and worker side.

The constructors of both sides are replaced by ones that set what the driven methods use; everything between
the scheduler's allocation and the worker's report is the version's own code. The metadata is pickled on its
way, as it is between processes.
"""

from __future__ import annotations

import pickle
import queue
import threading
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import Future
from enum import Enum
from types import SimpleNamespace
from typing import Any

from tests.connector.conformance.stubs import ROLES, Anything

PEER = "prefill-1"
NUMBER_OF_BLOCKS = 100


class Receive(Enum):
    """Why the decode engine turns to the prefill engine."""

    PARKED_EMPTY = "parked, nothing to read"
    PARKED_BLOCKS = "parked, blocks to read"
    FULL_HIT = "not parked, full local hit"
    CLEAN_UP = "aborted before it was scheduled"


class Wire(Enum):
    """What becomes of the way to the prefill engine."""

    SENT = "known peer, all well"
    NOTIFICATION_FAILS = "known peer, notification fails"
    HANDSHAKE_LATER = "new peer, handshake completes later"
    HANDSHAKE_FAILS = "new peer, handshake fails"
    PEER_REPLACED = "known peer, forgotten, new handshake, notification fails"


class Nixl:
    """The NIXL agent: notifications and transfers, each of which may be told to fail."""

    def __init__(self) -> None:
        self.notified: list[bytes] = []
        self.notification_error: Exception | None = None
        self.setup_error: Exception | None = None
        self.polls_until_done = 2
        self._handles = 0

    def send_notif(self, agent: str, notif_msg: bytes) -> None:
        if self.notification_error is not None:
            raise self.notification_error
        self.notified.append(notif_msg)

    def make_prepped_xfer(self, *args: Any, **kwargs: Any) -> int:
        if self.setup_error is not None:
            raise self.setup_error
        self._handles += 1
        return self._handles

    def check_xfer_state(self, handle: int) -> str:
        self.polls_until_done -= 1
        return "DONE" if self.polls_until_done < 0 else "PROC"

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *args, **kwargs: None

    def get_new_notifs(self) -> dict[str, list[bytes]]:
        return {}


class Executor:
    """Runs nothing: the test ends the handshake when it wants."""

    def __init__(self) -> None:
        self.pending: list[Future[Any]] = []

    def submit(self, *args: Any, **kwargs: Any) -> Future[Any]:
        self.pending.append(Future())
        return self.pending[-1]


def furnish_scheduler(groups: int) -> Callable[..., None]:
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        self.__dict__.update(
            _reqs_need_recv={}, _reqs_need_save={}, _reqs_need_send={}, _reqs_in_batch=set(),
            _reqs_not_processed=set(), _heartbeat_by_engine={}, _heartbeat_req_engine={},
            _last_heartbeat_time=0.0, use_host_buffer=False, is_bidirectional_kv_xfer_enabled=False,
            _is_hma_required=groups > 1, blocks_per_sw=[0] * groups, _ssm_spec_blocks=[None] * groups,
            _has_mamba=False, kv_recompute_threshold=0, engine_id="decode-1",
            kv_cache_config=SimpleNamespace(select_transfer_block_ids=lambda ids: ids),
        )  # fmt: skip

    return init


def furnish_worker(groups: int, failed_is_set: bool) -> Callable[..., None]:
    remote = SimpleNamespace(
        remote_tp_size=1, remote_block_size=32, remote_physical_blocks_per_logical=1, remote_dcp_size=1
    )
    topology = SimpleNamespace(
        get_engine_info=lambda engine: remote, block_size_ratio=lambda size: 1, tp_ratio=lambda size: 1,
        target_remote_ranks=lambda engine: [0], filter_block_ids_for_rank=lambda e, r, a, b, m: (a, b),
    )  # fmt: skip
    plan = SimpleNamespace(all_source_ranks=(0,), source_ranks_per_group=[(0,)] * groups, local_consumers=1)
    spec = SimpleNamespace(kv_cache_spec=None)

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        config = SimpleNamespace(kv_cache_groups=[spec] * groups, transfer_groups=[spec] * groups)
        self.__dict__.update(
            _recving_metadata={}, _recving_transfers=defaultdict(list), _invalid_block_ids=_Invalid(),
            _failed_recv_reqs=set() if failed_is_set else queue.Queue(), _ready_requests=queue.Queue(),
            _remote_agents={PEER: {0: "agent", (0, 0): "agent"}}, _handshake_lock=threading.RLock(),
            _handshake_futures={}, _handshake_initiation_executor=Executor(), nixl_wrapper=Nixl(),
            xfer_stats=Anything(), transfer_topo=topology, tp_mappings=defaultdict(lambda: plan),
            _reqs_to_send={}, _reqs_to_process=set(), use_mla=False, use_host_buffer=False,
            enable_permute_local_kv=False, enable_heterogeneous_attn_post_process=False, _has_mamba=False,
            _is_mamba_group=[False] * groups, _is_hma_required=groups > 1, world_size=1, tp_rank=0,
            pcp_rank=0, dcp_size=1, dcp_rank=0, engine_id="decode-1", block_size=32,
            src_xfer_handles_by_block_size={32: 1}, dst_xfer_side_handles=defaultdict(lambda: {0: 1}),
            _physical_blocks_per_logical_kv_block=1, _physical_blocks_per_logical=defaultdict(lambda: 1),
            consumer_notification_counts_by_req=defaultdict(int), kv_cache_config=config,
            expected_consumer_notifications_by_req={}, _engine_last_active={}, _engine_clock_offset={},
            _bidirectional_kv_xfer_enabled=False, _group_spec_types=[object] * groups,
            dst_num_blocks=defaultdict(lambda: NUMBER_OF_BLOCKS), _engine_ttl=1e9, _remote_engine_ttl=1e9,
            # What turns block numbers into memory; both sides have as many.
            _get_block_descs_ids=lambda engine, ids, **more: _flat(ids),
            _compute_desc_ids=lambda block_ids, **more: _flat(block_ids),
            _evict_stale_engines=lambda: None, shutdown=lambda: None, _send_heartbeats=lambda metadata: None,
        )  # fmt: skip

    return init


def _flat(groups: Any) -> list[int]:
    return [one for group in groups for one in group]


class _Invalid(set[int]):
    """_invalid_block_ids: a set up to 0.21, a queue of sets after."""

    def put(self, ids: set[int]) -> None:
        self.update(ids)


class Life:
    """A decode engine's connector of one class, and a request in it."""

    def __init__(self, connector_class: Any, groups: int, mode: str | None = None) -> None:
        extra = {} if mode is None else {"stanch_connector_patch": mode}
        transfer = SimpleNamespace(
            engine_id="decode-1",
            kv_role="kv_consumer",
            kv_connector_extra_config=extra,
            get_from_extra_config=lambda key, default: extra.get(key, default),
        )
        parallel = SimpleNamespace(prefill_context_parallel_size=1, decode_context_parallel_size=1)
        config = SimpleNamespace(kv_transfer_config=transfer, parallel_config=parallel)
        self.groups = groups
        self.scheduler = connector_class(config, ROLES.SCHEDULER, None)
        self.worker = connector_class(config, ROLES.WORKER, None)
        self.nixl: Nixl = self.worker.connector_worker.nixl_wrapper
        self.reports: list[str] = []

    def step(self) -> None:
        """One engine step: metadata, start, report."""
        metadata = pickle.loads(pickle.dumps(self.scheduler.build_connector_meta(None)))
        self.worker.bind_connector_metadata(metadata)
        self.worker.start_load_kv(None)
        _, received = self.worker.get_finished(set())
        self.reports += sorted(received)

    def arrive(self, receive: Receive, req_id: str = "cmpl-1") -> None:
        """What the scheduler does with the request before the step."""
        params = {
            "do_remote_prefill": True, "remote_block_ids": [[1, 2] for _ in range(self.groups)],
            "remote_engine_id": PEER, "remote_request_id": "far-1", "remote_host": "h", "remote_port": 1,
            "tp_size": 1,
        }  # fmt: skip
        request = SimpleNamespace(request_id=req_id, kv_transfer_params=params, status=None)
        if receive is Receive.CLEAN_UP:
            self.scheduler.request_finished(request, [])
            return
        unhashed = tuple([3, 4] if receive is Receive.PARKED_BLOCKS else [] for _ in range(self.groups))
        blocks = SimpleNamespace(
            get_unhashed_block_ids_all_groups=lambda: unhashed, blocks=tuple([] for _ in range(self.groups))
        )
        tokens = 0 if receive is Receive.FULL_HIT else 64
        self.scheduler.update_state_after_alloc(request, blocks, tokens)

    def run(self, receive: Receive, wire: Wire, steps: int = 4) -> list[str]:
        """The whole life; returns the reports."""
        worker = self.worker.connector_worker
        if wire in (Wire.HANDSHAKE_LATER, Wire.HANDSHAKE_FAILS, Wire.PEER_REPLACED):
            worker._remote_agents.clear()
        if wire in (Wire.NOTIFICATION_FAILS, Wire.PEER_REPLACED):
            self.nixl.notification_error = RuntimeError("NIXL_ERR_REMOTE_DISCONNECT")
        self.arrive(receive)
        self.step()
        self.step()
        for handshake in worker._handshake_initiation_executor.pending:
            if wire is Wire.HANDSHAKE_FAILS:
                handshake.set_exception(ConnectionError("refused"))
            else:
                handshake.set_result(_agents(worker))
        for _ in range(steps):
            self.step()
        return self.reports


def _agents(worker: Any) -> Any:
    """What a handshake returns: from 0.26 with the offset of the peer's clock."""
    agents = {0: "agent", (0, 0): "agent"}
    return (agents, 0.0) if hasattr(worker, "_is_turn2_read_expired") else agents
