"""The release against the NIXL sources of every released minor from 0.20, by conformance.

As test_kit_conformance.py: the sources are the versions' own, the rest are stand-ins. With the stock class
and with our connector.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stanch_connector import compat
from stanch_connector.engine import layout, seams
from stanch_connector.engine.guard import Guard
from stanch_connector.engine.releaser import Releaser
from tests.connector.conformance import sources
from tests.connector.conformance.release_life import Engine, installed
from tests.connector.picture import Scheduler, Status

pytestmark = [
    pytest.mark.engine,
    # A callback of a failed handshake that raises is logged by concurrent.futures, not raised.
    pytest.mark.filterwarnings("ignore"),
]
VERSIONS = (*sources.AFFECTED, *sources.FIXED)


@pytest.fixture(autouse=True)
def plain_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "ids_are_randomized", lambda: False)


@pytest.fixture(scope="module", params=VERSIONS)
def nixl(request: pytest.FixtureRequest) -> Iterator[compat.Nixl]:
    """One version's own NIXL, for all tests of it."""
    found = sources.locate(request.param)
    if found is None:
        pytest.skip(f"no sources of vLLM {request.param}: python -m tests.connector.conformance.sources")
    with installed(found, request.param) as nixl:
        yield nixl


@contextmanager
def engine(
    nixl: compat.Nixl, groups: int = 1, ranks: int = 1, *, fixed: bool = False, within: Path | None = None
) -> Iterator[Engine]:
    """It must have lived through the test: no hook failed."""
    one = Engine(nixl, groups, ranks, fixed=fixed, within=within)
    # Stock code of before 0.29 has an assertion against the other form.
    one.form = "([],)" if fixed or minor(nixl) >= 29 else "()"
    yield one
    assert one.errors() == {}


def minor(nixl: compat.Nixl) -> int:
    return int(nixl.version.split(".")[1])


def leaks(nixl: compat.Nixl, fixed: bool) -> bool:
    """Whether what is parked with an empty list is never reported."""
    return minor(nixl) < 30 and not fixed


stock_and_fixed = pytest.mark.parametrize("fixed", [False, True], ids=["stock", "fixed"])
some_ranks = pytest.mark.parametrize("ranks", [1, 2], ids=lambda n: f"ranks{n}")
some_groups = pytest.mark.parametrize("groups", [1, 2], ids=lambda n: f"groups{n}")


