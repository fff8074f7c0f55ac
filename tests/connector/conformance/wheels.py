"""A few files out of a big wheel, without downloading the wheel where the package index serves byte ranges.

pip resolves the version to a wheel and reads it, so index, certificates, proxies and credentials are those
that pip is configured with. A wheel is a zip file: its directory stands at its end, and each file is read by
its own range. Where anything of that fails, pip downloads the whole wheel.
"""

from __future__ import annotations

import importlib
import io
import json
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

# Bytes per request at least; the directory of a vLLM wheel has about 600 kB.
BLOCK = 256 * 1024
REQUEST_SECONDS = 60.0
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
CHOICE = ["--no-deps", "--only-binary", ":all:", "--ignore-requires-python"]


class FetchError(Exception):
    """The wheel cannot be had; the message is a sentence for a person."""


class RangedFile(io.RawIOBase):
    """A seekable file of `size` bytes over `get(first, last)`, which returns those bytes, both included."""

    def __init__(self, get: Callable[[int, int], bytes], size: int) -> None:
        self._get, self._size, self._at = get, size, 0
        self._blocks: dict[int, bytes] = {}

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        if self._at >= self._size:
            return 0
        number, offset = divmod(self._at, BLOCK)
        piece = self._block(number)[offset : offset + len(buffer)]
        buffer[: len(piece)] = piece
        self._at += len(piece)
        return len(piece)

    def _block(self, number: int) -> bytes:
        if number not in self._blocks:
            first = number * BLOCK
            last = min(first + BLOCK, self._size) - 1
            data = self._get(first, last)
            if len(data) != last - first + 1:
                raise FetchError(f"asked for bytes {first} to {last}, got {len(data)} bytes")
            self._blocks[number] = data
        return self._blocks[number]


@contextmanager
def opened(requirement: str, seconds: float) -> Iterator[tuple[zipfile.ZipFile, str]]:
    """The wheel of a requirement `name==version`, and how it is read. Raises FetchError.

    `seconds` bounds each of pip's runs.
    """
    try:
        wheel = zipfile.ZipFile(io.BufferedReader(_ranged(_address(requirement, min(seconds, 60.0)))))
    except Exception as error:
        # pip's own parts may fail in any way; what failed is said where the whole wheel fails too.
        with tempfile.TemporaryDirectory(prefix="stanch-wheel-") as scratch:
            _pip(["download", *CHOICE, "-d", scratch, requirement], seconds, f"no byte ranges: {error}")
            with zipfile.ZipFile(next(Path(scratch).glob("*.whl"))) as whole:
                yield whole, "whole wheel"
    else:
        with wheel:
            yield wheel, "byte ranges"


def _address(requirement: str, seconds: float) -> str:
    with tempfile.TemporaryDirectory(prefix="stanch-wheel-") as scratch:
        report = Path(scratch) / "report.json"
        # fast-deps: an index that does not serve metadata apart from the wheel is asked for it by range.
        resolve = ["install", "--dry-run", "--ignore-installed", "--use-feature=fast-deps"]
        resolve += ["--report", str(report)]
        _pip([*resolve, *CHOICE, requirement], seconds, "")
        return str(json.loads(report.read_text())["install"][0]["download_info"]["url"])


def _ranged(address: str) -> RangedFile:
    """The file at this address over pip's own HTTP session.

    pip's names are no interface: another pip may have them elsewhere, and then the wheel is fetched whole.
    """
    command = importlib.import_module("pip._internal.commands").create_command("download")
    options, _ = command.parse_args(["--no-cache-dir", "--quiet"])
    with command.main_context():
        session = command.get_default_session(options)

    def get(first: int, last: int) -> bytes:
        asked = {"Range": f"bytes={first}-{last}", "Accept-Encoding": "identity"}
        with session.get(address, headers=asked, timeout=REQUEST_SECONDS, stream=True) as answer:
            if answer.status_code != 206:
                raise FetchError(f"the index answers {answer.status_code} to a byte range")
            return bytes(answer.content)

    with session.head(address, headers={"Accept-Encoding": "identity"}, timeout=REQUEST_SECONDS) as answer:
        answer.raise_for_status()
        return RangedFile(get, int(answer.headers["Content-Length"]))


def _pip(arguments: list[str], seconds: float, before: str) -> None:
    if seconds <= 0:
        raise FetchError("the time for it is used up")
    started = time.monotonic()
    try:
        done = subprocess.run(
            [*PIP, *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=seconds
        )
    except subprocess.TimeoutExpired:
        raise FetchError(f"pip {arguments[0]} took over {time.monotonic() - started:.0f} s") from None
    if done.returncode:
        words = (done.stderr.strip().splitlines() or ["no word"])[-1]
        raise FetchError("; ".join(filter(None, [before, f"pip {arguments[0]}: {words}"])))
