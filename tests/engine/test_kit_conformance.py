"""The connector's fix against the NIXL sources of every released minor from 0.20, by conformance.

The sources are the versions' own (tests/connector/conformance/sources.py fetches them); torch, NIXL and the
rest of vLLM are stand-ins. What is shown is the logic of one rank; the live test runs the real thing.
"""

from __future__ import annotations

import logging
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from stanch_connector import compat, connector
from tests.connector.conformance import sources
from tests.connector.conformance.life import Life, Receive, Wire, furnish_scheduler, furnish_worker
from tests.connector.conformance.stubs import imported

pytestmark = [
    pytest.mark.engine,
    # A callback of a failed handshake that raises is logged by concurrent.futures, not raised.
    pytest.mark.filterwarnings("ignore"),
]
AWAITED = (Receive.PARKED_EMPTY, Receive.PARKED_BLOCKS)


@contextmanager
def installed(version: str, groups: int) -> Iterator[compat.Nixl]:
    nixl = sources.locate(version)
    if nixl is None:
        pytest.skip(f"no sources of vLLM {version}: python -m tests.connector.conformance.sources")
    with imported(nixl, version):
        found = compat.load()
        minor = int(version.split(".")[1])
        found.scheduler.__init__ = furnish_scheduler(groups)
        found.worker.__init__ = furnish_worker(groups, failed_is_set=minor < 22)
        yield found


def names(value: Any) -> str:
    return value.name.lower() if isinstance(value, Receive | Wire) else str(value)


@pytest.mark.parametrize("groups", [1, 2], ids=lambda n: f"groups{n}")
@pytest.mark.parametrize("wire", Wire, ids=names)
@pytest.mark.parametrize("receive", Receive, ids=names)
@pytest.mark.parametrize("version", sources.AFFECTED)
def test_reported_once_exactly_when_awaited(version: str, receive: Receive, wire: Wire, groups: int) -> None:
    with installed(version, groups) as nixl:
        life = Life(connector.build(nixl), groups)
        assert life.scheduler.stanch_fix == life.worker.stanch_fix == "active", life.worker.stanch_fix_reason
        reports = life.run(receive, wire)
        assert reports == (["cmpl-1"] if receive in AWAITED else [])
        assert life.worker.stanch_guard.errors == life.scheduler.stanch_guard.errors == {}
        worker = life.worker.connector_worker
        assert worker.stanch.hits == (receive is Receive.PARKED_EMPTY)
        assert not worker._recving_transfers
        assert not worker._recving_metadata, "nothing is kept of a receive that is over"
        if wire in (Wire.SENT, Wire.HANDSHAKE_LATER) and receive is not Receive.PARKED_BLOCKS:
            assert life.nixl.notified == [b"far-1:1"], "the producer's blocks are freed too"


@pytest.mark.parametrize("version", sources.AFFECTED)
def test_the_stock_connector_never_reports_it(version: str) -> None:
    """What the fix is for; `([],)` is not even read without an assertion before 0.29."""
    with installed(version, 1) as nixl:
        life = Life(nixl.connector, 1)
        try:
            reports = life.run(Receive.PARKED_EMPTY, Wire.SENT)
        except AssertionError:
            reports = []
        assert reports == []


@pytest.mark.parametrize("version", sources.AFFECTED)
def test_mode_never_is_stock(version: str) -> None:
    with installed(version, 1) as nixl:
        life = Life(connector.build(nixl), 1, "Never")
        assert life.worker.stanch_fix == "off"
        assert type(life.worker.connector_worker) is nixl.worker
        assert type(life.scheduler.connector_scheduler) is nixl.scheduler


