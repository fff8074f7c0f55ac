"""What people type, at real engines with the kit: check, requests, release, probe."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.engine.bed import Bed, Spec, until
from tests.engine.chaos_bed import start
from tests.engine.client import pd_request
from tests.engine.kit import ask
from tests.engine.marks import SAME
from tests.engine.model import words
from tests.engine.pair import USAGE
from tests.engine.release_bed import TOKEN, Pair, with_kit
from tests.engine.stanch_cli import FAULT, HEALTHY, check
from tests.engine.weights import write_weights

pytestmark = pytest.mark.engine
VERSION = "0.29.0"


def stanch(*arguments: str) -> tuple[int, str]:
    """(exit code, what it printed); nothing may be on standard error."""
    run = subprocess.run(
        [sys.executable, "-m", "stanch", *arguments], capture_output=True, text=True, timeout=120
    )
    assert run.stderr == "", run
    return run.returncode, run.stdout


@pytest.fixture(scope="module")
def pair(bed: Bed) -> Pair:
    write_weights(bed.directory / "model")
    prefill, decode = with_kit(bed, Spec("prefill")), with_kit(bed, Spec("decode", inject=True))
    start(prefill, decode)
    assert pd_request(prefill.url, decode.url, words(64, seed=9), 4).answer(90).status == 200
    return Pair(prefill, decode)


@pytest.fixture
def token(tmp_path: Path) -> str:
    (tmp_path / "token").write_text(TOKEN + "\n")
    return str(tmp_path / "token")


def test_probe_a_pair_that_works(pair: Pair) -> None:
    code, said = stanch("probe", "--prefill", pair.prefill.url, "--decode", pair.decode.url)
    assert code == 0, said
    code, said = stanch(
        "probe", "--prefill", pair.prefill.url, "--decode", pair.decode.url, "--output", "json"
    )
    assert (code, json.loads(said)["end"]) == (0, "works"), said


def test_probe_a_pair_whose_prefill_hangs(pair: Pair) -> None:
    with pair.prefill.frozen():
        code, said = stanch(
            "probe", "--prefill", pair.prefill.url, "--decode", pair.decode.url, "--timeout", "3"
        )
    assert code == 1, said
    assert "prefill" in said
    until(lambda: pair.decode.metric(USAGE) == 0, "nothing is held")


def test_found_named_and_released(pair: Pair, token: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert check(pair.decode.url, seconds=None).exit_code == HEALTHY
    expected = pair.tokens(1)
    names = [pair.orphan(seed) for seed in (2, 3)]
    client, waiting = pair.request(1, SAME)
    pair.parked([client])
    until(lambda: min(one["ageSeconds"] for one in ask(pair.decode).stuck()) > 11, "stuck for the hold")
    # One look is enough: the engine itself says since when.
    found = check(pair.decode.url, "decode", None)
    assert found.exit_code == FAULT, str(found)
    assert found.last["signature"] == "ParkedRemoteKV", str(found)
    assert found.last["confirmation"] == "confirmed", str(found)
    assert all(name in found.last["reason"] for name in [*names, client]), str(found)

    code, listed = stanch("requests", pair.decode.url, "--stuck")
    assert code == 0, listed
    assert all(name in listed for name in [*names, client]), listed
    code, dry = stanch("release", pair.decode.url, "--older-than", "10s", "--dry-run", "--token-file", token)
    assert code == 0, dry
    assert len(ask(pair.decode).stuck()) == 3
    # The age was asked for: that nothing is so old is no refusal.
    code, young = stanch("release", pair.decode.url, "--older-than", "1000s", "--token-file", token)
    assert (code, "0 released" in young) == (0, True), young
    code, wrong = stanch("release", pair.decode.url, "cmpl-nobody", "--token-file", token)
    assert (code, "cmpl-nobody" in wrong) == (1, True), wrong
    code, done = stanch("release", pair.decode.url, "--older-than", "10s", "--token-file", token)
    assert code == 0, done
    assert waiting.answer().body["choices"][0]["text"] == expected
    until(lambda: pair.decode.metric(USAGE) == 0, "nothing is held")
    assert check(pair.decode.url, seconds=None).exit_code == HEALTHY
    with capsys.disabled():
        print(f"\n{found.last['reason']}\n{listed}\n{dry}\n{done}")


def test_without_the_right_token(pair: Pair, tmp_path: Path) -> None:
    (tmp_path / "wrong").write_text("not-the-token")
    run = subprocess.run(
        [
            sys.executable, "-m", "stanch", "release", pair.decode.url, "--all",
            "--token-file", str(tmp_path / "wrong"),
        ],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert run.returncode == 3, run
    assert "token" in run.stdout + run.stderr
    assert "not-the-token" not in run.stdout + run.stderr
