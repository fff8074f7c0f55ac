"""`stanch inject` as people run it."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from stanch.edge.yaml_values import block
from tests.edge.cli import Done, stanch
from tests.edge.pod_templates import engine, template
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
            "Deployment decode: it has no container x (it has vllm)",
        ),
        (
            ("-f", "-", "--image", "i", "--container", "x"),
            SERVICE,
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


TWO = block(
    {
        "kind": "Pod",
        **template(engine(name="first"), engine(name="second")),
        "metadata": {"name": "two"},
    }
)


def test_two_engines_in_one_pod_are_an_error_until_one_is_named(file: Path) -> None:
    """Never a kit missing where one was asked for, told by nothing but a line among others."""
    done = run("-f", "-", "--image", "i", stdin=f"{TEXT}---\n{TWO}")
    assert (done.code, done.out) == (65, "")
    assert "Pod two: several of its containers start vLLM (first, second): " in done.err
    assert "--container" in done.err
    assert "stanch.dev/inject-container" in done.err
    named = run("-f", "-", "--image", "i", "--container", "second", stdin=TWO)
    assert (named.code, named.err) == (0, "stanch inject: Pod two, container second: kit put in\n")
    # Of several templates with names of their own.
    by_itself = TWO.replace("name: two", "name: two\n  annotations: {stanch.dev/inject-container: first}")
    both = run("-f", "-", "--image", "i", stdin=f"{TEXT}---\n{by_itself}")
    assert "Pod two, container first: kit put in" in both.err
    assert "Deployment decode, container vllm: kit put in" in both.err
    # A name that an engine's template does not have leaves that one without a kit.
    other = run("-f", "-", "--image", "i", "--container", "second", stdin=f"{TEXT}---\n{TWO}")
    assert (other.code, other.out) == (65, "")
    assert "Deployment decode: it has no container second (it has vllm)" in other.err


def test_a_kit_that_cannot_be_taken_out_is_an_error(file: Path) -> None:
    done = run("-f", str(file), "--image", "i")
    broken = done.out.replace('{"container"', '["container"')
    for arguments in (("--remove",), ("--image", "i")):
        again = run("-f", "-", *arguments, stdin=broken)
        assert (again.code, again.out) == (65, "")
        assert "take the kit out by hand" in again.err


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    path = tmp_path / "odd.yaml"
    path.write_bytes(b"a: 1\nb: \xff\n")
    done = run("-f", str(path), "--image", "i")
    assert (done.code, done.out) == (65, "")
    assert "line 2: is not UTF-8 text" in done.err
    with path.open("wb") as out:
        os.ftruncate(out.fileno(), 17 * 1024 * 1024)
    assert "larger than 16 MB" in run("-f", str(path), "--image", "i").err
