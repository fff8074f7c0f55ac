"""The fix for NIXL's pull connector in vLLM 0.20 to 0.29, apart from vLLM: no import of it, only subclassing.

    scheduler  update_state_after_alloc   notes whether the request was parked (external tokens > 0)
    scheduler  build_connector_meta       writes that on each receive: the mark travels with it to every rank
    worker     start_load_kv              a receive without a block to read becomes notify-only for the stock
                                          code; if it is awaited, it is reported at the next get_finished
    worker     _read_blocks_for_req       an awaited receive of which this rank reads nothing is taken as done
    worker     get_finished               adds what is awaited, drops what only notifies

What is awaited without a block to read has its KV here already, so nothing that may still happen to its
handshake or notification matters to the request: it is reported at once, and never again. A receive without
our mark (from an unpatched scheduler) is left to the stock code altogether.

Facts read in nixl/ of 0.20.0 to 0.29.0:
- `()` is stock's own form of "all of it is here"; `([],)` fails an assertion in 0.20 to 0.28 (_read_blocks).
- A failed handshake reads `local_block_ids[0]` of what `_recving_metadata` holds: there it must not be `()`.
- A failed receive that only notifies is reported by the stock code with several cache groups, and the
  scheduler's assertion then ends the engine.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, Final

from stanch_connector.engine.guard import Guard

# Attribute of a ReqMeta: True where the scheduler parked the request, False where nobody waits for it.
AWAITED: Final = "stanch_awaited"


def has_blocks(groups: Any) -> bool:
    """Whether any cache group of a list of block ids by group has a block."""
    return any(len(group) > 0 for group in groups)


def run(guard: Guard, hook: str, call: Callable[..., None], *args: Any) -> bool:
    """Call one of our hooks unless they are off. True where it ran to its end; it never raises."""
    if guard.disabled is not None:
        return False
    try:
        call(*args)
    except Exception as error:
        guard.failed(hook, error)
        return False
    guard.worked(hook)
    return True


class SchedulerFix:
    """Remembers, from one step's allocation to its metadata, which receives are awaited."""

    def __init__(self) -> None:
        self._parked: set[str] = set()
        # Something failed since the last metadata: its receives stay without a mark.
        self.doubtful = False

    def allocated(self, scheduler: Any, request: Any, external_tokens: int) -> None:
        """After update_state_after_alloc."""
        if external_tokens > 0 and request.request_id in scheduler._reqs_need_recv:
            self._parked.add(request.request_id)

    def mark(self, metadata: Any) -> None:
        """After build_connector_meta, which empties _reqs_need_recv."""
        parked, self._parked = self._parked, set()
        doubtful, self.doubtful = self.doubtful, False
        if doubtful:
            return
        for req_id, meta in metadata.reqs_to_recv.items():
            setattr(meta, AWAITED, req_id in parked)


