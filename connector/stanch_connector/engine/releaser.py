"""The scheduler's side of a release, in EngineCore's thread.

    connector.update_state_after_alloc         a request is parked for a receive by NIXL, or is not (after)
    connector.build_connector_meta             adds what the ranks are to know or to say (after)
    scheduler._update_from_kv_xfer_finished    takes what they said, drops late reports of released ones
                                               (before)

It asks the ranks of what has been parked for ASK_AFTER_SECONDS, at most once a second, and when a release is
about to come. An answer is of the step that brought the ask, so what a rank has said it has said of every
earlier start. To release is to report in the ranks' stead: vLLM's own code then goes on, as it does when the
last rank has reported. Names looked up in vLLM 0.18 to 0.33.
"""

from __future__ import annotations

import functools
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, Final

from stanch_connector.engine.guard import Guard
from stanch_connector.engine.rank import DIRECTIVE
from stanch_connector.engine.seams import parts_of
from stanch_connector.release import Facts, No, Said, Tombstones, judge

ASK_AFTER_SECONDS: Final = 1.0
ASK_EVERY_SECONDS: Final = 1.0
# Ids in one ask; the oldest first.
ASK_AT_MOST: Final = 4096

SCHEDULER_METHODS: Final = ("_update_from_kv_xfer_finished", "finish_requests", "has_requests")
SCHEDULER_SETS: Final = ("finished_recving_kv_req_ids", "finished_req_ids")


class NotReleasedError(Exception):
    """vLLM did not take the release; the message says what stands against it."""


