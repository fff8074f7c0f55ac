"""`stanch demo --engines` as a user runs it: the whole story on one prefill and two decode engines."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.engine

STEPS = ["Observe", "Confirm", "Release", "Confirm"]


def living_in(directory: str) -> list[str]:
    """The command lines of the processes that work there, as all of an engine do under any name."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and str(entry.joinpath("cwd").readlink()).startswith(directory):
                found.append(entry.joinpath("cmdline").read_text().replace("\0", " ").strip())
        except OSError:
            continue  # It ended while we looked, or is not ours.
    return found


@pytest.fixture
def scratch() -> Iterator[str]:
    """Where the run puts what it needs. Not tmp_path: vLLM's sockets go there, whose paths must be short."""
    with tempfile.TemporaryDirectory(prefix="demo-") as directory:
        yield directory


def test_a_leak_in_a_real_engine_is_found_and_healed(scratch: str) -> None:
    run = subprocess.run(
        [sys.executable, "-m", "stanch", "demo", "--engines", "--plain"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env={**os.environ, "TMPDIR": scratch},
        timeout=600,
    )
    said = f"exit code {run.returncode}\n{run.stdout}\n{run.stderr}"
    assert run.returncode == 0, said
    assert run.stderr == "", said
    assert living_in(scratch) == []
    assert list(Path(scratch).iterdir()) == []

    # The one that was planted is the one that was found, and nobody else was accused.
    planted = re.search(r"a leak is planted in (decode-\d): ", run.stdout)
    assert planted is not None, said
    assert set(re.findall(r"watchdog: fault: (\S+) ", run.stdout)) == {planted[1]}, said
    story, _, incident = run.stdout.partition("\nLeakIncident ")
    named = re.match(rf"{planted[1]}-[0-9a-f]{{8}}-1: ParkedRemoteKV, Resolved \(Released\)\n", incident)
    assert named is not None, said
    assert "1 prefill and 2 decode engines (real vLLM 0.29.0, on the CPU)" in story, said
    assert re.findall(r"^ +[\d.]+ - +[\d.]+ s  (\w+)  ", incident, re.MULTILINE) == STEPS, said
    assert "confirmed: the engine kit lists the" in incident, said
    for event in ("LeakConfirmed", "Released", "Resolved"):
        assert re.search(rf"^ *[\d.]+ s  {planted[1]}  {event} ", story, re.MULTILINE), said

    # Prompts of 192 to 448 tokens, in blocks of 32; as many requests as came while the leak was planted.
    freed = re.search(r"  Release   (\d) stuck requests?, (\d+) blocks: the engine says done", incident)
    assert freed is not None, said
    count, blocks = int(freed[1]), int(freed[2])
    assert 1 <= count <= 4, said
    assert count * 6 <= blocks <= count * 15, said
    assert len(re.findall(r"^    cmpl-park-demo-\S+  \d+ blocks", incident, re.MULTILINE)) == count, said
    assert "lost besides the stuck ones: 0." in incident, said
    # A machine that is very busy lets one or the other wait for its second.
    probes = re.search(r"200 (\d+) times of (\d+)", incident)
    assert probes is not None, said
    assert int(probes[1]) >= 0.8 * int(probes[2]) >= 8, said
    assert "vLLM 0.29.0 has the known defect" in incident, said