class WorkerFix:
    """One rank's side. hits: how many requests were reported that the stock code would have lost."""

    def __init__(self) -> None:
        self.hits = 0
        # To be reported at the next get_finished.
        self.here: set[str] = set()
        # Given to the stock code to notify the producer and for nothing else.
        self.silent: set[str] = set()

    def starting(self, metadata: Any) -> None:
        """Before start_load_kv."""
        for req_id, meta in metadata.reqs_to_recv.items():
            awaited = getattr(meta, AWAITED, None)
            if awaited is None or has_blocks(meta.local_block_ids):
                continue
            meta.local_block_ids = ()
            self.silent.add(req_id)
            if awaited:
                self.here.add(req_id)

    def started(self, worker: Any, metadata: Any) -> None:
        """After start_load_kv. What still waits for a handshake may see it fail."""
        for req_id in metadata.reqs_to_recv:
            if req_id in self.silent and req_id in worker._recving_metadata:
                spare = copy.copy(worker._recving_metadata[req_id])
                spare.local_block_ids = spare.local_physical_block_ids = ([],)
                worker._recving_metadata[req_id] = spare

    def read(self, worker: Any, req_id: str, meta: Any) -> None:
        """After _read_blocks_for_req, which may come many steps after start_load_kv."""
        if req_id in self.silent:
            self.silent.discard(req_id)
            worker._recving_metadata.pop(req_id, None)
        elif (
            getattr(meta, AWAITED, False)
            and req_id in worker._recving_metadata
            and req_id not in worker._recving_transfers
        ):
            # Nothing was posted on this rank (or it failed, and both are reported as one).
            worker._recving_transfers[req_id] = []

    def finishing(self, worker: Any) -> None:
        """Before get_finished. Up to 0.21 it treats a failed receive as one whose data arrived."""
        failed = worker._failed_recv_reqs
        if isinstance(failed, set):
            for req_id in failed & self.silent:
                failed.discard(req_id)
                self._forget(worker, req_id)

    def finished(self, worker: Any, received: set[str]) -> None:
        """After get_finished; changes the set of what it reports as received."""
        for req_id in received & self.silent:
            received.discard(req_id)
            self._forget(worker, req_id)
        here, self.here = self.here, set()
        self.hits += len(here)
        received |= here

    def _forget(self, worker: Any, req_id: str) -> None:
        self.silent.discard(req_id)
        worker._recving_metadata.pop(req_id, None)


def scheduler_class(stock: Any) -> Any:
    """A subclass for instances of the stock scheduler side; `adopt` turns one into it."""

    class StanchNixlScheduler(stock):  # type: ignore[misc]
        stanch: SchedulerFix
        stanch_guard: Guard

        def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
            super().update_state_after_alloc(request, blocks, num_external_tokens)
            fix = self.stanch
            if not run(
                self.stanch_guard, "connector.allocated", fix.allocated, self, request, num_external_tokens
            ):
                fix.doubtful = True

        def build_connector_meta(self, scheduler_output: Any) -> Any:
            metadata = super().build_connector_meta(scheduler_output)
            if getattr(metadata, "reqs_to_recv", True) or self.stanch.doubtful:
                run(self.stanch_guard, "connector.mark", self.stanch.mark, metadata)
            return metadata

    return StanchNixlScheduler


def worker_class(stock: Any) -> Any:
    """A subclass for instances of the stock worker side; `adopt` turns one into it."""

    class StanchNixlWorker(stock):  # type: ignore[misc]
        stanch: WorkerFix
        stanch_guard: Guard

        # These two run with every step, and in nearly every step have nothing to do: they look before they
        # call anything.

        def start_load_kv(self, metadata: Any) -> None:
            if not getattr(metadata, "reqs_to_recv", True):
                super().start_load_kv(metadata)
                return
            run(self.stanch_guard, "connector.starting", self.stanch.starting, metadata)
            super().start_load_kv(metadata)
            run(self.stanch_guard, "connector.started", self.stanch.started, self, metadata)

        def _read_blocks_for_req(self, req_id: str, meta: Any) -> None:
            super()._read_blocks_for_req(req_id, meta)
            run(self.stanch_guard, "connector.read", self.stanch.read, self, req_id, meta)

        def get_finished(self) -> tuple[set[str], set[str]]:
            fix = self.stanch
            if fix.silent:
                run(self.stanch_guard, "connector.finishing", fix.finishing, self)
            sent, received = super().get_finished()
            if received or fix.here:
                run(self.stanch_guard, "connector.finished", fix.finished, self, received)
            return sent, received

    return StanchNixlWorker


def adopt(side: Any, patched: Any, fix: SchedulerFix | WorkerFix, guard: Guard) -> None:
    """Make an instance of the stock class one of its patched subclass: the last step cannot half succeed.

    The stock constructor has run by then, once, so there is one NIXL agent. Raises TypeError where Python
    cannot change the class.
    """
    side.stanch = fix
    side.stanch_guard = guard
    side.__class__ = patched
