"""The life of requests that are released, through a version's own NIXL connector: the scheduler's side and a
worker's side per rank, with the kit's releaser and ranks on them, alone or within the version's own
MultiConnector. Around them is the picture of a scheduler (picture.py), which has vLLM's assertions.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import pickle
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from stanch_connector import compat, connector
from stanch_connector.engine import rank
from stanch_connector.engine.guard import Guard
from stanch_connector.engine.kit import Kit, answer
from tests.connector.conformance.life import (
    PEER,
    Life,
    _agents,
    furnish_scheduler,
    furnish_worker,
)
from tests.connector.conformance.stubs import BASE, imported
from tests.connector.picture import Core, Output, Scheduler, request
from tests.connector.picture_ranks import OURS, Results

OUTPUTS = "vllm.v1.outputs"


class TransferResults(Results):
    """KVConnectorTransferResults, as the version's worker makes it."""

    def __init__(
        self, finished_sending: Any = None, finished_recving: Any = None, failed_recving: Any = None
    ) -> None:
        super().__init__(finished_recving or set())
        self.finished_sending, self.failed_recving = finished_sending or set(), failed_recving or set()


@contextmanager
def installed(nixl: Any, version: str) -> Iterator[compat.Nixl]:
    """The version's own NIXL, with what a release needs of the modules around it."""
    sys.modules.pop(OURS, None)
    with imported(nixl, version):
        for name, key, value in (
            (BASE, "KVConnectorTransferResults", TransferResults),
            (OUTPUTS, "KVConnectorOutput", Output),
        ):
            setattr(importlib.import_module(name), key, value)
        try:
            yield compat.load()
        finally:
            sys.modules.pop(OURS, None)


def _furnished(groups: int, minor: int) -> Any:
    """From 0.30 on a worker has more."""
    furnish = furnish_worker(groups, failed_is_set=minor < 22)

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        furnish(self, *args, **kwargs)
        if minor >= 30:
            several = list(range(groups))
            self.__dict__.update(
                _recv_failures=set(), _replicated_pcp_done_sending=set(), _pending_recv_notifs={},
                pcp_dcp_sharded=False, region_group_ids=several, num_regions=1, draft_tp_mappings={},
                dst_region_group_ids=defaultdict(lambda: several), dst_region_num_blocks={},
                dst_uses_region_group_mapping=defaultdict(bool), _uses_region_group_mapping=False,
                _mixed_mem_types=False, _remote_registration_generations={}, _invalid_remote_engines=set(),
                _failed_remote_engines=set(), _invalid_engine_backoff={}, _TRANSFER_MODE="pull",
                _engine_by_address={("h", 1): PEER}, _cleanup_remote_engines=lambda: None,
                _sync_device_after_direct_recv=lambda names: None,
                _send_pending_recv_notifs=lambda name: None, _reap_expired_send_leases=lambda done: None,
            )  # fmt: skip

    return init


def whole(cls: Any) -> Any:
    """The connector class with what it has of vLLM's base class."""

    class Whole(cls):  # type: ignore[misc]
        def build_connector_worker_meta(self) -> Any:
            return None

    if not hasattr(cls, "update_connector_output"):
        Whole.update_connector_output = lambda self, output: None
    return Whole


class Other:
    """Another connector of a MultiConnector, which loads what it is told to; both of its sides."""

    def __init__(self) -> None:
        self.loading: set[str] = set()
        self.sends: Any = None

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        if num_external_tokens > 0:
            self.loading.add(request.request_id)

    def build_connector_meta(self, scheduler_output: Any) -> Any:
        return None

    def update_connector_output(self, output: Any) -> None:
        """Nothing to do."""

    def request_finished(self, request: Any, block_ids: Any) -> tuple[bool, None]:
        return False, None

    def bind_connector_metadata(self, metadata: Any) -> None:
        """Nothing to do."""

    def start_load_kv(self, forward_context: Any) -> None:
        """It never ends."""

    def get_finished(self, finished_req_ids: set[str]) -> tuple[None, None]:
        return None, None

    def get_transfer_results(self, finished_req_ids: set[str]) -> Results:
        return Results(set())

    def build_connector_worker_meta(self) -> Any:
        return self.sends