class Releaser:
    """Of one scheduler. nothing: why no request of it can be released; None where some may."""

    def __init__(self, scheduler: Any, guard: Guard, clock: Callable[[], float] = time.monotonic) -> None:
        self.said = Said()
        self.released: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.world_size = 0
        self.ranks: dict[int, dict[str, Any]] = {}
        self._scheduler = scheduler
        self._guard = guard
        self._clock = clock
        self._number = 0
        # Receives by NIXL that a parked request waits for, and since when. In a MultiConnector another
        # connector may write into a request of which NIXL's ranks say that they are done.
        self._awaited: dict[str, float] = {}
        self._wanted: list[str] = []
        # Whether the next directive is due whatever is asked. The first one greets the ranks, so that they
        # may send their counts.
        self._untold = True
        self._tell: dict[str, list[str]] = {"gone": [], "back": []}
        self._gone = Tombstones()
        self._next_scan = 0.0
        # vLLM's own, without our hook.
        self._update: Callable[[Any], Any] = _not_attached
        try:
            self.nothing: No | None = self._attach()
        except Exception as error:
            guard.failed("release.attach", error)
            self.nothing = No("no-adapter", "this vLLM is not shaped as the kit knows it")

    # -- what is known

    def judge(self, request: Any, facts: Facts) -> Any:
        """release.Way, or release.No with the reason."""
        if self.nothing is not None and facts.parked:
            return self.nothing
        return judge(facts, self.said.of(request.request_id), self.world_size)

    def awaits(self, request_id: str) -> bool:
        return request_id in self._awaited

    def arrived(self, request_id: str) -> bool:
        return request_id in getattr(self._scheduler, "finished_recving_kv_req_ids", ())

    def hits(self) -> int:
        """Requests that the fix reported, over the ranks: each rank reports the same ones."""
        return max((said["hits"] for said in self.ranks.values()), default=0)

    def errors(self) -> dict[str, int]:
        """Exceptions caught in the workers' processes; this process's own are counted by its guards."""
        errors: dict[str, int] = {}
        for pid, counts in {said["pid"]: said["errors"] for said in self.ranks.values()}.items():
            for hook, count in counts.items() if pid != os.getpid() else ():
                errors[hook] = errors.get(hook, 0) + count
        return errors

    # -- to ask

    def ask(self, ids: Iterable[str]) -> int:
        """Ask all ranks with the next step, and see that there is one. The number of the ask; `said.heard`
        tells when all have answered."""
        self._wanted = list(dict.fromkeys([*ids, *self._wanted]))[:ASK_AT_MOST]
        if not self._scheduler.has_requests():
            self.force_step(self._wanted)
        return self._number + 1

    def force_step(self, ended: Iterable[str]) -> None:
        """An engine with nothing in its queues steps once where a request has ended: one of these has."""
        for one in ended:
            request = self._scheduler.requests.get(one)
            if request is None or request.status.name.startswith("FINISHED"):
                self._scheduler.finished_req_ids.add(one)
                return

    # -- to release

    def free(self, core: Any, request_id: str, *, complete: bool = False, error: bool = False) -> None:
        """Release one request in the way that `judge` named. Raises NotReleasedError before anything is
        changed."""
        request = self._scheduler.requests[request_id]
        if error:
            tell = getattr(core, "_send_error_outputs_to_client", None)
            status = getattr(type(request.status), "FINISHED_ERROR", None)
            if tell is None or status is None:
                raise NotReleasedError("this vLLM has no way to tell its client of an error")
            report = self._report(request_id)
            self._scheduler.finish_requests([request_id], status)
            tell([request_id], request.client_index)
        else:
            report = self._report(request_id)
        self._update(report)
        if complete == (request_id in self._scheduler.requests):
            self._awaited.pop(request_id, None)
            self._gone.add([request_id])
            self._tell["gone"].append(request_id)
            self._untold = True
            self._forget_counts(core, request_id)
            return
        raise NotReleasedError("vLLM did not take it")

    @staticmethod
    def _report(request_id: str) -> Any:
        from vllm.v1.outputs import KVConnectorOutput

        return KVConnectorOutput(finished_recving={request_id})

    @staticmethod
    def _forget_counts(core: Any, request_id: str) -> None:
        """What the executor counted of ranks that did report (KVOutputAggregator): an id may come again."""
        aggregator = getattr(getattr(core, "model_executor", None), "kv_output_aggregator", None)
        counts = getattr(aggregator, "_recv_remaining_count", None)
        if isinstance(counts, dict):
            counts.pop(request_id, None)

    # -- hooks

    def _attach(self) -> No | None:
        scheduler = self._scheduler
        if getattr(scheduler, "connector", None) is None:
            return No("no-adapter", "this engine has no KV connector")
        parts = parts_of(scheduler)
        names = ", ".join(type(one).__name__ for one in parts)
        fitting = [one for one in parts if _is_nixl(one)]
        if any("Push" in base.__name__ for one in fitting for base in type(one).__mro__):
            return No("push", "in push mode the peer writes, and nothing here can tell whether it still will")
        if len(fitting) != 1:
            return No("no-adapter", f"the kit has no adapter for {names}")
        missing = [one for one in SCHEDULER_METHODS if not callable(getattr(scheduler, one, None))]
        missing += [one for one in SCHEDULER_SETS if not isinstance(getattr(scheduler, one, None), set)]
        world_size = _world_size(scheduler)
        if missing or world_size is None:
            return No("no-adapter", f"this vLLM's scheduler has no {(missing or ['world_size'])[0]}")
        self.world_size = world_size
        self._put_on(fitting[0])
        return None

    def _put_on(self, connector: Any) -> None:
        allocate, build = connector.update_state_after_alloc, connector.build_connector_meta
        update = self._scheduler._update_from_kv_xfer_finished
        side = connector.connector_scheduler
        self._update, guard = update, self._guard

        @functools.wraps(allocate)
        def update_state_after_alloc(*args: Any, **kwargs: Any) -> Any:
            result = allocate(*args, **kwargs)
            try:
                self._allocated(side, *args, **kwargs)
                guard.worked("release.allocated")
            except Exception as error:
                guard.failed("release.allocated", error)
            return result

        # These two run with every step, and in nearly every step have nothing to do: they look before they
        # call anything.

        @functools.wraps(build)
        def build_connector_meta(*args: Any, **kwargs: Any) -> Any:
            metadata = build(*args, **kwargs)
            try:
                if self._awaited or self._gone or self._wanted or self._untold:
                    self._direct(metadata)
                    guard.worked("release.direct")
            except Exception as error:
                guard.failed("release.direct", error)
            return metadata

        @functools.wraps(update)
        def update_from_kv_xfer_finished(output: Any) -> Any:
            # First what keeps the engine alive, whatever the ranks may have sent.
            try:
                if output.finished_recving:
                    self._drop_late(output)
                    guard.worked("release.drop-late")
            except Exception as error:
                guard.failed("release.drop-late", error)
            try:
                if getattr(output, "kv_connector_worker_meta", None) is not None:
                    self._hear(output)
                    guard.worked("release.hear")
            except Exception as error:
                guard.failed("release.hear", error)
            return update(output)

        connector.update_state_after_alloc = update_state_after_alloc
        connector.build_connector_meta = build_connector_meta
        self._scheduler._update_from_kv_xfer_finished = update_from_kv_xfer_finished

    def _allocated(self, side: Any, request: Any, blocks: Any, num_external_tokens: int) -> None:
        name = request.request_id
        if num_external_tokens > 0 and name in side._reqs_need_recv and self._guard.disabled is None:
            self._awaited[name] = self._clock()
            # Its start goes with the metadata that the next directive goes with.
            self.said.restart(name, self._number + 1)
        elif self._awaited:
            self._awaited.pop(name, None)

    def _direct(self, metadata: Any) -> None:
        """What starts anew, what is due to be asked, and what the ranks are to know."""
        if self._gone and metadata.reqs_to_recv:
            self._starting(metadata.reqs_to_recv)
        if self._awaited and self._guard.disabled is None and self._clock() >= self._next_scan:
            self._scan()
        if self._wanted or self._untold:
            self._number += 1
            setattr(metadata, DIRECTIVE, {"number": self._number, "ask": self._wanted, **self._tell})
            self._wanted, self._tell, self._untold = [], {"gone": [], "back": []}, False

    def _starting(self, starts: dict[str, Any]) -> None:
        """A released request that is not there any more starts nothing; one that is has come anew."""
        for one in list(self._gone.among(starts)):
            if one in self._scheduler.requests:
                self._gone.forget([one])
                self._tell["back"].append(one)
                self._untold = True
            else:
                del starts[one]

    def _scan(self) -> None:
        now = self._clock()
        self._next_scan = now + ASK_EVERY_SECONDS
        for one in [one for one in self._awaited if one not in self._scheduler.requests]:
            del self._awaited[one]
        due = [one for one, since in self._awaited.items() if now - since >= ASK_AFTER_SECONDS]
        unsettled = [one for one in due if not self.said.settled(one, self.world_size)]
        if unsettled and not self._wanted:
            self._wanted = unsettled[:ASK_AT_MOST]
        self.said.keep(self._awaited)

    def _drop_late(self, output: Any) -> None:
        received = output.finished_recving
        if not received:
            return
        if self._awaited:
            for one in received:
                self._awaited.pop(one, None)
        if self._gone:
            late = set(self._gone.among(received))
            if late:
                output.finished_recving = set(received) - late

    def _hear(self, output: Any) -> None:
        meta = getattr(output, "kv_connector_worker_meta", None)
        if meta is None:
            return
        for part in (meta, *(getattr(meta, "metadata", None) or ())):
            for rank, told in (getattr(part, "ranks", None) or {}).items():
                self.ranks[rank] = told
                if told["number"]:
                    self.said.enter(rank, told["number"], told["states"])


def _not_attached(_: Any) -> None:
    raise NotReleasedError("there is no adapter")


def _is_nixl(connector: Any) -> bool:
    side = getattr(connector, "connector_scheduler", None)
    named = any("Nixl" in base.__name__ for base in type(connector).__mro__)
    return (
        named
        and hasattr(side, "_reqs_need_recv")
        and callable(getattr(connector, "build_connector_meta", None))
    )


def _world_size(scheduler: Any) -> int | None:
    config = getattr(getattr(scheduler, "vllm_config", None), "parallel_config", None)
    size = getattr(config, "world_size", None)
    return size if isinstance(size, int) and size > 0 else None
