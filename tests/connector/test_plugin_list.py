"""The list that an EngineCore gives, and the hooks under it, against a picture of vLLM's scheduler."""

from __future__ import annotations

import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from stanch_connector.contract import RequestEntry
from stanch_connector.engine import layout
from stanch_connector.engine.guard import FAILURES_IN_A_ROW, Guard
from stanch_connector.engine.hooks import attach
from stanch_connector.engine.ids import client_id
from stanch_connector.engine.kit import Kit, answer, kit_of
from stanch_connector.engine.layout import HOOKED, HOOKED_CONNECTOR, UnknownLayoutError
from stanch_connector.engine.seams import engine_id_of, fix_of
from stanch_connector.ledger import Ledger
from tests.connector.picture import Connector, Scheduler, Status, request

pytestmark = pytest.mark.unit


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(autouse=True)
def randomized(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no vLLM here to ask."""
    monkeypatch.setattr(layout, "ids_are_randomized", lambda: True)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def scheduler() -> Scheduler:
    return Scheduler()


@pytest.fixture
def kit(scheduler: Scheduler, clock: Clock) -> Iterator[Kit]:
    kit = Kit(scheduler, Guard(), clock)
    yield kit
    assert kit.guard.errors == {}


def entries(kit: Kit) -> list[RequestEntry]:
    listed: list[RequestEntry] = kit.requests()["requests"]
    return listed


def test_parked_then_its_client_goes(kit: Kit, scheduler: Scheduler, clock: Clock) -> None:
    one = request(
        "cmpl-shop-7-0-0badcafe",
        kv_transfer_params={"do_remote_prefill": False, "remote_engine_id": "prefill-3"},
    )
    scheduler.add_request(one)
    clock.now += 2
    scheduler.park(one, 10, nulls=3)
    clock.now += 30
    assert entries(kit) == [
        {
            "id": "cmpl-shop-7",
            "schedulerId": "cmpl-shop-7-0-0badcafe",
            "status": "WAITING_FOR_REMOTE_KVS",
            "ageSeconds": 30.0,
            "blocks": 10,
            "cacheShare": 0.1,
            "remoteEngine": "prefill-3",
            "clientGone": False,
            "waitsFor": "remote_kv",
            "leased": False,
            "pinned": False,
            "releasable": False,
            "way": None,
            "refusal": "the kit has no adapter for Connector",
            "refusalKind": "no-adapter",
        }
    ]
    scheduler.abort(one)
    clock.now += 5
    (entry,) = entries(kit)
    assert (entry["status"], entry["ageSeconds"], entry["blocks"]) == ("FINISHED_ABORTED", 5.0, 10)
    assert (entry["clientGone"], entry["waitsFor"]) == (True, "remote_kv")
    assert not entry["leased"]
    assert not entry["pinned"]
    scheduler._free_blocks(one)
    assert entries(kit) == []
    assert len(kit.ledger) == 0


@pytest.mark.parametrize(
    ("params", "leased", "pinned"),
    [
        pytest.param({"do_remote_decode": True}, True, False, id="a producer's lease"),
        pytest.param({"do_remote_decode": False}, False, True, id="a bidirectional decode's pin"),
        pytest.param(None, False, True, id="another connector keeps it"),
    ],
)
def test_kept_for_a_reader(kit: Kit, scheduler: Scheduler, params: Any, leased: bool, pinned: bool) -> None:
    one = request("cmpl-a-0-00000000", kv_transfer_params=params)
    scheduler.add_request(one)
    scheduler.park(one)
    scheduler._update_waiting_for_remote_kv(one)
    scheduler.run(one)
    scheduler.finish(one, keep=True)
    (entry,) = entries(kit)
    assert (entry["leased"], entry["pinned"]) == (leased, pinned)
    assert entry["clientGone"]
    assert entry["waitsFor"] is None


def test_an_abort_is_never_a_lease(kit: Kit, scheduler: Scheduler) -> None:
    """A bidirectional turn-2 read on a prefill engine, aborted while parked."""
    one = request("cmpl-a-0-00000000", kv_transfer_params={"do_remote_decode": True})
    scheduler.add_request(one)
    scheduler.park(one)
    scheduler.abort(one)
    (entry,) = entries(kit)
    assert (entry["leased"], entry["pinned"], entry["waitsFor"]) == (False, False, "remote_kv")


@pytest.mark.parametrize(
    ("status", "waits_for"),
    [
        (Status.WAITING, "capacity"),
        (Status.PREEMPTED, "capacity"),
        (Status.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR, "grammar"),
        (Status.WAITING_FOR_REMOTE_KVS, "remote_kv"),
        (Status.WAITING_FOR_STREAMING_REQ, None),
        (Status.RUNNING, None),
    ],
    ids=lambda value: getattr(value, "name", str(value)),
)
def test_waits_for(kit: Kit, scheduler: Scheduler, status: Status, waits_for: str | None) -> None:
    scheduler.add_request(request("cmpl-a-0-00000000", status))
    assert entries(kit)[0]["waitsFor"] == waits_for


@pytest.mark.parametrize(
    ("wanted", "most", "waits_for"),
    [(7, 1, "lora"), (5, 1, "capacity"), (7, 2, "capacity"), (0, 1, "capacity")],
    ids=["no room for its adapter", "its adapter runs", "room for one more", "no adapter"],
)
def test_waits_for_lora(kit: Kit, scheduler: Scheduler, wanted: int, most: int, waits_for: str) -> None:
    scheduler.lora_config = SimpleNamespace(max_loras=most)
    runs = request("cmpl-a-0-00000000", lora_request=SimpleNamespace(lora_int_id=5))
    waits = request("cmpl-b-0-00000000", lora_request=SimpleNamespace(lora_int_id=wanted) if wanted else None)
    for one in (runs, waits):
        scheduler.add_request(one)
    scheduler.run(runs)
    assert {one["id"]: one["waitsFor"] for one in entries(kit)} == {"cmpl-a": None, "cmpl-b": waits_for}


def test_the_stuck_ones_come_first_the_oldest_of_them_first(
    kit: Kit, scheduler: Scheduler, clock: Clock
) -> None:
    made = {}
    for name in ("queued", "runs", "leased", "parked", "orphan", "old-orphan"):
        made[name] = request(f"cmpl-{name}-0-00000000", kv_transfer_params={"do_remote_decode": True})
        scheduler.add_request(made[name])
    scheduler.park(made["old-orphan"])
    scheduler.abort(made["old-orphan"])
    clock.now += 10
    scheduler.run(made["runs"])
    scheduler.park(made["leased"])
    scheduler.run(made["leased"])
    scheduler.finish(made["leased"], keep=True)
    scheduler.park(made["parked"])
    clock.now += 1
    scheduler.park(made["orphan"])
    scheduler.abort(made["orphan"])
    clock.now += 1
    assert [one["id"].removeprefix("cmpl-") for one in entries(kit)] == [
        "old-orphan", "parked", "orphan", "leased", "queued", "runs",
    ]  # fmt: skip


def test_summary_counts_the_parked_and_the_orphans_and_no_lease(
    kit: Kit, scheduler: Scheduler, clock: Clock
) -> None:
    for number, end in enumerate(("parked", "abort", "lease", "abort", "run")):
        one = request(f"cmpl-{number}-0-00000000")
        scheduler.add_request(one)
        scheduler.park(one, 10 + number)
        if end == "abort":
            scheduler.abort(one)
        if end in ("lease", "run"):
            scheduler._update_waiting_for_remote_kv(one)
            scheduler.run(one)
        if end == "lease":
            scheduler.finish(one, keep=True)
        clock.now += 10
    assert kit.summary() == {
        "errors": 0,
        "fix": "not-needed",
        "parked_requests": 1,
        "parked_blocks": 10,
        "orphan_requests": 2,
        "orphan_blocks": 24,
        "oldest_seconds": 50,
        "fixHits": 0,
        "releases": {},
        "refusals": {},
    }
    kit.unknown = "something"
    assert set(kit.summary()) == {"errors", "fix", "fixHits", "releases", "refusals"}


def test_hooks_hand_through_what_vllm_returns_and_raises(kit: Kit, scheduler: Scheduler) -> None:
    one = request("cmpl-a-0-00000000", Status.RUNNING)
    scheduler.add_request(one)
    assert scheduler.connector.update_state_after_alloc(one, None, 3) == "allocated 3"
    assert scheduler._update_waiting_for_remote_kv(one) == "resumed"
    scheduler.running.append(one)
    scheduler._preempt_request(one, timestamp=1.0)
    assert scheduler._free_request(one, delay_free_blocks=True) == ("params", None)
    scheduler._free_blocks(one)
    with pytest.raises(KeyError):
        scheduler._free_blocks(one)


@pytest.mark.parametrize("hook", [*HOOKED, HOOKED_CONNECTOR])
def test_chaos_a_hook_that_raises_is_counted_and_the_engine_goes_on(
    hook: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler, guard = Scheduler(), Guard()
    kit = Kit(scheduler, guard)

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("ours")

    monkeypatch.setattr(Ledger, "record", broken)
    one = request("cmpl-a-0-00000000")
    scheduler.add_request(one)
    scheduler.park(one)
    scheduler._update_waiting_for_remote_kv(one)
    scheduler.run(one)
    scheduler._preempt_request(one, 1.0)
    scheduler.finish(one, keep=True)
    scheduler._free_blocks(one)
    assert guard.errors[hook] >= 1
    assert scheduler.requests == {}
    assert kit.requests() == {"requests": []}


def test_a_kit_that_fails_on_and_on_turns_itself_off(monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler, guard, calls = Scheduler(), Guard(), []
    kit = Kit(scheduler, guard)

    def broken(*_: object, **__: object) -> None:
        calls.append(1)
        raise RuntimeError("ours")

    monkeypatch.setattr(Ledger, "record", broken)
    for number in range(3 * FAILURES_IN_A_ROW):
        scheduler.add_request(request(f"cmpl-{number}-0-00000000"))
    assert len(calls) == FAILURES_IN_A_ROW
    assert kit.state()["disabled"] == f"add_request failed {FAILURES_IN_A_ROW} times in a row (RuntimeError)"
    assert "turned itself off" in kit.requests()["error"]
    assert len(scheduler.requests) == 3 * FAILURES_IN_A_ROW


def test_one_success_breaks_the_row() -> None:
    guard = Guard()
    for _ in range(5):
        for _ in range(FAILURES_IN_A_ROW - 1):
            guard.failed("hook", RuntimeError())
        guard.worked("hook")
    assert guard.disabled is None
    assert guard.errors == {"hook": 5 * (FAILURES_IN_A_ROW - 1)}


def test_it_logs_once_a_minute_and_never_the_text_of_an_exception(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    guard = Guard(clock)
    with caplog.at_level("WARNING", logger="vllm.stanch"):
        for _ in range(10):
            guard.failed("hook", RuntimeError("a client's prompt"))
        clock.now += 61
        guard.failed("hook", RuntimeError("a client's prompt"))
    assert len(caplog.records) == 2
    assert "prompt" not in caplog.text


@pytest.mark.parametrize("missing", [*HOOKED, "requests", "kv_cache_manager", "connector", "skipped_waiting"])
def test_an_unknown_layout_is_left_alone(missing: str) -> None:
    scheduler = Scheduler()
    if missing in HOOKED:
        setattr(scheduler, missing, None)
    elif missing == "connector":
        scheduler.connector = object()
    elif missing == "skipped_waiting":
        del scheduler.skipped_waiting
    else:
        setattr(scheduler, missing, object())
    before = dict(vars(scheduler))
    with pytest.raises(UnknownLayoutError, match="this vLLM's scheduler has no"):
        attach(scheduler, Ledger(), Guard())
    assert vars(scheduler) == before
    kit = Kit(scheduler, Guard())
    assert kit.requests()["error"].startswith("no list: this vLLM's scheduler has no")
    assert kit.state()["disabled"] is not None


def test_without_a_connector() -> None:
    scheduler = Scheduler()
    scheduler.connector = None
    kit = Kit(scheduler, Guard())
    scheduler.add_request(request("cmpl-a-0-00000000", Status.RUNNING))
    assert entries(kit)[0]["blocks"] == 0
    assert kit.state()["fix"] == "not-needed"


def test_a_question_never_raises() -> None:
    guard = Guard()
    core = SimpleNamespace(scheduler=Scheduler())
    assert json.loads(answer(core, "requests", guard)) == {"requests": []}
    assert kit_of(core.scheduler, guard) is kit_of(core.scheduler, guard)
    assert "error" in json.loads(answer(core, "poem", guard))
    assert guard.errors == {}
    core.scheduler.add_request(SimpleNamespace(request_id="cmpl-a-0-00000000"))
    assert json.loads(answer(core, "requests", guard)) == {"error": "the kit failed: AttributeError"}
    assert json.loads(answer(SimpleNamespace(), "requests", guard))["error"]
    assert guard.errors == {"question": 2}


@pytest.mark.parametrize(
    ("scheduler_id", "randomized", "known"),
    [
        ("cmpl-X-0-1a2b3c4d", True, "cmpl-X"),
        ("cmpl-X-11-1a2b3c4d", True, "cmpl-X"),
        ("chatcmpl-X-1a2b3c4d", True, "chatcmpl-X"),
        ("chatcmpl-X-3-1a2b3c4d", True, "chatcmpl-X-3"),
        ("0_cmpl-X-0-1a2b3c4d", True, "cmpl-X"),
        ("1_chatcmpl-X-1a2b3c4d", True, "chatcmpl-X"),
        ("chatcmpl-X_1-1a2b3c4d", True, "chatcmpl-X_1"),
        (
            "chatcmpl-123e4567-e89b-12d3-a456-426614174000-1a2b3c4d",
            True,
            "chatcmpl-123e4567-e89b-12d3-a456-426614174000",
        ),
        ("cmpl-deadbeef-0-1a2b3c4d", True, "cmpl-deadbeef"),
        ("cmpl-X-0", False, "cmpl-X"),
        ("cmpl-deadbeef-0", False, "cmpl-deadbeef"),
        ("chatcmpl-cafecafe-1a2b3c4d", False, "chatcmpl-cafecafe-1a2b3c4d"),
        ("cmpl-7", False, "cmpl-7"),
        ("generate-tokens-X-1a2b3c4d", True, "generate-tokens-X"),
        ("7_X-1a2b3c4d", True, "7_X"),
        ("", True, ""),
    ],
)
def test_client_id(scheduler_id: str, randomized: bool, known: str) -> None:
    assert client_id(scheduler_id, randomized=randomized) == known


class NixlPullConnector(Connector):
    pass


class Fixed(NixlPullConnector):
    stanch_fix = "active"
    stanch_fix_reason = "0.29.0 has the defect"


def test_what_the_connector_says_of_the_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    from stanch_connector.engine import seams

    def fix(connector: Any, version: tuple[int, int] | None = (0, 29)) -> str:
        monkeypatch.setattr(seams, "vllm_version", lambda: version)
        return fix_of(SimpleNamespace(connector=connector))[0]

    assert fix(None) == "not-needed"
    assert fix(Connector()) == "not-needed"
    assert fix(NixlPullConnector()) == "unpatched"
    assert fix(NixlPullConnector(), None) == "unpatched"
    assert fix(NixlPullConnector(), (0, 30)) == "not-needed"
    assert fix(Fixed()) == "active"
    assert fix(SimpleNamespace(_connectors=[Connector(), Fixed()])) == "active"


def test_the_connectors_own_errors_are_told_as_well() -> None:
    scheduler = Scheduler()
    scheduler.connector.stanch_guard = Guard()
    scheduler.connector.stanch_guard.failed("connector.mark", RuntimeError())
    kit = Kit(scheduler, Guard())
    kit.guard.failed("question", RuntimeError())
    assert kit.state()["errors"] == {"question": 1, "connector.mark": 1}
    assert kit.summary()["errors"] == 2


@pytest.mark.parametrize(
    ("connector", "own"),
    [
        (SimpleNamespace(engine_id="e_dp1"), "e_dp1"),
        (SimpleNamespace(_connectors=[SimpleNamespace(), SimpleNamespace(engine_id="e")]), "e"),
        (SimpleNamespace(engine_id=7), None),
        (SimpleNamespace(), None),
        (None, None),
    ],
    ids=["of its own", "of one within it", "no text", "none", "no connector"],
)
def test_the_id_by_which_peers_know_the_engine(connector: Any, own: str | None) -> None:
    assert engine_id_of(SimpleNamespace(connector=connector)) == own


def test_the_state_says_it(kit: Kit, scheduler: Scheduler) -> None:
    scheduler.connector.engine_id = "e"
    assert kit.state()["engineId"] == "e"