def multi_class(root: Path) -> Any:
    """The version's own MultiConnector. root: the directory that has `vllm/`."""
    name = "vllm.distributed.kv_transfer.kv_connector.v1.multi_connector"
    spec = importlib.util.spec_from_file_location(name, root / f"{name.replace('.', '/')}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module.MultiConnector


def multi(cls: Any, connectors: list[Any]) -> Any:
    """One around these."""
    made = cls.__new__(cls)
    made.__dict__.update(
        _connectors=connectors,
        _requests_to_connector={},
        _extra_async_saves={},
        _connector_metadata=None,
    )
    return made


class Engine:
    """Ranks with one scheduler. fixed: with our connector, which has the fix where the version needs it.
    within: a directory of the version's sources, where another connector and NIXL's go into a
    MultiConnector."""

    def __init__(
        self,
        nixl: compat.Nixl,
        groups: int = 1,
        ranks: int = 1,
        *,
        fixed: bool = False,
        within: Path | None = None,
    ) -> None:
        nixl.scheduler.__init__ = furnish_scheduler(groups)
        nixl.worker.__init__ = _furnished(groups, int(nixl.version.split(".")[1]))
        cls = whole(connector.build(nixl) if fixed else nixl.connector)
        self.groups = groups
        self.lives = [Life(cls, groups) for _ in range(ranks)]
        self.connectors = [life.worker for life in self.lives]
        for number, one in enumerate(self.connectors):
            one._vllm_config.parallel_config.rank = number
        self.guard, self.ranks_guard = Guard(), Guard()
        assert rank.attach(self.connectors, self.ranks_guard) == ranks
        outer, self.other, self.others = self.lives[0].scheduler, Other(), [Other() for _ in range(ranks)]
        if within is not None:
            around = multi_class(within)
            outer = multi(around, [self.other, outer])
            self.connectors = [
                multi(around, list(pair)) for pair in zip(self.others, self.connectors, strict=True)
            ]
        self.scheduler = Scheduler(connector=outer, world_size=ranks)
        self.core, self.now = Core(self.scheduler), 100.0
        self.kit = Kit(self.scheduler, self.guard, lambda: self.now)
        self.scheduler._stanch_kit = self.kit  # type: ignore[attr-defined]
        self.lost: list[set[str]] = [set() for _ in range(ranks)]

    @property
    def workers(self) -> list[Any]:
        return [life.worker.connector_worker for life in self.lives]

    @property
    def requests(self) -> dict[str, Any]:
        return self.scheduler.requests

    def add(self, name: str = "a") -> Any:
        """A request that waits to be scheduled."""
        params = {
            "do_remote_prefill": True, "remote_block_ids": [[1, 2] for _ in range(self.groups)],
            "remote_engine_id": PEER, "remote_request_id": f"far-{name}", "remote_host": "h",
            "remote_port": 1, "tp_size": 1,
        }  # fmt: skip
        one = request(name, kv_transfer_params=params)
        self.scheduler.add_request(one)
        return one

    def park(self, name: str = "a", blocks: bool = False, tokens: int = 64, by: int = 1) -> Any:
        """by: which connector of a MultiConnector loads it."""
        unhashed = tuple([3, 4] if blocks else [] for _ in range(self.groups))
        if self.form == "()" and not blocks:
            unhashed = ()
        held = SimpleNamespace(
            get_unhashed_block_ids_all_groups=lambda: unhashed,
            blocks=tuple([] for _ in range(self.groups)),
        )
        held.new_empty = lambda: held
        one = self.add(name)
        if hasattr(self.scheduler.connector, "_requests_to_connector"):
            self.scheduler.connector._requests_to_connector[name] = by
        self.scheduler.park(one, tokens, to_read=held)
        return one

    # What an empty list looks like: `([],)` is read with an assertion by stock code before 0.29.
    form = "([],)"

    def step(self, steps: int = 4) -> None:
        for _ in range(steps):
            self.now += 1
            self._step()

    def _step(self) -> None:
        metadata = pickle.dumps(self.scheduler.step())
        counts = self.core.model_executor.kv_output_aggregator._recv_remaining_count
        told, finished = None, set()
        for number, one in enumerate(self.connectors):
            one.bind_connector_metadata(pickle.loads(metadata))
            one.start_load_kv(None)
            for name in self._reported(one) - self.lost[number]:
                counts[name] = counts.get(name, len(self.connectors)) - 1
                if counts[name] == 0:
                    finished.add(name)
                    del counts[name]
            own = pickle.loads(pickle.dumps(one.build_connector_worker_meta()))
            told = own if told is None else told if own is None else told.aggregate(own)
        self.output(finished, told)

    def output(self, finished: set[str], told: Any = None) -> None:
        self.scheduler._update_from_kv_xfer_finished(
            Output(finished_recving=finished or None, kv_connector_worker_meta=told)
        )

    @staticmethod
    def _reported(one: Any) -> set[str]:
        """As the version's model runner asks."""
        if hasattr(one, "get_transfer_results"):
            return set(one.get_transfer_results(set()).finished_recving or ())
        return set(one.get_finished(set())[1] or ())

    def shake_hands(self, error: Exception | None = None) -> None:
        """All pending handshakes end."""
        for worker in self.workers:
            pending = worker._handshake_initiation_executor.pending
            for handshake in pending:
                if error is not None:
                    handshake.set_exception(error)
                else:
                    handshake.set_result(_agents(worker))
            pending.clear()

    def forget_the_peer(self) -> None:
        for worker in self.workers:
            worker._remote_agents.clear()

    def reads_last(self, polls: int) -> None:
        for worker in self.workers:
            worker.nixl_wrapper.polls_until_done = polls

    def release(self, *ids: str, **args: Any) -> Any:
        body = json.dumps({"ids": list(ids) or None, **args})
        return json.loads(answer(self.core, "release", self.guard, body))

    def errors(self) -> dict[str, int]:
        return {**self.guard.errors, **self.ranks_guard.errors}
