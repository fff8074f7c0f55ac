"""The kit's list on real engines: stock connector, fault injected, the kit as plug-in and middleware."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

import pytest

from stanch_connector import contract
from tests.engine.bed import Bed, Engine, Spec, until
from tests.engine.client import PATIENCE_S, Pending, Traffic, complete, get, pd_request, prefill_only
from tests.engine.kit import MIDDLEWARE, ask, kit_path, until_listed
from tests.engine.marks import MUTE
from tests.engine.model import words

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module", params=["0.29.0", "0.32.0"])
def bed(request: pytest.FixtureRequest) -> Iterator[Bed]:
    with Bed(request.param) as engines:
        yield engines


@pytest.fixture(scope="module")
def engines(bed: Bed) -> tuple[Engine, Engine]:
    """(prefill, decode), both with the kit; a request has gone through, which makes the handshake."""
    path = kit_path(bed.directory / "kit")
    prefill, decode = bed.start_all(
        Spec("prefill", extra_args=MIDDLEWARE, python_path=path),
        Spec(
            "decode",
            inject=True,
            max_model_len=2048,
            extra_args=MIDDLEWARE,
            python_path=path,
            connector={"stanch_step_delay_ms": 20},
        ),
    )
    assert pd_request(prefill.url, decode.url, words(64)).answer(90).status == 200
    return prefill, decode


def park(prefill: Engine, decode: Engine, count: int = 3) -> list[Pending]:
    """Requests of ten blocks that get stuck (`mute` leaks in every version)."""
    return [
        pd_request(prefill.url, decode.url, words(300, seed=100 + number), mark=MUTE, number=number)
        for number in range(count)
    ]


def test_state_and_readiness(bed: Bed, engines: tuple[Engine, Engine]) -> None:
    prefill, decode = engines
    state = ask(decode, "state").body
    assert state["schema"] == contract.SCHEMA_STATE
    assert state["vllm"].startswith(bed.version)
    assert (state["connector"], state["role"]) == ("StanchInjector", "kv_consumer")
    assert state["fix"] == ("unpatched" if bed.version < "0.30" else "not-needed")
    assert (state["leaseSeconds"], state["pinSeconds"], state["bidirectional"]) == (30.0, None, False)
    assert (state["errors"], state["disabled"]) == ({}, None)
    assert state["ready"] is True
    assert ask(decode, "ready").status == 200
    assert ask(decode, "state").body["bootId"] == state["bootId"] != ask(prefill, "state").body["bootId"]


def test_a_healthy_engine_lists_nothing_stuck(engines: tuple[Engine, Engine]) -> None:
    prefill, decode = engines
    until(lambda: not ask(decode).entries(), "an idle engine lists nothing")
    seen: set[str] = set()
    with Traffic(prefill.url, decode.url, pause_s=0.05) as traffic:
        while traffic.answered < 5:
            listed = ask(decode)
            seen |= {one["status"] for one in listed.entries()}
            # A request that has just come may be on its way to its remote KV.
            assert all(one["ageSeconds"] < 20 and not one["clientGone"] for one in listed.stuck())
    assert traffic.failed == 0
    assert "RUNNING" in seen
    until(lambda: not ask(decode).entries(), "an idle engine lists nothing again")


def test_a_lease_is_told_from_a_leak(engines: tuple[Engine, Engine]) -> None:
    prefill, _ = engines
    prefill_only(prefill.url, words(300, seed=7), request_id="unread")
    listed = ask(prefill)
    entry = next(one for one in listed.entries() if one["id"] == "cmpl-unread")
    assert (entry["leased"], entry["pinned"], entry["clientGone"]) == (True, False, True)
    assert (entry["blocks"], entry["waitsFor"], entry["releasable"]) == (10, None, False)
    assert listed.stuck() == []


def test_exactly_the_stuck_requests_under_traffic(
    engines: tuple[Engine, Engine], capsys: pytest.CaptureFixture[str]
) -> None:
    prefill, decode = engines
    with Traffic(prefill.url, decode.url, pause_s=0.05, tokens=60) as traffic:
        pending = park(prefill, decode)
        until(lambda: len([one for one in ask(decode).stuck() if "mute" in one["id"]]) == 3, "three parked")
        until(lambda: all(one["ageSeconds"] > 1 for one in ask(decode).stuck()), "they stay")
        waiting = ask(decode)
        for client in pending:
            client.give_up()
        until(lambda: sum(one["clientGone"] for one in ask(decode).entries()) == 3, "their clients are gone")
        before, times, running = traffic.answered, [], 0
        for _ in range(40):
            listed = ask(decode)
            times.append(listed.seconds * 1000)
            running += any(one["status"] == "RUNNING" for one in listed.entries())
            gone = [one for one in listed.entries() if one["clientGone"]]
            assert {one["id"] for one in gone} == {f"cmpl-mute-{number}" for number in range(3)}
        until(lambda: traffic.answered > before, "traffic goes on")
    assert {one["id"] for one in waiting.stuck() if "mute" in one["id"]} == {
        f"cmpl-mute-{number}" for number in range(3)
    }
    for one in waiting.stuck():
        if "mute" in one["id"]:
            assert (one["status"], one["clientGone"]) == ("WAITING_FOR_REMOTE_KVS", False)
    assert traffic.failed == 0
    last = until_listed(decode, 3, gone=True)
    usage = decode.metric("vllm:kv_cache_usage_perc")
    for one in last.stuck():
        assert (one["status"], one["blocks"], one["cacheShare"]) == ("FINISHED_ABORTED", 10, 0.1)
        assert one["schedulerId"].startswith(one["id"] + "-0-")
        assert {"0": one["remoteEngine"]} == ask(prefill, "state").body["engineIds"]
        assert one["ageSeconds"] > 0
        assert (one["leased"], one["pinned"]) == (False, False)
        assert (one["releasable"], one["way"], one["refusal"]) == (True, "freed", None)
    assert sum(one["cacheShare"] for one in last.stuck()) == pytest.approx(usage)
    assert decode.metric("stanch_orphan_requests", engine="0") == 3
    assert decode.metric("stanch_orphan_blocks", engine="0") == 30
    assert decode.metric("stanch_parked_requests", engine="0") == 0
    age = decode.metric("stanch_oldest_stuck_seconds", engine="0")
    # Not frozen, though the engine does no work.
    until(lambda: decode.metric("stanch_oldest_stuck_seconds", engine="0") != age, "the age goes on")
    assert running, "the list was taken while others ran"
    with capsys.disabled():
        print(
            f"\nlist under traffic: median {statistics.median(times):.1f} ms, "
            f"p95 {statistics.quantiles(times, n=20)[-1]:.1f} ms, most {max(times):.1f} ms "
            f"({running} of 40 with a request running)"
        )


def test_ids_as_the_client_knows_them(engines: tuple[Engine, Engine]) -> None:
    """Chat, several prompts, and n > 1, while they run."""
    _, decode = engines
    # The first sampling that is not greedy compiles something; on two busy cores that took a minute.
    warm = complete(decode.url, words(20), more={"temperature": 1}, timeout_s=150)
    assert warm.answer(150).status == 200
    chat = Pending(
        decode.url,
        "/v1/chat/completions",
        {
            "model": "tiny", "messages": [{"role": "user", "content": words(20)}], "max_tokens": 400,
            "ignore_eos": True,
        },
        {"X-Request-Id": "talk"},
        PATIENCE_S,
    )  # fmt: skip
    two = complete(decode.url, words(40), max_tokens=400, request_id="twice", more={"n": 2, "temperature": 1})
    ids: list[str] = []

    def three() -> bool:
        ids[:] = [one["id"] for one in ask(decode).entries() if not one["clientGone"]]
        return len(ids) >= 3

    until(three, "three running")
    answers = [chat.answer(), two.answer()]
    assert [one.status for one in answers] == [200, 200], answers
    assert sorted(ids) == sorted([answers[0].body["id"], *[answers[1].body["id"]] * 2])


def test_a_hung_engine_is_missing_never_empty(engines: tuple[Engine, Engine]) -> None:
    _, decode = engines
    pending = complete(decode.url, words(20), max_tokens=400)
    with decode.frozen():
        until(lambda: ask(decode).body["missingRanks"] == [0], "its core waits for the worker")
        listed = ask(decode)
        state = ask(decode, "state")
        assert get(decode.url, "/health").status == 200
    assert (listed.status, listed.body["ranks"], listed.body["missingRanks"]) == (200, {}, [0])
    assert state.status == 200
    # A lone engine's id is its configuration's, so it is told also while the engine hangs.
    assert state.body["engineIds"] == ask(decode, "state").body["engineIds"] != {}
    assert pending.answer().status == 200
    until(lambda: ask(decode).body["missingRanks"] == [], "it answers again")
