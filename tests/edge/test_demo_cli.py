"""`stanch demo --engines` where there are no engines: one sentence, exit code 69, and never a traceback."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import stanch

pytestmark = pytest.mark.unit
PACKAGE = Path(str(stanch.__file__)).parent


def demo(**environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "stanch", "demo", "--engines", "--plain"],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        timeout=60,
    )


def test_an_installed_package_has_no_engines(tmp_path: Path) -> None:
    """As in site-packages: two above the package there is no test bed."""
    site = tmp_path / "lib" / "site-packages"
    shutil.copytree(PACKAGE, site / "stanch", ignore=shutil.ignore_patterns("__pycache__"))
    said = demo(PYTHONPATH=str(site))
    assert said.returncode == 69
    assert said.stdout == ""
    assert said.stderr.startswith("stanch demo: real engines come with a checkout of Stanch")
    assert "`make engines`" in said.stderr
    assert len(said.stderr.splitlines()) == 1


def test_a_checkout_without_engines_says_what_installs_them(tmp_path: Path) -> None:
    said = demo(STANCH_CACHE=str(tmp_path))
    assert said.returncode == 69
    assert said.stdout == ""
    assert said.stderr.startswith("stanch demo: vLLM 0.29.0 is not installed; `make engines` installs it")
    assert len(said.stderr.splitlines()) == 1
