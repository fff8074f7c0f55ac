"""The kit's unit tests under the other Pythons that engine images have: `python -m tests.connector.pythons`.

Each runs in a throw-away environment with the locked versions of what the tests import, and nothing that the
kit could lean on by mistake. An interpreter is taken from PATH, from pyenv, or from uv, which downloads one
where it can. A Python that cannot be had is named at the end with the reason; that alone is no failure.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

VERSIONS = ("3.10", "3.11", "3.12", "3.13")
ROOT = Path(__file__).parents[2]
NEEDED = ("pytest", "hypothesis", "prometheus-client", "hatchling", "editables")
UV = [sys.executable, "-m", "uv"]
DOWNLOAD_SECONDS = 120.0


def interpreter(version: str) -> Path | str:
    """An interpreter of this minor version, or the reason why there is none."""
    for found in _candidates(version):
        if _answers(found, version):
            return found
    try:
        done = subprocess.run(
            [*UV, "python", "install", "--no-bin", version],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=DOWNLOAD_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return f"none on this machine, and uv could not download one in {DOWNLOAD_SECONDS:.0f} s"
    if done.returncode:
        words = (done.stderr.strip().splitlines() or ["no word"])[-1].strip()
        return f"none on this machine, and uv could not download one: {words}"
    return _of_uv(version) or "uv says that it installed one, and does not find it"


def _candidates(version: str) -> Iterator[Path]:
    on_path = shutil.which(f"python{version}")
    if on_path is not None:
        yield Path(on_path)
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    yield from sorted(pyenv.glob(f"versions/{version}.*/bin/python"), reverse=True)
    managed = _of_uv(version)
    if managed is not None:
        yield managed


def _answers(python: Path, version: str) -> bool:
    """Whether it runs and is of this version: pyenv puts names on PATH that do not."""
    said = "import sys; print('%d.%d' % sys.version_info[:2])"
    done = subprocess.run([python, "-c", said], capture_output=True, text=True)
    return done.returncode == 0 and done.stdout.strip() == version


def _of_uv(version: str) -> Path | None:
    done = subprocess.run(
        [*UV, "python", "find", "--managed-python", version], capture_output=True, text=True
    )
    return Path(done.stdout.strip()) if done.returncode == 0 else None


def run(python: Path) -> int:
    """The exit code of pytest, or of what goes before it."""
    with tempfile.TemporaryDirectory(prefix="stanch-python-") as scratch:
        there = str(Path(scratch) / "bin" / "python")
        install = [*UV, "pip", "install", "--quiet", "--python", there]
        for command in (
            [*UV, "venv", "--quiet", "--python", str(python), scratch],
            [*install, "-c", "requirements.lock", *NEEDED],
            [*install, "--no-deps", "--no-build-isolation", "-e", "."],
            [there, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "unit", "tests/connector"],
        ):
            code = subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL).returncode
            if code:
                return code
    return 0


def main(versions: list[str]) -> int:
    """Run those named, else every one but this Python, which the unit tier ran. Exit code 1 if one failed."""
    own = f"{sys.version_info[0]}.{sys.version_info[1]}"
    said: list[str] = []
    failed = False
    for version in versions or [one for one in VERSIONS if one != own]:
        python = interpreter(version)
        if isinstance(python, str):
            said.append(f"Python {version}: SKIPPED: {python}")
            continue
        print(f"--- Python {version}: {python}", flush=True)
        code = run(python)
        failed = failed or code != 0
        said.append(f"Python {version}: {'passed' if code == 0 else f'FAILED (exit code {code})'}")
    print("\n".join(said), flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
