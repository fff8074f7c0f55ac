"""`stanch check` and `stanch watch` at real engines of vLLM 0.29.0, the last release with the defect.

One pair serves all scenarios; each brings the decode engine into the state it needs by itself, so any of them
runs alone, but in this order hardly a restart is needed. Holds are cut to ten seconds.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import aiohttp
import pytest

from stanch.core.confirm import Canary, Outcome
from stanch.edge.engine import Address, canary
from tests.engine.bed import until
from tests.engine.client import Traffic
from tests.engine.pair import RUNNING, WAITING, Pair
from tests.engine.stanch_cli import (
    CANNOT_TELL,
    FAULT,
    HEALTHY,
    HOLD_S,
    LOOK_S,
    SUSPECT,
    check,
    look,
    start_watch,
)

pytestmark = pytest.mark.engine
VERSION = "0.29.0"


def test_idle(clean_pair: Pair) -> None:
    checked, watched = look(clean_pair.decode.url)
    assert checked.exit_code == HEALTHY, str(checked)
    assert checked.last["state"] == "healthy", str(checked)
    assert checked.last["usage"] == 0, str(checked)
    assert (checked.last["running"], checked.last["waiting"]) == (0, 0), str(checked)
    assert watched.states() == ["healthy"], str(watched)
    # A turn a second, as far as a busy machine has the time.
    assert len(watched.verdicts) >= LOOK_S // 2, str(watched)


def test_one_look_at_an_idle_engine_knows_its_version(clean_pair: Pair) -> None:
    looked = check(clean_pair.decode.url, "decode", None)
    assert looked.exit_code == HEALTHY, str(looked)
    assert looked.last["vllm"]["status"] == "affected", str(looked)
    assert looked.last["vllm"]["version"].startswith(VERSION), str(looked)


def test_a_healthy_engine_answers_a_canary(clean_pair: Pair) -> None:
    async def send() -> Canary:
        async with aiohttp.ClientSession() as session:
            return await canary(session, Address(clean_pair.decode.url), 30)

    sent = asyncio.run(send())
    assert (sent.outcome, sent.generation_tokens, sent.prompt_tokens) == (Outcome.FINISHED, 1, 1)
    # `check` asks no engine about which there is nothing to ask.
    checked = check(clean_pair.decode.url, "decode", None, "--canary")
    assert checked.exit_code == HEALTHY, str(checked)
    assert checked.last["confirmation"] is None, str(checked)


def test_prefill_engine_within_its_lease(clean_pair: Pair) -> None:
    clean_pair.unread_prefill()
    until(lambda: clean_pair.usage(clean_pair.prefill) > 0, "blocks held for a reader")
    checked, watched = look(clean_pair.prefill.url, "prefill")
    # Whether it is a suspect meanwhile is a matter of taste; longer than the hold, it must not be a fault.
    assert checked.exit_code in (HEALTHY, SUSPECT), str(checked)
    assert not {"fault", "blind"} & set(watched.states()), str(watched)
    # The lease outlived the look, or this showed nothing.
    assert watched.last["usage"] > 0, str(watched)


def test_traffic(clean_pair: Pair) -> None:
    with Traffic(clean_pair.prefill.url, clean_pair.decode.url) as traffic:
        checked, watched = look(clean_pair.decode.url)
    assert traffic.answered >= 3
    assert not traffic.failed
    assert checked.exit_code == HEALTHY, str(checked)
    assert watched.is_quiet, str(watched)


def test_capacity_wait_of_an_engine_at_work(clean_pair: Pair) -> None:
    """Three long generations fill the cache and a fourth request waits for room: business as usual."""
    decode = clean_pair.decode
    pending = [clean_pair.generate(600, 1200) for _ in range(3)]
    until(lambda: decode.metric(RUNNING) == 3, "three running")
    pending.append(clean_pair.generate(1500, 4))
    until(lambda: decode.metric(WAITING) == 1, "one waiting")
    checked, watched = look(decode.url)
    still = decode.metric(WAITING)
    for one in pending:
        one.give_up()
    assert still == 1, "it waited all the time"
    assert checked.exit_code == HEALTHY, str(checked)
    assert watched.is_quiet, str(watched)
    until(lambda: clean_pair.usage() == 0, "all blocks free")


def test_frozen_peer_and_thaw(clean_pair: Pair) -> None:
    """The prefill's worker hangs before its blocks are read: the decode waits, and no defect is needed."""
    pair, decode = clean_pair, clean_pair.decode
    halves = [pair.unread_prefill() for _ in range(3)]
    with pair.prefill.frozen():
        pending = [pair.read(*half) for half in halves]
        until(lambda: decode.metric(WAITING) == 3, "three waiting for a frozen peer")
        checked, watched = look(decode.url)
        for one in pending:
            one.give_up()
        until(lambda: decode.metric(WAITING) == 0, "the clients are gone")
        gone = check(decode.url)
    assert checked.exit_code == FAULT, str(checked)
    assert checked.last["signature"] == "DeferredStall", str(checked)
    assert watched.last["state"] == "fault", str(watched)
    assert watched.last["signature"] == "DeferredStall", str(watched)
    assert gone.exit_code == FAULT, str(gone)
    assert gone.last["signature"] == "HeldIdle", str(gone)
    until(lambda: pair.usage() == 0, "the thawed peer's blocks are read and freed", deadline_s=60)
    assert pair.request(64).answer().status == 200
    thawed, _ = look(decode.url)
    assert thawed.exit_code == HEALTHY, str(thawed)


