"""One rank's side of a release, in the worker's process: says how far each receive is, when asked.

    connector.start_load_kv           drops the start of a released request (before)
    worker._read_blocks               one of its reads, or its notification, is posted (before)
    worker._read_blocks_for_req       all of them are (after), if any was: from 0.32 on this one only begins a
                                      handshake where there was none
    worker._handle_failed_transfer    something of it failed (before)
    worker.get_transfer_results       its receive is reported (get_finished up to 0.29): what failed is seen
                                      before, and a late report of a released one dropped after
    connector.build_connector_worker_meta   the answer, with the output of the step that brought the ask

Nothing is sent unless the scheduler's side asked, or a count changed; nothing at all before its first
directive, for without the kit there it could not read what comes. The directive is an attribute of the
connector's metadata, which passes between processes whole. Names looked up in the NIXL pull connector of vLLM
0.20 to 0.33; a connector without one of them gets no adapter.
"""

from __future__ import annotations

import functools
import os
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, Final

from stanch_connector.engine.guard import Guard
from stanch_connector.nixl_fix import has_blocks
from stanch_connector.release import RankState, Tombstones

# Attribute of the metadata: {"number": n, "ask": [ids], "gone": [ids], "back": [ids]}.
DIRECTIVE: Final = "stanch_directive"
ATTRIBUTE: Final = "_stanch_rank"
# Reports remembered, so that a rank that is done can say so while another is not.
REPORTS: Final = 16_384

WORKER_METHODS: Final = ("_read_blocks_for_req", "_read_blocks", "_handle_failed_transfer", "get_finished")
WORKER_ATTRIBUTES: Final = ("_recving_metadata", "_recving_transfers", "_failed_recv_reqs")
CONNECTOR_METHODS: Final = ("start_load_kv", "build_connector_worker_meta")


class Rank:
    """Belongs to one NIXL pull connector in a worker. Its methods run in the worker's thread, but for
    `failed`, which a handshake's thread may call."""

    def __init__(self, connector: Any, number: int, guard: Guard) -> None:
        self.number = number
        self._connector = connector
        self._worker = connector.connector_worker
        self._guard = guard
        # Whether a read or a notification was posted since the last _read_blocks_for_req.
        self.any_posted = False
        self._posted: set[str] = set()
        self._failed: dict[str, None] = {}
        self._reported: dict[str, RankState] = {}
        self._gone = Tombstones()
        self._met = False
        # The directive that came with this step, until it is answered.
        self.asked: dict[str, Any] | None = None
        # The last `count` that was told.
        self.counted = 0
        # The fixed connector's, where it is that one.
        self._fix = getattr(self._worker, "stanch", None)
        own_guard = getattr(connector, "stanch_guard", guard)
        self._own_guard: Guard | None = None if own_guard is guard else own_guard
        self._prune_at = REPORTS

    def posted(self, request_id: str, *_: Any) -> None:
        """After _read_blocks_for_req."""
        posted, self.any_posted = self.any_posted, False
        if not posted:
            return
        self._posted.add(request_id)
        if len(self._posted) > self._prune_at:
            # Receives that only notify are never reported.
            self._posted &= self._worker._recving_metadata.keys()
            self._prune_at = REPORTS + 2 * len(self._posted)

    def failed(self, request_id: str, *_: Any, **__: Any) -> None:
        _remember(self._failed, request_id, None)

    def reporting(self) -> None:
        """Before get_finished. Up to 0.21 what could not be set up is only in this set."""
        failed = self._worker._failed_recv_reqs
        if isinstance(failed, set):
            for one in tuple(failed):
                self.failed(one)

    def directed(self, metadata: Any) -> None:
        """Before start_load_kv: what the scheduler's side says with this step."""
        directive = getattr(metadata, DIRECTIVE, None)
        if directive is not None:
            self._gone.add(directive["gone"])
            self._gone.forget(directive["back"])
            self.asked, self._met = directive, True
        for one in list(self._gone.among(metadata.reqs_to_recv)) if self._gone else ():
            del metadata.reqs_to_recv[one]
        for one in metadata.reqs_to_recv:
            self._reported.pop(one, None)
            self._failed.pop(one, None)

    def reported(self, received: set[str]) -> None:
        """After get_transfer_results, with its set of received requests, which may be changed."""
        for one in received:
            whole = one in self._posted and one not in self._failed
            _remember(self._reported, one, RankState.DONE if whole else RankState.FAILED)
            self._posted.discard(one)
        if self._gone:
            received.difference_update(list(self._gone.among(received)))

    def state(self, request_id: str) -> RankState:
        if request_id in self._failed:
            return RankState.FAILED
        # Entered while a read is under way, and taken out with the report.
        if request_id in self._worker._recving_transfers:
            return RankState.READING
        if request_id in self._reported:
            return self._reported[request_id]
        meta = self._worker._recving_metadata.get(request_id)
        if meta is None:
            return RankState.UNKNOWN
        if request_id not in self._posted:
            return RankState.HANDSHAKE
        return RankState.DONE if has_blocks(meta.local_block_ids) else RankState.EMPTY

    def count(self) -> int:
        """Grows with every hit of the fix and every exception caught here."""
        total = self._guard.total
        if self._own_guard is not None:
            total += self._own_guard.total
        return total if self._fix is None else total + int(self._fix.hits)

    def told(self) -> dict[str, Any] | None:
        """The answer to the last ask, or new counts; None where there is nothing to say."""
        asked, self.asked = self.asked, None
        if asked is None and not self._met:
            return None
        self.counted = self.count()
        errors = Counter(self._guard.errors)
        if self._own_guard is not None:
            errors.update(self._own_guard.errors)
        number, ids = (asked["number"], asked["ask"]) if asked is not None else (0, ())
        return {
            "number": number,
            "states": {one: self.state(one).value for one in ids},
            "hits": 0 if self._fix is None else self._fix.hits,
            "errors": dict(errors),
            "pid": os.getpid(),
        }


