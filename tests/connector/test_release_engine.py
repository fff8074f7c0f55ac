"""Releases in a picture of an engine: a scheduler, one or several ranks, steps in flight. The picture has
vLLM's assertions, and knows what is really written to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from stanch_connector.engine import rank
from tests.connector.picture import (
    NixlMetadata,
    ReqMeta,
    Status,
    request,
)
from tests.connector.picture_ranks import Engine
from tests.connector.picture_release import BLOCKS, EMPTY, Scene, pictured

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True, scope="module")
def vllm() -> Iterator[None]:
    with pictured():
        yield


shapes = pytest.mark.parametrize(
    "shape",
    [
        {"own_handshake": own, "later": later, "depth": depth, "ranks": ranks}
        for own, later in ((False, False), (False, True), (True, True))
        for depth in (1, 2)
        for ranks in (1, 2)
    ],
    ids=lambda shape: "-".join(f"{key}{value:d}" for key, value in shape.items()),
)


@shapes
class TestWhatEachRankSays:
    def test_an_empty_list_is_completed_for_who_waits(self, shape: Any) -> None:
        scene = Scene(**shape)
        one = scene.park("a", EMPTY)
        scene.step()
        assert all(worker.notified == ["a"] for worker in scene.engine.workers)
        assert scene.release("a")["ways"] == {"a": "completed"}
        scene.step(2)
        assert one.status is Status.RUNNING
        assert scene.engine.core.errors_to == []
        assert scene.quiet()

    def test_an_empty_list_is_freed_for_who_has_gone(self, shape: Any) -> None:
        scene = Scene(**shape)
        one = scene.park("a", EMPTY)
        scene.step()
        scene.engine.scheduler.abort(one)
        assert scene.release()["ways"] == {"a": "freed"}
        assert scene.requests == {}
        assert scene.engine.scheduler.kv_cache_manager.held == {}
        scene.step()
        assert scene.quiet()

    def test_reads_that_are_done_are_an_error_for_who_waits(self, shape: Any) -> None:
        scene = Scene(**shape)
        scene.lose("a")
        scene.park("a", BLOCKS)
        scene.step()
        assert scene.release("a")["ways"] == {"a": "failed"}
        assert scene.requests == {}
        assert scene.engine.core.errors_to == [(["a"], 0)]
        scene.step()
        assert scene.quiet()

    def test_one_rank_has_reported_and_the_other_has_not(self, shape: Any) -> None:
        scene = Scene(**shape)
        scene.lose("a", ranks=(0,))
        scene.park("a", BLOCKS)
        scene.step()
        assert scene.release("a")["ways"] == {"a": "failed"}
        assert scene.engine.core.model_executor.kv_output_aggregator._recv_remaining_count == {}
        scene.step()
        assert scene.quiet()

    def test_a_pending_handshake_is_refused_and_the_read_comes_after_it(self, shape: Any) -> None:
        """From 0.32 on _read_blocks_for_req returns at once where it only begins a handshake."""
        scene = Scene(**shape)
        for to_read in (BLOCKS, EMPTY):
            name = f"a-{to_read}"
            one = scene.park(name, to_read, peer="prefill-2")
            scene.step()
            scene.engine.scheduler.abort(one)
            scene.step()
            assert scene.release()["refusals"] == {"handshake": 1}
            for worker in scene.engine.workers:
                worker.shake_hands()
                # Known, but its read is posted only with the next step.
            assert scene.release()["refusals"] == {"handshake": 1}
            scene.step(1 if shape["depth"] == 1 else 2)
            for worker in scene.engine.workers:
                worker.agents = {"prefill-1"}
            scene.step()
            if to_read is BLOCKS:
                assert scene.requests == {}, "it was reported"
            else:
                assert scene.release()["ways"] == {name: "freed"}
        assert scene.quiet()

    def test_a_read_under_way_is_refused_until_it_is_done(self, shape: Any) -> None:
        scene = Scene(**shape)
        for worker in scene.engine.workers:
            worker.endless.add("a")
        scene.engine.scheduler.abort(scene.park("a", BLOCKS))
        scene.step()
        refused = scene.release("a")
        assert refused["refusals"] == {"reading": 1}
        assert "still reads from prefill-1" in refused["refused"]["a"]
        for worker in scene.engine.workers:
            worker.endless.clear()
        scene.step()
        assert scene.requests == {}
        assert scene.quiet()

    def test_a_failed_read_is_refused(self, shape: Any) -> None:
        """Its report is lost too: nothing can tell whether the rest of it still writes."""
        scene = Scene(**shape)
        scene.lose("a", "b")
        for worker in scene.engine.workers:
            worker.unset.add("a")
        scene.park("a", BLOCKS)
        scene.park("b", BLOCKS, peer="prefill-9")
        scene.step(shape["depth"])
        for worker in scene.engine.workers:
            worker.shake_hands(well=False)
        scene.step()
        assert scene.release()["refusals"] == {"load-failed": 2}
        assert scene.quiet()

    def test_a_report_that_was_in_flight_is_dropped_before_the_assertion(self, shape: Any) -> None:
        scene = Scene(**shape)
        for connector in scene.engine.connectors:
            connector.late |= {"a", "b"}
        waits, gone = scene.park("a", EMPTY), scene.park("b", BLOCKS)
        scene.step()
        scene.engine.scheduler.abort(gone)
        assert scene.release()["ways"] == {"a": "completed", "b": "freed"}
        for connector in scene.engine.connectors:
            connector._held_back |= {"a", "b"}
            connector.late.clear()
        scene.step()
        assert waits.status is Status.RUNNING
        assert scene.requests == {"a": waits}
        assert scene.quiet()

    def test_the_rank_drops_it_as_well(self, shape: Any) -> None:
        scene = Scene(**shape)
        scene.lose("a")
        scene.engine.scheduler.abort(scene.park("a", BLOCKS))
        scene.step()
        scene.release("a")
        scene.step()
        for connector in scene.engine.connectors:
            connector.lost.clear()
            connector.connector_worker._recving_metadata["a"] = object()
            connector.connector_worker._failed_recv_reqs.add("a")
            assert connector.get_finished() == set()
        scene.step()
        assert scene.quiet()

    def test_the_id_comes_again(self, shape: Any) -> None:
        """Its start and its report go through, and what was said of its earlier life is not said of it."""
        scene = Scene(**shape)
        scene.lose("a")
        scene.engine.scheduler.abort(scene.park("a", BLOCKS))
        scene.step()
        scene.release("a")
        for connector in scene.engine.connectors:
            connector.lost.clear()
            connector.connector_worker.endless.add("a")
        again = scene.park("a", BLOCKS)
        assert scene.release("a")["refusals"] == {"not-said": 1}
        scene.step()
        assert scene.release("a")["refusals"] == {"reading": 1}
        for worker in scene.engine.workers:
            assert worker.wrote == ["a", "a"]
            worker.endless.clear()
        scene.step()
        assert again.status is Status.RUNNING
        assert scene.quiet()

    def test_twice_in_one_turn_aborted_twice_unknown_and_finished_meanwhile(self, shape: Any) -> None:
        scene = Scene(**shape)
        gone = scene.park("a", EMPTY)
        runs = scene.park("b", BLOCKS)
        scene.step()
        for _ in range(2):
            scene.engine.scheduler.abort(gone)
        first, second = scene.release("a", "b", "c", "a"), scene.release("a", "b", "c")
        assert (first["ways"], first["refusals"], first["unknown"]) == (
            {"a": "freed"},
            {"not-stuck": 1},
            ["c"],
        )
        assert (second["ways"], second["unknown"]) == ({}, ["a", "c"])
        assert runs.status is Status.RUNNING
        scene.step()
        assert scene.quiet()


def test_a_late_start_is_dropped_by_the_scheduler_and_by_each_rank() -> None:
    scene = Scene(ranks=2)
    scene.lose("a")
    scene.engine.scheduler.abort(scene.park("a", BLOCKS))
    scene.step()
    scene.release("a")
    needed = scene.engine.scheduler.connector.connector_scheduler._reqs_need_recv
    params = {"remote_engine_id": "prefill-1"}
    needed["a"] = (request("a", kv_transfer_params=params), BLOCKS)
    assert scene.engine.scheduler.step().reqs_to_recv == {}
    for connector in scene.engine.connectors:
        ours: Any = connector
        ours._stanch_rank._gone.add(["b"])
        ours._connector_metadata = NixlMetadata({"b": ReqMeta(BLOCKS, "prefill-1")})
        ours.start_load_kv(None)
        assert "b" not in ours.connector_worker.wrote
    assert scene.quiet()


def test_a_dry_run_changes_nothing() -> None:
    scene = Scene()
    scene.park("a", EMPTY)
    scene.step()
    before = scene.requests["a"].status
    assert scene.release("a", dryRun=True)["ways"] == {"a": "completed"}
    assert scene.requests["a"].status is before
    assert scene.ask("state")["releases"] == {}
    assert scene.release("a", olderThanSeconds=3600)["refusals"] == {"too-young": 1}
    assert scene.ask("state")["refusals"] == {"too-young": 1}


def test_ten_thousand_at_once() -> None:
    scene = Scene(ranks=2)
    for number in range(10_000):
        scene.park(f"r-{number}", EMPTY)
        scene.engine.scheduler.abort(scene.requests[f"r-{number}"])
    # At most 4096 in one ask; what is settled is not asked again.
    scene.step(5)
    released = scene.release()
    assert len(released["ways"]) == 10_000
    assert scene.requests == {}
    scene.step()
    assert scene.quiet()


def test_nothing_is_sent_while_nothing_is_parked(monkeypatch: pytest.MonkeyPatch) -> None:
    """But for a greeting with the first step, without which a rank sends nothing."""
    scene, sent = Scene(ranks=2), []
    build = scene.engine.scheduler.connector.build_connector_meta

    def noted(output: Any) -> Any:
        metadata = build(output)
        sent.append(getattr(metadata, rank.DIRECTIVE, None))
        return metadata

    monkeypatch.setattr(scene.engine.scheduler.connector, "build_connector_meta", noted)
    scene.engine.scheduler.add_request(request("plain"))
    scene.step(50)
    assert sent == [{"number": 1, "ask": [], "gone": [], "back": []}] + [None] * 49
    assert sorted(scene.kit.releaser.ranks) == [0, 1]
    one = scene.park("a", BLOCKS)
    scene.step(50, seconds=0.02)
    assert one.status is Status.RUNNING
    assert len([each for each in sent if each]) == 1, "it was reported within a second"


def test_an_ask_names_only_what_has_waited_and_is_not_settled() -> None:
    scene, asked = Scene(), []
    directed = scene.engine.connectors[0]._stanch_rank.directed  # type: ignore[attr-defined]

    def noted(metadata: Any) -> None:
        asked.append(getattr(metadata, rank.DIRECTIVE, {"ask": []})["ask"])
        directed(metadata)

    scene.engine.connectors[0]._stanch_rank.directed = noted  # type: ignore[attr-defined]
    scene.engine.workers[0].endless.add("reads")
    for name, to_read in (("reads", BLOCKS), ("empty", EMPTY)):
        scene.park(name, to_read)
    scene.step(14, seconds=0.25)
    assert [each for each in asked if each] == [["reads", "empty"], ["reads"], ["reads"]]


def test_a_worker_without_the_plug_in_never_answers() -> None:
    scene = Scene(ranks=2, plugged=False)
    scene.park("a", EMPTY)
    scene.step()
    ticket = scene.ask("inquire", ids=["a"])["ticket"]
    scene.step()
    assert scene.ask("inquire", ticket=ticket) == {"ticket": ticket, "heard": False}
    refused = scene.release("a")
    assert refused["refusals"] == {"not-said": 1}
    assert "0 of 2 ranks" in refused["refused"]["a"]


def test_ranks_without_the_plug_in_in_the_engine_core_send_nothing() -> None:
    """It might not be able to read what comes: the class would not be there."""
    engine = Engine(ranks=2)
    engine.connectors[0]._stanch_rank._guard.failed("rank.posted", RuntimeError())  # type: ignore[attr-defined]
    assert all(one.build_connector_worker_meta() is None for one in engine.connectors)


def test_one_of_two_ranks_without_the_plug_in() -> None:
    scene = Scene(ranks=2, plugged=False)
    rank.attach(scene.engine.connectors[1:], scene.engine.guard)
    scene.park("a", EMPTY)
    scene.step()
    assert scene.release("a")["refusals"] == {"not-said": 1}


def test_rank_numbers_that_collide_are_one_rank_too_few() -> None:
    scene = Scene(ranks=2)
    scene.engine.connectors[1]._stanch_rank.number = 0  # type: ignore[attr-defined]
    scene.park("a", EMPTY)
    scene.step()
    assert scene.release("a")["refusals"] == {"not-said": 1}


def test_two_orders_at_once_are_both_heard() -> None:
    scene = Scene(depth=2)
    scene.park("a", EMPTY)
    scene.park("b", EMPTY)
    scene.engine.settle()
    first, second = scene.ask("inquire", ids=["a"]), scene.ask("inquire", ids=["b"])
    assert not first["heard"]
    scene.engine.settle()
    for reply in (first, second):
        assert scene.ask("inquire", ticket=reply["ticket"])["heard"]
    assert scene.release("a", "b")["ways"] == {"a": "completed", "b": "completed"}


def test_an_idle_engine_is_made_to_step() -> None:
    """Up to 0.21 one that has ended and is held makes no step."""
    scene = Scene()
    scene.lose("a")
    scene.engine.scheduler.abort(scene.park("a", BLOCKS))
    scene.engine.settle()
    assert not scene.engine.scheduler.has_requests()
    scene.ask("inquire", ids=["a"])
    assert scene.engine.scheduler.has_requests()
    scene.engine.settle()
    assert scene.release("a")["ways"] == {"a": "freed"}
    assert scene.engine.scheduler.has_requests(), "so that the gauges fall and the ranks hear of it"


def test_what_is_parked_by_another_connector_of_a_multi_connector() -> None:
    """It hands its request to NIXL too, with no tokens: NIXL's ranks only notify, and say that all is here,
    while the other one still writes (multi_connector.py, update_state_after_alloc)."""
    scene = Scene()
    params = {"do_remote_prefill": True, "remote_engine_id": "prefill-1"}
    one = request("a", kv_transfer_params=params)
    scene.engine.scheduler.add_request(one)
    scene.engine.scheduler.connector.update_state_after_alloc(one, BLOCKS, 0)
    one.status = Status.WAITING_FOR_REMOTE_KVS
    scene.step()
    assert scene.engine.connectors[0]._stanch_rank.state("a") == "E"  # type: ignore[attr-defined]
    assert scene.release("a")["refusals"] == {"no-adapter": 1}


def test_what_is_parked_again_by_another_connector() -> None:
    """Preempted after its receive by NIXL was done, and then loaded by an offloading connector."""
    scene = Scene()
    one = scene.park("a", BLOCKS)
    for worker in scene.engine.workers:
        worker.endless.add("a")
    scene.step()
    for worker in scene.engine.workers:
        worker.endless.clear()
    scene.step()
    scene.engine.scheduler._preempt_request(one, 1.0)
    scene.engine.scheduler.connector.update_state_after_alloc(one, BLOCKS, 0)
    one.status = Status.WAITING_FOR_REMOTE_KVS
    ticket = scene.ask("inquire", ids=["a"])["ticket"]
    scene.step()
    assert scene.ask("inquire", ticket=ticket)["heard"]
    assert scene.kit.releaser.said.of("a") == {0: "D"}
    assert scene.release("a")["refusals"] == {"no-adapter": 1}
