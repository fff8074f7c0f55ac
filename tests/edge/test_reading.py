"""From the pages of a target to samples: names, missing engines, restarts, lifecycle, the guess of a role."""

from __future__ import annotations

import pytest

from stanch.core.sample import Lifecycle, Role, problem
from stanch.edge.exposition import read
from stanch.edge.reading import Reader, role_evidence
from tests.edge.pages import TINY, page, recorded

pytestmark = pytest.mark.unit

SECOND = page(labels='engine="1",model_name="tiny"')
OTHER = page(labels='engine="0",model_name="other"')


def start(seconds: float) -> bytes:
    return f"process_start_time_seconds {seconds}\n".encode()


@pytest.mark.parametrize(
    ("reader", "bodies", "names"),
    [
        pytest.param(Reader.live("d"), [page()], ["d"], id="live, one"),
        pytest.param(Reader.live("d"), [page() + SECOND], ["d/0", "d/1"], id="live, two ranks"),
        pytest.param(Reader.live("d"), [page() + OTHER], ["d/tiny/0", "d/other/0"], id="live, two models"),
        pytest.param(Reader.live("d"), [page(), page() + SECOND], ["d/0", "d/1"], id="live, one then two"),
        pytest.param(
            Reader.live("d"),
            [page() + page(labels=r'engine="\n",model_name="tiny"')],
            ["d/0", r"d/\n"],
            id="live, a label with a line feed",
        ),
        pytest.param(Reader.live("d"), [None], ["d"], id="live, never seen"),
        pytest.param(Reader.live("d"), [page(), None], ["d"], id="live, lost"),
        pytest.param(Reader.live("d"), [page() + SECOND, None], ["d/0", "d/1"], id="live, two lost"),
        pytest.param(Reader.live("d"), [page(labels='model_name="a"')], ["d"], id="live, no engine label"),
        pytest.param(
            Reader.live("d"),
            [page() + SECOND + start(1), page() + start(2)],
            ["d/0"],
            id="live, sticky after a restart with fewer ranks",
        ),
        pytest.param(Reader.replay(), [page()], ["0"], id="replay, one"),
        pytest.param(Reader.replay(), [page() + SECOND], ["0", "1"], id="replay, two ranks"),
        pytest.param(Reader.replay(), [page() + OTHER], ["tiny/0", "other/0"], id="replay, two models"),
        pytest.param(Reader.replay(), [None], ["?"], id="replay, never seen"),
        pytest.param(Reader.replay("f"), [page() + SECOND], ["f/0", "f/1"], id="replay of several files"),
        pytest.param(Reader.replay("f"), [None], ["f/?"], id="replay of several files, never seen"),
    ],
)
def test_names(reader: Reader, bodies: list[bytes | None], names: list[str]) -> None:
    for body in bodies:
        samples = reader.read(0, body, "gone")
    assert [sample.engine for sample in samples] == names


def test_a_sample_has_what_the_page_has() -> None:
    (sample,) = Reader.live("d").read(7, page(start(5).decode().strip()))
    assert (sample.t, sample.usage, sample.running, sample.waiting) == (7, 0.25, 3, 2)
    assert (sample.generation_tokens, sample.prompt_tokens, sample.process_start) == (100, 200, 5)
    assert (sample.waiting_deferred, sample.iterations, sample.finished, sample.lifecycle) == (None,) * 4
    assert sample.blind is None


@pytest.mark.parametrize(
    ("body", "error", "reason"),
    [
        pytest.param(None, "the connection was refused", "the connection was refused", id="page missing"),
        pytest.param(None, None, "there is no page", id="page missing, nobody says why"),
        pytest.param(b"", None, "the page is empty", id="empty page"),
        pytest.param(page()[:-4], None, "the page is cut off inside a line", id="cut page"),
        pytest.param(
            page(without="vllm:num_requests_running"), None, "vllm:num_requests_running is", id="family"
        ),
        pytest.param(SECOND + start(1), None, "the page no longer has this engine", id="vanished"),
    ],
)
def test_what_is_missing_is_blind_and_has_no_value(
    body: bytes | None, error: str | None, reason: str
) -> None:
    reader = Reader.live("d")
    reader.read(0, page() + start(1))
    sample = reader.read(1, body, error)[0]
    assert sample.blind is not None
    assert sample.blind.startswith(reason)
    assert (sample.usage, sample.running, sample.waiting, sample.generation_tokens) == (None,) * 4


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        pytest.param(page(kv_cache="NaN"), "usage is nan", id="NaN usage"),
        pytest.param(page(kv_cache=-0.1), "usage is negative (-0.1)", id="negative usage"),
        pytest.param(page(kv_cache=73), "usage is 73, more than the whole cache", id="per cent"),
        pytest.param(page(num_requests_running="+Inf"), "running is inf", id="infinite"),
    ],
)
def test_a_value_that_cannot_be_is_left_to_the_core(body: bytes, reason: str) -> None:
    (sample,) = Reader.live("d").read(0, body)
    assert sample.blind is None
    assert problem(sample) == reason


