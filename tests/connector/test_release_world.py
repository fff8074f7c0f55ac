"""Law 9 over whatever may happen to an engine: requests park, peers answer late or not at all, ranks lose
reports or hold them back, clients leave, ids come again, steps are in flight, and releases come at any time.
What is really written to is known (picture_ranks.py), and the picture has the assertions that end vLLM."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from stanch_connector.engine.guard import Guard
from stanch_connector.engine.kit import Kit, answer
from stanch_connector.nixl_fix import has_blocks
from tests.connector.picture import Status, request
from tests.connector.picture_ranks import Engine
from tests.connector.picture_release import pictured

pytestmark = pytest.mark.unit

NAMES = ("a", "b", "c")
# Reads that do not end, that cannot be set up; reports that are lost, or held back.
FATES = ("", "lost", "late", "lost endless", "late endless", "lost unset", "unset", "endless")
LISTS: tuple[Any, ...] = ((), ([],), ([], []), ([5],), ([], [6, 7]))


@pytest.fixture(autouse=True, scope="module")
def vllm() -> Iterator[None]:
    with pictured():
        yield


class World(RuleBasedStateMachine):
    """An id comes again only once nothing of its earlier life can still be reported, unless it was released:
    so it is with vLLM's random ids, and a little beyond."""

    @initialize(
        ranks=st.integers(1, 3), depth=st.integers(1, 3), own_handshake=st.booleans(), later=st.booleans()
    )
    def begin(self, ranks: int, depth: int, own_handshake: bool, later: bool) -> None:
        self.engine = Engine(ranks, depth=depth, own_handshake=own_handshake, later=later)
        self.guard, self.now = Guard(), 100.0
        self.kit = Kit(self.engine.scheduler, self.guard, lambda: self.now)
        self.engine.scheduler._stanch_kit = self.kit  # type: ignore[attr-defined]
        self.lists: dict[str, Any] = {}
        self.serial = 0

    def named(self, name: str) -> Any:
        """The newest request of that name."""
        scheduler = self.engine.scheduler
        return next((one for key, one in reversed(scheduler.requests.items()) if key.startswith(name)), None)

    @rule(
        name=st.sampled_from(NAMES),
        to_read=st.sampled_from(LISTS),
        known=st.booleans(),
        fates=st.lists(st.sampled_from(FATES), min_size=3, max_size=3),
    )
    def park(self, name: str, to_read: Any, known: bool, fates: list[str]) -> None:
        """fates: of its receive on each rank."""
        if self.named(name) is not None:
            return
        self.serial += 1
        full, peer = f"{name}{self.serial}", "prefill-1" if known else f"p-{self.serial}"
        for connector, fate in zip(self.engine.connectors, fates, strict=False):
            worker = connector.connector_worker
            for word in fate.split():
                getattr(connector if word in ("lost", "late") else worker, word).add(full)
        one = request(full, kv_transfer_params={"do_remote_prefill": True, "remote_engine_id": peer})
        self.lists[full] = to_read
        self.engine.scheduler.add_request(one)
        self.engine.scheduler.park(one, to_read=to_read)
        # Parking and the metadata are of one turn of vLLM's loop.
        self.step()

    @rule(steps=st.integers(1, 4), seconds=st.sampled_from([0.01, 1.1]))
    def steps(self, steps: int, seconds: float) -> None:
        for _ in range(steps):
            self.now += seconds
            self.step()

    def step(self) -> None:
        self.engine.step()

    @rule(rank=st.integers(0, 2), well=st.booleans())
    def shake_hands(self, rank: int, well: bool) -> None:
        if rank < len(self.engine.workers):
            self.engine.workers[rank].shake_hands(well)

    @rule(rank=st.integers(0, 2))
    def reads_end(self, rank: int) -> None:
        if rank < len(self.engine.workers):
            self.engine.workers[rank].endless.clear()

    @rule(rank=st.integers(0, 2))
    def late_reports_come(self, rank: int) -> None:
        if rank < len(self.engine.connectors):
            self.engine.connectors[rank].late.clear()

    @rule(name=st.sampled_from(NAMES))
    def abort(self, name: str) -> None:
        one = self.named(name)
        if one is not None:
            self.engine.scheduler.abort(one)

    @rule(name=st.sampled_from(NAMES))
    def finish(self, name: str) -> None:
        one = self.named(name)
        if one is not None and one.status is Status.RUNNING:
            self.engine.scheduler.running.remove(one)
            self.engine.scheduler.finish(one, keep=False)

    def ask(self, question: str, **args: Any) -> Any:
        return json.loads(answer(self.engine.core, question, self.guard, json.dumps(args)))

    @rule(steps=st.integers(0, 4))
    def release(self, steps: int) -> None:
        """An order, some steps after the ranks were asked for it."""
        self.ask("inquire")
        self.steps(steps, 0.01)
        written, held = self.touched(), dict(self.engine.scheduler.requests)
        for name, way in self.ask("release")["ways"].items():
            assert name not in written, f"{name} was {way} while something could still write to it"
            if way == "completed":
                assert not has_blocks(self.lists[name])
                assert held[name].status is Status.WAITING_FOR_REMOTE_KVS
                assert name in self.engine.scheduler.requests
            else:
                assert name not in self.engine.scheduler.requests

    def touched(self) -> set[str]:
        """What some rank reads, or will read without being told anything more; what is in flight to it."""
        names: set[str] = set()
        for worker in self.engine.workers:
            names |= worker.writing
            names |= {name for name, meta in (*worker.shaking, *worker._ready)}
        for scheduled in self.engine.in_flight():
            names |= set(scheduled.reqs_to_recv)
        return names

    @invariant()
    def nothing_writes_to_what_is_not_held(self) -> None:
        if hasattr(self, "engine"):
            writing = {name for worker in self.engine.workers for name in worker.writing}
            held = {one.request_id for one in self.engine.scheduler.requests.values()}
            assert writing <= held | self.failed()

    def failed(self) -> set[str]:
        """vLLM itself lets go of what failed on one rank once all have reported."""
        return {name for worker in self.engine.workers for name in worker.unset}

    @invariant()
    def no_hook_failed(self) -> None:
        if hasattr(self, "engine"):
            assert self.guard.errors == self.engine.guard.errors == {}


TestWorld = World.TestCase
TestWorld.settings = settings(
    max_examples=200, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)