@stock_and_fixed
@some_groups
@some_ranks
class TestEveryVersion:
    def test_an_empty_list(self, nixl: compat.Nixl, fixed: bool, groups: int, ranks: int) -> None:
        """Where it leaks it is completed for who waits and freed for who has gone; else it is reported."""
        with engine(nixl, groups, ranks, fixed=fixed) as one:
            waits, gone = one.park("a"), one.park("b")
            one.scheduler.abort(gone)
            one.step()
            if leaks(nixl, fixed):
                assert one.release()["ways"] == {"a": "completed", "b": "freed"}
            assert set(one.requests) == {"a"}
            one.step()
            assert waits.status is Status.RUNNING

    def test_reads_that_are_done_and_a_report_that_is_lost(
        self, nixl: compat.Nixl, fixed: bool, groups: int, ranks: int
    ) -> None:
        with engine(nixl, groups, ranks, fixed=fixed) as one:
            one.lost[-1] = {"a", "b"}
            one.park("a", blocks=True)
            one.scheduler.abort(one.park("b", blocks=True))
            one.step()
            assert one.release()["ways"] == {"a": "failed", "b": "freed"}
            assert one.requests == {}
            assert one.core.errors_to == [(["a"], 0)]
            # And the late report, which the scheduler's assertion would not forgive.
            one.output({"a", "b"})
            one.step()

    def test_reads_under_way(self, nixl: compat.Nixl, fixed: bool, groups: int, ranks: int) -> None:
        with engine(nixl, groups, ranks, fixed=fixed) as one:
            one.reads_last(1_000)
            one.scheduler.abort(one.park("a", blocks=True))
            one.step()
            assert one.release()["refusals"] == {"reading": 1}
            one.reads_last(0)
            one.step()
            assert one.requests == {}, "it was reported"

    @pytest.mark.parametrize("blocks", [False, True], ids=["empty", "blocks"])
    def test_a_handshake_that_is_pending(
        self, nixl: compat.Nixl, fixed: bool, groups: int, ranks: int, blocks: bool
    ) -> None:
        """The peer is new, or was replaced. From 0.32 on it begins within _read_blocks_for_req."""
        with engine(nixl, groups, ranks, fixed=fixed) as one:
            one.forget_the_peer()
            here = fixed and minor(nixl) < 30 and not blocks
            one.scheduler.abort(one.park("a", blocks=blocks))
            one.step()
            if not here:
                # The fix reports at once what is here already; nothing will be written to it.
                assert one.release()["refusals"] == {"handshake": 1}
                assert set(one.requests) == {"a"}
            one.shake_hands()
            for worker in one.workers:
                worker._remote_agents.setdefault("prefill-1", {0: "agent", (0, 0): "agent"})
            if not here:
                assert one.release()["refusals"] == {"handshake": 1}, "its read comes with the next step"
            one.reads_last(0)
            one.step()
            if leaks(nixl, fixed) and not blocks:
                assert one.release()["ways"] == {"a": "freed"}
            assert one.requests == {}

    def test_a_handshake_that_fails(self, nixl: compat.Nixl, fixed: bool, groups: int, ranks: int) -> None:
        with engine(nixl, groups, ranks, fixed=fixed) as one:
            one.lost[-1] = {"a"}
            one.forget_the_peer()
            one.scheduler.abort(one.park("a", blocks=True))
            one.step()
            one.shake_hands(ConnectionError("refused"))
            one.step()
            assert one.release()["refusals"] == {"load-failed": 1}

    def test_a_transfer_that_cannot_be_set_up(
        self, nixl: compat.Nixl, fixed: bool, groups: int, ranks: int
    ) -> None:
        with engine(nixl, groups, ranks, fixed=fixed) as one:
            one.lost[-1] = {"a"}
            one.lives[-1].nixl.setup_error = RuntimeError("NIXL_ERR_BACKEND")
            one.park("a", blocks=True)
            one.step()
            assert one.release()["refusals"] == {"load-failed": 1}

    def test_a_notification_that_fails(self, nixl: compat.Nixl, fixed: bool, groups: int, ranks: int) -> None:
        with engine(nixl, groups, ranks, fixed=fixed) as one:
            for life in one.lives:
                life.nixl.notification_error = RuntimeError("NIXL_ERR_REMOTE_DISCONNECT")
            waits = one.park("a")
            one.step()
            if leaks(nixl, fixed):
                assert one.release()["ways"] == {"a": "completed"}
            one.step()
            assert waits.status is Status.RUNNING

    def test_the_id_comes_again(self, nixl: compat.Nixl, fixed: bool, groups: int, ranks: int) -> None:
        """After a release its start goes through, and so does its report; a start that nobody waits for any
        more is dropped, and what a rank still reports of the earlier life as well."""
        with engine(nixl, groups, ranks, fixed=fixed) as one:
            one.lost = [{"a"} for _ in range(ranks)]
            one.scheduler.abort(one.park("a", blocks=True))
            one.step()
            assert one.release("a")["ways"] == {"a": "freed"}
            late = one.park("a", blocks=True)
            del one.requests["a"]
            one.scheduler.kv_cache_manager.held.clear()
            one.step()
            assert all("a" not in worker._recving_metadata for worker in one.workers)
            del late
            one.lost = [set() for _ in range(ranks)]
            again = one.park("a", blocks=True)
            one.reads_last(0)
            one.step()
            assert again.status is Status.RUNNING

    def test_aborted_twice_unknown_finished_meanwhile_and_released_twice(
        self, nixl: compat.Nixl, fixed: bool, groups: int, ranks: int
    ) -> None:
        with engine(nixl, groups, ranks, fixed=fixed) as one:
            one.lost[-1] = {"a"}
            one.reads_last(0)
            gone, runs = one.park("a", blocks=True), one.park("b", blocks=True)
            one.step()
            one.scheduler.abort(gone)
            one.scheduler.abort(gone)
            first, second = one.release("a", "b", "c"), one.release("a", "b", "c")
            assert (first["ways"], first["refusals"]) == ({"a": "freed"}, {"not-stuck": 1})
            assert (first["unknown"], second["unknown"]) == (["c"], ["a", "c"])
            assert runs.status is Status.RUNNING
            one.step()

    def test_what_is_not_awaited(self, nixl: compat.Nixl, fixed: bool, groups: int, ranks: int) -> None:
        """A full local hit, also where another connector of a MultiConnector has parked it; and the notice to
        the producer of a request that was aborted before it was scheduled."""
        with engine(nixl, groups, ranks, fixed=fixed) as one:
            other = one.park("a", tokens=0)
            one.scheduler.abort(one.add("b"))
            one.step()
            assert other.status is Status.WAITING_FOR_REMOTE_KVS
            assert one.release("a")["refusals"] == {"no-adapter": 1}