@pytest.mark.parametrize("version", sources.AFFECTED)
def test_an_unmarked_receive_is_left_to_the_stock_code(version: str) -> None:
    """A patched worker under a stock scheduler, as when one process could be patched and the other not."""
    with installed(version, 1) as nixl:
        life = Life(connector.build(nixl), 1)
        life.scheduler = Life(nixl.connector, 1).scheduler
        assert life.run(Receive.FULL_HIT, Wire.SENT) == []
        life.nixl.polls_until_done = 1
        life.arrive(Receive.PARKED_BLOCKS, "cmpl-2")
        for _ in range(4):
            life.step()
        assert life.reports == ["cmpl-2"]


@pytest.mark.parametrize("receive", Receive, ids=names)
@pytest.mark.parametrize("version", sources.AFFECTED)
def test_ranks_whose_ways_differ_report_alike(version: str, receive: Receive) -> None:
    """One rank knows the peer, the other has its handshake before it and sees that fail."""
    with installed(version, 1) as nixl:
        cls = connector.build(nixl)
        near, far = Life(cls, 1), Life(cls, 1)
        far.worker.connector_worker._remote_agents.clear()
        near.arrive(receive)
        for step in range(6):
            metadata = pickle.dumps(near.scheduler.build_connector_meta(None))
            for rank in (near, far):
                rank.worker.bind_connector_metadata(pickle.loads(metadata))
                rank.worker.start_load_kv(None)
                rank.reports += sorted(rank.worker.get_finished(set())[1])
            if step == 2:
                for handshake in far.worker.connector_worker._handshake_initiation_executor.pending:
                    handshake.set_exception(ConnectionError("refused"))
        assert near.reports == far.reports == (["cmpl-1"] if receive in AWAITED else [])


@pytest.mark.parametrize("groups", [1, 2], ids=lambda n: f"groups{n}")
@pytest.mark.parametrize("version", sources.AFFECTED)
def test_a_transfer_that_cannot_be_set_up_is_reported_once(version: str, groups: int) -> None:
    with installed(version, groups) as nixl:
        life = Life(connector.build(nixl), groups)
        life.nixl.setup_error = RuntimeError("NIXL_ERR_BACKEND")
        assert life.run(Receive.PARKED_BLOCKS, Wire.SENT) == ["cmpl-1"]


HOOKS = ("allocated", "mark", "starting", "started", "read", "finishing", "finished")


@pytest.mark.parametrize("hook", HOOKS)
@pytest.mark.parametrize("version", ["0.20.0", "0.24.0", "0.29.0"])
def test_a_hook_that_raises_changes_nothing_for_the_others(
    version: str, hook: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Chaos: the engine serves on as the stock one does, the error is counted and logged once."""

    def fail(*args: object) -> None:
        raise ValueError("chaos")

    with installed(version, 1) as nixl, caplog.at_level(logging.WARNING):
        life = Life(connector.build(nixl), 1)
        side = life.scheduler if hook in ("allocated", "mark") else life.worker
        patched = side.connector_scheduler if side is life.scheduler else side.connector_worker
        monkeypatch.setattr(patched.stanch, hook, fail)
        # "finishing" is for receives that only notify, and have not yet.
        silent = (Receive.PARKED_EMPTY, Wire.HANDSHAKE_LATER)
        assert life.run(*silent if hook == "finishing" else (Receive.PARKED_BLOCKS, Wire.SENT)) == ["cmpl-1"]
        assert side.stanch_guard.errors[f"connector.{hook}"] >= 1
        assert [one.levelname for one in caplog.records if "chaos" in str(one.exc_info)] == []
        assert sum("failed: ValueError" in one.getMessage() for one in caplog.records) == 1


@pytest.mark.parametrize("version", sources.FIXED)
def test_from_030_on_nothing_is_patched(version: str) -> None:
    with installed(version, 1) as nixl:
        choice = compat.choose(nixl)
        assert choice.fix == "not-needed", choice.reason
        life = Life(connector.build(nixl), 1, "Always")
        assert life.worker.stanch_fix == "not-needed"
        assert type(life.worker.connector_worker) is nixl.worker
        assert type(life.scheduler.connector_scheduler) is nixl.scheduler