@pytest.mark.parametrize(
    ("before", "after", "names"),
    [
        pytest.param(page() + SECOND + start(1), page() + start(1), ["d/0", "d/1"], id="same process"),
        pytest.param(page() + SECOND + start(1), page() + start(2), ["d/0"], id="another process"),
        pytest.param(page() + start(1), OTHER + start(2), ["d"], id="another process, another model"),
        pytest.param(page() + SECOND, page(), ["d/0", "d/1"], id="no start, nothing fell"),
        pytest.param(page() + SECOND, page(generation_tokens=99), ["d/0"], id="no start, a counter fell"),
        pytest.param(page() + SECOND, OTHER, ["d/0"], id="no start, nobody is known"),
        pytest.param(
            page() + SECOND + start(1), page(), ["d/0", "d/1"], id="the start is lost, nothing fell"
        ),
    ],
)
def test_an_engine_is_forgotten_only_with_its_process(before: bytes, after: bytes, names: list[str]) -> None:
    reader = Reader.live("d")
    reader.read(0, before)
    reader.read(1, None, "gone")
    assert [sample.engine for sample in reader.read(2, after)] == names


def test_memory_of_engines_is_bounded() -> None:
    reader = Reader.live("d")
    for first in (0, 600):
        ranks = range(first, first + 600)
        lines = [f'vllm:num_requests_running{{engine="{rank}",model_name="a"}} 0\n' for rank in ranks]
        samples = reader.read(first, "".join(lines).encode() + start(1))
    assert [sample.engine for sample in samples] == [f"d/{rank}" for rank in range(600, 1200)]


SLEEP = 'vllm:engine_sleep_state{{engine="0",model_name="tiny",sleep_state="{}"}} {}'


@pytest.mark.parametrize(
    ("awake", "offloaded", "discarded", "lifecycle"),
    [
        pytest.param(1, 0, 0, None, id="awake"),
        pytest.param(0, 1, 0, Lifecycle.ASLEEP, id="level 1"),
        pytest.param(0, 0, 1, Lifecycle.ASLEEP, id="level 2"),
        pytest.param(0, 0, 0, Lifecycle.PAUSED, id="level 0"),
        pytest.param(0, None, None, Lifecycle.ASLEEP, id="awake alone"),
        pytest.param("NaN", 0, 0, None, id="NaN tells nothing"),
        pytest.param(None, None, None, None, id="before 0.11.1"),
    ],
)
def test_sleep_state(
    awake: str | int | None, offloaded: int | None, discarded: int | None, lifecycle: Lifecycle | None
) -> None:
    states = {"awake": awake, "weights_offloaded": offloaded, "discard_all": discarded}
    lines = [SLEEP.format(state, value) for state, value in states.items() if value is not None]
    (sample,) = Reader.live("d").read(0, page(*lines))
    assert sample.lifecycle is lifecycle


NIXL = f"vllm:nixl_num_failed_transfers_total{{{TINY}}} 0"
SINCE_032 = f"vllm:nixl_num_notifications_after_expiry_total{{{TINY}}} 0"
CONSUMER = f'vllm:num_requests_kv_fetch_by_stage{{{TINY},stage="in_progress"}} 0'
EXPIRED = f"vllm:nixl_num_kv_expired_reqs_total{{{TINY}}} 2"


def hits(count: int) -> str:
    return f"vllm:external_prefix_cache_hits_total{{{TINY}}} {count}"


def asked(one: int, more: int) -> list[str]:
    return [
        f'vllm:request_params_max_tokens_bucket{{{TINY},le="1.0"}} {one}',
        f"vllm:request_params_max_tokens_count{{{TINY}}} {one + more}",
    ]


@pytest.mark.parametrize(
    ("lines", "role"),
    [
        pytest.param([], None, id="no connector"),
        pytest.param([hits(9), *asked(0, 9)], None, id="another connector, or none"),
        pytest.param([NIXL, hits(0), *asked(0, 0)], None, id="young"),
        pytest.param([NIXL, hits(9), *asked(0, 5)], Role.DECODE, id="reads, and makes many tokens"),
        pytest.param([NIXL, hits(9), *asked(0, 4)], None, id="too few to tell"),
        pytest.param([NIXL, hits(9), *asked(30, 0)], None, id="bidirectional prefill, perhaps"),
        pytest.param([NIXL, hits(0), *asked(20, 0)], Role.PREFILL, id="one token each"),
        pytest.param([NIXL, hits(0), *asked(19, 0)], None, id="somebody's trial"),
        pytest.param([NIXL, hits(0), *asked(20, 1)], None, id="not one token each"),
        pytest.param([NIXL, hits(0), *asked(2, 0), EXPIRED], Role.PREFILL, id="an expired lease"),
        pytest.param([NIXL, hits(0), *asked(2, 9), EXPIRED], None, id="an expired pin of a decode"),
        pytest.param([NIXL, *asked(20, 0)], None, id="hits not asked for"),
        pytest.param([NIXL, SINCE_032], Role.PREFILL, id="0.32 and no consumer"),
        pytest.param([NIXL, SINCE_032, CONSUMER, hits(0), *asked(0, 9)], None, id="consumer or both"),
    ],
)
def test_role_is_guessed_only_where_the_metrics_tell(lines: list[str], role: Role | None) -> None:
    assert role_evidence(read(page(*lines))) is role


@pytest.mark.parametrize(
    ("name", "role"),
    [pytest.param("decode", Role.DECODE, id="d"), pytest.param("prefill", Role.PREFILL, id="p")],
)
def test_role_of_the_recordings_is_right_or_unknown(name: str, role: Role) -> None:
    guesses = [role_evidence(read(body)) for body in recorded(name)[::5]]
    assert set(guesses) == {role, None}


def test_ranks_that_disagree_tell_nothing() -> None:
    decode = page(NIXL, hits(9), *asked(0, 5))
    prefill = page(NIXL, hits(0), *asked(20, 0)).replace(b'engine="0"', b'engine="1"')
    assert role_evidence(read(decode + prefill)) is None
