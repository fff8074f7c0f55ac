"""`stanch inject` as people run it."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from tests.edge.cli import Done, stanch
from tests.edge.test_manifests import BROKEN, DEPLOYMENT, SERVICE

pytestmark = pytest.mark.unit
TEXT = SERVICE + "---\n" + DEPLOYMENT.replace("      volumes: []\n", "").replace("/v1/own", "/health")


def run(*arguments: str, stdin: str = "", **environment: str) -> Done:
    return asyncio.run(stanch("inject", *arguments, stdin=stdin.encode(), environment=environment))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "decode.yaml"
    path.write_text(TEXT)
    return path


def test_put_in_again_and_out(file: Path) -> None:
    done = run("-f", str(file), "--image", "example.test/stanch:1")
    assert (done.code, done.err) == (0, "stanch inject: Deployment decode, container vllm: kit put in\n")
    assert "image: example.test/stanch:1" in done.out
    assert file.read_text() == TEXT
    again = run("-f", "-", stdin=done.out, STANCH_KIT_IMAGE="example.test/stanch:1")
    assert (again.code, again.err, again.out) == (0, "", done.out)
    back = run("-f", "-", "--remove", stdin=done.out)
    assert (back.code, back.out) == (0, TEXT)
    assert back.err == "stanch inject: Deployment decode, container vllm: kit taken out\n"


def test_the_options_reach_it(file: Path) -> None:
    more = ["--container", "vllm", "--connector-patch", "Auto", "--image-volume"]
    done = run("-f", str(file), "--image", "i", *more)
    assert "reference: i" in done.out
    assert "initContainers" not in done.out
    assert (
        f"{file}: document 2, line 5: Deployment decode: container vllm: no --kv-transfer-config" in done.err
    )


@pytest.mark.parametrize(
    ("arguments", "stdin", "code", "said"),
    [
        (("-f", "-"), TEXT, 64, "which image has the kit?"),
        (("--image", "i"), "", 64, "Missing option '-f'"),
        (("-f", "/no/such", "--image", "i"), "", 65, "/no/such: cannot be read: No such file"),
        (("-f", "/", "--image", "i"), "", 65, "/: cannot be read: Is a directory"),
        (("-f", "-", "--image", "i"), f"{TEXT}---\n{BROKEN}", 65, "standard input: document 3, line "),
        (("-f", "-", "--image", "i"), "a: [", 65, "standard input: document 1, line 1: is not YAML"),
        (
            ("-f", "-", "--image", "i", "--container", "x"),
            TEXT,
            65,
            "no pod template in it has a container x",
        ),
        (("-f", "-", "--image", "i", "--connector-patch", "auto"), TEXT, 64, "'auto' is not one of"),
    ],
)
def test_what_is_wrong_prints_nothing_but_why(
    arguments: tuple[str, ...], stdin: str, code: int, said: str
) -> None:
    done = run(*arguments, stdin=stdin, STANCH_KIT_IMAGE="")
    assert (done.code, done.out) == (code, "")
    assert said in done.err


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    path = tmp_path / "odd.yaml"
    path.write_bytes(b"a: 1\nb: \xff\n")
    done = run("-f", str(path), "--image", "i")
    assert (done.code, done.out) == (65, "")
    assert "line 2: is not UTF-8 text" in done.err
    with path.open("wb") as out:
        os.ftruncate(out.fileno(), 17 * 1024 * 1024)
    assert "larger than 16 MB" in run("-f", str(path), "--image", "i").err
