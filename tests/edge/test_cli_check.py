"""`stanch check`, as a process, against servers on loopback: one answer, one exit code."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from stanch.core.verdict import State
from stanch.edge.advice import advise
from stanch.edge.output import exit_code
from tests.edge.cli import Done, into_nothing, stanch
from tests.edge.fake_kit import FakeKit, entry
from tests.edge.fake_vllm import Completion, FakeVllm, Rank, answers, hangs, says

pytestmark = pytest.mark.unit
row = pytest.param

KEYS = {
    *("schema", "t", "engine", "role", "state", "signature", "held_seconds", "usage", "running", "waiting"),
    *("warnings", "confirmation", "reason"),
}
NOBODY = "http://127.0.0.1:1"


def check(fakes: Sequence[FakeVllm], *arguments: str, urls: Sequence[str] = ()) -> Done:
    """`stanch check` of these servers and URLs."""

    async def run() -> Done:
        for fake in fakes:
            await fake.up()
        try:
            return await stanch("check", *(fake.url for fake in fakes), *urls, *arguments)
        finally:
            for fake in fakes:
                await fake.down()

    return asyncio.run(run())


LOOK = ("--role", "decode")
WATCH = (*LOOK, "--for", "4", "--interval", "1", "--hold-seconds", "1")


@pytest.mark.parametrize(
    ("rank", "arguments", "code", "says"),
    [
        row(Rank(), LOOK, 0, "HEALTHY: {} is idle with 0 % of its KV cache in use; one look", id="healthy"),
        row(
            Rank(usage=0.82),
            LOOK,
            1,
            "SUSPECT HeldIdle: {} holds 82 % of its KV cache with nothing running or waiting; one look",
            id="suspect",
        ),
        row(
            Rank(usage=0.82), (), 1, "SUSPECT HeldIdle: {} (unknown) holds 82 %", id="suspect-of-unknown-role"
        ),
        row(
            Rank(usage=0.82),
            WATCH,
            2,
            "FAULT HeldIdle: {} holds 82 % of its KV cache with nothing",
            id="fault",
        ),
        row(Rank(usage="NaN"), LOOK, 3, "BLIND: cannot tell about {}: usage is nan", id="blind"),
    ],
)
def test_one_engine(rank: Rank, arguments: Sequence[str], code: int, says: str) -> None:
    fake = FakeVllm(rank)
    done = check([fake], *arguments)
    assert (done.code, done.err) == (code, "")
    assert done.out.startswith(says.format(fake.url.removeprefix("http://")))


@pytest.mark.parametrize(
    ("entries", "key", "code", "words"),
    [
        row(
            [entry()],
            None,
            2,
            "1 request holds 10 blocks of 100: cmpl-a (10 min, from engine pre",
            id="stuck",
        ),
        row([entry(ageSeconds=9)], None, 1, "1 request holds 10 blocks of 100: cmpl-a (9 s", id="young"),
        row([], None, 1, "SUSPECT HeldIdle", id="none"),
        row([entry()], "sesame", 1, "wants vLLM's API key: give the file that holds it", id="no-key"),
    ],
)
def test_with_a_kit_one_look_names_the_requests(
    entries: list[dict[str, Any]], key: str | None, code: int, words: str
) -> None:
    fake = FakeVllm(Rank(usage=0.1))
    fake.kit = FakeKit(*entries)
    fake.kit.key = key
    done = check([fake], *LOOK)
    assert (done.code, done.err) == (code, "")
    assert words in done.out
    assert fake.asked == []


def test_the_role_is_asked_for_where_the_metrics_do_not_tell() -> None:
    assert "say whether it is decode or prefill" in check([FakeVllm(Rank(usage=0.82))]).out


@pytest.mark.parametrize(
    ("url", "words"),
    [
        row(NOBODY, "BLIND: cannot tell about 127.0.0.1:1: the connection was refused\n", id="nobody-there"),
        row("http://127.0.0.1:{port}/v1", "it answers HTTP 404", id="not-there"),
        row(
            "http://127.0.0.1:{port}/version",
            "not text/plain: this may not be the /metrics of vLLM",
            id="no-vllm",
        ),
    ],
)
def test_what_is_no_engine(url: str, words: str) -> None:
    """One line, without advice about a version that nobody said."""

    async def run() -> Done:
        async with FakeVllm() as fake:
            return await stanch("check", url.format(port=fake.url.rpartition(":")[2]))

    done = asyncio.run(run())
    assert (done.code, done.err, len(done.out.splitlines())) == (3, "", 1)
    assert words in done.out


@pytest.mark.parametrize(
    ("states", "code"),
    [
        row("", 3, id="nothing"),
        row("healthy", 0, id="healthy"),
        row("healthy suspect", 1, id="suspect"),
        row("blind suspect healthy", 3, id="blind-before-suspect"),
        row("healthy suspect blind fault", 2, id="fault-before-blind"),
    ],
)
def test_the_worst_decides(states: str, code: int) -> None:
    assert exit_code(State(state) for state in states.split()) == code


def test_several_urls_are_told_worst_first_and_each_version_once() -> None:
    fakes = [FakeVllm(), FakeVllm(Rank("0"), Rank("1", usage=0.5)), FakeVllm()]
    fakes[2].version = "0.32.1"
    done = check(fakes, *LOOK, urls=[NOBODY])
    lines = done.out.splitlines()
    assert done.code == 3
    assert [line.split()[0] for line in lines[:5]] == [
        "BLIND:",
        "SUSPECT",
        "HEALTHY:",
        "HEALTHY:",
        "HEALTHY:",
    ]
    names = [fake.url.removeprefix("http://") for fake in fakes]
    assert lines[5].startswith(f"  2 servers ({names[0]}, {names[1]}): vLLM 0.29.0 has the known defect")
    assert lines[6].startswith(f"  {names[2]}: vLLM 0.32.1 has the fix")
    assert len(lines) == 7


@pytest.mark.parametrize(
    ("version", "status", "words"),
    [
        row("0.29.0+cpu", "affected", "upgrade to 0.30.0 or later", id="affected"),
        row("0.30.0", "fixed", "other ways to the same leak", id="fixed"),
        row("0.33.1", "fixed", "has the fix for the known defect (0.30.0);", id="newest-known"),
        row("0.99.0", "fixed", "as far as is known of so new a version", id="new"),
        row("dev", "unknown", "says version dev, which tells nothing", id="no-number"),
        row(None, "unknown", "did not say its version", id="none"),
    ],
)
def test_what_a_version_means(version: str | None, status: str, words: str) -> None:
    found = advise(version)
    assert (found.version, found.status, words in found.text) == (version, status, True)


@pytest.mark.parametrize(
    ("fix", "status", "words"),
    [
        row("active", "fixed", "the kit's fix for it is active here; other ways", id="active"),
        row("not-needed", "not-affected", "is not this engine's: there is no KV connector", id="not-needed"),
        row(
            "unpatched",
            "affected",
            "is not active (unpatched: there is no KV connector): use",
            id="unpatched",
        ),
        row(None, "affected", "has the known defect if it uses NIXL", id="not-said"),
    ],
)
def test_what_a_version_means_with_a_kit(fix: str | None, status: str, words: str) -> None:
    fake = FakeVllm()
    fake.kit = FakeKit(fix=fix, fixReason="there is no KV connector")
    (found,) = check([fake], *LOOK, "--output", "json").objects
    assert (found["vllm"]["status"], words in found["vllm"]["advice"]) == (status, True)


def test_the_json_object() -> None:
    fake = FakeVllm(Rank(usage=0.82))
    done = check([fake], *LOOK, "--output", "json")
    (found,) = done.objects
    assert set(found) >= KEYS
    shown = {key: found[key] for key in KEYS - {"t", "reason"}}
    assert shown == {
        "schema": "stanch.verdict/1",
        "engine": fake.url.removeprefix("http://"),
        "role": "decode",
        "state": "suspect",
        "signature": "HeldIdle",
        "held_seconds": 0,
        "usage": 0.82,
        "running": 0,
        "waiting": 0,
        "warnings": [],
        "confirmation": None,
    }
    assert found["vllm"] == {"version": "0.29.0", "status": "affected", "advice": advise("0.29.0").text}
    assert found["target"] == fake.url
    assert abs(found["t"] - 1.8e9) < 1e9
    assert (done.code, done.err) == (1, "")


def test_what_was_not_read_is_null() -> None:
    done = check([], *LOOK, "--output", "json", urls=[NOBODY])
    (found,) = done.objects
    assert set(found) >= KEYS
    assert (found["state"], found["signature"], found["held_seconds"]) == ("blind", "Blind", 0)
    assert [found[key] for key in ("usage", "running", "waiting")] == [None, None, None]
    assert found["reason"] == "cannot tell about 127.0.0.1:1: the connection was refused"


def test_an_optional_family_that_is_not_a_number_is_null() -> None:
    done = check([FakeVllm(Rank(usage=0.3, waiting=3, deferred="NaN"))], *LOOK, "--output", "json")
    assert done.objects[0]["deferred"] is None


@pytest.mark.parametrize(
    ("rank", "completion", "code", "expected", "words"),
    [
        row(
            Rank(usage=0.82),
            answers,
            1,
            ("suspect", "HeldIdle", "confirmed"),
            "freed nothing",
            id="confirmed",
        ),
        row(
            Rank(usage=0.82, freed={"usage": 0.0}),
            answers,
            0,
            ("healthy", "StaleGauge", "vetoed"),
            "it holds 0 %, not 82 %",
            id="vetoed",
        ),
        row(
            Rank(usage=0.82),
            says(500, "dead"),
            1,
            ("suspect", "HeldIdle", "inconclusive"),
            "HTTP 500",
            id="failed",
        ),
        row(
            Rank(usage=0.82),
            says(401),
            1,
            ("suspect", "HeldIdle", "inconclusive"),
            "wants an API key",
            id="no-key",
        ),
        row(
            Rank(usage=0.82),
            hangs,
            1,
            ("suspect", "HeldIdle", "confirmed"),
            "no answer within 1 s",
            id="timed-out",
        ),
    ],
)
def test_a_canary(
    tmp_path: Path,
    rank: Rank,
    completion: Completion,
    code: int,
    expected: tuple[str, str | None, str | None],
    words: str,
) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text("canarySeconds: 1\n")
    fake = FakeVllm(rank)
    fake.completion = completion
    done = check([fake], *LOOK, "--canary", "--policy", str(policy), "--output", "json")
    (found,) = done.objects
    assert (done.code, done.err) == (code, "")
    assert (found["state"], found["signature"], found["confirmation"]) == expected
    assert words in found["reason"]


def test_nobody_is_asked_without_canary_and_with_it_the_key_goes_along(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("secret\n")
    fake = FakeVllm(Rank(usage=0.82))
    check([fake], *LOOK)
    assert fake.asked == []
    check([fake], *LOOK, "--canary", "--api-key-file", str(key))
    assert [asked.headers["Authorization"] for asked in fake.asked] == ["Bearer secret"]


def test_a_reader_that_has_gone_does_not_change_the_answer() -> None:
    async def run() -> Done:
        async with FakeVllm(Rank(usage=0.82)) as fake:
            return await into_nothing("check", fake.url, *LOOK)

    done = asyncio.run(run())
    assert (done.code, done.err) == (1, "")