def test_frozen_worker(clean_pair: Pair, tmp_path: Path) -> None:
    """A worker that hangs with requests running; a canary then ends in a time-out, which proves it too."""
    decode = clean_pair.decode
    policy = tmp_path / "policy.yaml"
    policy.write_text("canarySeconds: 5\n")
    pending = [clean_pair.generate(64, 1500) for _ in range(2)]
    until(lambda: decode.metric(RUNNING) == 2, "two running")
    with decode.frozen():
        checked, watched = look(decode.url)
        asked = check(decode.url, "decode", LOOK_S, "--canary", "--policy", str(policy))
        assert decode.healthy
    for one in pending:
        one.give_up()
    assert checked.exit_code == FAULT, str(checked)
    assert checked.last["signature"] == "NoProgress", str(checked)
    assert watched.last["signature"] == "NoProgress", str(watched)
    assert asked.exit_code == FAULT, str(asked)
    assert asked.last["confirmation"] == "confirmed", str(asked)
    until(lambda: decode.metric(RUNNING) == 0 and clean_pair.usage() == 0, "thawed and idle", deadline_s=60)
    assert check(decode.url).exit_code == HEALTHY


def test_leak_with_clients_waiting(clean_pair: Pair) -> None:
    decode = clean_pair.decode
    with clean_pair.parked(3) as pending:
        checked, watched = look(decode.url)
        asked = check(decode.url, "decode", LOOK_S, "--canary")
        assert all(one.open for one in pending)
    assert checked.exit_code == FAULT, str(checked)
    assert checked.last["signature"] == "DeferredStall", str(checked)
    assert checked.last["waiting"] == 3, str(checked)
    assert checked.last["usage"] == pytest.approx(0.3), str(checked)
    assert checked.last["held_seconds"] >= HOLD_S, str(checked)
    assert watched.last["state"] == "fault", str(watched)
    assert watched.last["signature"] == "DeferredStall", str(watched)
    assert asked.exit_code == FAULT, str(asked)
    assert asked.last["confirmation"] == "confirmed", str(asked)


def test_leak_after_the_clients_left(pair: Pair) -> None:
    held = pair.leak(0.3)
    checked, watched = look(pair.decode.url)
    assert pair.decode.healthy, "/health says 200 throughout: the fault does not show there"
    assert checked.exit_code == FAULT, str(checked)
    assert checked.last["signature"] == "HeldIdle", str(checked)
    assert checked.last["usage"] == pytest.approx(held), str(checked)
    assert (checked.last["running"], checked.last["waiting"]) == (0, 0), str(checked)
    assert watched.states()[-1] == "fault", str(watched)
    assert watched.last["signature"] == "HeldIdle", str(watched)
    assert "healthy" not in watched.states(), str(watched)


