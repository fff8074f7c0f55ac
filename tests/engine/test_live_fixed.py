"""The same at vLLM 0.32.0, which has the fix: what cannot leak any more, and what still can."""

from __future__ import annotations

import pytest

from tests.engine.bed import until
from tests.engine.client import Traffic
from tests.engine.marks import MUTE, PARK
from tests.engine.pair import TEN_BLOCKS, WAITING, Pair
from tests.engine.stanch_cli import FAULT, HEALTHY, LOOK_S, SUSPECT, check, look

pytestmark = pytest.mark.engine
VERSION = "0.32.0"


def test_idle(clean_pair: Pair) -> None:
    checked, watched = look(clean_pair.decode.url)
    assert checked.exit_code == HEALTHY, str(checked)
    assert checked.last["usage"] == 0, str(checked)
    assert checked.last["vllm"]["status"] == "fixed", str(checked)
    assert watched.states() == ["healthy"], str(watched)


def test_the_known_defect_is_gone(clean_pair: Pair) -> None:
    """What leaks on 0.29.0 is answered here, and traffic beside it is business as usual."""
    pending = [clean_pair.request(TEN_BLOCKS, mark=PARK) for _ in range(3)]
    assert [one.answer().status for one in pending] == [200, 200, 200]
    with Traffic(clean_pair.prefill.url, clean_pair.decode.url) as traffic:
        checked, watched = look(clean_pair.decode.url)
    assert traffic.answered >= 3
    assert not traffic.failed
    assert checked.exit_code == HEALTHY, str(checked)
    assert watched.is_quiet, str(watched)
    until(lambda: clean_pair.usage() == 0, "all blocks free")


def test_prefill_engine_within_its_lease(clean_pair: Pair) -> None:
    clean_pair.unread_prefill()
    until(lambda: clean_pair.usage(clean_pair.prefill) > 0, "blocks held for a reader")
    checked, watched = look(clean_pair.prefill.url, "prefill")
    assert checked.exit_code in (HEALTHY, SUSPECT), str(checked)
    assert not {"fault", "blind"} & set(watched.states()), str(watched)


def test_frozen_peer_and_thaw(clean_pair: Pair) -> None:
    """No version is safe from a peer that hangs."""
    pair, decode = clean_pair, clean_pair.decode
    halves = [pair.unread_prefill() for _ in range(2)]
    with pair.prefill.frozen():
        pending = [pair.read(*half) for half in halves]
        until(lambda: decode.metric(WAITING) == 2, "two waiting for a frozen peer")
        checked, watched = look(decode.url)
        for one in pending:
            one.give_up()
    assert checked.exit_code == FAULT, str(checked)
    assert checked.last["signature"] == "DeferredStall", str(checked)
    assert watched.last["signature"] == "DeferredStall", str(watched)
    until(lambda: pair.usage() == 0, "the thawed peer's blocks are read and freed", deadline_s=60)
    assert check(decode.url).exit_code == HEALTHY


def test_a_lost_report_leaks_in_every_version(clean_pair: Pair) -> None:
    decode = clean_pair.decode
    with clean_pair.parked(3, mark=MUTE):
        checked, watched = look(decode.url)
    assert checked.exit_code == FAULT, str(checked)
    assert checked.last["signature"] == "DeferredStall", str(checked)
    assert checked.last["waiting"] == 3, str(checked)
    assert watched.last["signature"] == "DeferredStall", str(watched)


def test_leak_after_the_clients_left_is_confirmed(pair: Pair) -> None:
    held = pair.leak(0.3, mark=MUTE)
    checked = check(pair.decode.url, "decode", LOOK_S, "--canary")
    assert pair.decode.healthy
    assert checked.exit_code == FAULT, str(checked)
    assert checked.last["signature"] == "HeldIdle", str(checked)
    assert checked.last["confirmation"] == "confirmed", str(checked)
    assert checked.last["usage"] == pytest.approx(held), str(checked)
