"""`stanch probe`: one request through a pair, and where it broke."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from stanch.core.policy import Policy
from stanch.edge.client import session
from stanch.edge.kit import no_key
from stanch.edge.probe import COMPUTE_ONLY, Probe, prompt
from stanch.edge.probed import DECODE_TOKENS, End, Probed
from stanch.edge.targets import from_url
from tests.edge.cli import Done, stanch
from tests.edge.fake_kit import FakeKit, entry
from tests.edge.fake_vllm import Completion, FakeVllm, drops, hangs, says

pytestmark = pytest.mark.unit
row = pytest.param

PARAMS = {"do_remote_prefill": True, "remote_engine_id": "p"}
MINE = '{engine="0",model_name="tiny"'


class Pair:
    """A prefill and a decode as far as a probe sees them.

    transferred: the share of the prompt that the decode counts as such; None: it does not count.
    params: what the prefill hands over. failing: the end, and the counter that rises with its answer.
    """

    def __init__(self) -> None:
        self.prefill, self.decode = FakeVllm(), FakeVllm()
        self.transferred: float | None = 1.0
        self.params: object = PARAMS
        self.failing: dict[str, str] = {}
        self._counts = {"prefill": 0, "decode": 0, "tokens": 0.0}
        self.prefill.completion = self._answers("prefill")
        self.decode.completion = self._answers("decode")
        self._show()

    def _answers(self, end: str) -> Completion:
        async def answer(fake: FakeVllm, request: web.Request) -> web.StreamResponse:
            body = fake.asked[-1].body
            self._counts[end] += 1
            self._counts["tokens"] += (self.transferred or 0.0) * len(body["prompt"]) * (end == "decode")
            fake.rank.generation_tokens += body["max_tokens"]
            self._show()
            answer = {"choices": [{"text": "a"}], "usage": {"completion_tokens": body["max_tokens"]}}
            return web.json_response(
                {**answer, "kv_transfer_params": self.params if end == "prefill" else None}
            )

        return answer

    def _show(self) -> None:
        for end, fake in (("prefill", self.prefill), ("decode", self.decode)):
            fake.extra = [
                f"vllm:nixl_num_failed_{kind}_total{MINE}}} "
                f"{self._counts[end] if self.failing.get(end) == kind else 0}"
                for kind in ("transfers", "notifications")
            ]
        if self.transferred is not None:
            source = MINE + ',source="external_kv_transfer"}'
            self.decode.extra.append(f"vllm:prompt_tokens_by_source_total{source} {self._counts['tokens']}")


def probe(pair: Pair, seconds: float = 10.0, model: str | None = None) -> Probed:
    async def scene() -> Probed:
        async with pair.prefill, pair.decode, session() as connection:
            ends = [from_url(fake.url, None, Policy()) for fake in (pair.prefill, pair.decode)]
            return await Probe(connection, ends[0], ends[1], seconds, model, no_key).run()

    return asyncio.run(scene())


def test_a_request_goes_through_both() -> None:
    pair = Pair()
    probed = probe(pair)
    assert (probed.end, probed.where) == (End.WORKS, None)
    assert probed.why == "the token came, and the prompt's KV by transfer"
    (first,), (second,) = pair.prefill.asked, pair.decode.asked
    assert first.headers["X-Request-Id"] == second.headers["X-Request-Id"] == probed.request_id
    assert first.body["prompt"] == second.body["prompt"]
    assert (first.body["max_tokens"], second.body["max_tokens"]) == (1, DECODE_TOKENS)
    assert (first.body["kv_transfer_params"], second.body["kv_transfer_params"]) == (COMPUTE_ONLY, PARAMS)
    assert (first.body["model"], second.body["model"]) == ("tiny", "tiny")


def test_the_prompt_is_new_each_time_longer_than_a_block_and_fits() -> None:
    page = b'vllm:cache_config_info{block_size="32",engine="0"} 1.0\n'
    first, second = prompt([page], 512), prompt([page], 512)
    assert first != second
    assert len(first) == len(second) == 80
    assert len(prompt([page, page.replace(b"32", b"128")], None)) == 320
    assert len(prompt([b""], None)) == 48
    assert len(prompt([page], 60)) == 52


def breaks(**differs: Any) -> Callable[[], Pair]:
    def make() -> Pair:
        pair = Pair()
        for name, value in differs.items():
            setattr(pair, name, value)
        pair._show()
        return pair

    return make


def answering(end: str, completion: Completion) -> Callable[[], Pair]:
    def make() -> Pair:
        pair = Pair()
        getattr(pair, end).completion = completion
        return pair

    return make


def no_model() -> Pair:
    pair = Pair()
    pair.decode.models = {"data": []}
    return pair


def restarts() -> Pair:
    pair, plain = Pair(), Pair._answers

    async def answer(fake: FakeVllm, request: web.Request) -> web.StreamResponse:
        fake.started += 60
        return await plain(pair, "decode")(fake, request)

    pair.decode.completion = answer
    return pair


BAD_REQUEST, LOAD_FAILED = '{"error": {"message": "no"}}', '{"error": {"message": "KV load"}}'


@pytest.mark.parametrize(
    ("make", "where", "words"),
    [
        row(answering("prefill", says(400, BAD_REQUEST)), "prefill", "HTTP 400 (no)", id="prefill-refuses"),
        row(answering("prefill", drops), "prefill", "the connection was closed", id="prefill-dies"),
        row(answering("prefill", says(200, "{}")), "prefill", "holds no token", id="prefill-says-nothing"),
        row(breaks(params=None), "handover", "gave no kv_transfer_params", id="no-params"),
        row(breaks(params={}), "handover", "gave no kv_transfer_params", id="empty-params"),
        row(answering("decode", says(500, LOAD_FAILED)), "decode", "HTTP 500 (KV load)", id="decode-fails"),
        row(no_model, "decode", "names no model", id="no-model"),
        row(restarts, "decode", "restarted during the probe", id="restarts"),
        row(
            breaks(failing={"decode": "transfers"}),
            "transfer",
            "1 failed transfers on the decode engine",
            id="transfer-failed",
        ),
        row(
            breaks(failing={"prefill": "notifications"}),
            "transfer",
            "1 failed notifications on the prefill",
            id="notification-failed",
        ),
        row(
            breaks(transferred=0.0),
            "transfer",
            "by recompute: of 48 tokens of the prompt 0 were",
            id="recompute",
        ),
    ],
)
def test_where_it_broke(make: Callable[[], Pair], where: str, words: str) -> None:
    probed = probe(make())
    assert (probed.end, probed.where) == (End.BROKE, where)
    assert words in probed.why


@pytest.mark.parametrize(
    ("make", "words"),
    [
        row(answering("prefill", says(401)), "give its file with --api-key-file", id="key"),
        row(breaks(transferred=None), "the decode engine counts no transfers", id="no-counter"),
    ],
)
def test_what_cannot_be_told(make: Callable[[], Pair], words: str) -> None:
    probed = probe(make())
    assert (probed.end, words in probed.why) == (End.UNKNOWN, True)


def test_a_decode_that_parks_it_is_seen_while_it_waits() -> None:
    pair = Pair()
    pair.decode.completion = hangs
    pair.decode.rank.waiting = pair.decode.rank.deferred = 1
    probed = probe(pair, seconds=3.0)
    assert (probed.end, probed.where) == (End.BROKE, "decode")
    assert "no answer within 3 s: it is parked, as far as can be seen (1 wait" in probed.why


def test_with_a_kit_the_list_says_what_it_waits_for() -> None:
    pair = Pair()

    async def parks(fake: FakeVllm, request: web.Request) -> web.StreamResponse:
        name = request.headers["X-Request-Id"]
        fake.kit = FakeKit(entry(name, status="WAITING_FOR_REMOTE_KVS", clientGone=False, blocks=3))
        return await hangs(fake, request)

    pair.decode.completion = parks
    why = probe(pair, seconds=3.0).why
    assert "its kit lists the request as WAITING_FOR_REMOTE_KVS and waits for remote_kv" in why
    assert "from engine prefill-3, 3 blocks held" in why


def run(scene: Callable[[Pair], Awaitable[Done]], pair: Pair) -> Done:
    async def whole() -> Done:
        async with pair.prefill, pair.decode:
            return await scene(pair)

    return asyncio.run(whole())


@pytest.mark.parametrize(
    ("pair", "code", "words"),
    [
        row(
            Pair(),
            0,
            "WORKS: the token came, and the prompt's KV by transfer (48 tokens; prefill 0",
            id="works",
        ),
        row(
            breaks(params=None)(), 1, "BROKE at handover: the prefill engine computed the prompt", id="broke"
        ),
        row(
            breaks(transferred=None)(), 3, "CANNOT TELL: the token came, but whether its KV did", id="unknown"
        ),
    ],
)
def test_the_command(pair: Pair, code: int, words: str) -> None:
    async def scene(pair: Pair) -> Done:
        return await stanch("probe", "--prefill", pair.prefill.url, "--decode", pair.decode.url)

    done = run(scene, pair)
    assert (done.code, done.err) == (code, "")
    assert done.out.startswith(words)


def test_as_data_and_with_a_model_and_a_key(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("sesame")

    async def scene(pair: Pair) -> Done:
        ends = ("--prefill", pair.prefill.url, "--decode", pair.decode.url)
        more = ("--model", "lora", "--api-key-file", str(file), "--output", "json")
        return await stanch("probe", *ends, *more)

    pair = Pair()
    for end in (pair.prefill, pair.decode):
        end.models = {"data": [{"id": "tiny"}, {"id": "lora"}]}
    (found,) = run(scene, pair).objects
    assert (found["schema"], found["end"], found["where"]) == ("stanch.probe/1", "works", None)
    assert (found["promptTokens"], found["requestId"][:13]) == (48, "stanch-probe-")
    for asked in (*pair.prefill.asked, *pair.decode.asked):
        assert (asked.body["model"], asked.headers["Authorization"]) == ("lora", "Bearer sesame")


def test_a_model_that_is_not_served_is_wrong_usage_and_nothing_is_sent() -> None:
    async def scene(pair: Pair) -> Done:
        ends = ("--prefill", pair.prefill.url, "--decode", pair.decode.url)
        return await stanch("probe", *ends, "--model", "nonesuch")

    pair = Pair()
    done = run(scene, pair)
    assert (done.code, done.out, pair.prefill.asked + pair.decode.asked) == (64, "", [])
    assert "the prefill engine serves no model 'nonesuch'; it serves tiny" in done.err


def test_the_wrong_way_round_is_wrong_usage_where_the_kits_tell() -> None:
    async def scene(pair: Pair) -> Done:
        return await stanch("probe", "--prefill", pair.prefill.url, "--decode", pair.decode.url)

    pair = Pair()
    pair.prefill.kit, pair.decode.kit = FakeKit(role="kv_consumer"), FakeKit(role="kv_producer")
    done = run(scene, pair)
    assert (done.code, done.out, pair.prefill.asked + pair.decode.asked) == (64, "", [])
    assert "the two are given the wrong way round: by their kits' kv_role http://" in done.err


def test_one_in_the_place_of_another_is_named_where_it_breaks() -> None:
    pair = breaks(params=None)()
    pair.prefill.kit, pair.decode.kit = FakeKit(role="kv_consumer"), FakeKit(role="kv_both")
    why = probe(pair).why
    assert why.endswith("; by the kv_role that its kit tells, what was given as prefill is a decode")


def test_nobody_there() -> None:
    async def scene(pair: Pair) -> Done:
        return await stanch("probe", "--prefill", "http://127.0.0.1:1", "--decode", pair.decode.url)

    done = run(scene, Pair())
    assert done.code == 1
    assert done.out == "BROKE at prefill: the prefill engine could not be asked: the connection was refused\n"