def test_a_canary_confirms_the_leak(pair: Pair) -> None:
    held = pair.leak(0.3)
    checked = check(pair.decode.url, "decode", LOOK_S, "--canary")
    assert checked.exit_code == FAULT, str(checked)
    assert checked.last["confirmation"] == "confirmed", str(checked)
    assert checked.last["signature"] == "HeldIdle", str(checked)
    # The canary was served by an engine that still holds what nobody runs.
    assert pair.usage() == pytest.approx(held)


def test_watch_asks_by_itself_and_its_canary_is_no_progress(pair: Pair) -> None:
    pair.leak(0.3)
    with start_watch(pair.decode.url, "decode", LOOK_S + 8, "--canary") as watching:
        watched = watching.finish()
    assert watched.last["state"] == "fault", str(watched)
    assert watched.last["confirmation"] == "confirmed", str(watched)
    # Were the canary's token taken for progress, the hold would begin again.
    assert watched.states()[-2:] == ["suspect", "fault"], str(watched)
    assert watched.last["held_seconds"] > HOLD_S + 4, str(watched)


def test_one_look_at_a_leak_is_no_more_than_suspect(pair: Pair) -> None:
    pair.leak(0.3)
    looked = check(pair.decode.url, "decode", None)
    assert looked.exit_code == SUSPECT, str(looked)
    assert looked.last["signature"] == "HeldIdle", str(looked)


def test_leak_under_traffic(pair: Pair) -> None:
    """Requests come and are answered all the time; the floor under them is what nobody runs."""
    pair.leak(0.3)
    with Traffic(pair.prefill.url, pair.decode.url, pause_s=2.5) as traffic:
        checked, watched = look(pair.decode.url, "decode", LOOK_S + 12)
    assert traffic.answered >= 3
    assert checked.exit_code == FAULT, str(checked)
    assert checked.last["signature"] in ("HeldFloor", "HeldIdle"), str(checked)
    assert watched.last["state"] == "fault", str(watched)
    assert "HeldFloor" in {one["signature"] for one in watched.verdicts}, str(watched)


def test_capacity_wait_behind_a_leak(pair: Pair) -> None:
    """A request that no longer fits beside the leaked blocks waits for ever, and nothing runs."""
    pair.leak(0.6)
    pending = pair.generate(1500, 4)
    try:
        until(lambda: pair.decode.metric(WAITING) == 1, "one waiting for room")
        checked, watched = look(pair.decode.url)
    finally:
        pending.give_up()
    assert checked.exit_code == FAULT, str(checked)
    assert checked.last["signature"] == "QueueDeadlock", str(checked)
    assert checked.last["waiting"] == 1, str(checked)
    assert watched.last["signature"] == "QueueDeadlock", str(watched)


def test_restart_heals_and_carries_nothing_over(pair: Pair) -> None:
    pair.leak(0.3)
    with start_watch(pair.decode.url, "decode", 600) as watching:
        # Seen sick before the restart, so that something is there to carry over.
        assert check(pair.decode.url).exit_code == FAULT
        pair.decode.stop()
        down = check(pair.decode.url, "decode", None)
        pair.decode.launch()
        pair.decode.wait_ready()
        healed = check(pair.decode.url)
        watching.interrupt()
        watched = watching.finish()
    # Only now: its handshake may last as long as a fault does.
    pair.warm_up()
    assert down.exit_code == CANNOT_TELL, str(down)
    assert (down.last["state"], down.last["signature"]) == ("blind", "Blind"), str(down)
    assert healed.exit_code == HEALTHY, str(healed)
    after = watched.verdicts[[one["state"] for one in watched.verdicts].index("blind") :]
    assert "fault" in {one["state"] for one in watched.verdicts}, str(watched)
    assert "fault" not in {one["state"] for one in after}, str(watched)
    assert max(one["held_seconds"] for one in after) < HOLD_S / 2, str(watched)
    assert watched.last["state"] == "healthy", str(watched)
