"""A release on real engines of vLLM 0.29.0 with the stock connector, the kit being plug-in and middleware.

The fault is planted (injector.py); the model's weights make every block count (weights.py), so that tokens
prove what a block holds.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from stanch_connector import contract
from tests.engine.bed import Bed, Spec, until
from tests.engine.chaos_bed import start
from tests.engine.client import NoAnswerError, Pending, Traffic, complete, pd_request, prefill_only
from tests.engine.kit import ask
from tests.engine.marks import LATE, MUTE, SAME
from tests.engine.model import words
from tests.engine.pair import RUNNING, USAGE
from tests.engine.release_bed import TOKEN, TOKENS, Pair, post, text, with_kit
from tests.engine.weights import write_weights

pytestmark = pytest.mark.engine
VERSION = "0.29.0"


@pytest.fixture(scope="module")
def pair(bed: Bed) -> Pair:
    write_weights(bed.directory / "model")
    slow = {"stanch_step_delay_ms": 20, "stanch_late_file": str(bed.directory / "late")}
    prefill = with_kit(bed, Spec("prefill"))
    decode = with_kit(bed, Spec("decode", inject=True, connector=slow))
    start(prefill, decode)
    two = Pair(prefill, decode)
    # The first request makes the handshake, which once took half a minute.
    assert pd_request(prefill.url, decode.url, words(64, seed=9), 4).answer(90).status == 200
    return two


@pytest.fixture(autouse=True)
def healthy(pair: Pair) -> Iterator[None]:
    """Whatever a test does, the engine lives on, holds nothing, and no hook of the kit has failed."""
    yield
    if pair.shut_down:
        return
    until(lambda: pair.decode.metric(USAGE) == 0, "nothing is held")
    assert pair.decode.healthy
    assert ask(pair.decode, "state").body["errors"] == {}


def test_exactly_the_stuck_ones_while_others_run(pair: Pair) -> None:
    expected = {seed: pair.tokens(seed) for seed in (1, 2, 3)}
    with Traffic(pair.prefill.url, pair.decode.url, pause_s=0.05, tokens=40) as traffic:
        stuck = {seed: pair.request(seed, SAME) for seed in (1, 2, 3)}
        ids = [name for name, _ in stuck.values()]
        pair.parked(ids)
        for seed in (1, 2):
            stuck[seed][1].give_up()
        until(lambda: sum(one["clientGone"] for one in ask(pair.decode).stuck()) == 2, "two clients are gone")
        before = {one["id"]: one for one in ask(pair.decode).stuck() if one["id"] in ids}
        assert [before[one]["way"] for one in ids] == ["freed", "freed", "completed"]
        assert all(one["releasable"] and one["refusal"] is None for one in before.values())
        names = pair.scheduler_ids(ids)

        would = pair.command({"ids": ids, "dryRun": True})
        assert (would["state"], would["dryRun"]) == ("done", True)
        assert would["ways"] == dict(zip(names, ["freed", "freed", "completed"], strict=True))
        assert {one["id"] for one in ask(pair.decode).stuck()} >= set(ids), "nothing was done"

        done = pair.command({"ids": ids})
        assert (done["state"], done["ways"], done["refused"]) == ("done", would["ways"], {})
        assert sorted(done["released"]) == sorted(names)
        answered = traffic.answered
        # The client that waited all along gets the right tokens.
        assert text(stuck[3][1]) == expected[3]
        until(lambda: traffic.answered > answered + 1, "the others go on")
    assert traffic.failed == 0
    # What was freed left nothing wrong in the prefix cache.
    assert {seed: pair.tokens(seed) for seed in (1, 2, 3)} == expected
    # The gauge has fallen, and a request of nearly the whole cache passes.
    until(lambda: pair.decode.metric(USAGE) == 0, "the gauge falls")
    state = ask(pair.decode, "state").body
    assert state["releases"] == {"freed": 2, "completed": 1}
    assert pair.decode.metric("stanch_releases", engine="0", way="freed") == 2
    assert pair.decode.metric("stanch_orphan_requests", engine="0") == 0


def test_one_whose_reads_are_done_gets_an_error(pair: Pair) -> None:
    expected = pair.tokens(11)
    name, waiting = pair.request(11, MUTE)
    gone_name = pair.orphan(12)
    pair.parked([name])
    by_id = {one["id"]: one["way"] for one in ask(pair.decode).stuck()}
    assert by_id == {name: "failed", gone_name: "freed"}
    done = pair.command({"olderThanSeconds": 0.5})
    assert done["state"] == "done"
    assert sorted(done["ways"].values()) == ["failed", "freed"]
    answer = waiting.answer()
    assert answer.status == 500, answer
    assert pair.tokens(11) == expected
    assert pair.tokens(12) == pair.tokens(12)


def test_a_late_report_is_dropped(pair: Pair, bed: Bed) -> None:
    late = bed.directory / "late"
    name = pair.orphan(21, LATE)
    assert pair.command({"ids": [name]})["state"] == "done"
    until(lambda: pair.decode.metric(USAGE) == 0, "its blocks are free")
    late.touch()
    # Two requests make steps; in the step of the report the scheduler's assertion would end the engine.
    assert pair.tokens(22) == pair.tokens(22)
    assert pair.decode.log.read_text().count("reported late") == 1
    late.unlink()


def test_what_may_not_be_released_is_refused(pair: Pair) -> None:
    running = complete(pair.decode.url, words(20, seed=31), max_tokens=300, request_id="runs")
    until(lambda: pair.decode.metric(RUNNING) == 1, "it runs")
    many = [f"cmpl-nobody-{number}" for number in range(9_998)]
    outcome = pair.command({"ids": ["cmpl-runs", "cmpl-runs", *many]})
    assert outcome["state"] == "refused"
    assert outcome["refusals"] == {"not-stuck": 1, "unknown-id": 9_998}
    assert "RUNNING" in next(iter(outcome["refused"].values()))
    assert running.answer().status == 200
    # Everything stuck, where nothing is.
    assert pair.command({})["state"] == "done"


def test_a_leased_prefill_is_never_released(pair: Pair) -> None:
    prompt = words(TOKENS, seed=41)
    params = prefill_only(pair.prefill.url, prompt, request_id="unread")
    outcome = pair.command({"ids": ["cmpl-unread"]}, pair.prefill)
    assert (outcome["state"], outcome["refusals"]) == ("refused", {"leased": 1})
    assert pair.command({}, pair.prefill)["released"] == []
    read = complete(pair.decode.url, prompt, max_tokens=8, kv_transfer_params=params)
    assert text(read) == pair.tokens(41)


def test_a_frozen_peer_is_waited_for(pair: Pair) -> None:
    expected = pair.tokens(51)
    number = next(pair.numbers)
    prompt = words(TOKENS, seed=52)
    params = prefill_only(pair.prefill.url, prompt, request_id=f"plain-{number}")
    with pair.prefill.frozen():
        pending = complete(
            pair.decode.url, prompt, max_tokens=8, request_id=f"plain-{number}", kv_transfer_params=params
        )
        name = f"cmpl-plain-{number}"
        pair.parked([name])
        pending.give_up()
        until(lambda: ask(pair.decode).stuck()[0]["clientGone"], "its client is gone")
        outcome = pair.command({"ids": [name]})
        assert (outcome["state"], outcome["refusals"]) == ("refused", {"reading": 1})
        assert "still reads" in next(iter(outcome["refused"].values()))
    until(lambda: not ask(pair.decode).stuck(), "the read ends, and with it the wait")
    assert pair.tokens(51) == expected


def test_released_twice_at_once(pair: Pair) -> None:
    name = pair.orphan(61)
    state = ask(pair.decode, "state").body
    bodies = [
        {"id": f"twin-{one}", "verb": "release", "args": {"ids": [name]}, "bootId": state["bootId"]}
        for one in "ab"
    ]
    posts = [
        Pending(pair.decode.url, contract.ROUTE_COMMAND, body, {"Authorization": f"Bearer {TOKEN}"}, 30)
        for body in bodies
    ]
    assert [one.answer().status for one in posts] == [200, 200]

    def outcomes() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = ask(pair.decode, "state").body["outcomes"]
        return [one for one in found if one["id"].startswith("twin-")]

    until(lambda: all(one["state"] in ("done", "refused") for one in outcomes()), "both have ended")
    assert sorted(one["state"] for one in outcomes()) == ["done", "refused"]


def test_during_shutdown(pair: Pair) -> None:
    """The last one: it ends the engine. Told to end, an API server may find its core gone and say so with
    a traceback of its own (0.29.0: EngineDeadError in its output handler); none of it is ours."""
    pair.orphan(71)
    boot_id = ask(pair.decode, "state").body["bootId"]
    pair.shut_down = True
    pair.decode.ask_to_end()
    for number in range(20):
        body = {"id": f"end-{number}", "verb": "release", "args": {}, "bootId": boot_id}
        try:
            post(pair.decode, body)
        except NoAnswerError:
            break
    until(lambda: not pair.decode.alive, "it ends")
    assert "stanch_connector" not in pair.decode.log.read_text().partition("SIGTERM")[2]
