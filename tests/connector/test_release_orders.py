"""An order on its way from the gate to every engine core and back, over a fake engine client."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from stanch_connector.apiserver import ask, releasing
from stanch_connector.apiserver.commands import Order, ReleaseArgs
from stanch_connector.apiserver.gate import Gate
from stanch_connector.apiserver.releasing import Releasing
from stanch_connector.contract import ANNOTATION_COMMAND, Outcome
from stanch_connector.engine.guard import Guard
from stanch_connector.engine.releasing import REFUSED_AT_MOST
from stanch_connector.plugin import UTILITY

pytestmark = pytest.mark.unit

Reply = Callable[[str, dict[str, Any]], Any]
BOOT = "b00t"
HEARD = {"ticket": 0, "heard": True}


def part(**more: Any) -> dict[str, Any]:
    """What one engine core says to `release`."""
    return {"ways": {}, "refused": {}, "refusals": {}, "unknown": [], **more}


class Cores:
    """DPLBAsyncMPClient, as far as an order touches it. replies: by rank, (question, args) -> what it says,
    an exception to raise, or an awaitable to wait for."""

    def __init__(self, *replies: Reply) -> None:
        self._replies = replies
        self.asked: list[tuple[int, str, dict[str, Any]]] = []

    @property
    def core_engines(self) -> list[bytes]:
        return [rank.to_bytes(2, "little") for rank in range(len(self._replies))]

    async def _call_utility_async(self, method: str, question: str, args: str, *, engine: bytes) -> str:
        assert method == UTILITY
        rank = int.from_bytes(engine, "little")
        self.asked.append((rank, question, json.loads(args)))
        reply = self._replies[rank](question, json.loads(args))
        if asyncio.isfuture(reply) or asyncio.iscoroutine(reply):
            reply = await reply
        if isinstance(reply, BaseException):
            raise reply
        await asyncio.sleep(0)
        return json.dumps(reply)

    def told(self) -> list[tuple[int, dict[str, Any]]]:
        return [(rank, args) for rank, question, args in self.asked if question == "release"]


class Clock:
    """Monotonic; it moves by itself a little with every look, so that a wait comes to its end."""

    def __init__(self, step: float = 0.0) -> None:
        self.now, self._step = 100.0, step

    def __call__(self) -> float:
        self.now += self._step
        return self.now


def says(released: dict[str, Any], inquired: Any = HEARD) -> Reply:
    return lambda question, _: inquired if question == "inquire" else released


async def forever(*_: Any) -> None:
    await asyncio.Event().wait()


def silent(question: str, _: Any) -> Any:
    return HEARD if question == "inquire" else forever()


def scope(cores: Any) -> dict[str, Any]:
    state = SimpleNamespace(engine_client=SimpleNamespace(engine_core=cores))
    return {"type": "http", "app": SimpleNamespace(state=state)}


async def until(condition: Callable[[], Any]) -> None:
    """Polled: what is waited for happens in our code and in threads alike."""
    for _ in range(30_000):
        if condition():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("it never came")


def ordered(
    cores: Any, args: ReleaseArgs | None = None, seconds: float = 30.0, clock: Any = None, guard: Any = None
) -> list[Outcome]:
    """All that is reported of one order until it has ended."""
    outcomes: list[Outcome] = []

    async def main() -> None:
        watch = clock or Clock()
        carrier = Releasing(guard or Guard(), watch)
        carrier.meet(scope(cores))
        carrier.begin(Order("r-1", "release", watch.now + seconds, args or ReleaseArgs()), outcomes.append)
        await until(lambda: outcomes and outcomes[-1].get("state") not in ("accepted", "running"))

    asyncio.run(main())
    assert outcomes[0] == {"id": "r-1", "state": "running"}
    return outcomes[1:]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(releasing, "LOOK_SECONDS", 0.0)


def test_released() -> None:
    one = part(ways={"a": "freed"}, refused={"b": "it still reads"}, refusals={"reading": 1})
    cores = Cores(says(one))
    (outcome,) = ordered(cores, ReleaseArgs(("a", "b"), 2.5, dry_run=False))
    assert outcome == {
        "id": "r-1",
        "state": "done",
        "dryRun": False,
        "missingRanks": [],
        "released": ["a"],
        "ways": {"a": "freed"},
        "releases": {"freed": 1},
        "refused": {"b": "it still reads"},
        "refusals": {"reading": 1},
    }
    body = {"ids": ["a", "b"], "olderThanSeconds": 2.5, "dryRun": False}
    assert cores.asked == [(0, "inquire", body), (0, "release", body)]


def test_it_waits_until_the_ranks_were_heard() -> None:
    answers = iter(
        [{"ticket": 7, "heard": False}, {"ticket": 7, "heard": False}, {"ticket": 7, "heard": True}]
    )
    cores = Cores(lambda question, _: next(answers) if question == "inquire" else part())
    (outcome,) = ordered(cores, ReleaseArgs(("a",)))
    assert outcome["state"] == "done"
    # The ids, of which there may be ten thousand, go with the first one only.
    assert [args for _, question, args in cores.asked if question == "inquire"] == [
        {"ids": ["a"], "olderThanSeconds": None, "dryRun": False},
        {"ticket": 7},
        {"ticket": 7},
    ]


def test_a_hung_rank_is_told_all_the_same_and_judges_by_itself() -> None:
    """What it was not told by all its ranks it refuses."""
    refused = part(refused={"a": "0 of 2 ranks have said"}, refusals={"not-said": 1})
    cores = Cores(says(refused, {"ticket": 3, "heard": False}))
    (outcome,) = ordered(cores, ReleaseArgs(("a",)), clock=Clock(step=0.5))
    assert (outcome["state"], outcome["refusals"]) == ("refused", {"not-said": 1})
    assert len(cores.told()) == 1


def test_nobody_is_told_after_the_deadline() -> None:
    cores = Cores(says(part(), {"ticket": 3, "heard": False}))
    (outcome,) = ordered(cores, seconds=2.0, clock=Clock(step=0.5))
    assert outcome["state"] == "failed"
    assert "nothing was released" in outcome["reason"]
    assert cores.told() == []


@pytest.mark.parametrize("silent_inquiry", [False, True])
def test_a_rank_that_is_silent_may_still_release_and_says_so_later(silent_inquiry: bool) -> None:
    outcomes: list[Outcome] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        reply: asyncio.Future[Any] = loop.create_future()

        def slow(question: str, _: Any) -> Any:
            if question == "inquire":
                return forever() if silent_inquiry else HEARD
            return reply

        clock = Clock()
        carrier = Releasing(Guard(), clock)
        carrier.meet(scope(Cores(says(part(ways={"a": "freed"})), slow)))
        carrier.begin(Order("r-1", "release", clock.now + 0.05, ReleaseArgs()), outcomes.append)
        await until(lambda: len(outcomes) == 2)
        reply.set_result(part(ways={"b": "completed"}))
        await until(lambda: len(outcomes) == 3)

    asyncio.run(main())
    _, first, late = outcomes
    assert (first["state"], first["missingRanks"], first["released"]) == ("failed", [1], ["a"])
    assert first["reason"] == "rank 1 did not answer; it may still release its own"
    assert (late["state"], late["missingRanks"]) == ("done", [])
    assert late["ways"] == {"a": "freed", "b": "completed"}


@pytest.mark.parametrize("others", [0, 1], ids=["alone", "beside one that answered"])
@pytest.mark.parametrize("watcher_first", [False, True], ids=["seen by the carrier", "seen by the watcher"])
def test_the_gate_shows_what_came_late(watcher_first: bool, others: int) -> None:
    """Whoever sees first that the deadline has passed."""
    now = [100.0]
    gate = Gate(BOOT, Guard(), lambda: now[0])

    async def main() -> None:
        reply: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def slow(question: str, _: Any) -> Any:
            return HEARD if question == "inquire" else reply

        cores = Cores(slow, *[says(part(ways={"b": "freed"}))] * others)
        carrier = Releasing(Guard(), lambda: now[0])
        carrier.meet(scope(cores))
        gate.releaser = carrier.begin
        command = {"id": "r-1", "verb": "release", "bootId": BOOT, "deadlineSeconds": 0.05}
        gate.read({ANNOTATION_COMMAND: json.dumps(command)})
        await until(cores.told)
        if watcher_first:
            now[0] += 1
            gate.turn(0)
        await until(lambda: gate.outcomes()[0]["state"] == "failed")
        await until(lambda: not others or gate.outcomes()[0].get("released") == ["b"])
        now[0] += 1
        gate.turn(0)
        reply.set_result(part(ways={"a": "freed"}, refused={"c": "no"}, refusals={"reading": 1}))
        await until(lambda: "a" in gate.outcomes()[0].get("released", []))

    asyncio.run(main())
    (outcome,) = gate.outcomes()
    assert outcome["state"] == "failed", "it stays so"
    assert outcome["ways"] == {"a": "freed", **({"b": "freed"} if others else {})}
    assert (outcome["refused"], outcome["refusals"]) == ({"c": "no"}, {"reading": 1})
    assert outcome["missingRanks"] == []


def test_an_id_is_unknown_where_no_rank_has_it() -> None:
    cores = Cores(
        says(part(ways={"a": "freed"}, unknown=["b", "c"])),
        says(part(refused={"b": "RUNNING"}, refusals={"not-stuck": 1}, unknown=["a", "c"])),
    )
    (outcome,) = ordered(cores, ReleaseArgs(("a", "b", "c", "c")))
    assert outcome["ways"] == {"a": "freed"}
    assert outcome["refused"] == {"b": "RUNNING", "c": "no request has this id"}
    assert outcome["refusals"] == {"not-stuck": 1, "unknown-id": 1}
    assert outcome["state"] == "done"


def test_an_id_that_only_a_silent_rank_may_have() -> None:
    cores = Cores(says(part(unknown=["a"])), silent)
    (outcome, *_) = ordered(cores, ReleaseArgs(("a",)), seconds=0.05)
    assert outcome["state"] == "failed"
    assert outcome["refused"] == {"a": "no request has this id on the ranks that answered"}


def test_no_more_sentences_than_fit() -> None:
    refused = {f"r-{number}": "it still reads" for number in range(900)}
    ids = tuple(f"u-{number}" for number in range(9_000))
    both = says(part(refused=refused, refusals={"reading": 2_000}, unknown=list(ids)))
    (outcome,) = ordered(Cores(both), ReleaseArgs(ids))
    assert len(outcome["refused"]) == REFUSED_AT_MOST
    assert outcome["refusals"] == {"reading": 2_000, "unknown-id": 9_000}


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        ({"error": "no list: the kit turned itself off: x"}, "rank 0: no list: the kit turned itself off: x"),
        (
            AttributeError(f"'EngineCoreProc' object has no attribute '{UTILITY}'"),
            f"rank 0: {ask.NO_PLUGIN}",
        ),
        (RuntimeError("EngineDeadError"), "rank 0 did not answer; it may still release its own"),
    ],
    ids=["off", "no plug-in", "dead"],
)
def test_an_engine_core_that_cannot(reply: Any, reason: str) -> None:
    (outcome,) = ordered(Cores(lambda *_: reply))
    assert outcome["state"] == "failed"
    assert outcome["reason"] == reason
    assert "released" not in outcome


def test_one_that_cannot_and_one_that_is_silent_beside_one_that_did() -> None:
    cores = Cores(says(part(ways={"a": "freed"})), lambda *_: {"error": "no list: x"}, silent)
    (outcome, *_) = ordered(cores, seconds=0.05)
    assert outcome["reason"] == "rank 1: no list: x; rank 2 did not answer; it may still release its own"
    assert (outcome["released"], outcome["missingRanks"]) == (["a"], [1, 2])


def test_a_dry_run_never_releases() -> None:
    (outcome, *_) = ordered(Cores(silent), ReleaseArgs(dry_run=True), seconds=0.05)
    assert outcome["reason"] == "rank 0 did not answer"


@pytest.mark.parametrize("cores", [None, object(), Cores()], ids=["none", "unknown", "no ranks"])
def test_no_engine_to_ask(cores: Any) -> None:
    (outcome,) = ordered(cores)
    assert outcome["state"] == "failed"
    assert outcome["reason"]


def test_an_answer_of_another_kind_is_a_failure_of_the_kit() -> None:
    guard = Guard()
    (outcome,) = ordered(Cores(lambda *_: {"what": 1}), guard=guard)
    assert (outcome["state"], guard.errors) == ("failed", {"releasing": 1})
    assert "KeyError" in outcome["reason"]


def test_before_it_has_met_its_engine() -> None:
    outcomes: list[Outcome] = []
    carrier = Releasing(Guard())
    carrier.meet({"type": "lifespan"})
    carrier.begin(Order("r-1", "release", 1e9, ReleaseArgs()), outcomes.append)
    assert [one["state"] for one in outcomes] == ["refused"]
    assert "has not served a request yet" in outcomes[0]["reason"]


def test_a_loop_that_is_closed_is_the_gates_to_report() -> None:
    carrier = Releasing(Guard())

    async def meet() -> None:
        carrier.meet(scope(Cores()))

    asyncio.run(meet())
    gate = Gate(BOOT, Guard(), lambda: 100.0)
    gate.releaser = carrier.begin
    gate.read({ANNOTATION_COMMAND: json.dumps({"id": "r-1", "verb": "release", "bootId": BOOT})})
    assert gate.outcomes()[0]["state"] == "failed"


@pytest.mark.parametrize("question", ["inquire", "release"])
def test_an_engine_that_dies_after_the_deadline_is_no_news(
    question: str, caplog: pytest.LogCaptureFixture
) -> None:
    """vLLM logs it; asyncio would add a complaint of ours for each question."""

    async def main() -> None:
        died = asyncio.get_running_loop().create_future()

        def dies(asked: str, _: Any) -> Any:
            return died if asked == question else part(**HEARD)

        clock = Clock()
        carrier = Releasing(Guard(), clock)
        carrier.meet(scope(Cores(dies)))
        outcomes: list[Outcome] = []
        carrier.begin(Order("r-1", "release", clock.now + 0.01, ReleaseArgs()), outcomes.append)
        await until(lambda: len(outcomes) == 2)
        died.set_exception(RuntimeError("EngineDeadError"))
        await until(lambda: not carrier._under_way)
        await asyncio.sleep(0)
        gc.collect()

    with caplog.at_level(logging.DEBUG, logger="asyncio"):
        asyncio.run(main())
    gc.collect()
    assert "never retrieved" not in caplog.text
