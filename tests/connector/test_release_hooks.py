"""The release's hooks on the picture of an engine: what they do when they fail, where they do not fit, and
what they remember."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from stanch_connector.engine import rank, releaser
from stanch_connector.engine.guard import FAILURES_IN_A_ROW, Guard
from stanch_connector.engine.kit import kit_of
from stanch_connector.engine.releaser import Releaser
from tests.connector.picture import (
    Connector,
    NixlPullConnector,
    Scheduler,
    Status,
    request,
)
from tests.connector.picture_ranks import Engine, RankConnector, WorkerMetadata
from tests.connector.picture_release import BLOCKS, EMPTY, Scene, pictured

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True, scope="module")
def vllm() -> Iterator[None]:
    with pictured():
        yield


def test_a_kit_that_was_turned_off_releases_nothing_and_still_filters() -> None:
    scene = Scene(depth=2)
    scene.engine.connectors[0].late.add("a")
    scene.engine.scheduler.abort(scene.park("a", BLOCKS))
    scene.park("b", EMPTY)
    scene.step()
    assert scene.release("a")["ways"] == {"a": "freed"}
    for guard in (scene.guard, scene.engine.guard):
        for _ in range(FAILURES_IN_A_ROW):
            guard.failed("something", RuntimeError())
    assert "turned itself off" in scene.ask("release", ids=["b"])["error"]
    scene.engine.connectors[0].late.clear()
    scene.engine.connectors[0]._held_back.add("a")
    scene.step()
    assert set(scene.requests) == {"b"}
    scene.park("c", BLOCKS)
    scene.step()
    assert scene.requests["c"].status is Status.RUNNING


HOOKS_OF_THE_ENGINE = ("_allocated", "_direct", "_drop_late", "_hear")
HOOKS_OF_A_RANK = ("directed", "told", "posted", "failed", "reported", "state")


@pytest.mark.parametrize("hook", [*HOOKS_OF_THE_ENGINE, *HOOKS_OF_A_RANK])
def test_chaos_a_hook_that_raises(hook: str) -> None:
    """Starts and reports go through, nothing is released for it, and it is counted."""
    scene = Scene(ranks=2, depth=2)

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("ours")

    owners: list[Any] = [scene.kit.releaser]
    if hook in HOOKS_OF_A_RANK:
        owners = [one._stanch_rank for one in scene.engine.connectors]  # type: ignore[attr-defined]
    for owner in owners:
        setattr(owner, hook, broken)
    read, empty = scene.park("read", BLOCKS), scene.park("empty", EMPTY)
    for worker in scene.engine.workers:
        worker.unset.add("unset")
    scene.park("unset", BLOCKS)
    scene.step(6)
    assert read.status is Status.RUNNING
    assert empty.status is Status.WAITING_FOR_REMOTE_KVS
    way = scene.release("empty")["ways"].get("empty")
    assert way in (None, "completed")
    # "failed" plays no part in this request, and without what was dropped late it is as stuck as before.
    assert (way is None) == (hook not in ("_drop_late", "failed", "reported"))
    counted = scene.guard.errors if hook in HOOKS_OF_THE_ENGINE else scene.engine.guard.errors
    assert sum(counted.values()) > 0
    scene.step()


def test_a_failure_now_and_then_never_turns_the_kit_off() -> None:
    scene = Scene()
    hear, times = scene.kit.releaser._hear, iter(range(10_000))

    def sometimes(output: Any) -> None:
        if next(times) % 2:
            raise RuntimeError("ours")
        hear(output)

    scene.kit.releaser._hear = sometimes  # type: ignore[method-assign]
    # Its read does not end, so its rank is asked again every second.
    for worker in scene.engine.workers:
        worker.endless.add("a")
    scene.park("a", BLOCKS)
    scene.step(5 * FAILURES_IN_A_ROW)
    assert scene.guard.errors["release.hear"] > FAILURES_IN_A_ROW
    assert scene.guard.disabled is None


class Strange(WorkerMetadata):
    """Of another connector, with a name that ours has."""

    def __init__(self) -> None:
        self.ranks = {"0": ["what"]}

    def aggregate(self, other: Any) -> Strange:
        return self


def test_metadata_of_another_kind_hinders_no_late_report_from_being_dropped() -> None:
    scene = Scene()
    scene.engine.connectors[0].late.add("a")
    scene.engine.scheduler.abort(scene.park("a", BLOCKS))
    scene.step()
    scene.release("a")
    scene.step()
    scene.engine.connectors[0].build_connector_worker_meta = Strange  # type: ignore[method-assign]
    scene.engine.connectors[0].late.clear()
    scene.engine.connectors[0]._held_back.add("a")
    scene.step()
    assert scene.requests == {}
    assert scene.guard.errors["release.hear"] >= 1


def test_a_connector_that_sends_something_of_its_own_keeps_it() -> None:
    engine = Engine(plugged=False)
    own = WorkerMetadata()
    engine.connectors[0].build_connector_worker_meta = lambda: own  # type: ignore[method-assign]
    rank.attach(engine.connectors, engine.guard)
    scene = Scene()
    scene.engine = engine
    assert engine.connectors[0].build_connector_worker_meta() is own


def test_vllm_does_not_take_it(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene()
    scene.lose("a")
    scene.park("a", BLOCKS)
    scene.park("b", EMPTY)
    scene.step()
    monkeypatch.delattr(type(scene.engine.core), "_send_error_outputs_to_client")
    monkeypatch.setattr(scene.kit.releaser, "_update", lambda output: 1 / 0)
    released = scene.release()
    assert released["refusals"] == {"failed": 2}
    assert "no way to tell its client" in released["refused"]["a"]
    assert "ZeroDivisionError" in released["refused"]["b"]
    assert set(scene.requests) == {"a", "b"}
    monkeypatch.undo()
    assert scene.release()["ways"] == {"a": "failed", "b": "completed"}


class NixlPushConnector(NixlPullConnector):
    pass


class Slotted:
    """NIXL by its name, but nothing can be put on it."""

    __slots__ = ("connector_scheduler",)

    def __init__(self) -> None:
        self.connector_scheduler = SimpleNamespace(_reqs_need_recv={})

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        pass

    def build_connector_meta(self, output: Any) -> None:
        pass


class NixlSlotted(Slotted):
    __slots__ = ()


def multi(*connectors: Any) -> Any:
    return SimpleNamespace(_connectors=connectors)


@pytest.mark.parametrize(
    ("connector", "kind", "words"),
    [
        pytest.param(NixlPushConnector(), "push", "in push mode the peer writes", id="push"),
        pytest.param(Connector(), "no-adapter", "no adapter for Connector", id="another connector"),
        pytest.param(
            multi(NixlPullConnector(), NixlPullConnector()), "no-adapter", "no adapter for", id="two of NIXL"
        ),
        pytest.param(multi(Connector(), NixlPushConnector()), "push", "push", id="push in a MultiConnector"),
        pytest.param(NixlSlotted(), "no-adapter", "not shaped", id="nothing can be put on"),
        pytest.param(None, "no-adapter", "no KV connector", id="none"),
    ],
)
def test_no_adapter(connector: Any, kind: str, words: str) -> None:
    scheduler = Scheduler()
    scheduler.connector = connector
    update = scheduler._update_from_kv_xfer_finished
    nothing = Releaser(scheduler, Guard()).nothing
    assert nothing is not None
    assert nothing.kind == kind
    assert words in nothing.reason
    assert scheduler._update_from_kv_xfer_finished == update, "half a job is none"


@pytest.mark.parametrize("missing", [*releaser.SCHEDULER_METHODS, *releaser.SCHEDULER_SETS, "vllm_config"])
def test_a_scheduler_without_one_of_the_names(missing: str) -> None:
    scheduler = Scheduler(connector=NixlPullConnector())
    setattr(scheduler, missing, None)
    nothing = Releaser(scheduler, Guard()).nothing
    assert nothing is not None
    assert nothing.kind == "no-adapter"


@pytest.mark.parametrize("missing", [*rank.WORKER_METHODS, *rank.WORKER_ATTRIBUTES])
def test_a_worker_without_one_of_the_names(missing: str) -> None:
    connector = RankConnector(0, own_handshake=False, later=False)
    del connector.connector_worker.__dict__["agents"]
    setattr(type("W", (type(connector.connector_worker),), {}), missing, None)
    broken = type("Broken", (type(connector.connector_worker),), {missing: None})
    connector.connector_worker.__class__ = broken
    connector.connector_worker.__dict__.pop(missing, None)
    if missing in rank.WORKER_ATTRIBUTES:
        delattr(broken, missing)
    assert rank.attach([connector], Guard()) == 0
    assert not hasattr(connector, rank.ATTRIBUTE)


def test_it_is_put_on_once() -> None:
    engine = Engine()
    before = engine.workers[0]._read_blocks
    assert rank.attach(engine.connectors, engine.guard) == 1
    assert engine.workers[0]._read_blocks is before
    assert kit_of(engine.scheduler, Guard()) is kit_of(engine.scheduler, Guard())


class TestMemory:
    """What a rank remembers does not grow with what it has done."""

    @pytest.fixture(autouse=True)
    def few(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(rank, "REPORTS", 50)

    def test_of_a_rank(self) -> None:
        scene = Scene()
        worker: Any = scene.engine.workers[0]
        for number in range(1000):
            name = f"r-{number}"
            if number % 3 == 0:
                worker.unset.add(name)
            scene.park(name, BLOCKS)
            # A full local hit only notifies. The stock worker keeps its metadata up to 0.29.
            hit = request(
                f"hit-{number}",
                kv_transfer_params={"do_remote_prefill": True, "remote_engine_id": "prefill-1"},
            )
            scene.engine.scheduler.connector.update_state_after_alloc(hit, (), 0)
            scene.step(2)
            worker._recving_metadata.pop(f"hit-{number}")
        ours = scene.engine.connectors[0]._stanch_rank  # type: ignore[attr-defined]
        assert len(ours._reported) == len(ours._failed) == 50
        assert len(ours._posted) <= 60
        said, awaited = scene.kit.releaser.said, scene.kit.releaser._awaited
        assert max(len(said._states), len(said._floors)) <= 2
        assert not awaited
        assert scene.quiet()

    def test_a_stuck_one_is_releasable_however_long_ago_one_rank_reported_it(self) -> None:
        scene = Scene(ranks=2)
        scene.lose("a", ranks=(1,))
        scene.engine.workers[1].endless.add("a")
        scene.park("a", BLOCKS)
        scene.step()
        for number in range(100):
            scene.park(f"r-{number}", BLOCKS)
            scene.step(1)
        assert scene.release("a")["refusals"] == {"reading": 1}
        scene.engine.workers[1].endless.clear()
        scene.step()
        assert scene.release("a")["ways"] == {"a": "failed"}
