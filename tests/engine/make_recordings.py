"""Make the recordings in tests/data/recordings/0.29.0-own: `python -m tests.engine.make_recordings [NAME
...]`.

Each starts a prefill and a decode engine of vLLM 0.29.0 of its own, records the decode engine, and prints
the result as a table. What each one is for, and how it was made, is told in
tests/data/recordings/README.md.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from tests.engine.bed import Bed, Spec, until
from tests.engine.client import Traffic, complete, pd_request
from tests.engine.marks import GRAMMAR, PARK
from tests.engine.model import words
from tests.engine.record import Recorder, print_table

VERSION = "0.29.0"
TARGET = Path(__file__).parent.parent / "data" / "recordings" / f"{VERSION}-own"
RUNNING = "vllm:num_requests_running"
USAGE = "vllm:kv_cache_usage_perc"
GENERATED = "vllm:generation_tokens_total"


def worker_frozen(bed: Bed, path: Path) -> None:
    """Three long generations; SIGSTOP to the worker in their middle for 45 s, then SIGCONT."""
    slow = {"stanch_step_delay_ms": 100}
    prefill, decode = bed.start_all(
        Spec("prefill", max_model_len=2048), Spec("decode", inject=True, max_model_len=2048, connector=slow)
    )
    pd_request(prefill.url, decode.url, words(64)).answer()
    with Recorder(decode.url, path, "idle") as recorder:
        recorder.stay(4)
        recorder.scenario = "generating"
        open_requests = [
            pd_request(prefill.url, decode.url, words(64, seed=one), 150, number=one, timeout_s=180)
            for one in (1, 2, 3)
        ]
        # The gauges are set at a step's end: seen in the page, the three are surely in the middle of their
        # generation.
        until(lambda: decode.metric(RUNNING) == 3, "three requests running")
        recorder.stay(5)
        decode.freeze_worker()
        recorder.scenario = "worker_frozen"
        recorder.stay(45)
        decode.thaw()
        recorder.scenario = "thawed"
        for one in open_requests:
            assert one.answer(120).status == 200
        recorder.scenario = "idle_end"
        recorder.stay(5)


def chunked_prefill(bed: Bed, path: Path) -> None:
    """One prompt of 5,000 tokens in chunks of 256, each step made 1.3 s longer; then 20 tokens."""
    prefill, decode = bed.start_all(
        Spec("prefill"),
        Spec(
            "decode",
            inject=True,
            blocks=200,
            max_model_len=6000,
            extra_args=("--max-num-batched-tokens", "256"),
            connector={"stanch_step_delay_ms": 1300},
        ),
    )
    complete(decode.url, words(32), max_tokens=2).answer()
    with Recorder(decode.url, path, "idle") as recorder:
        recorder.stay(4)
        recorder.scenario = "chunked_prefill"
        assert (
            complete(decode.url, words(5000, seed=1), max_tokens=10, timeout_s=120).answer(120).status == 200
        )
        recorder.scenario = "idle_end"
        recorder.stay(5)
    del prefill


def bidirectional_pinned(bed: Bed, path: Path) -> None:
    """Bidirectional mode: two finished turns stay pinned on the idle decode engine for 60 s."""
    connector = {"bidirectional_kv_xfer": True, "decoder_kv_blocks_ttl": 60}
    prefill, decode = bed.start_all(Spec("prefill", connector=connector), Spec("decode", connector=connector))
    # The first handshake takes long. Its request is given up, since an aborted one is not pinned.
    first = pd_request(prefill.url, decode.url, words(64), 400)
    until(lambda: (decode.metric(GENERATED) or 0) > 0, "first request", deadline_s=60)
    first.give_up()
    until(lambda: decode.metric(RUNNING) == 0 and decode.metric(USAGE) == 0, "an empty engine")
    with Recorder(decode.url, path, "idle") as recorder:
        recorder.stay(4)
        recorder.scenario = "turns"
        for turn in (1, 2):
            assert (
                pd_request(prefill.url, decode.url, words(300, seed=turn), 20, number=turn).answer().status
                == 200
            )
        until(lambda: (decode.metric(USAGE) or 0) > 0.1 and decode.metric(RUNNING) == 0, "pinned turns")
        recorder.scenario = "pinned"
        until(lambda: decode.metric(USAGE) == 0, "end of the pins", deadline_s=90)
        recorder.scenario = "idle_end"
        recorder.stay(5)


def data_parallel_leak(bed: Bed, path: Path) -> None:
    """Two data-parallel ranks of one server: three requests leak on rank 1, while rank 0 has traffic."""
    prefill, decode = bed.start_all(Spec("prefill"), Spec("decode", inject=True, data_parallel=2))
    for rank in (0, 1):
        assert pd_request(prefill.url, decode.url, words(64, seed=rank), rank=rank).answer(120).status == 200
    with (
        Recorder(decode.url, path, "traffic_both") as recorder,
        Traffic(prefill.url, decode.url, rank=0),
    ):
        with Traffic(prefill.url, decode.url, rank=1, pause_s=1):
            recorder.stay(6)
        recorder.scenario = "rank_1_parks"
        parked = [
            pd_request(prefill.url, decode.url, words(300, seed=50 + one), mark=PARK, number=one, rank=1)
            for one in range(3)
        ]
        until(lambda: decode.metric("vllm:num_requests_waiting", engine="1") == 3, "three parked on rank 1")
        recorder.stay(3)
        for one in parked:
            one.give_up()
        recorder.scenario = "rank_1_leaks"
        recorder.stay(35)


def grammar_wait(bed: Bed, path: Path) -> None:
    """A request waits 30 s for its grammar (the compiler is slowed down for it); nothing else is there."""
    prefill, decode = bed.start_all(
        Spec("prefill"), Spec("decode", inject=True, connector={"stanch_grammar_delay_ms": 30_000})
    )
    regex = {"structured_outputs": {"regex": "(w1|w2)+"}}
    assert complete(decode.url, words(64), more=regex).answer().status == 200
    with Recorder(decode.url, path, "idle") as recorder:
        recorder.stay(4)
        recorder.scenario = "grammar_wait"
        pending = complete(decode.url, words(64, seed=1), request_id=f"{GRAMMAR}1", max_tokens=8, more=regex)
        assert pending.answer(90).status == 200
        recorder.scenario = "idle_end"
        recorder.stay(5)
    del prefill


RECORDINGS: dict[str, Callable[[Bed, Path], None]] = {
    one.__name__: one
    for one in (worker_frozen, chunked_prefill, bidirectional_pinned, data_parallel_leak, grammar_wait)
}


def main(names: list[str]) -> int:
    """Make the recordings named, all without a name."""
    unknown = [name for name in names if name not in RECORDINGS]
    if unknown:
        print(f"no such recording: {', '.join(unknown)}; there are {', '.join(RECORDINGS)}", file=sys.stderr)
        return 64
    for name in names or RECORDINGS:
        path = TARGET / f"{name}.jsonl.gz"
        with Bed(VERSION) as bed:
            RECORDINGS[name](bed, path)
        print_table(path)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
