"""The kit's list with data parallelism 2: the leak is on rank 1, rank 0 hangs, and the leak is released."""

from __future__ import annotations

import os
import signal

import pytest

from tests.engine.bed import Bed, Spec, until
from tests.engine.chaos_bed import start
from tests.engine.client import complete, pd_request
from tests.engine.kit import ask, until_listed
from tests.engine.marks import MUTE
from tests.engine.model import words
from tests.engine.release_bed import Pair, with_kit
from tests.engine.weights import write_weights

pytestmark = pytest.mark.engine
VERSION = "0.29.0"


def test_each_rank_answers_for_itself(bed: Bed) -> None:
    write_weights(bed.directory / "model")
    prefill = with_kit(bed, Spec("prefill"))
    decode = with_kit(bed, Spec("decode", inject=True, data_parallel=2))
    start(prefill, decode)
    pending = pd_request(prefill.url, decode.url, words(300, seed=5), mark=MUTE, number=9, rank=1)
    until_listed(decode, 1, gone=False, rank=1)
    pending.give_up()
    listed = until_listed(decode, 1, gone=True, rank=1)
    assert sorted(listed.body["ranks"]) == ["0", "1"]
    assert (listed.entries(0), listed.body["missingRanks"]) == ([], [])
    assert [one["id"] for one in listed.stuck(1)] == ["cmpl-mute-9"]
    assert decode.metric("stanch_orphan_requests", engine="0") == 0
    assert decode.metric("stanch_orphan_requests", engine="1") == 1

    ids = ask(decode, "state").body["engineIds"]
    own = ids["0"].removesuffix("_dp0")
    assert ids == {"0": f"{own}_dp0", "1": f"{own}_dp1"}

    # Two API-server processes by default: one start, one boot id.
    assert len({ask(decode, "state").body["bootId"] for _ in range(10)}) == 1

    worker = decode.worker_of(rank=0)
    os.kill(worker, signal.SIGSTOP)
    try:
        stopped = complete(decode.url, words(20), rank=0)
        until(lambda: ask(decode).body["missingRanks"] == [0], "rank 0 hangs")
        listed = ask(decode)
    finally:
        os.kill(worker, signal.SIGCONT)
    assert list(listed.body["ranks"]) == ["1"]
    assert [one["id"] for one in listed.stuck(1)] == ["cmpl-mute-9"]
    assert stopped.answer().status == 200

    outcome = Pair(prefill, decode).command({"ids": ["cmpl-mute-9", "cmpl-nobody"]})
    assert (outcome["state"], list(outcome["ways"].values())) == ("done", ["freed"])
    assert (list(outcome["refused"]), outcome["refusals"]) == (["cmpl-nobody"], {"unknown-id": 1})
    until(lambda: decode.metric("vllm:kv_cache_usage_perc", engine="1") == 0, "rank 1 holds nothing")
    assert decode.metric("stanch_releases", engine="1", way="freed") == 1
    assert decode.metric("stanch_releases", engine="0", way="freed") == 0
    assert complete(decode.url, words(20), rank=1).answer().status == 200