@stock_and_fixed
def test_one_rank_is_done_and_the_other_read_nothing(nixl: compat.Nixl, fixed: bool) -> None:
    """Their lists are the same, but one has reported before the other lost its report."""
    with engine(nixl, ranks=2, fixed=fixed) as one:
        one.lost[1] = {"a"}
        one.park("a")
        one.step()
        if leaks(nixl, fixed):
            one.workers[0]._recving_metadata.pop("a")
            one.connectors[0]._stanch_rank.reported({"a"})
            one.kit.releaser.said.restart("a", 0)
            one.step()
            assert one.kit.releaser.said.of("a") == {0: "D", 1: "E"}
        assert one.release("a")["ways"] == {"a": "failed"}


@stock_and_fixed
@some_ranks
class TestMultiConnector:
    @pytest.fixture
    def root(self, nixl: compat.Nixl) -> Path:
        found = sources.locate_tree(nixl.version)
        assert found is not None
        return found

    def test_what_nixl_loads(self, nixl: compat.Nixl, root: Path, fixed: bool, ranks: int) -> None:
        with engine(nixl, ranks=ranks, fixed=fixed, within=root) as one:
            for other in one.others:
                # Which the executor would add up by itself.
                other.sends = Sent()
            one.lost[-1] = {"b"}
            waits, gone = one.park("a"), one.park("b", blocks=True)
            one.scheduler.abort(gone)
            one.step()
            expected = {"b": "freed", **({"a": "completed"} if leaks(nixl, fixed) else {})}
            assert one.release()["ways"] == expected
            one.output({"b"})
            one.step()
            assert waits.status is Status.RUNNING
            assert set(one.requests) == {"a"}

    def test_what_another_loads(self, nixl: compat.Nixl, root: Path, fixed: bool, ranks: int) -> None:
        """NIXL is told of it too, and its ranks may well say that there was nothing to read."""
        with engine(nixl, ranks=ranks, fixed=fixed, within=root) as one:
            one.park("a", by=0)
            one.step()
            assert one.other.loading == {"a"}
            assert one.release("a")["refusals"] == {"no-adapter": 1}
            one.scheduler.abort(one.requests["a"])
            assert one.release("a")["refusals"] == {"no-adapter": 1}
            one.output({"a"})
            assert one.requests == {}


class Sent:
    """What another connector's rank sends."""

    def aggregate(self, other: Any) -> Sent:
        return self


def test_push_mode_is_refused(nixl: compat.Nixl) -> None:
    module = sys.modules[nixl.connector.__module__]
    push = getattr(module, "NixlPushConnector", None)
    assert (push is None) == (minor(nixl) < 24)
    if push is not None:
        made = push.__new__(push)
        made.connector_scheduler = SimpleNamespace(_reqs_need_recv={})
        nothing = Releaser(Scheduler(connector=made), Guard()).nothing
        assert nothing is not None
        assert nothing.kind == "push"
        assert seams.parts_within(made) == [made]