def _remember(memory: dict[str, Any], request_id: str, what: Any) -> None:
    memory[request_id] = what
    if len(memory) > REPORTS:
        del memory[next(iter(memory))]


def attach(parts: Iterable[Any], guard: Guard) -> int:
    """Give each NIXL pull connector among the parts of a worker's connector its Rank; how many got one.

    All hooks of a part are put on, or none. Raises ImportError where vLLM has no such metadata.
    """
    from stanch_connector.engine.rank_meta import RankMeta

    fitting = [one for one in parts if _fits(one)]
    for connector in fitting:
        if hasattr(connector, ATTRIBUTE):
            continue
        rank = Rank(connector, _rank_of(connector), guard)
        _put_on(connector, rank, guard, RankMeta)
        setattr(connector, ATTRIBUTE, rank)
    return len(fitting)


def _fits(connector: Any) -> bool:
    worker = getattr(connector, "connector_worker", None)
    return (
        worker is not None
        and all(callable(getattr(worker, one, None)) for one in WORKER_METHODS)
        and all(hasattr(worker, one) for one in WORKER_ATTRIBUTES)
        and all(callable(getattr(connector, one, None)) for one in CONNECTOR_METHODS)
    )


def _rank_of(connector: Any) -> int:
    """Within the engine: WorkerBase sets it before the connector is made (v1/worker/worker_base.py)."""
    return int(connector._vllm_config.parallel_config.rank)


def _put_on(connector: Any, rank: Rank, guard: Guard, meta_class: Any) -> None:
    worker = connector.connector_worker
    results = "get_transfer_results" if hasattr(worker, "get_transfer_results") else "get_finished"
    start, answer = connector.start_load_kv, connector.build_connector_worker_meta
    read, post = worker._read_blocks_for_req, worker._read_blocks
    fail, report = worker._handle_failed_transfer, getattr(worker, results)

    # Three of these run with every step, and in nearly every step have nothing to do: they look before they
    # call anything.

    @functools.wraps(start)
    def start_load_kv(*args: Any, **kwargs: Any) -> Any:
        try:
            metadata = connector._connector_metadata
            if metadata.reqs_to_recv or hasattr(metadata, DIRECTIVE):
                rank.directed(metadata)
                guard.worked("rank.directed")
        except Exception as error:
            guard.failed("rank.directed", error)
        return start(*args, **kwargs)

    @functools.wraps(answer)
    def build_connector_worker_meta() -> Any:
        own = answer()
        told = None
        try:
            if rank.asked is not None or rank.counted != rank.count():
                told = rank.told()
                guard.worked("rank.told")
        except Exception as error:
            guard.failed("rank.told", error)
        # A connector that sends something of its own keeps it: then this rank has said nothing.
        if own is not None or told is None:
            return own
        return _safely(guard, "rank.meta", lambda: meta_class({rank.number: told}))

    @functools.wraps(post)
    def post_blocks(*args: Any, **kwargs: Any) -> Any:
        rank.any_posted = True
        return post(*args, **kwargs)

    @functools.wraps(read)
    def read_blocks(*args: Any, **kwargs: Any) -> Any:
        result = read(*args, **kwargs)
        _safely(guard, "rank.posted", lambda: rank.posted(*args, **kwargs))
        return result

    @functools.wraps(fail)
    def handle_failed(*args: Any, **kwargs: Any) -> Any:
        _safely(guard, "rank.failed", lambda: rank.failed(*args, **kwargs))
        return fail(*args, **kwargs)

    @functools.wraps(report)
    def get_results(*args: Any, **kwargs: Any) -> Any:
        try:
            if worker._failed_recv_reqs:
                rank.reporting()
                guard.worked("rank.reporting")
        except Exception as error:
            guard.failed("rank.reporting", error)
        found = report(*args, **kwargs)
        try:
            # A pair (sent, received), or KVConnectorTransferResults from 0.30 on.
            received = found[1] if isinstance(found, tuple) else found.finished_recving
            if received:
                rank.reported(received)
                guard.worked("rank.reported")
        except Exception as error:
            guard.failed("rank.reported", error)
        return found

    connector.start_load_kv = start_load_kv
    connector.build_connector_worker_meta = build_connector_worker_meta
    worker._read_blocks, worker._read_blocks_for_req = post_blocks, read_blocks
    worker._handle_failed_transfer = handle_failed
    setattr(worker, results, get_results)


def _safely(guard: Guard, hook: str, call: Callable[[], Any]) -> Any:
    """The call's result; None where it raised. Also in a kit that turned itself off: what was released must
    stay filtered."""
    try:
        result = call()
    except Exception as error:
        guard.failed(hook, error)
        return None
    guard.worked(hook)
    return result
